// Text of other programs: lines and words of logs. Leaves out what they mean.
#pragma once

#include <string>
#include <vector>

namespace rehearse::calibrate {

/// The text with a question mark for each byte that belongs to no UTF-8 character: logs and traces hold names of any kind.
std::string valid_utf8(std::string text);

/// What stands between white space.
std::vector<std::string> words_of(const std::string& line);

}  // namespace rehearse::calibrate
