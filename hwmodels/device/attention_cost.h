// How long fused attention takes, and unfused attention as one piece: tiles of 128 queries over the SMs.
// Leaves out context-parallel rings (strategies/context), which launch several of these.
#pragma once

#include "hwmodels/device/device_rates.h"

namespace rehearse::hwmodels {

/// Fused: work of a tile = 128 queries * (keys they see + ramp + waste per edge of the mask) * (2(d + dv) [* 2.5] + softmax);
/// with dropout a random number per score besides, drawn by one SM at a rate of its own;
/// time = launch + the longer of all waves and the longest single tile, never less than reading and writing once.
/// Kernels on 8-bit operands (cudnn_fp8, cudnn_mxfp8) have a cost per score of backward's own, and no stand-in: a GPU has their parameters or
/// the scenario is refused (sim/scenario/resolve.cpp).
/// Unfused (sdpa_math): its matrix products over the whole square plus passes over the scores in HBM.
/// `stand_in`, when given, is set when this implementation has no parameters here and the next older one is used
/// (cudnn_9_13 -> cudnn; flash3, cudnn -> flash2 -> flash1; triton and mem_efficient count as flash1).
/// Source of the shape: Dao 2023 (FlashAttention-2), section 3; fit: hwmodels/data/kernel/README.md.
CostParts attention_cost(const DeviceRates& gpu, const model::KernelSpec& kernel, bool* stand_in = nullptr);

}  // namespace rehearse::hwmodels
