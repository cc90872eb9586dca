#include "calibrate/import/json_text.h"

#include <nlohmann/json.hpp>

#include "calibrate/import/text.h"
#include "calibrate/json.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {

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

std::string text_of(const nlohmann::json& holder, const char* key) {
  const auto at = holder.find(key);
  return at != holder.end() && at->is_string() ? at->get<std::string>() : "";
}

}  // namespace rehearse::calibrate
