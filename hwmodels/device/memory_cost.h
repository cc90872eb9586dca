// How long a kernel takes that only moves data: bytes over an achieved bandwidth, plus a floor.
// Leaves out how many bytes a framework's kernel moves: the KernelSpec says.
#pragma once

#include "hwmodels/device/device_rates.h"

namespace rehearse::hwmodels {

/// t = floor + bytes / (fraction(kind) * HBM), at least flops / fp32 peak, or what a scan's products and decays take. Tensors within l2_share of the L2 move at
/// L2 speed, those beyond twice that at HBM speed, linearly between (their producer has just left them there).
/// `role` other than forward selects the backward fraction of normalization and embedding.
/// Preconditions: bytes_read, bytes_written, flops >= 0.
CostParts memory_cost(const DeviceRates& gpu, const model::KernelSpec& kernel);

/// Fraction of the HBM bandwidth that kernels of this kind reach.
double achieved_fraction(const DeviceRates& gpu, const model::KernelSpec& kernel);

}  // namespace rehearse::hwmodels
