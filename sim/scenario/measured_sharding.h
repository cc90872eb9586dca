// What a row of a table of measured runs says in prose about sharding and rematerialisation: ZeRO groups that are smaller
// than data parallelism, MaxText's meshes and policies. Leaves out the rest (measured_run.h).
#pragma once

#include <string>

#include "sim/config/csv.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::scenario {

/// Ranks that share sharded states, of `data`: InternEvo's "zero1=8", MaxText's "dcn_data_parallelism=2" (replicas), "shard
/// group of 8". 0: the row does not say, or says all.
int shard_group(const config::CsvRow& row, int data);

/// The policy that MaxText's note names ("remat_policy=full"): `minimal` ones keep every product, those that leave out the
/// MLP keep attention's, the rest is made again.
void apply_rematerialisation(const config::CsvRow& row, strategies::Memory& memory);

}  // namespace rehearse::scenario
