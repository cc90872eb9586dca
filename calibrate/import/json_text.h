// JSON of other programs, read leniently: invalid control characters in strings are replaced, a document that was cut off
// is told with its line. Leaves out what the documents mean.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace rehearse::calibrate {

/// Throws ConfigError with line and column when the text is no JSON; `repaired`: control characters that were replaced.
nlohmann::json parse_foreign_json(std::string text, const std::string& file, int* repaired = nullptr);

}  // namespace rehearse::calibrate
