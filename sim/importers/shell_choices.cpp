#include "sim/importers/shell_choices.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>

namespace rehearse::importers {
namespace {

using Words = std::span<const ShellWord>;

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

/// What only running the script would tell.
bool is_open(std::string_view text) { return text.find_first_of("$`") != std::string_view::npos; }

std::optional<bool> compared(std::string_view a, std::string_view how, std::string_view b) {
  if (is_open(a) || is_open(b)) return std::nullopt;
  const bool equals = how == "=" || how == "==";
  if (equals || how == "!=") {
    if (b.find_first_of("*?") != std::string_view::npos) return std::nullopt;   // a pattern, between [[ and ]]
    return (a == b) == equals;
  }
  const auto x = whole(a), y = whole(b);
  if (!x || !y) return std::nullopt;
  if (how == "-eq") return *x == *y;
  if (how == "-ne") return *x != *y;
  if (how == "-lt") return *x < *y;
  if (how == "-le") return *x <= *y;
  if (how == "-gt") return *x > *y;
  if (how == "-ge") return *x >= *y;
  return std::nullopt;
}

/// $NAME or ${NAME} that neither the script nor its user sets; not what the shell itself sets, arguments and options above all.
bool is_unset(std::string_view text) {
  if (!text.starts_with('$')) return false;
  text.remove_prefix(1);
  if (text.starts_with('{') && text.ends_with('}')) text = text.substr(1, text.size() - 2);
  if (text.empty() || (text[0] >= '0' && text[0] <= '9') || text == "OPTARG" || text == "REPLY") return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::optional<bool> one_test(Words words) {
  if (!words.empty() && words.front().text == "!") {
    const auto inside = one_test(words.subspan(1));
    return inside ? std::optional(!*inside) : std::nullopt;
  }
  if (words.empty()) return std::nullopt;
  const std::string_view begin = words.front().text;
  if (begin == "test") {
    words = words.subspan(1);
  } else if (words.size() >= 2 && ((begin == "[" && words.back().text == "]") || (begin == "[[" && words.back().text == "]]"))) {
    words = words.subspan(1, words.size() - 2);
    if (!words.empty() && words.front().text == "!") {
      words = words.subspan(1);
      const auto inside = words.size() == 3 ? compared(words[0].text, words[1].text, words[2].text) : std::nullopt;
      return inside ? std::optional(!*inside) : std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  if (words.size() == 3) return compared(words[0].text, words[1].text, words[2].text);
  if (words.size() == 2 && (words[0].text == "-z" || words[0].text == "-n") && (!is_open(words[1].text) || is_unset(words[1].text)))
    return (words[1].text.empty() || is_unset(words[1].text)) == (words[0].text == "-z");
  return std::nullopt;
}

/// The places of `sign` written twice, && or ||: words of one character each.
std::vector<Words> split(Words words, std::string_view sign) {
  std::vector<Words> parts;
  std::size_t from = 0;
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i].text == sign && words[i + 1].text == sign) {
      parts.push_back(words.subspan(from, i - from));
      from = ++i + 1;
    }
  parts.push_back(words.subspan(from));
  return parts;
}

/// Nothing where neither a part decides nor all are known.
template <typename Truth>
std::optional<bool> combined(const std::vector<Words>& parts, bool decides, const Truth& truth) {
  bool known = true;
  for (const Words part : parts) {
    const auto t = truth(part);
    if (t == decides) return decides;
    known = known && t;
  }
  return known ? std::optional(!decides) : std::nullopt;
}

}  // namespace

std::optional<bool> truth_of(const std::vector<ShellWord>& condition) {
  Words words(condition);
  while (!words.empty() && (words.back().text == ";" || words.back().text.empty())) words = words.first(words.size() - 1);
  // A shell takes && and || from the left, alike; with both of them in one condition the order would matter.
  const auto conjunction = split(words, "&"), alternatives = split(words, "|");
  if (conjunction.size() > 1 && alternatives.size() > 1) return std::nullopt;
  return conjunction.size() > 1 ? combined(conjunction, false, one_test) : combined(alternatives, true, one_test);
}

std::optional<bool> matches(const std::string& subject, const std::vector<std::string>& patterns) {
  bool known = !is_open(subject);
  for (const std::string& pattern : patterns) {
    if (pattern == "*") return true;
    if (is_open(pattern)) known = false;
    else if (!is_open(subject) && fnmatch(pattern.c_str(), subject.c_str(), 0) == 0) return true;
  }
  return known ? std::optional(false) : std::nullopt;
}

bool ShellChoices::reads() const {
  return std::all_of(open_.begin(), open_.end(), [](const Choice& c) { return c.reads; });
}

bool ShellChoices::certain() const {
  return std::all_of(open_.begin(), open_.end(), [](const Choice& c) { return c.decided; });
}

void ShellChoices::enter(std::optional<bool> condition) { open_.push_back({condition.value_or(true), condition == true, condition.has_value()}); }

void ShellChoices::otherwise(std::optional<bool> condition) {
  if (open_.empty()) return;
  Choice& c = open_.back();
  c.reads = !c.settled && condition.value_or(true);
  c.settled = c.settled || condition == true;
  c.decided = c.decided && condition.has_value();
}

void ShellChoices::otherwise() { otherwise(true); }

void ShellChoices::leave() {
  if (!open_.empty()) open_.pop_back();
}

}  // namespace rehearse::importers
