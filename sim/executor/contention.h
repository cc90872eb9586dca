// How work that runs on one GPU at the same time shares it: SMs held by collectives, bandwidths by max-min fairness.
// Leaves out when work starts and ends (timing.h) and sharing among many machines (sim/engine/sharing.h).
#pragma once

#include <span>

#include "sim/executor/costs.h"

namespace rehearse::executor {

/// Rate of each piece of work relative to running alone, 0.02..1.
///   Collectives hold the SMs of their channels; kernels share what they leave. HBM, NVLink, NIC and PCIe are shared
///   max-min fairly: all rates rise together until a resource is full or a piece reaches its own limit. While kernels
///   run, that limit of a collective or a copy is its `beside_kernels`.
/// Precondition: both spans have the same length, at most plan::kStreams.
///   A kernel with `late_tiles` loses no rate to held SMs: tiles_are_late says whether it runs some of them afterwards.
void share_gpu(std::span<const Priced* const> work, std::span<double> rate);

/// Does a kernel that begins while collectives hold this share of the SMs find some of its own among them?
bool tiles_are_late(const Priced& kernel, double held);

}  // namespace rehearse::executor
