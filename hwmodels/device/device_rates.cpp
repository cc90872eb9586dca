#include "hwmodels/device/device_rates.h"

#include <algorithm>
#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

std::size_t index_of(DType t) { return static_cast<std::size_t>(t); }

DType wider(DType t) {
  switch (t) {
    case DType::nvfp4: return DType::mxfp8;
    case DType::nf4: return DType::bf16;  // dequantised before the product
    case DType::mxfp8: return DType::fp8;
    case DType::fp8: case DType::int8: return DType::bf16;
    case DType::bf16: return DType::fp16;
    default: return DType::fp32;
  }
}

double gemm_fraction(const KernelParameters& p, DType t) {
  switch (t) {
    case DType::fp8: case DType::mxfp8: case DType::int8:
      return p.gemm_peak_fraction * p.gemm_fp8_fraction;
    case DType::nvfp4:
      return p.gemm_peak_fraction * p.gemm_nvfp4_fraction;
    case DType::fp64: case DType::fp32: case DType::tf32:
      return p.gemm_peak_fraction * p.gemm_fp32_fraction;
    default:
      return p.gemm_peak_fraction;
  }
}

template <std::size_t N>
TileRates<N> rates_of_tiles(const std::array<Tile, N>& tiles, double sms, double fetch) {
  constexpr double kReferenceEdge = 1.0 / 128 + 1.0 / 256;  // of the tile that gemm_peak_fraction is about
  TileRates<N> out;
  for (std::size_t i = 0; i < N; ++i) {
    const auto m = static_cast<double>(tiles[i].m), n = static_cast<double>(tiles[i].n);
    out.flops[i] = 2 * m * n * (1 + fetch * ((1 / m + 1 / n) / kReferenceEdge - 1));
    out.wave_rows[i] = std::sqrt(sms * n / m);
  }
  return out;
}

/// At the power limit the clock falls by this power of what is drawn: the note of clock_at_power.
constexpr double kClockPerPower = 0.266;

double sustained_clock(const Gpu& gpu, const KernelParameters& p) {
  return gpu.limit_watts > 0 ? p.sustained_clock * std::pow(gpu.limit_watts / gpu.own_watts, kClockPerPower) : p.sustained_clock;
}

}  // namespace

void prepare_tiles(DeviceRates& r) {
  const double cores = r.peak[index_of(DType::fp32)] * 4, tensor = std::max(r.peak[index_of(DType::bf16)], r.peak[index_of(DType::fp16)]) * 2;
  const double fitted = r.p.fitted_flops_per_clock > 0 ? 2 * r.p.fitted_flops_per_clock * r.sms * r.boost_clock : tensor;
  r.core_wait = fitted > 0 ? std::min(1.0, cores / fitted) : 1.0;
  r.tensor_wait = fitted > 0 ? std::min(1.0, tensor / fitted) : 1.0;
  r.tiles = rates_of_tiles(kGemmTiles, r.sms, r.p.tile_fetch * r.tensor_wait);
  r.simt_tiles = rates_of_tiles(kSimtTiles, r.sms, r.p.tile_fetch * r.core_wait);
}

double expected_largest(int n) {
  EXPECTS(n >= 1);
  const double share = (n - 0.375) / (n + 0.25);
  double low = 0, high = 10;  // the quantile by bisection: n = 1 has share 1/2 and answer 0
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
  }
  return n == 1 ? 0 : low;
}

double clock_at_power(double clock, double power, double highest) {
  return clock >= 1 ? highest : std::min(highest, clock * std::pow(power, -kClockPerPower));
}

double power_limited_clock_mhz(const Gpu& gpu) {
  const KernelParameters p = kernel_parameters_from(gpu.kernel_parameters);
  return gpu.highest_clock_mhz() * p.burst_clock * sustained_clock(gpu, p);
}

Pace pace_of_slowest(int gpus) { return {expected_largest(gpus)}; }

DeviceRates rates_of(const Gpu& gpu, ClockState clock, Pace pace) {
  DeviceRates r;
  r.p = kernel_parameters_from(gpu.kernel_parameters);
  r.sms = gpu.sms;
  r.boost_clock = gpu.boost_clock_mhz * 1e6 * r.p.burst_clock;
  r.hbm = gpu.hbm_bandwidth.value;
  if (gpu.locked_clock_mhz > 0) r.highest_clock = gpu.locked_clock_mhz / (gpu.highest_clock_mhz() * r.p.burst_clock);
  const double sm_clocks = gpu.sms * r.boost_clock * r.highest_clock;
  r.strided = r.p.strided_elements_per_clock * sm_clocks;
  r.converting = r.p.converted_per_clock * sm_clocks;
  r.adding = r.p.added_per_clock * sm_clocks;
  r.updating = r.p.updated_per_clock * sm_clocks;
  r.l2_bytes = static_cast<double>(gpu.l2.value) * r.p.l2_share;
  const double slowest = 1 - r.p.speed_spread * pace.deviations;
  const double sustained = sustained_clock(gpu, r.p);
  // Short kernels have the clock that the products around them leave: the limit is on a mean over milliseconds.
  const double scan_clocks = clock == ClockState::burst ? sm_clocks : std::min(sm_clocks, gpu.sms * gpu.highest_clock_mhz() * 1e6 * r.p.burst_clock * sustained * slowest);
  r.scan_flops = r.p.scan_flops_per_clock * scan_clocks;
  r.scan_decays = r.p.scan_decays_per_clock * scan_clocks;
  r.delta_flops = r.p.delta_flops_per_clock * scan_clocks;
  const double one_clock = scan_clocks / std::max(1, gpu.sms);
  r.delta_chunk = r.p.delta_clocks_per_chunk / one_clock;
  r.delta_backward_chunk = r.p.delta_backward_clocks_per_chunk / one_clock;
  r.convolved = r.p.convolved_per_clock * scan_clocks;
  r.convolved_backward = r.p.convolved_backward_per_clock * scan_clocks;
  r.gemm_clock = (clock == ClockState::burst ? 1.0 : sustained) * slowest;
  r.attention_clock = (clock == ClockState::burst ? 1.0 : std::min(1.0, sustained * r.p.attention_clock_ratio)) * slowest;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    const DType wanted = static_cast<DType>(i);
    DType runs_as = wanted;
    for (int step = 0; step < 8 && !gpu.peak.contains(runs_as); ++step) runs_as = wider(runs_as);
    const auto it = gpu.peak.find(runs_as);
    if (it == gpu.peak.end()) continue;
    r.stand_in[index_of(wanted)] = runs_as != wanted;
    r.on_cores[index_of(wanted)] = runs_as == DType::fp32;
    r.peak[index_of(wanted)] = it->second.value * r.p.burst_clock;
    const double power = bits(runs_as) <= 8 ? r.p.gemm_8bit_power : r.on_cores[index_of(wanted)] ? r.p.gemm_fp32_power : 1;
    r.gemm_rate[index_of(wanted)] = r.peak[index_of(wanted)] * clock_at_power(r.gemm_clock, power, r.highest_clock) * gemm_fraction(r.p, runs_as);
  }
  prepare_tiles(r);
  return r;
}

}  // namespace rehearse::hwmodels
