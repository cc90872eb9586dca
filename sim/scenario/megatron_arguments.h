// What Megatron-LM's command line and environment say about a run beyond the columns of a table of measured runs.
// Leaves out the columns themselves (measured_run.h), and commands that need no columns (megatron_command.h).
#pragma once

#include <optional>
#include <string>

#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// Applies `arguments` (JSON object, dashes as on the command line) and `environment` (JSON object, may be empty) to a
/// scenario whose profile is one of Megatron's. Absent arguments have Megatron's defaults (megatron/training/arguments.py).
/// Returns why the run cannot be simulated, if so. Throws ConfigError when the texts are no JSON objects.
std::optional<std::string> apply_megatron_arguments(const std::string& arguments, const std::string& environment, Scenario& scenario);

/// What the arguments say of stages and shards. Call when the degrees and the pipeline's chunks are known.
void apply_megatron_layout(const std::string& arguments, Scenario& scenario);

}  // namespace rehearse::scenario
