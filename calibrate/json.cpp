#include "calibrate/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>

#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

/// Bytes of the UTF-8 character that begins here; 0 when none does. Source: RFC 3629, section 4.
std::size_t character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) { return byte(i) >= low && byte(i) <= high; };
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  if (first >= 0xF0 && first <= 0xF4) return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  const auto rest = [&](unsigned shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) put(code);
  else if (code < 0x800) put(0xC0 | code >> 6), rest(0);
  else if (code < 0x10000) put(0xE0 | code >> 12), rest(6), rest(0);
  else put(0xF0 | code >> 18), rest(12), rest(6), rest(0);
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  ParsedJson parse() {
    out_.root = value();
    skip_space();
    if (at_ < text_.size()) fail("something follows the end of the value");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw JsonError("syntax error: " + why, place_of_byte(text_, at_)); }

  /// Lines are counted as they are passed: places cost nothing.
  void step() {
    if (text_[at_] == '\n') ++line_, line_start_ = at_ + 1;
    ++at_;
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') step();
  }
  void expect(char c, const char* what) {
    if (peek() != c || at_ == text_.size()) fail(at_ == text_.size() ? std::string("the text ends where ") + what + " was expected" : std::string(what) + " was expected");
    step();
  }

  JsonValue value() {
    skip_space();
    JsonValue out;
    out.at = {line_, 1 + static_cast<int>(at_ - line_start_)};
    if (depth_ == 100) fail("more than 100 levels");
    ++depth_;
    switch (peek()) {
      case '{': out.value = members(); break;
      case '[': out.value = items(); break;
      case '"': out.value = string(); break;
      default: scalar(out);
    }
    --depth_;
    return out;
  }

  JsonValue::Members members() {
    JsonValue::Members out;
    std::set<std::string, std::less<>> keys;
    step();
    skip_space();
    if (peek() == '}') return step(), out;
    while (true) {
      skip_space();
      if (peek() != '"') fail("a key in quotes was expected");
      std::string key = string();
      skip_space();
      expect(':', "a colon");
      const bool twice = !keys.insert(key).second && out_.repeated.empty();
      path_.emplace_back(key);
      if (twice) out_.repeated = path_;
      JsonValue member = value();
      if (twice) out_.repeated_at = member.at;
      path_.pop_back();
      out.emplace_back(std::move(key), std::move(member));
      skip_space();
      if (peek() == '}') return step(), out;
      expect(',', "a comma or }");
    }
  }

  JsonValue::Items items() {
    JsonValue::Items out;
    step();
    skip_space();
    if (peek() == ']') return step(), out;
    while (true) {
      path_.emplace_back(out.size());
      out.push_back(value());
      path_.pop_back();
      skip_space();
      if (peek() == ']') return step(), out;
      expect(',', "a comma or ]");
    }
  }

  unsigned four_digits() {
    unsigned code = 0;
    const char* begin = text_.data() + std::min(at_, text_.size());
    const char* end = begin + std::min<std::size_t>(4, text_.size() - std::min(at_, text_.size()));
    if (end - begin != 4 || std::from_chars(begin, end, code, 16).ptr != end) fail("four hexadecimal digits were expected");
    at_ += 4;
    return code;
  }

  std::string string() {
    std::string out;
    step();
    while (true) {
      if (at_ >= text_.size()) fail("the text ends inside quotes");
      const char c = text_[at_];
      if (c == '"') return step(), out;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character inside quotes");
      if (c != '\\') {
        const std::size_t bytes = character_at(text_, at_);
        if (bytes == 0) fail("a byte that is no UTF-8");
        out += text_.substr(at_, bytes);
        at_ += bytes;
        continue;
      }
      step();
      constexpr std::string_view kShort = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
      if (const std::size_t i = kShort.find(peek()); peek() != '\0' && i != std::string_view::npos) {
        out += kMeaning[i];
        step();
        continue;
      }
      if (peek() != 'u') fail("no such escape");
      step();
      unsigned code = four_digits();
      if (code >= 0xDC00 && code <= 0xDFFF) fail("half a pair of surrogates");
      if (code >= 0xD800 && code <= 0xDBFF) {
        if (text_.substr(at_, 2) != "\\u") fail("half a pair of surrogates");
        at_ += 2;
        const unsigned low = four_digits();
        if (low < 0xDC00 || low > 0xDFFF) fail("half a pair of surrogates");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      }
      append_utf8(out, code);
    }
  }

  void scalar(JsonValue& out) {
    for (const auto& [word, meaning] : {std::pair<std::string_view, std::optional<bool>>{"true", true}, {"false", false}, {"null", std::nullopt}})
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        if (meaning) out.value = *meaning;
        return;
      }
    // -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
    const std::size_t begin = at_;
    const auto digits = [&] {
      const std::size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) fail(first == begin ? (at_ == text_.size() ? "the text ends where a value was expected" : "a value was expected") : "a digit was expected");
    };
    if (peek() == '-') ++at_;
    if (peek() == '0') ++at_;
    else digits();
    bool whole = true;
    if (peek() == '.') ++at_, digits(), whole = false;
    if (peek() == 'e' || peek() == 'E') {
      ++at_, whole = false;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const std::string number(text_.substr(begin, at_ - begin));
    std::int64_t integer = 0;
    if (whole && std::from_chars(number.data(), number.data() + number.size(), integer).ec == std::errc{}) {
      out.value = integer;
      return;
    }
    double real = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), real).ec == std::errc::result_out_of_range) {
      real = std::strtod(number.c_str(), nullptr);  // the same error stands for too small: that is 0
      if (std::abs(real) > 1) throw JsonError("the number " + number + " is too large", out.at);
    }
    out.value = real;
  }

  std::string_view text_;
  std::size_t at_ = 0, line_start_ = 0;
  int line_ = 1, depth_ = 0;
  JsonPath path_;
  ParsedJson out_;
};

}  // namespace

Place place_of_byte(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return {1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')), 1 + static_cast<int>(before.size() - line_start)};
}

std::string to_string(const JsonPath& path) {
  std::string out;
  for (const auto& part : path) {
    if (const auto* key = std::get_if<std::string>(&part)) out += (out.empty() ? "" : ".") + *key;
    else out += "[" + std::to_string(std::get<std::size_t>(part)) + "]";
  }
  return out;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto* members = get<Members>();
  if (members == nullptr) return nullptr;
  const auto found = std::find_if(members->rbegin(), members->rend(), [&](const auto& m) { return m.first == key; });
  return found == members->rend() ? nullptr : &found->second;
}

double JsonValue::number() const {
  EXPECTS(is_number());
  return get<double>() != nullptr ? *get<double>() : static_cast<double>(*get<std::int64_t>());
}

ParsedJson parse_json(std::string_view text) { return JsonParser(text).parse(); }

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_at(text, at);
    const char c = text[at];
    if (bytes == 0) out += "\xEF\xBF\xBD";
    else if (c == '"' || c == '\\') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += text.substr(at, bytes);
    }
    at += std::max<std::size_t>(bytes, 1);
  }
  return out + "\"";
}

std::string json_number(double value) {
  EXPECTS(std::isfinite(value));
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string out(text, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

}  // namespace rehearse::calibrate
