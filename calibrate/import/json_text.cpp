#include "calibrate/import/json_text.h"

#include "calibrate/json_place.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {

std::string valid_utf8(std::string text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
    bool good = length > 0 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    const auto second = length > 1 && good ? static_cast<unsigned char>(text[i + 1]) : 0;
    // Overlong forms, surrogates, beyond U+10FFFF.
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) good = false;
    if (!good) text[i] = '?';
    i += good ? length : 1;
  }
  return text;
}

nlohmann::json parse_foreign_json(std::string text, const std::string& file, int* repaired) {
  text = valid_utf8(std::move(text));
  bool inside = false;
  int count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') inside = !inside;
    else if (inside && c == '\\') ++i;
    else if (inside && static_cast<unsigned char>(c) < 0x20) text[i] = ' ', ++count;
  }
  if (repaired != nullptr) *repaired = count;
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    const Place at = place_of_byte(text, e.byte > 0 ? e.byte - 1 : 0);
    const bool cut = e.byte >= text.size();
    throw ConfigError(Diagnostic{{file, at.line, at.column}, "", cut ? "the JSON ends in the middle: the program that wrote it was interrupted" : "is no JSON",
                                 cut ? "Run it again to the end, or close the open lists by hand" : "Give the file as the program wrote it", ""});
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(Diagnostic{{file, 0, 0}, "", std::string("cannot be read: ") + e.what(), "Give the file as the program wrote it", ""});
  }
}

}  // namespace rehearse::calibrate
