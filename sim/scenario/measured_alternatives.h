// What a row of a table of measured runs leaves open and whoever ran it chose: the micro-batch, degrees, how much is made
// again. Leaves out choosing among them, which takes simulations (sim/report/accuracy.h).
#pragma once

#include <optional>

#include "sim/scenario/measured_row.h"
#include "sim/scenario/measured_run.h"

namespace rehearse::scenario {

/// A job whose degrees are not stated and that cannot be run as it is (its batch is smaller than its GPUs are many): with as
/// little model parallelism as makes it one that can. Nothing where there is no such job.
std::optional<Scenario> least_split(const config::CsvRow& row, const Scenario& s);

/// Where the micro-batch is not stated: larger ones, and tensor degrees where none is stated. The fastest that fits is meant.
void add_alternatives(const config::CsvRow& row, const Scenario& s, MeasuredRun& run);

/// The same job interleaved, for every number of chunks that deals its layers out evenly.
std::vector<Scenario> more_chunks(const Scenario& s);

/// The same job in less memory, in the order in which it is to be tried: more of its blocks made again, for jobs that do not
/// say how much (`recomputation_open`); sharded optimizer states, more stages of ZeRO, or more model parallelism, where the row states none.
void add_smaller(const config::CsvRow& row, const Scenario& s, bool recomputation_open, MeasuredRun& run);

}  // namespace rehearse::scenario
