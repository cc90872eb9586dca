#include "sim/importers/hybrid_pattern.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace rehearse::importers {

HybridPattern hybrid_pattern(const std::string& text) {
  HybridPattern out;
  out.chunks.push_back(0);
  const std::size_t end = std::min(text.find('/'), text.size());
  for (const char c : text.substr(0, end)) {
    if (c == '|') {
      out.chunks.push_back(0);
    } else if (c == 'M' || c == 'G' || c == '*' || c == '-' || c == 'E') {
      out.letters += c;
      ++out.chunks.back();
    } else if (c != '"' && c != '\'' && c != ' ') {
      out.problem = fmt::format("layers of the kind '{}'", c);
      return out;
    }
  }
  // A prediction layer is attention with experts, or with an MLP where the model has none (model::prediction_layer).
  const std::string_view whole = out.letters.find('E') != std::string::npos ? "*E" : "*-";
  for (std::size_t from = end; from < text.size();) {
    const std::size_t to = std::min(text.find('/', from + 1), text.size());
    std::string part = text.substr(from + 1, to - from - 1);
    std::erase_if(part, [](char c) { return c == '"' || c == '\'' || c == ' '; });
    if (!part.empty() && part != whole) {
      out.problem = fmt::format("multi-token prediction by layers {}", part);
      return out;
    }
    out.predictions += part.empty() ? 0 : 1;
    from = to;
  }
  if (out.letters.empty()) out.problem = "a pattern without layers";
  return out;
}

}  // namespace rehearse::importers
