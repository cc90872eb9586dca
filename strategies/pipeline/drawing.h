// Draws a pipeline schedule as text: one row per rank, one column per unit of time.
// Leaves out real durations: `explain --stage schedule` shows the order, the trace shows the time.
#pragma once

#include <string>

#include "strategies/pipeline/schedule.h"
#include "strategies/pipeline/unit_time.h"

namespace rehearse::strategies {

/// F forward, B backward, I its input gradient, W its weight gradient, with the micro-batch; a letter in
/// front names the chunk where a rank has several (a, b, ...); '-' goes on, '.' is idle. An overlapped pair
/// shows the forward in its first column and the backward, marked '&', after it. Closes with the length and
/// the bubble. `max_columns` 0: draw it all.
std::string draw(const PipelineProgram& program, const UnitTimes& times = {}, int max_columns = 0);

}  // namespace rehearse::strategies
