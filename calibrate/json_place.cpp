#include "calibrate/json_place.h"

#include <algorithm>
#include <optional>

namespace rehearse::calibrate {
namespace {

/// Steps over well-formed JSON; on anything else it stops at the end of the text.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  std::size_t position() const { return at_; }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }

  char next() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void step() { at_ = std::min(at_ + 1, text_.size()); }

  /// The string that begins here, its escapes left as they are written.
  std::string_view take_string() {
    step();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ = std::min(at_ + (text_[at_] == '\\' ? 2 : 1), text_.size());
    const std::string_view out = text_.substr(begin, at_ - begin);
    step();
    return out;
  }

  void skip_value() {
    int depth = 0;
    do {
      const char c = next();
      if (c == '\0') return;
      if (c == '"') {
        take_string();
      } else {
        depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
        if (std::string_view("{}[],:").find(c) != std::string_view::npos) step();
        else while (at_ < text_.size() && std::string_view("{}[],: \n\r\t\"").find(text_[at_]) == std::string_view::npos) ++at_;
      }
    } while (depth > 0);
  }

  /// From the value's first character to that of its member; false when there is none. The last of equal keys counts.
  bool enter(const std::string& key) {
    if (next() != '{') return false;
    step();
    std::optional<std::size_t> found;
    while (next() == '"') {
      const bool here = take_string() == key;
      next();
      step();  // the colon
      skip_space();
      if (here) found = at_;
      skip_value();
      if (next() == ',') step();
    }
    if (found) at_ = *found;
    return found.has_value();
  }
  bool enter(std::size_t index) {
    if (next() != '[') return false;
    step();
    for (std::size_t i = 0; next() != ']' && next() != '\0'; ++i) {
      if (i == index) return true;
      skip_value();
      if (next() == ',') step();
    }
    return false;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Place place_of_byte(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return {1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')), 1 + static_cast<int>(before.size() - line_start)};
}

Place place_of(std::string_view json, const JsonPath& path) {
  Walker walker(json);
  for (const auto& part : path)
    if (!std::visit([&](const auto& p) { return walker.enter(p); }, part)) return {};
  walker.skip_space();
  return place_of_byte(json, walker.position());
}

std::string to_string(const JsonPath& path) {
  std::string out;
  for (const auto& part : path) {
    if (const auto* key = std::get_if<std::string>(&part)) out += (out.empty() ? "" : ".") + *key;
    else out += "[" + std::to_string(std::get<std::size_t>(part)) + "]";
  }
  return out;
}

}  // namespace rehearse::calibrate
