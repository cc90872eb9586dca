// A text of an expression that is read from its front. Leaves out what the expression means (list_expression.h, shell_arithmetic.h).
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace rehearse::importers {

class ExpressionText {
 public:
  explicit ExpressionText(std::string_view text) : text_(text) {}

  /// Nothing but spaces is left.
  bool over() {
    skip();
    return text_.empty();
  }
  bool take(std::string_view word) {
    skip();
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  /// Nothing, too, where the number does not go into 64 bits.
  std::optional<std::int64_t> number() {
    skip();
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), n);
    if (error != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return n;
  }

 private:
  void skip() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t')) text_.remove_prefix(1);
  }

  std::string_view text_;
};

}  // namespace rehearse::importers
