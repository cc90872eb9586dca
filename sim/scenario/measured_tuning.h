// What a row of a table of measured runs says about fine-tuning: from its columns, else from the wording of its note and
// what its source's own scripts default to. Leaves out the rest of the row (measured_run.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/csv.h"
#include "strategies/spec.h"

namespace rehearse::scenario {

struct RowTuning {
  strategies::Tuning tuning;
  std::vector<std::string> notes;              // defaults that were filled in
  std::optional<std::string> not_simulated;    // why there is no such tuning here
};

RowTuning tuning_of(const config::CsvRow& row);

}  // namespace rehearse::scenario
