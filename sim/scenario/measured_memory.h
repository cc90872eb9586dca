// What a row of a table of measured runs says of memory: recomputation, offload, and which optimizer updates when. Leaves
// out who shares the states (measured_setup.h).
#pragma once

#include <string>

#include "sim/scenario/measured_row.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// The row's recomputation into the scenario; where it says nothing, or not how much, the default with a note. True where the
/// least that fits is meant: alternatives are to be tried (measured_alternatives.h).
bool apply_recompute(const config::CsvRow& row, Scenario& s);

/// Published ZeRO-3 runs with CPU offload keep parameters there as well where they say so.
void apply_offload(const config::CsvRow& row, Scenario& s);

/// DeepSpeed's own tutorial of ZeRO-Offload, and BigScience's Megatron-LM under ZeRO-3: pieces of layer inputs in buffers in host memory, the host waiting around each layer, as its
/// scripts say and the lines over later tables change it. Nothing for other rows.
/// Source: bigscience-workshop/bigscience@9e64edec2a experiments/gpt2-meg-ds-zero/*.slurm, experiments/gpt2.md.
void apply_zero_scripts(const config::CsvRow& row, Scenario& s);

/// Update rule, its states and when it runs, where they are not the framework's habit.
void apply_optimizer(const config::CsvRow& row, Scenario& s);

}  // namespace rehearse::scenario
