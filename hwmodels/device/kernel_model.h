// What a kernel costs on a GPU when it runs alone, and which share of the GPU it then uses.
// Leaves out launch cost on the host (framework profiles) and contention (sim/engine).
#pragma once

#include "hwmodels/device/device_rates.h"
#include "hwmodels/device/gpu.h"
#include "hwmodels/device/measured_points.h"
#include "sim/model/kernel.h"

namespace rehearse::hwmodels {

enum class Bound : std::uint8_t { compute, memory, latency };

/// Cost of one kernel alone on the GPU.
///   duration       device time from start to end
///   sm_share       share of the SMs it keeps busy, 0..1
///   hbm_share      share of the datasheet HBM bandwidth it uses, 0..1
///   measured       rests on kernels measured near it (measured_points.h), not on the parameters alone
///   extrapolated   outside the range that the parameters were measured on, and no measured kernel near
struct KernelCost {
  Duration duration{};
  double sm_share = 1;
  double hbm_share = 0;
  Bound bound = Bound::compute;
  bool measured = false;
  bool extrapolated = false;
};

/// Prices kernels on one GPU. Constant after construction: threads may share it.
/// `clock`: training by default (power-limited); burst is what published microbenchmarks of short kernels see.
class KernelModel {
 public:
  /// `pace`: as in rates_of.
  explicit KernelModel(Gpu gpu, ClockState clock = ClockState::sustained, Pace pace = {});
  /// The same kind of GPU, faster or slower than others of its type.
  KernelModel at(Pace pace) const;
  /// Preconditions: sizes >= 0 (contract). About 0.1 us per call: tests/bench/kernel_model_bench.cpp.
  KernelCost cost(const model::KernelSpec& kernel) const;
  const Gpu& gpu() const { return gpu_; }
  const DeviceRates& rates() const { return rates_; }

 private:
  Gpu gpu_;
  ClockState clock_;
  DeviceRates rates_;
  MeasuredPoints points_;
};

}  // namespace rehearse::hwmodels
