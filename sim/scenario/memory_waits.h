// Time that a job at the limit of its memory loses: its allocator gives all that it has cached back to the driver when a tensor has no room,
// and takes it again bit by bit, in every step. Leaves out what is given back and when (hwmodels/memory, sim/executor/memory.h).
#pragma once

#include <vector>

#include "sim/executor/memory.h"

namespace rehearse::scenario {

/// Steps after which what an allocator gives back is the same in each, or comes to an end: simulated, those of some 70 measured runs at their limit
/// that stop have stopped after five.
constexpr int kSettledSteps = 8;

/// Writes the waits of a class into its calls: where cached memory is given back the host waits for the device (cudaFree), then for the driver to
/// have cleared what is taken, at `rate` (hwmodels/memory/device_memory.h). Calls keep their places, and memory instructions are not touched.
/// Precondition: rate > 0.
void wait_for_memory(plan::Plan& plan, std::size_t rank_class, const std::vector<executor::TakenAgain>& taken, BytesPerSecond rate);

}  // namespace rehearse::scenario
