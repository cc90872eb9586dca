#include "sim/importers/shell_commands.h"

#include <algorithm>
#include <vector>

namespace rehearse::importers {
namespace {

/// Words of a command, quotes and brackets kept; && and ; are words, what it sends elsewhere is dropped.
std::vector<std::string> command_words(const std::string& command) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < command.size();) {
    const char c = command[at];
    if (c == ' ' || c == '\t' || c == '\n') {
      ++at;
    } else if (c == ';' || c == '|' || command.compare(at, 2, "&&") == 0) {
      out.emplace_back(c == '&' ? "&&" : std::string(1, c));
      at += out.back().size();
    } else {
      const std::size_t begin = at;
      char quote = '\0';
      for (; at < command.size(); ++at) {
        const char d = command[at];
        if (d == '$' && at + 1 < command.size() && command[at + 1] == '(' && quote != '\'') {
          const std::size_t end = closing_bracket(command, at + 1);
          if (end == std::string::npos) return {};
          at = end;
        } else if (quote != '\0') {
          if (d == quote) quote = '\0';
        } else if (d == '"' || d == '\'') {
          quote = d;
        } else if (d == ' ' || d == '\t' || d == '\n' || d == ';' || d == '|') {
          break;
        }
      }
      const std::string word = command.substr(begin, at - begin);
      if (word.find('>') == std::string::npos) out.push_back(word);
    }
  }
  return out;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::size_t closing_bracket(std::string_view text, std::size_t open) {
  int depth = 0;
  char quote = '\0';
  std::vector<char> outer;   // quotes around each $( ... )
  for (std::size_t at = open; at < text.size() && at - open < 400; ++at) {
    const char c = text[at];
    if (c == '(' && quote != '\'' && (quote == '\0' || text[at - 1] == '$')) {
      outer.push_back(quote);
      quote = '\0';
      ++depth;
    } else if (c == ')' && quote == '\0') {
      if (--depth == 0) return at;
      quote = outer.back();
      outer.pop_back();
    } else if (quote != '\0') {
      if (c == quote) quote = '\0';
    } else if (c == '"' || c == '\'') {
      quote = c;
    }
  }
  return std::string_view::npos;
}

std::optional<std::string> printed_by(const std::string& command, const WordValue& value) {
  std::vector<std::string> words = command_words(command);
  std::string separator = " ";
  if (words.size() > 2 && words[0].starts_with("IFS=") && words[1] == ";") {
    const auto given = value(words[0].substr(4));
    if (!given) return std::nullopt;
    separator = given->substr(0, 1);
    words.erase(words.begin(), words.begin() + 2);
  }
  std::erase_if(words, [](const std::string& w) { return w.starts_with('-'); });   // options, and the end of them
  if (words.size() < 2) return std::nullopt;
  const std::string& what = words[0];
  if (what == "echo" && words.size() == 2) {
    const std::string& array = words[1];
    if (array.find("[*]}") == std::string::npos && array.find("[@]}") == std::string::npos) return std::nullopt;
    auto joined = value(array);   // with a line break between elements
    if (!joined) return std::nullopt;
    std::string out;
    for (const char c : *joined) c == '\n' ? out += separator : out += c;
    return out;
  }
  const auto path = value(words[1]);
  if (!path || path->empty()) return std::nullopt;
  if (words.size() == 2 && what == "dirname") return folder_of(*path);
  if (words.size() == 2 && what == "basename") return path->substr(path->find_last_of('/') + 1);
  if (words.size() == 2 && (what == "realpath" || what == "readlink")) return path;
  if (words.size() == 4 && what == "cd" && (words[2] == "&&" || words[2] == ";") && words[3] == "pwd") return path;
  return std::nullopt;
}

std::optional<std::filesystem::path> sourced_file(std::string name, const std::string& script, const std::string& main_script) {
  for (const std::string_view here : {"`pwd`/", "$PWD/", "${PWD}/", "$(pwd)/"})
    if (name.starts_with(here)) name.erase(0, here.size());
  if (name.empty() || name.find_first_of("$`") != std::string::npos) return std::nullopt;
  const std::filesystem::path path(name);
  for (const std::filesystem::path& folder : {std::filesystem::path(script).parent_path(), std::filesystem::path(main_script).parent_path(), std::filesystem::path()}) {
    std::error_code ignored;
    const std::filesystem::path candidate = (folder / path).lexically_normal();
    if (std::filesystem::is_regular_file(candidate, ignored)) return candidate;
  }
  return std::nullopt;
}

bool prepares_shell(const std::string& name) {
  for (const char* end : {"/activate", "bashrc", "profile", "conda.sh", "/hpcx-init.sh", "setvars.sh"})
    if (name.ends_with(end)) return true;
  return name.starts_with("/etc/");
}

}  // namespace rehearse::importers
