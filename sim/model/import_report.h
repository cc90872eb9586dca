// What an importer did with every field of a foreign file: used, assumed, ignored, not understood.
// Leaves out the importers themselves (huggingface.h).
#pragma once

#include <string>
#include <vector>

#include "sim/core/error.h"

namespace rehearse::model {

/// One field of the file, or one fact about it. `note` says what was taken, or why it does not matter.
struct ImportNote {
  SourceLocation at;
  std::string key;  // dotted from the top of the file
  std::string note;
  friend bool operator==(const ImportNote&, const ImportNote&) = default;
};

struct ImportReport {
  std::vector<ImportNote> used;
  std::vector<ImportNote> assumed;  // absent in the file; the note is the value that its family gives it
  std::vector<ImportNote> ignored;  // changes neither time nor memory of training, with the reason
  std::vector<ImportNote> not_understood;  // a warning; a strict caller makes it an error
};

/// The report as lines for a terminal: a heading per list that is not empty, "  key: note" below it.
std::vector<std::string> to_lines(const ImportReport& report);

/// The not-understood fields as mistakes, for callers that want strictness.
std::vector<Diagnostic> strict_diagnostics(const ImportReport& report);

}  // namespace rehearse::model
