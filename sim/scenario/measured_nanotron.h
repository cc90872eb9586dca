// Which nanotron a job of the Ultra-Scale Playbook ran: how its stages exchanged messages and were cut. Leaves out what all
// of them have in common (strategies/framework/data/nanotron.yaml).
#pragma once

#include "sim/config/csv.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// The table's `after_pp_fix`: messages between stages had been polled since 2024-12 (nanotron 67c5ebb6). Its `local_params`, the parameters of rank 0,
/// tell by which rule stages end (profile key `passes_share`) where the two rules differ; jobs before the fix had the public code's.
/// Call it for a pipeline once degrees and profile are chosen.
void apply_nanotron_release(const config::CsvRow& row, Scenario& s);

}  // namespace rehearse::scenario
