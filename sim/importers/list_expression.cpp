#include "sim/importers/list_expression.h"

#include <charconv>

namespace rehearse::importers {
namespace {

using Numbers = std::vector<std::int64_t>;

class Expression {
 public:
  explicit Expression(std::string_view text) : text_(text) {}

  std::optional<Numbers> value() {
    const auto all = sum(0);
    skip();
    return text_.empty() ? all : std::nullopt;
  }

 private:
  static constexpr std::size_t kMost = 100'000;
  static constexpr int kDeepest = 32;

  void skip() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t')) text_.remove_prefix(1);
  }

  bool take(char c) {
    skip();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  std::optional<std::int64_t> number() {
    skip();
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), n);
    if (error != std::errc{}) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return n;
  }

  std::optional<Numbers> list() {
    Numbers all;
    if (take(']')) return all;
    do {
      const auto n = number();
      if (!n || all.size() >= kMost) return std::nullopt;
      all.push_back(*n);
    } while (take(','));
    return take(']') ? std::optional(all) : std::nullopt;
  }

  std::optional<Numbers> product(int depth) {
    std::optional<Numbers> all;
    if (depth > kDeepest) return std::nullopt;
    if (take('[')) all = list();
    else if (take('(') && (all = sum(depth + 1)) && !take(')')) all.reset();
    while (all && take('*')) {
      const auto times = number();
      if (!times || *times < 0 || (!all->empty() && static_cast<std::size_t>(*times) > kMost / all->size())) return std::nullopt;
      Numbers repeated;
      for (std::int64_t i = 0; i < *times && !all->empty(); ++i) repeated.insert(repeated.end(), all->begin(), all->end());
      all = std::move(repeated);
    }
    return all;
  }

  std::optional<Numbers> sum(int depth) {
    auto all = product(depth);
    while (all && take('+')) {
      const auto more = product(depth);
      if (!more || all->size() + more->size() > kMost) return std::nullopt;
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  std::string_view text_;
};

}  // namespace

std::optional<Numbers> parse_list_expression(std::string_view text) { return Expression(text).value(); }

}  // namespace rehearse::importers
