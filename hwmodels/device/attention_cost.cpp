#include "hwmodels/device/attention_cost.h"

#include <algorithm>
#include <cmath>

#include "hwmodels/device/gemm_cost.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

using model::AttentionKernel;

constexpr double kTile = 128;        // queries of one tile forward, keys of one tile backward (FlashAttention-2)
constexpr double kBackwardFlops = 2.5;  // five products for the forward's two (Dao 2023)
constexpr int kMathLaunches = 6;     // product, scale, mask, softmax, dropout or cast, product

const AttentionParameters& parameters_of(const KernelParameters& p, AttentionKernel wanted, bool backward, bool& stand_in) {
  stand_in = false;
  if (wanted == AttentionKernel::cudnn_fp8 || wanted == AttentionKernel::cudnn_mxfp8) {
    const AttentionParameters& narrow = wanted == AttentionKernel::cudnn_fp8 ? p.cudnn_fp8 : p.cudnn_mxfp8;
    EXPECTS(narrow.forward_fraction > 0, "this GPU has no parameters of attention in 8 bits");
    return narrow;
  }
  const bool assembly = wanted == AttentionKernel::aotriton_assembly;
  if ((wanted == AttentionKernel::aotriton || (assembly && !backward)) && p.aotriton.forward_fraction > 0) return p.aotriton;
  if (assembly && backward && p.aotriton.forward_fraction > 0) return p.flash2;
  if (wanted == AttentionKernel::composable && p.composable_forward_share > 0) return p.flash2;
  if (wanted == AttentionKernel::flash3 && p.flash3.forward_fraction > 0) return p.flash3;
  if (wanted == AttentionKernel::cudnn_9_13 && p.cudnn_9_13.forward_fraction > 0) return p.cudnn_9_13;
  const bool cudnn = wanted == AttentionKernel::cudnn || wanted == AttentionKernel::cudnn_9_13;
  if (cudnn && p.cudnn.forward_fraction > 0) return p.cudnn;
  if (wanted == AttentionKernel::triton && p.triton_forward_share > 0) return p.flash2;
  if (wanted == AttentionKernel::flex && p.flex_forward_share > 0) return p.flash2;
  const bool old = wanted == AttentionKernel::triton || wanted == AttentionKernel::flash1 || wanted == AttentionKernel::mem_efficient;
  if (old && p.flash1.forward_fraction > 0) return p.flash1;
  stand_in = wanted != AttentionKernel::flash2 || p.flash2.forward_fraction <= 0;
  if (p.flash2.forward_fraction > 0) return p.flash2;
  EXPECTS(p.flash1.forward_fraction > 0, "this architecture has no fused attention parameters");
  return p.flash1;
}

/// The kernel that runs: of PyTorch's own fused ones only the memory-efficient takes 32-bit numbers (pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
AttentionKernel kernel_of(const KernelParameters& p, const model::KernelSpec& s) {
  return bits(s.dtype) == 32 && p.flash1.forward_fraction > 0 && s.attention != AttentionKernel::flex ? AttentionKernel::mem_efficient : s.attention;
}

/// FLOP/s at the datasheet's peak. From Ampere on the memory-efficient kernel makes a 32-bit product of three TF32 ones, whether TF32 is allowed or
/// not (gemm_kernel_utils.h, DefaultGemmType: OpMultiplyAddFastF32; 3xTF32 of CUTLASS's documentation).
double peak_of(const DeviceRates& gpu, const model::KernelSpec& s) {
  const auto tf32 = static_cast<std::size_t>(DType::tf32);
  const bool split = bits(s.dtype) == 32 && gpu.p.flash1.forward_fraction > 0 && gpu.peak[tf32] > 0 && !gpu.stand_in[tf32];
  return split ? gpu.peak[tf32] / 3 : gpu.peak[static_cast<std::size_t>(s.dtype)];
}

/// What a kernel that is known by its speed beside FlashAttention 2's reaches of that.
double share_of(const KernelParameters& p, AttentionKernel kernel, bool backward) {
  if (kernel == AttentionKernel::triton && p.triton_forward_share > 0) return backward ? p.triton_backward_share : p.triton_forward_share;
  if (kernel == AttentionKernel::composable && p.composable_forward_share > 0) return backward ? p.composable_backward_share : p.composable_forward_share;
  if (kernel == AttentionKernel::flex && p.flex_forward_share > 0) return backward ? p.flex_backward_share : p.flex_forward_share;
  return 1;
}

/// The width that a kernel computes with: smaller heads are filled up with zeros.
/// Source: Dao-AILab/flash-attention v0.2.2 csrc/flash_attn/fmha_api.cpp (32, 64, 128), v2.0.0 static_switch.h (steps of 32);
/// flash_attn_triton.py (powers of two). Other libraries' widths are not known here.
std::int64_t computed_width(AttentionKernel kernel, std::int64_t width) {
  const auto up = [&](std::int64_t step) { return (width + step - 1) / step * step; };
  switch (kernel) {
    case AttentionKernel::flash1:
    case AttentionKernel::triton: return width > 128 ? width : width > 64 ? 128 : width > 32 ? 64 : 32;
    case AttentionKernel::flash2: return width > 256 ? width : up(32);
    default: return width;
  }
}

