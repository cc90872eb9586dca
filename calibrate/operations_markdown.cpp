#include "calibrate/operations.h"

namespace rehearse::calibrate {
namespace {

std::string shown(const Fact& fact) {
  if (const bool* flag = std::get_if<bool>(&fact)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&fact)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&fact)) return std::to_string(*number);
  const auto* text = std::get_if<std::string>(&fact);
  return text == nullptr || text->empty() ? "\"\"" : *text;
}

std::string row(const Key& key, bool must) {
  std::string out = "| `" + key.name + "` | " + std::string(name_of(key.kind)) + " | " + key.meaning;
  if (!key.words.empty()) {
    out += " (";
    const char* comma = "";
    for (const std::string& word : key.words) {
      if (word.empty()) continue;
      out += comma + word;
      comma = ", ";
    }
    out += ")";
  }
  return out + " | " + (key.fallback ? shown(*key.fallback) : must ? "must be given" : "") + " |\n";
}

std::string table(const std::vector<Key>& keys, bool must) {
  std::string out = "| key | kind | meaning and unit | if absent |\n|---|---|---|---|\n";
  for (const Key& key : keys) out += row(key, must);
  return out + "\n";
}

}  // namespace

std::string operations_as_markdown() {
  std::string out;
  for (const Operation& o : operations()) out += "### `" + o.name + "`\n\n" + o.meaning + ".\n\n" + table(o.keys, true);
  out += "### `machine`\n\n" + table(machine_keys(), false);
  out += "### `software`\n\n" + table(software_keys(), false);
  return out + "### `options`\n\n" + table(option_keys(), false);
}

}  // namespace rehearse::calibrate
