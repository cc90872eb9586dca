// JSON of other programs, read leniently: invalid control characters in strings are replaced, a document that was cut off
// is told with its line. Leaves out what the documents mean.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace rehearse::calibrate {

/// The text with a question mark for each byte that belongs to no UTF-8 character: logs and traces hold names of any kind.
std::string valid_utf8(std::string text);

/// Throws ConfigError with line and column when the text is no JSON; `repaired`: control characters that were replaced.
nlohmann::json parse_foreign_json(std::string text, const std::string& file, int* repaired = nullptr);

}  // namespace rehearse::calibrate
