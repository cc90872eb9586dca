// A row of a table of measured runs as a scenario: column after column, with what the row leaves out filled in and noted.
// Leaves out what the columns' words mean (measured_columns.h, measured_setup.h, measured_memory.h, measured_tuning.h).
#pragma once

#include "sim/scenario/measured_row.h"
#include "sim/scenario/measured_run.h"

namespace rehearse::scenario {

/// Also says in `run` whether the model is dense, and which other scenarios the row may mean. Throws NotSimulated with the
/// reason, or ConfigError for a cell that is no number.
Scenario scenario_of(const config::CsvRow& row, MeasuredRun& run);

}  // namespace rehearse::scenario
