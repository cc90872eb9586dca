#include "hwmodels/device/kernel_model.h"

#include <algorithm>
#include <utility>

#include "hwmodels/device/attention_cost.h"
#include "hwmodels/device/gemm_cost.h"
#include "hwmodels/device/memory_cost.h"

namespace rehearse::hwmodels {
namespace {

using model::KernelKind;

bool within(double value, double least, double most) { return value >= least && value <= most; }

bool fitted(const KernelParameters& p, const model::KernelSpec& s) {
  switch (s.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::native_grouped_gemm:
      return p.fitted_gemm_rows > 0 &&
             within(static_cast<double>(std::min({s.m, s.n, s.k})), p.fitted_gemm_minimum, p.fitted_gemm_maximum) &&
             within(static_cast<double>(std::max({s.m, s.n, s.k})), p.fitted_gemm_minimum, p.fitted_gemm_maximum);
    case KernelKind::attention_forward:
    case KernelKind::attention_backward:
      return p.fitted_attention_rows > 0 && within(static_cast<double>(std::max(s.query_length, s.key_length)),
                                                   p.fitted_attention_minimum, p.fitted_attention_maximum);
    default:
      return p.fitted_memory_rows > 0 && within(static_cast<double>(s.bytes_read + s.bytes_written),
                                                p.fitted_memory_minimum, p.fitted_memory_maximum);
  }
}

/// Alone on the GPU, by the formulas.
CostParts parametric(const DeviceRates& rates, const model::KernelSpec& s, bool& stand_in) {
  switch (s.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::native_grouped_gemm:
      stand_in = rates.stand_in[static_cast<std::size_t>(s.dtype)];
      return gemm_cost(rates, s);
    case KernelKind::attention_forward:
    case KernelKind::attention_backward:
      return attention_cost(rates, s, &stand_in);
    default:
      return memory_cost(rates, s);
  }
}

MeasuredPoints points_of(Gpu gpu) {
  if (gpu.measured_kernels.empty()) return {};
  gpu.locked_clock_mhz = gpu.limit_watts = 0;   // they were measured without
  const DeviceRates burst = rates_of(gpu, ClockState::burst), sustained = rates_of(gpu, ClockState::sustained);
  return {gpu.measured_kernels, gpu.reach, [&](const model::KernelSpec& s, ClockState clock) {
            bool stand_in = false;
            return parametric(clock == ClockState::burst ? burst : sustained, s, stand_in).seconds;
          }};
}

}  // namespace

KernelModel::KernelModel(Gpu gpu, ClockState clock, Pace pace)
    : gpu_(std::move(gpu)), clock_(clock), rates_(rates_of(gpu_, clock, pace)), points_(points_of(gpu_)) {}

KernelModel KernelModel::at(Pace pace) const {
  KernelModel other = *this;
  other.rates_ = rates_of(gpu_, clock_, pace);
  return other;
}

// What is longer is as long: far more than a step may take (sim/scenario/simulate.cpp), far less than the clock counts.
constexpr double kLongestKernel = 4e6;  // seconds

KernelCost KernelModel::cost(const model::KernelSpec& s) const {
  bool stand_in = false;
  CostParts parts = parametric(rates_, s, stand_in);
  KernelCost out;
  if (!points_.empty()) {
    const MeasuredPoints::Correction near = points_.at(s);
    parts.seconds *= near.factor, parts.compute_seconds *= near.factor, parts.memory_seconds *= near.factor;
    out.measured = near.support > 0.5;
  }
  out.duration = seconds(std::min(parts.seconds, kLongestKernel));
  out.sm_share = parts.sm_share;
  const double moved = parts.seconds > 0 ? parts.hbm_bytes / (rates_.hbm * parts.seconds) : 0;
  out.hbm_share = std::clamp(moved, 0.0, 1.0);
  const double work = std::max(parts.compute_seconds, parts.memory_seconds);
  if (work < parts.seconds / 2) {
    out.bound = Bound::latency;
  } else {
    out.bound = parts.compute_seconds >= parts.memory_seconds ? Bound::compute : Bound::memory;
  }
  out.extrapolated = !out.measured && (stand_in || !fitted(rates_.p, s));
  return out;
}

}  // namespace rehearse::hwmodels
