#include "hwmodels/device/gemm_cost.h"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

constexpr std::array<double, 4> kSplits{1, 2, 4, 8};

/// A leading dimension that is not a multiple of 16 bytes rules out the vector and bulk copies of the fast kernels; that of the
/// result counts as well (a head of 248,077 tokens ran on cutlass_75_tensorop_bf16_s1688gemm_..._align1 until its width was
/// padded: pegainfer #1046). Row-major tensors of a linear layer: forward y[m,n] = x[m,k] w[n,k], data gradient dx[m,n] = dy[m,k] w[k,n],
/// weight gradient dw[m,n] = dy[k,m] x[k,n].
bool unaligned(const model::KernelSpec& s) {
  const auto odd = [&](std::int64_t length) { return (length * bits(s.dtype)) % 128 != 0; };
  switch (s.role) {
    case model::GemmRole::forward: return odd(s.k) || odd(s.n);
    case model::GemmRole::data_gradient: return odd(s.k) || odd(s.n);
    case model::GemmRole::weight_gradient: return odd(s.m) || odd(s.n);
  }
  return false;
}

/// Frameworks let Hopper's tensor units keep fp8 sums in fewer bits in forward only (Transformer Engine, _2X_ACC_DGRAD and _2X_ACC_WGRAD in
/// pytorch/module/base.py; torchao float8/config.py, gemm_config_output; XLA, openxla/xla #6599).
double fraction_of_role(const KernelParameters& p, model::GemmRole role, DType dtype) {
  const double exact = dtype == DType::fp8 ? p.gemm_exact_fp8_fraction : 1;
  switch (role) {
    case model::GemmRole::forward: return 1;
    case model::GemmRole::data_gradient: return exact * p.gemm_data_gradient_fraction;
    case model::GemmRole::weight_gradient: return exact * p.gemm_weight_gradient_fraction;
  }
  return 1;
}

/// Bytes of operands that the waves of one product read from HBM; each wave covers an area as square as it can.
double operand_bytes(double sms, Tile tile, double square, double rows, double columns, double bytes_of_k) {
  const double wave_rows = std::min(rows, std::max(square, sms / columns));
  const double wave_columns = std::min(columns, std::max(1.0, sms / wave_rows));
  return bytes_of_k * rows * columns * (static_cast<double>(tile.m) / wave_columns + static_cast<double>(tile.n) / wave_rows);
}

/// std::ceil for 0 <= x < 2^62, which without SSE 4.1 is a call.
double rounded_up(double x) {
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole < x ? whole + 1 : whole;
}

/// What does not depend on the tile.
struct Work {
  double batch, m, n, k, operand, once, written, per_flop, per_byte, ramp, launch;
  bool grouped;
};

/// The fastest of these tiles, each whole or split along K.
template <std::size_t N>
CostParts fastest(const DeviceRates& gpu, const Work& w, const std::array<Tile, N>& tile_shapes, const TileRates<N>& rates) {
  const KernelParameters& p = gpu.p;
  const double per_sm = 1 / gpu.sms;
  CostParts best;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < N; ++i) {
    const Tile t = tile_shapes[i];
    const double rows = w.grouped ? std::max(1.0, w.m / static_cast<double>(t.m) + 0.5)
                                  : rounded_up(w.m / static_cast<double>(t.m));  // exact: tiles are powers of two
    const double columns = rounded_up(w.n / static_cast<double>(t.n));
    const double tiles = w.batch * rows * columns;
    // No split of this tile can beat the time that its work takes when spread over all SMs without a gap.
    if (tiles * per_sm * rates.flops[i] * (w.k + w.ramp) * w.per_flop >= least) continue;
    const double again = w.once <= gpu.l2_bytes ? 0 : operand_bytes(gpu.sms, t, rates.wave_rows[i], rows, columns, w.operand * w.k);
    const double bytes = w.batch * (std::max(w.once, again) + w.written);
    for (const double split : kSplits) {
      if (split > 1 && tiles >= gpu.sms) break;  // the SMs are full already
      const double partial = split > 1 ? 8 * w.batch * w.m * w.n * split : 0;  // fp32 sums, written and read
      const double memory = (bytes + partial) * w.per_byte;
      if (memory >= least) break;  // it only grows with the split
      const double compute =
          waves_of(tiles * split * per_sm, p.wave_quantisation) * rates.flops[i] * (w.k / split + w.ramp) * w.per_flop;
      const double total = std::max(compute, memory) + p.overlap_leak * std::min(compute, memory);
      if (total >= least) continue;
      least = total;
      best = {w.launch + total, compute, memory, bytes + partial, std::min(1.0, tiles * split * per_sm)};
    }
  }
  return best;
}

}  // namespace

double waves_of(double w, double q) { return std::max(1.0, w + q * (rounded_up(w) - w)); }

CostParts gemm_cost(const DeviceRates& gpu, const model::KernelSpec& s) {
  EXPECTS(s.batch >= 0 && s.m >= 0 && s.n >= 0 && s.k >= 0, "GEMM " + s.name);
  const KernelParameters& p = gpu.p;
  const bool native = s.kind == model::KernelKind::native_grouped_gemm, grouped = native || s.kind == model::KernelKind::grouped_gemm;
  const auto batch = static_cast<double>(s.batch), m = static_cast<double>(s.m), n = static_cast<double>(s.n),
             k = static_cast<double>(s.k);
  const double launch = p.gemm_launch_us * 1e-6 + (grouped ? batch * p.grouped_group_us * 1e-6 : 0);
  CostParts best;
  best.seconds = launch;
  best.sm_share = 0;
  if (s.batch == 0 || s.m == 0 || s.n == 0) return best;

  const double operand = bits(s.dtype) / 8.0, result = bits(s.output_dtype) / 8.0 * (s.accumulate ? 2 : 1);
  const bool batched = s.batch > 1 && !grouped, odd = unaligned(s);
  const bool falls_back = batched && odd && bits(s.dtype) == 16 && p.gemm_unaligned_batch_on_cores > 0;   // fp32 arithmetic on 16-bit operands
  const DType runs_as = falls_back ? DType::fp32 : s.dtype;
  double rate = gpu.gemm_rate[static_cast<std::size_t>(runs_as)] / gpu.sms * fraction_of_role(p, s.role, runs_as);
  if (grouped) rate *= p.grouped_fraction;
  if (native && bits(s.dtype) == 16) rate *= p.native_grouped_fraction;
  const bool cores = gpu.on_cores[static_cast<std::size_t>(runs_as)];
  if (!cores && odd) rate *= p.gemm_unaligned_fraction;
  const double per_flop = 1 / rate, per_byte = 1 / (gpu.hbm * p.gemm_hbm_fraction);
  const double once = operand * (m * k + k * n), written = result * m * n;
  const double ramp = p.k_ramp_bytes / operand * (cores ? gpu.core_wait : gpu.tensor_wait);

  const Work work{batch, m, n, k, operand, once, written, per_flop, per_byte, ramp, launch, grouped};
  CostParts cost = cores ? fastest(gpu, work, kSimtTiles, gpu.simt_tiles) : fastest(gpu, work, kGemmTiles, gpu.tiles);
  const auto copied = static_cast<double>(s.bytes_read + s.bytes_written);
  cost.seconds += copied * per_byte;
  cost.memory_seconds += copied * per_byte;
  cost.hbm_bytes += copied;
  return cost;
}

}  // namespace rehearse::hwmodels
