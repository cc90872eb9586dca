#include "sim/importers/shell_arithmetic.h"

#include <charconv>

namespace rehearse::importers {
namespace {

class Arithmetic {
 public:
  explicit Arithmetic(std::string_view text) : text_(text) {}
  std::optional<std::int64_t> value() {
    auto v = sum(0);
    const std::string_view how = comparison();
    if (!how.empty()) {
      const auto w = sum(0);
      if (!v || !w) return std::nullopt;
      v = how == "<" ? *v < *w : how == ">" ? *v > *w : how == "<=" ? *v <= *w : how == ">=" ? *v >= *w : how == "==" ? *v == *w : *v != *w;
    }
    skip();
    return text_.empty() ? v : std::nullopt;
  }

 private:
  void skip() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t')) text_.remove_prefix(1);
  }
  bool take(char c) {
    skip();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  std::string_view comparison() {
    skip();
    for (const std::string_view how : {"<=", ">=", "==", "!=", "<", ">"})
      if (text_.starts_with(how)) return text_.remove_prefix(how.size()), how;
    return {};
  }
  std::optional<std::int64_t> atom(int depth) {
    skip();
    if (depth > 32) return std::nullopt;
    if (take('(')) {
      const auto v = sum(depth + 1);
      return take(')') ? v : std::nullopt;
    }
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), v);
    if (error != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return v;
  }
  std::optional<std::int64_t> product(int depth) {
    auto v = atom(depth);
    while (v) {
      const bool times = take('*');
      if (!times && !take('/')) break;
      const auto w = atom(depth);
      if (!w || (!times && *w == 0)) return std::nullopt;
      std::int64_t out = 0;
      if (times ? __builtin_mul_overflow(*v, *w, &out) : (*w == -1 && *v == INT64_MIN)) return std::nullopt;
      v = times ? out : *v / *w;
    }
    return v;
  }
  std::optional<std::int64_t> sum(int depth) {
    auto v = product(depth);
    while (v) {
      const bool plus = take('+');
      if (!plus && !take('-')) break;
      const auto w = product(depth);
      std::int64_t out = 0;
      if (!w || (plus ? __builtin_add_overflow(*v, *w, &out) : __builtin_sub_overflow(*v, *w, &out))) return std::nullopt;
      v = out;
    }
    return v;
  }
  std::string_view text_;
};

}  // namespace

std::optional<std::int64_t> arithmetic_value(std::string_view text) { return Arithmetic(text).value(); }

}  // namespace rehearse::importers
