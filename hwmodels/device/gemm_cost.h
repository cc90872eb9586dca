// How long a GEMM or a grouped GEMM takes: CTA tiles in waves over the SMs, against the HBM traffic of those waves.
// Leaves out which library runs it: the tile is the best of the shapes that cuBLAS and CUTLASS build, for tensor units or CUDA cores.
#pragma once

#include "hwmodels/device/device_rates.h"

namespace rehearse::hwmodels {

/// t = launch + max(compute, memory) + leak * min(compute, memory), the least over tile shapes and split-K, where
///   compute = waves * 2 * tile_m * tile_n * (k / split + ramp) / (rate of one SM) * fetch(tile)
///   waves   = tiles / SMs, a partial last wave counted by `wave_quantisation`, at least 1
///   memory  = (operands, again for each wave when they do not fit in the L2, + result + partial sums) / HBM
/// Grouped: each group's rows fill half a tile more than their number says (groups are uneven), plus a time per group.
/// Preconditions: batch, m, n, k >= 0. An empty product costs the launch. Units: seconds, bytes.
/// Source: NVIDIA "Matrix Multiplication Background User's Guide" (tiles, waves); fit: hwmodels/data/kernel/README.md.
CostParts gemm_cost(const DeviceRates& gpu, const model::KernelSpec& kernel);

/// Waves that `tiles_per_sm` equal tiles take, at least 1; q = 1 rounds up, q = 0 spreads the last wave's work.
double waves_of(double tiles_per_sm, double q);

}  // namespace rehearse::hwmodels
