// The scenario as it was really simulated: every default filled in, in the keys of the scenario file, so that it can be
// read back, compared key by key and hashed. Leaves out `sweep`, and the numbers of hardware files (only in the hash).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/config/value.h"
#include "sim/scenario/scenario.h"

namespace rehearse::report {

/// `title` first, then model, cluster, training, parallelism, data_parallel, pipeline, memory, and what the profile has that the framework's has not.
/// The model is written as shapes, whatever it was read from.
config::Value effective_config(const scenario::Scenario& scenario);

/// "training.micro_batch_size" -> "1", in the order of the file; lists as "[1, 2]".
std::vector<std::pair<std::string, std::string>> flattened(const config::Value& config);

/// 16 hexadecimal digits (FNV-1a, 64 bit) of the effective configuration without its title, of every number of the GPU,
/// node and fabric, of what the user's own files say, and of the framework profile's name. Equal scenarios have equal hashes on every machine.
std::string hash_of(const scenario::Scenario& scenario);

}  // namespace rehearse::report
