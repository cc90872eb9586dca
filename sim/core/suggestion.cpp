#include "sim/core/suggestion.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace rehearse {
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

constexpr std::size_t kLongestWord = 200;

/// All that are nearest, in their order; none that is further away than slips of the keys go.
std::vector<std::string> nearest_names(const std::string& word, const std::vector<std::string>& candidates) {
  std::vector<std::string> best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(folded(word), folded(candidate));
    if (distance < least) best.clear();
    if (distance < least || (distance == least && !best.empty())) best.push_back(candidate);
    least = std::min(least, distance);
  }
  return best;
}

/// Those that are the word and more, or the other way round.
std::vector<std::string> longer_or_shorter(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLeast = 3;  // letters
  const std::string start = folded(word);
  std::vector<std::string> out;
  for (const std::string& candidate : candidates) {
    const std::string other = folded(candidate);
    if (std::min(start.size(), other.size()) >= kLeast && (other.starts_with(start) || start.starts_with(other))) out.push_back(candidate);
  }
  return out;
}

/// Those that begin with the whole word: a100-80gb-sxm for a100, which is no slip for a10g.
std::vector<std::string> begun_by(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string start = folded(word);
  std::vector<std::string> out;
  for (const std::string& candidate : candidates) {
    const std::string other = folded(candidate);
    if (other.size() > start.size() && other.starts_with(start) && std::isalnum(static_cast<unsigned char>(other[start.size()])) == 0) out.push_back(candidate);
  }
  return out;
}

}  // namespace

std::optional<std::string> nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  if (word.size() > kLongestWord) return std::nullopt;
  const std::vector<std::string> names = nearest_names(word, candidates);
  if (names.empty()) return std::nullopt;
  return names.front();
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates, const std::string& otherwise) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> names;
  if (!word.empty()) names = begun_by(word, candidates);
  if (names.empty() && !word.empty() && word.size() <= kLongestWord) names = nearest_names(word, candidates);
  if (names.empty() && word.size() <= kLongestWord) names = longer_or_shorter(word, candidates);
  if (names.empty() || names.size() > kMost) return otherwise;
  std::string text = "Did you mean " + names[0];
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 < names.size() ? ", " : " or ") + names[i];
  return text + (otherwise.empty() ? "?" : "? " + otherwise);
}

}  // namespace rehearse
