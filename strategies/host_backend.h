// What Gloo and MPI mean for the host thread: it waits for what NCCL would have left to the device.
// Leaves out what their collectives cost (hwmodels/network/host_network.h).
#pragma once

#include "sim/plan/plan.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Rewrites a plan that was written for NCCL. Gloo: worker threads carry a collective through pinned buffers beside the GPU's
/// kernels, and the host thread waits where its result is needed. MPI without CUDA support: the training script copies to
/// host memory itself, so nothing overlaps. Adds the host buffers of the largest collective.
/// Sources: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (AsyncAllreduceCUDAWork), ProcessGroupMPI.cpp (one queue, and an
/// error for CUDA tensors where MPI has no CUDA support).
void carry_through_host(plan::Plan& plan, Backend backend);

}  // namespace rehearse::strategies
