#include "sim/importers/list_expression.h"

#include "sim/importers/expression_text.h"

namespace rehearse::importers {
namespace {

using Numbers = std::vector<std::int64_t>;

class Expression {
 public:
  explicit Expression(std::string_view text) : text_(text) {}

  std::optional<Numbers> value() {
    const auto all = sum(0);
    return text_.over() ? all : std::nullopt;
  }

 private:
  static constexpr std::size_t kMost = 100'000;
  static constexpr int kDeepest = 32;

  std::optional<Numbers> list() {
    Numbers all;
    if (text_.take("]")) return all;
    do {
      const auto n = text_.number();
      if (!n || all.size() >= kMost) return std::nullopt;
      all.push_back(*n);
    } while (text_.take(","));
    return text_.take("]") ? std::optional(all) : std::nullopt;
  }

  std::optional<Numbers> product(int depth) {
    std::optional<Numbers> all;
    if (depth > kDeepest) return std::nullopt;
    if (text_.take("[")) all = list();
    else if (text_.take("(") && (all = sum(depth + 1)) && !text_.take(")")) all.reset();
    while (all && text_.take("*")) {
      const auto times = text_.number();
      if (!times || *times < 0 || (!all->empty() && static_cast<std::size_t>(*times) > kMost / all->size())) return std::nullopt;
      Numbers repeated;
      for (std::int64_t i = 0; i < *times && !all->empty(); ++i) repeated.insert(repeated.end(), all->begin(), all->end());
      all = std::move(repeated);
    }
    return all;
  }

  std::optional<Numbers> sum(int depth) {
    auto all = product(depth);
    while (all && text_.take("+")) {
      const auto more = product(depth);
      if (!more || all->size() + more->size() > kMost) return std::nullopt;
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  ExpressionText text_;
};

}  // namespace

std::optional<Numbers> parse_list_expression(std::string_view text) { return Expression(text).value(); }

}  // namespace rehearse::importers
