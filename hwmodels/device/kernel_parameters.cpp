#include "hwmodels/device/kernel_parameters.h"

#include <array>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

using P = KernelParameters;

#define REHEARSE_FIELD(name, is_fraction) \
  ParameterField { #name, [](P& p) -> double& { return p.name; }, is_fraction }
#define REHEARSE_ATTENTION(kernel)                                                                              \
  ParameterField{#kernel "_forward_fraction", [](P& p) -> double& { return p.kernel.forward_fraction; }, true}, \
      ParameterField{#kernel "_backward_fraction", [](P& p) -> double& { return p.kernel.backward_fraction; }, true}, \
      ParameterField{#kernel "_softmax_flops", [](P& p) -> double& { return p.kernel.softmax_flops; }, false},  \
      ParameterField{#kernel "_key_ramp", [](P& p) -> double& { return p.kernel.key_ramp; }, false},            \
      ParameterField{#kernel "_causal_waste", [](P& p) -> double& { return p.kernel.causal_waste; }, false},    \
      ParameterField{#kernel "_wave_quantisation", [](P& p) -> double& { return p.kernel.wave_quantisation; }, false}
#define REHEARSE_ATTENTION_8BIT(kernel) \
  REHEARSE_ATTENTION(kernel), ParameterField { #kernel "_backward_softmax_flops", [](P& p) -> double& { return p.kernel.backward_softmax_flops; }, false }

constexpr std::array kFields{
    REHEARSE_FIELD(burst_clock, false),
    REHEARSE_FIELD(sustained_clock, true),
    REHEARSE_FIELD(gemm_fp32_power, false),
    REHEARSE_FIELD(gemm_8bit_power, true),
    REHEARSE_FIELD(speed_spread, false),
    REHEARSE_FIELD(gemm_peak_fraction, true),
    REHEARSE_FIELD(gemm_fp8_fraction, true),
    REHEARSE_FIELD(gemm_default_share, true),
    REHEARSE_FIELD(gemm_exact_fp8_fraction, true),
    REHEARSE_FIELD(gemm_nvfp4_fraction, true),
    REHEARSE_FIELD(gemm_fp32_fraction, true),
    REHEARSE_FIELD(gemm_data_gradient_fraction, true),
    REHEARSE_FIELD(gemm_weight_gradient_fraction, true),
    REHEARSE_FIELD(gemm_unaligned_fraction, true),
    REHEARSE_FIELD(gemm_unaligned_batch_on_cores, true),
    REHEARSE_FIELD(tile_fetch, false),
    REHEARSE_FIELD(wave_quantisation, false),
    REHEARSE_FIELD(k_ramp_bytes, false),
    REHEARSE_FIELD(fitted_flops_per_clock, false),
    REHEARSE_FIELD(overlap_leak, false),
    REHEARSE_FIELD(gemm_hbm_fraction, true),
    REHEARSE_FIELD(gemm_launch_us, false),
    REHEARSE_FIELD(l2_share, true),
    REHEARSE_FIELD(grouped_fraction, true),
    REHEARSE_FIELD(grouped_group_us, false),
    REHEARSE_FIELD(native_grouped_fraction, true),
    REHEARSE_FIELD(attention_clock_ratio, false),
    REHEARSE_FIELD(cudnn_random_per_clock, false),
    REHEARSE_FIELD(flash2_random_per_clock, false),
    REHEARSE_ATTENTION(flash1),
    REHEARSE_ATTENTION(flash2),
    REHEARSE_ATTENTION(flash3),
    REHEARSE_ATTENTION(cudnn),
    REHEARSE_ATTENTION(cudnn_9_13),
    REHEARSE_ATTENTION_8BIT(cudnn_fp8),
    REHEARSE_ATTENTION_8BIT(cudnn_mxfp8),
    REHEARSE_ATTENTION(aotriton),
    REHEARSE_FIELD(flex_forward_share, false),
    REHEARSE_FIELD(flex_backward_share, false),
    REHEARSE_FIELD(triton_forward_share, true),
    REHEARSE_FIELD(triton_backward_share, true),
    REHEARSE_FIELD(composable_forward_share, true),
    REHEARSE_FIELD(composable_backward_share, true),
    REHEARSE_FIELD(wide_head_backward_fraction, true),
    REHEARSE_FIELD(math_passes_forward, false),
    REHEARSE_FIELD(math_passes_mask, false),
    REHEARSE_FIELD(math_passes_backward, false),
    REHEARSE_FIELD(elementwise_fraction, true),
    REHEARSE_FIELD(normalization_fraction, true),
    REHEARSE_FIELD(normalization_backward_fraction, true),
    REHEARSE_FIELD(native_normalization_fraction, true),
    REHEARSE_FIELD(strided_elements_per_clock, false),
    REHEARSE_FIELD(converted_per_clock, false),
    REHEARSE_FIELD(transposing_share, true),
    REHEARSE_FIELD(scan_share, true),
    REHEARSE_FIELD(scan_launch_us, false),
    REHEARSE_FIELD(scan_backward_share, true),
    REHEARSE_FIELD(added_per_clock, false),
    REHEARSE_FIELD(updated_per_clock, false),
    REHEARSE_FIELD(convolved_per_clock, false),
    REHEARSE_FIELD(convolved_backward_per_clock, false),
    REHEARSE_FIELD(scan_flops_per_clock, false),
    REHEARSE_FIELD(scan_decays_per_clock, false),
    REHEARSE_FIELD(delta_flops_per_clock, false),
    REHEARSE_FIELD(delta_backward_share, false),
    REHEARSE_FIELD(delta_clocks_per_chunk, false),
    REHEARSE_FIELD(delta_backward_clocks_per_chunk, false),
    REHEARSE_FIELD(softmax_fraction, true),
    REHEARSE_FIELD(cross_entropy_fraction, true),
    REHEARSE_FIELD(embedding_fraction, true),
    REHEARSE_FIELD(embedding_backward_fraction, true),
    REHEARSE_FIELD(permute_fraction, true),
    REHEARSE_FIELD(optimizer_fraction, true),
    REHEARSE_FIELD(reduction_fraction, true),
    REHEARSE_FIELD(memset_fraction, true),
    REHEARSE_FIELD(memory_launch_us, false),
    REHEARSE_FIELD(l2_bandwidth_ratio, false),
    REHEARSE_FIELD(memory_sm_share, true),
    REHEARSE_FIELD(gemm_late_tiles, false),
    REHEARSE_FIELD(collective_sm_weight, false),
    REHEARSE_FIELD(shared_hbm_fraction, true),
    REHEARSE_FIELD(collective_beside_kernels, true),
    REHEARSE_FIELD(copy_beside_kernels, true),
    REHEARSE_FIELD(fitted_gemm_rows, false),
    REHEARSE_FIELD(fitted_gemm_minimum, false),
    REHEARSE_FIELD(fitted_gemm_maximum, false),
    REHEARSE_FIELD(fitted_attention_rows, false),
    REHEARSE_FIELD(fitted_attention_minimum, false),
    REHEARSE_FIELD(fitted_attention_maximum, false),
    REHEARSE_FIELD(fitted_memory_rows, false),
    REHEARSE_FIELD(fitted_memory_minimum, false),
    REHEARSE_FIELD(fitted_memory_maximum, false),
};

#undef REHEARSE_ATTENTION_8BIT
#undef REHEARSE_ATTENTION
#undef REHEARSE_FIELD

}  // namespace

std::span<const ParameterField> kernel_parameter_fields() { return kFields; }

KernelParameters kernel_parameters_from(const std::map<std::string, double>& values) {
  KernelParameters out;
  std::size_t used = 0;
  for (const ParameterField& f : kFields) {
    const auto it = values.find(std::string{f.name});
    if (it == values.end()) continue;
    f.field(out) = it->second;
    ++used;
  }
  EXPECTS(used == values.size(), "kernel parameters with a name that no field has");
  return out;
}

}  // namespace rehearse::hwmodels