/// What drawing one random number takes one SM, in FLOPs of this kernel's products. A kernel of both is bound by issuing instructions in either
/// (Ma et al. 2024, arXiv 2410.07531: fusing hides little of it).
double random_flops(const DeviceRates& gpu, const model::KernelSpec& s, AttentionKernel runs, double fraction) {
  const bool cudnn = runs == AttentionKernel::cudnn || runs == AttentionKernel::cudnn_9_13 || runs == AttentionKernel::cudnn_fp8 || runs == AttentionKernel::cudnn_mxfp8;
  const double per_clock = cudnn ? gpu.p.cudnn_random_per_clock : runs == AttentionKernel::flash2 ? gpu.p.flash2_random_per_clock : 0;
  if (!s.dropout || per_clock <= 0) return 0;
  return fraction * peak_of(gpu, s) / (gpu.sms * gpu.boost_clock * per_clock);
}

CostParts math_cost(const DeviceRates& gpu, const model::KernelSpec& s, double scores) {
  const KernelParameters& p = gpu.p;
  const bool backward = s.kind == model::KernelKind::attention_backward;
  const double flops = 2 * scores * static_cast<double>(s.head_dim + s.value_head_dim) * (backward ? 2 : 1);
  const double passes = backward ? p.math_passes_backward : p.math_passes_forward + (s.causal ? p.math_passes_mask : 0);
  CostParts c;
  c.hbm_bytes = passes * scores * bits(s.dtype) / 8.0;
  c.compute_seconds = flops / gpu.gemm_rate[static_cast<std::size_t>(s.dtype)];
  c.memory_seconds = c.hbm_bytes / (gpu.hbm * p.softmax_fraction);
  // The kernels follow one another, so the times add up.
  c.seconds = kMathLaunches * p.memory_launch_us * 1e-6 + c.compute_seconds + c.memory_seconds;
  return c;
}

}  // namespace

CostParts attention_cost(const DeviceRates& gpu, const model::KernelSpec& s, bool* stand_in) {
  EXPECTS(s.batch >= 0 && s.heads >= 0 && s.query_length >= 0 && s.key_length >= 0 && s.head_dim > 0,
          "attention " + s.name);
  const KernelParameters& p = gpu.p;
  const auto heads = static_cast<double>(s.batch * s.heads), queries = static_cast<double>(s.query_length),
             keys = static_cast<double>(s.key_length);
  bool other = false;
  CostParts c;
  c.seconds = p.gemm_launch_us * 1e-6;
  c.sm_share = 0;
  if (heads == 0 || queries == 0 || keys == 0) return c;
  if (s.attention == AttentionKernel::sdpa_math) return math_cost(gpu, s, heads * queries * keys);

  const bool backward = s.kind == model::KernelKind::attention_backward;
  const AttentionKernel runs = kernel_of(p, s);
  const AttentionParameters& a = parameters_of(p, runs, backward, other);
  if (stand_in != nullptr) *stand_in = other;
  double fraction = (backward ? a.backward_fraction : a.forward_fraction) * share_of(p, runs, backward);
  const bool narrow = bits(s.dtype) <= 8;
  if (backward && s.head_dim > 128 && !narrow) fraction *= p.wide_head_backward_fraction;
  const double products = 2.0 * static_cast<double>(computed_width(runs, s.head_dim) + computed_width(runs, s.value_head_dim)) * (backward ? kBackwardFlops : 1);
  const double per_score = products + (backward && a.backward_softmax_flops > 0 ? a.backward_softmax_flops : a.softmax_flops);
  const double random = random_flops(gpu, s, runs, fraction), half_masked = s.causal ? kTile / 2 : 0;  // of the diagonal's tile
  const double power = fraction * products / (per_score + random) / p.gemm_peak_fraction * (narrow ? p.gemm_8bit_power : 1);
  const double sm_rate = peak_of(gpu, s) * clock_at_power(gpu.attention_clock, power, gpu.highest_clock) * fraction / gpu.sms;
  const double ramp = a.key_ramp + a.causal_waste * ((s.causal ? 1 : 0) + (s.window > 0 ? 1 : 0));
  const double seen = model::attention_area(s.query_length, s.key_length, s.causal, s.window) / queries;
  const double most = s.window > 0 ? std::min(keys, static_cast<double>(s.causal ? s.window : 2 * s.window)) : keys;
  const double tiles = heads * std::ceil(queries / kTile);
  const double tile_seconds = kTile * ((seen + ramp) * per_score + (seen + half_masked) * random) / sm_rate;
  const double longest = kTile * ((most + ramp) * per_score + (most + half_masked) * random) / sm_rate;
  c.hbm_bytes = static_cast<double>(model::traffic_of(s).value);
  c.memory_seconds = c.hbm_bytes / (gpu.hbm * p.gemm_hbm_fraction);
  c.compute_seconds = std::max(waves_of(tiles / gpu.sms, a.wave_quantisation) * tile_seconds, longest);
  c.seconds = p.gemm_launch_us * 1e-6 * (backward ? 2 : 1) + std::max(c.compute_seconds, c.memory_seconds);
  c.sm_share = std::min(1.0, tiles / gpu.sms);
  return c;
}

}  // namespace rehearse::hwmodels
