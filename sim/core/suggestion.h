// What somebody who misspelt a name may have meant. Leaves out how the mistake is told (error.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace rehearse {

/// The candidate nearest to `word` by edit distance, if it is near enough to be a slip of the keys.
std::optional<std::string> nearest_name(const std::string& word, const std::vector<std::string>& candidates);

/// "Did you mean a, b or c?": the nearest candidates, if they are near enough to be a slip of the keys; else those that begin
/// with `word`, or that it begins with. "" when there are none, or too many to be of help. `otherwise` follows.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates, const std::string& otherwise = "");

}  // namespace rehearse
