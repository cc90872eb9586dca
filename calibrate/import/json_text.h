// JSON of other programs, read leniently: invalid control characters in strings are replaced, a document that was cut off
// is told with its line. Leaves out what the documents mean.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace rehearse::calibrate {

/// Throws ConfigError with line and column when the text is no JSON; `repaired`: control characters that were replaced.
nlohmann::json parse_foreign_json(std::string text, const std::string& file, int* repaired = nullptr);

/// The text under `key`; "" where `holder` is no object, or the value is missing or no text.
std::string text_of(const nlohmann::json& holder, const char* key);

}  // namespace rehearse::calibrate
