// A schedule as a table: PyTorch's CSV, one row per rank, one cell per action ("3F0" = stage 3 forward
// micro-batch 0). Leaves out reading files: the caller has the text.
#pragma once

#include <string>
#include <string_view>

#include "sim/core/error.h"
#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

/// Cells: <stage>F<mb>, B (whole backward), I (input gradient), W (weight gradient),
/// (<stage>F<mb>;<stage>B<mb>)OVERLAP_F_B, <stage>UNSHARD, RESHARD, REDUCE_GRAD, and SEND_F, RECV_F, SEND_B,
/// RECV_B with a micro-batch. Empty cells are idle slots and dropped. A stage belongs to the rank whose row
/// computes it. Without any message in the table they are added by PyTorch's rule (messages.h); with messages
/// the table is taken as it is. Throws ConfigError with the line and column of each mistake; mistakes of the
/// whole (a stage missing, a deadlock) stand at the file. Source of the format:
/// torch/distributed/pipelining/schedules.py, _Action.from_str and _load_csv (PyTorch 2.13).
PipelineProgram parse_schedule_table(std::string_view text, const std::string& file = {});

/// The cell of one action, and the whole table; parse_schedule_table reads it back.
std::string cell_of(const PipelineProgram& program, int rank, const Action& action);
std::string table_of(const PipelineProgram& program);

}  // namespace rehearse::strategies
