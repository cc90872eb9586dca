// What is issued after a collective waits for it: streams that share one queue of the device, behind events that carry a time.
// Leaves out messages between pipeline stages, for which Megatron waits anyway, and what collectives cost.
#pragma once

#include "sim/plan/plan.h"

namespace rehearse::strategies {

/// Rewrites a plan so that compute issued after a collective starts when it is done, and no sooner.
/// Under CUDA_DEVICE_MAX_CONNECTIONS=1 all streams go through one queue, in the order of issue. An event that records a time
/// (TORCH_NCCL_ENABLE_TIMING=1: the end of each collective) holds whatever stands behind it there until the collective is done.
/// Source: NVIDIA/TransformerEngine #1353 and pytorch/pytorch #143890: traces of a tensor-parallel layer under both variables.
void serialise_collectives(plan::Plan& plan);

}  // namespace rehearse::strategies
