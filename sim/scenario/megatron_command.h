// The job that a Megatron command describes, whole as Megatron's CI states it or made whole by a table's columns: such rows are imported, as a user's script is.
// Leaves out what the arguments mean (sim/importers).
#pragma once

#include <cstdint>
#include <string>

#include "sim/config/value.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// The arguments of a JSON object, names with dashes or underscores; none of an empty text. Throws ConfigError when it is no JSON object.
config::Value command_of(const std::string& arguments);

/// Does the command state sizes, degrees and batches itself, not only what a table's columns have no room for?
bool is_whole_command(const config::Value& command);

/// The command with arguments for what the scenario of a table's columns holds and it does not state. Arguments of neither keep Megatron's defaults.
config::Value completed_command(const config::Value& command, const Scenario& columns);

/// The command with a vocabulary of so many words, where it says nothing of its own: neither a size nor a tokenizer.
config::Value with_vocabulary(const config::Value& command, std::int64_t words);

/// Steps that the command says it trains for (--train-iters); 0: it does not say.
std::int64_t steps_of_command(const std::string& arguments);

/// `environment`: a JSON object, may be empty. `around`: the keys of a scenario that the command does not say (its cluster); they win. Throws
/// ConfigError when the text is no JSON object, or the command contradicts itself or cannot be simulated.
Scenario scenario_of_command(const config::Value& command, const std::string& environment, const config::Value& around);

}  // namespace rehearse::scenario
