#include "sim/model/import_report.h"

#include <fmt/format.h>

namespace rehearse::model {

std::vector<std::string> to_lines(const ImportReport& report) {
  std::vector<std::string> lines;
  const auto list = [&](const char* heading, const std::vector<ImportNote>& notes) {
    if (!notes.empty()) lines.push_back(fmt::format("{} ({})", heading, notes.size()));
    for (const ImportNote& note : notes)
      lines.push_back(note.note.empty() ? "  " + note.key : fmt::format("  {}: {}", note.key, note.note));
  };
  list("used", report.used);
  list("absent, taken from the family's defaults", report.assumed);
  list("ignored", report.ignored);
  list("not understood", report.not_understood);
  return lines;
}

std::vector<Diagnostic> strict_diagnostics(const ImportReport& report) {
  std::vector<Diagnostic> list;
  for (const ImportNote& note : report.not_understood)
    list.push_back({note.at, note.key, "not understood (it may change time or memory)",
                    "Remove the field, or import without strictness", ""});
  return list;
}

}  // namespace rehearse::model
