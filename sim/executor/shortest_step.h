// A lower bound of a step's time, from its plan and costs alone: for searches, which need not run what cannot win.
// Leaves out running it (timing.h).
#pragma once

#include <cstdint>

#include "sim/executor/costs.h"

namespace rehearse::executor {

/// Picoseconds that no step of run_timing is shorter than, but for its rounding (one in a million is more than enough). What
/// streams, events and messages between classes force to follow each other is added up, every work at its price alone;
/// left out is what can only lengthen a step: host threads, contention, members of collectives that come late, and events
/// between blocks that hold no message and are not small.
///
/// Why it holds: let E be the end of the step before, that of class c. The next step ends when the last compute stream
/// ends, which is not before the longest chain of work that begins at c's compute stream, in this step, has run. Which class
/// c is, is not known, so the class with the shortest such chain is taken: min over c of max over chains from c.
/// Linear in the calls of the step: chains are measured from their ends.
std::int64_t shortest_step(const plan::Plan& plan, const CostTable& costs);

}  // namespace rehearse::executor
