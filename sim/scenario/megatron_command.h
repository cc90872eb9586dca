// The job that a whole Megatron command describes, as Megatron's CI states it: such rows are imported, not read column by column.
// Leaves out what the arguments mean (sim/importers).
#pragma once

#include <cstdint>
#include <string>

#include "sim/config/value.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// Does the JSON object state sizes, degrees and batches itself, not only what a table's columns have no room for?
bool is_whole_command(const std::string& arguments);

/// Steps that the JSON object says it trains for (--train-iters); 0: it does not say.
std::int64_t steps_of_command(const std::string& arguments);

/// `arguments` and `environment`: JSON objects, names with dashes or underscores; the latter may be empty. `around`: the keys of a scenario that the
/// arguments do not say (its cluster); they win. Throws ConfigError when the texts are no JSON objects, contradict themselves or cannot be simulated.
Scenario scenario_of_arguments(const std::string& arguments, const std::string& environment, const config::Value& around);

}  // namespace rehearse::scenario
