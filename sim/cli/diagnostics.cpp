#include "sim/cli/diagnostics.h"

#include <fmt/format.h>

namespace rehearse::cli {
namespace {

class Paint {
 public:
  explicit Paint(bool on) : on_(on) {}
  std::string error(const std::string& s) const { return in("1;31", s); }
  std::string frame(const std::string& s) const { return in("1;34", s); }
  std::string help(const std::string& s) const { return in("1;36", s); }
  std::string bold(const std::string& s) const { return in("1", s); }

 private:
  std::string in(const char* code, const std::string& s) const { return on_ ? fmt::format("\033[{}m{}\033[0m", code, s) : s; }
  bool on_;
};

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// Control characters would move the mark, or the terminal.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\t' ? ' ' : (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
  return out;
}

/// Byte offset of a column that counts characters from 1; npos beyond the end.
std::size_t offset_of(const std::string& line, int column) {
  int seen = 0;
  for (std::size_t i = 0; i < line.size(); ++i)
    if (!continues_character(line[i]) && ++seen == column) return i;
  return std::string::npos;
}

/// Words of a command end at a blank, values of YAML and JSON do not: a script, or an argument or something behind one.
bool is_command(const std::string& file, const std::string& line, std::size_t begin) {
  return file.ends_with(".sh") || line.compare(begin, 2, "--") == 0 || (" " + line.substr(0, begin)).find(" --") != std::string::npos;
}

/// Characters of the key or value that starts at `begin`: what the mark underlines.
std::size_t token_length(const std::string& file, const std::string& line, std::size_t begin) {
  std::size_t end;
  const char quote = line[begin];
  if (quote == '"' || quote == '\'') {
    const std::size_t close = line.find(quote, begin + 1);
    end = close == std::string::npos ? line.size() : close + 1;
  } else if (is_command(file, line, begin)) {
    end = std::min(line.find(' ', begin), line.size());
  } else if (quote == '[' || quote == '{') {
    end = begin + 1;
  } else {
    end = begin;
    while (end < line.size() && !(line[end] == ':' && (end + 1 == line.size() || line[end + 1] == ' ')) && line[end] != ',' && line[end] != ']' && line[end] != '}' &&
           !(line[end] == '#' && end > 0 && line[end - 1] == ' '))
      ++end;
    while (end > begin + 1 && line[end - 1] == ' ') --end;
  }
  std::size_t characters = 0;
  for (std::size_t i = begin; i < end; ++i)
    if (!continues_character(line[i])) ++characters;
  return std::max<std::size_t>(1, characters);
}

/// What a message says of a value is as long as the value: no value is worth more than a few lines.
std::string brief(const std::string& text) {
  constexpr std::size_t kMost = 2000;
  if (text.size() <= kMost) return printable(text);
  std::size_t end = kMost;
  while (continues_character(text[end])) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string excerpt(const Diagnostic& d, const Paint& paint) {
  const std::string number = std::to_string(d.at.line), pad(number.size(), ' ');
  const std::string line = printable(d.excerpt);
  std::string text = paint.frame(pad + " |") + "\n" + paint.frame(number + " |") + " " + line + "\n" + paint.frame(pad + " |");
  const std::size_t begin = d.at.column > 0 ? offset_of(line, d.at.column) : std::string::npos;
  if (begin != std::string::npos) text += " " + std::string(static_cast<std::size_t>(d.at.column) - 1, ' ') + paint.error(std::string(token_length(d.at.file, line, begin), '^'));
  return text + "\n";
}

}  // namespace

std::string show(const std::vector<Diagnostic>& diagnostics, bool colour) {
  const Paint paint(colour);
  std::string text;
  for (const Diagnostic& d : diagnostics) {
    const std::string pad(d.at.line > 0 ? std::to_string(d.at.line).size() : 1, ' ');
    text += paint.error("error") + paint.bold(": " + brief((d.key.empty() ? "" : d.key + ": ") + d.problem)) + "\n";
    if (!d.at.file.empty()) text += pad + paint.frame("--> ") + printable(to_string(d.at)) + "\n";
    if (d.at.line > 0 && !d.excerpt.empty()) text += excerpt(d, paint);
    if (!d.fix.empty()) text += pad + " = " + paint.help("help") + ": " + brief(d.fix) + "\n";
    text += "\n";
  }
  if (diagnostics.size() > 1) text += fmt::format("{} mistakes; nothing was done\n", diagnostics.size());
  return text;
}

}  // namespace rehearse::cli
