#include "sim/core/error.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace rehearse {

std::string to_string(const SourceLocation& at) {
  if (at.file.empty()) return {};
  if (at.line == 0) return at.file;
  return at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

std::string to_string(const Diagnostic& d) {
  std::string text = to_string(d.at);
  if (!text.empty()) text += ": ";
  if (!d.key.empty()) text += d.key + ": ";
  text += d.problem;
  if (!d.fix.empty()) text += ". " + d.fix;
  return text;
}

ConfigError::ConfigError(std::vector<Diagnostic> diagnostics) : diagnostics_(std::move(diagnostics)) {
  for (const Diagnostic& d : diagnostics_) {
    if (!text_.empty()) text_ += '\n';
    text_ += to_string(d);
  }
}

namespace {

std::string folded(const std::string& s) {
  std::string out;
  for (char c : s) out += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// Letters put in, left out, changed, or swapped with their neighbour (optimal string alignment).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> two_above, above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_above = above;
    above = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > 200) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(folded(word), folded(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace rehearse
