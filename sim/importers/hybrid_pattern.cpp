#include "sim/importers/hybrid_pattern.h"

#include <fmt/core.h>

namespace rehearse::importers {

HybridPattern hybrid_pattern(const std::string& text) {
  HybridPattern out;
  out.chunks.push_back(0);
  for (const char c : text) {
    if (c == '|') {
      out.chunks.push_back(0);
    } else if (c == 'M' || c == '*' || c == '-' || c == 'E') {
      out.letters += c;
      ++out.chunks.back();
    } else if (c != '"' && c != '\'' && c != ' ') {
      out.problem = c == '/' ? "multi-token prediction behind a hybrid model" : fmt::format("layers of the kind '{}'", c);
      return out;
    }
  }
  if (out.letters.empty()) out.problem = "a pattern without layers";
  return out;
}

}  // namespace rehearse::importers
