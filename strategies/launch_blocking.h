// What CUDA_LAUNCH_BLOCKING=1 means for the host thread: each kernel has ended before the next thing is done.
// Leaves out what the kernels cost.
#pragma once

#include "sim/plan/plan.h"

namespace rehearse::strategies {

/// Rewrites a plan so that the host thread waits for each kernel, NCCL's included, when it has launched it: nothing runs beside
/// anything else but copies, which are no kernels, and all host time lies between kernels. Messages that the host gives away
/// in a row are one kernel, as in a group of NCCL calls; where a program relied on sends that end later, nobody answers, and
/// the run says so.
/// Source: NVIDIA, CUDA C++ Programming Guide, Asynchronous Concurrent Execution: the variable disables asynchronous kernel launches.
void block_launches(plan::Plan& plan);

}  // namespace rehearse::strategies
