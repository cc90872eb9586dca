#include "sim/importers/shell_arithmetic.h"

#include "sim/importers/expression_text.h"

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
    return text_.over() ? v : std::nullopt;
  }

 private:
  std::string_view comparison() {
    for (const std::string_view how : {"<=", ">=", "==", "!=", "<", ">"})
      if (text_.take(how)) return how;
    return {};
  }
  std::optional<std::int64_t> atom(int depth) {
    if (depth > 32) return std::nullopt;
    if (text_.take("(")) {
      const auto v = sum(depth + 1);
      return text_.take(")") ? v : std::nullopt;
    }
    return text_.number();
  }
  std::optional<std::int64_t> product(int depth) {
    auto v = atom(depth);
    while (v) {
      const bool times = text_.take("*");
      if (!times && !text_.take("/")) break;
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
      const bool plus = text_.take("+");
      if (!plus && !text_.take("-")) break;
      const auto w = product(depth);
      std::int64_t out = 0;
      if (!w || (plus ? __builtin_add_overflow(*v, *w, &out) : __builtin_sub_overflow(*v, *w, &out))) return std::nullopt;
      v = out;
    }
    return v;
  }
  ExpressionText text_;
};

}  // namespace

std::optional<std::int64_t> arithmetic_value(std::string_view text) { return Arithmetic(text).value(); }

}  // namespace rehearse::importers
