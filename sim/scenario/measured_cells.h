// The cells of a table of measured runs in the words of the contract (tests/accuracy/runs/README.md): other spellings, and what a
// row's own text says against one of its cells (sim/scenario/readings/cells.yaml). Leaves out what the words mean (measured_scenario.h).
#pragma once

#include <string>
#include <vector>

#include "sim/config/csv.h"

namespace rehearse::scenario {

struct RunTable {
  config::CsvTable cells;
  /// Per row: what was read otherwise than it is written, and words that were passed over.
  std::vector<std::vector<std::string>> notes;
};

/// The contract's columns.
const std::vector<std::string>& run_columns();

/// Columns are found by their letters and digits alone. Throws ConfigError for a file that is no table of runs.
RunTable read_run_table(const std::string& path);

}  // namespace rehearse::scenario
