// The kernel model's parameters: few per architecture, each with a meaning, all from hwmodels/data/kernel/*.yaml.
// Leaves out the numbers themselves and how they were fitted (hwmodels/data/kernel/README.md).
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "sim/model/kernel.h"

namespace rehearse::hwmodels {

/// One implementation of fused attention on one architecture. All zero: not measured there.
struct AttentionParameters {
  double forward_fraction = 0;   // of the tensor peak, while the tiles' matrix products and softmax run; burst clock
  double backward_fraction = 0;  // the same for backward
  double softmax_flops = 0;      // what one score costs outside the tensor cores, in tensor-core FLOPs; as much in backward
  double key_ramp = 0;           // prologue and epilogue of one tile, as a number of extra keys
  double causal_waste = 0;       // masked scores computed at each edge of the mask (the diagonal, a window's far side), keys per query
  double wave_quantisation = 0;  // 0: a last partial wave costs its share; 1: it costs a whole wave
  double backward_softmax_flops = 0;  // 8-bit kernels: backward's, which also brings scores and their gradients into 8 bits; 0: as forward
};

struct KernelParameters {
  // Clock. Burst: a cold microbenchmark. Sustained: minutes of training at the power limit.
  double burst_clock = 1;            // of a cold kernel, of the clock that the datasheet's peaks are at, beyond what the architecture's other parameters contain (GeForce)
  double sustained_clock = 1;        // 16-bit GEMM rate sustained / burst
  double gemm_fp32_power = 1;        // of what 16-bit GEMMs draw at one clock, that those of CUDA cores draw
  double gemm_8bit_power = 1;        // what tensor units draw over products in 8 bits or fewer, of what they draw over 16-bit ones
  double speed_spread = 0;           // standard deviation of the compute speed of GPUs of one type, as a fraction

  // GEMM.
  double gemm_peak_fraction = 0;            // of the datasheet peak, 128 x 256 tile, infinitely deep, burst clock
  double gemm_fp8_fraction = 1;             // factors on the above
  double gemm_default_share = 1;            // of gemm_peak_fraction, 16-bit products that the library's heuristics choose without a search (PyTorch on AMD)
  double gemm_exact_fp8_fraction = 1;       // of fp8 gradients, whose sums leave the tensor units on the way (cuBLAS without CUBLASLT_MATMUL_DESC_FAST_ACCUM)
  double gemm_nvfp4_fraction = 1;           // of the 4-bit peak
  double gemm_fp32_fraction = 1;            // fp32 and tf32
  double gemm_data_gradient_fraction = 1;
  double gemm_weight_gradient_fraction = 1;
  double gemm_unaligned_fraction = 1;       // leading dimension of an operand not a multiple of 16 bytes
  double gemm_unaligned_batch_on_cores = 0; // 1: unaligned products in a batch have no kernel for the tensor cores
  double tile_fetch = 0;                    // share of a tile's time that grows with its edge-to-area ratio
  double wave_quantisation = 1;             // as in AttentionParameters
  double k_ramp_bytes = 0;                  // prologue and epilogue of a tile, as bytes of K
  double fitted_flops_per_clock = 0;        // of an SM of the parts that both were fitted on, 16-bit operands; 0: every part of the architecture has as many
  double overlap_leak = 0;                  // share of the shorter of compute and HBM time that is not hidden
  double gemm_hbm_fraction = 1;             // of the datasheet HBM bandwidth
  double gemm_launch_us = 0;                // device time of an empty kernel
  double l2_share = 0.5;                    // of the L2 that data survives in
  double grouped_fraction = 1;              // factor on gemm_peak_fraction
  double grouped_group_us = 0;              // per group: descriptors, pointers, the streams' hand-over
  double native_grouped_fraction = 1;       // of that, what PyTorch's own kernel reaches on 16-bit operands

  // Random numbers that one SM draws per clock for attention's dropout, one per score, while its kernel does nothing else. 0: no time of their own.
  double cudnn_random_per_clock = 0, flash2_random_per_clock = 0;
  double attention_clock_ratio = 1;         // attention keeps more of the clock at the power limit than products of training steps as busy do
  AttentionParameters flash1, flash2, flash3, cudnn, cudnn_9_13, cudnn_fp8, cudnn_mxfp8, aotriton;
  double triton_forward_share = 0, triton_backward_share = 0;          // of flash2's speed; 0: not measured there
  double flex_forward_share = 0, flex_backward_share = 0;              // the same of FlexAttention's
  double composable_forward_share = 0, composable_backward_share = 0;  // the same of Composable Kernel's
  double wide_head_backward_fraction = 1;  // factor on 16-bit backward when head_dim > 128 (registers spill)
  double math_passes_forward = 0;          // unfused attention: passes over the scores in memory
  double math_passes_mask = 0;             // more of them when a causal mask is built and added
  double math_passes_backward = 0;

  // Memory-bound kernels: fractions of the datasheet HBM bandwidth by kind.
  double elementwise_fraction = 0, normalization_fraction = 0, normalization_backward_fraction = 0;
  double native_normalization_fraction = 0;  // PyTorch's own forward kernel; backward as above
  double strided_elements_per_clock = 0;     // of one SM at the boost clock, where elements are loaded one by one
  double converted_per_clock = 0;            // the same of operands and results where tensors are of several types
  double transposing_share = 1;              // of elementwise_fraction, of Triton's kernels that write along the other dimension
  double softmax_fraction = 0, cross_entropy_fraction = 0, embedding_fraction = 0, embedding_backward_fraction = 0;
  // Scans over chunks of tokens by Triton's kernels: the HBM bandwidth that they reach, of elementwise_fraction; of one SM at the boost clock FLOPs of
  // their products on tensor units, and decays. 0: no limit.
  double scan_share = 1;
  double scan_launch_us = 0;                 // as memory_launch_us, where theirs is more
  double scan_backward_share = 1;            // of those rates, in backward's kernels
  double convolved_per_clock = 0, convolved_backward_per_clock = 0;   // elements of one SM and clock of causal_conv1d; 0: as fast as memory
  double scan_flops_per_clock = 0, scan_decays_per_clock = 0;
  // Gated delta rules, likewise: FLOPs of their products; clocks from one chunk's state to the next, forward and backward.
  double delta_flops_per_clock = 0, delta_backward_share = 1;
  double delta_clocks_per_chunk = 0, delta_backward_clocks_per_chunk = 0;
  double added_per_clock = 0;                // elements of one SM and clock that scatter_add_ adds by atomics; 0: embedding_backward_fraction says it
  double updated_per_clock = 0;              // parameters of one SM and clock that a fused Adam updates, however narrow they are; 0: no limit
  double permute_fraction = 0, optimizer_fraction = 0, reduction_fraction = 0, memset_fraction = 0;
  double memory_launch_us = 0;     // device time of an empty kernel, with the ramp of the memory system
  double l2_bandwidth_ratio = 1;   // L2 / HBM bandwidth, for tensors that fit in l2_share of the L2
  double memory_sm_share = 1;      // SMs that suffice to saturate HBM

  // Interference, where work runs at once: what a machine measured of it (calibrate/fit/fit_interference.h). The defaults are
  // the mechanism alone: a channel holds one SM, HBM is shared up to its datasheet bandwidth, nothing else slows anything.
  // Products whose tiles are dealt out to all SMs before they run: where a collective holds some of the SMs when one begins,
  // their tiles come later and take this share of the product's time alone. 0: tiles go to whichever SM is free.
  double gemm_late_tiles = 0;
  double collective_sm_weight = 1;       // SMs that kernels lose to a channel of a collective
  double shared_hbm_fraction = 1;        // of the datasheet HBM bandwidth, reached by all that runs at once together
  double collective_beside_kernels = 1;  // rate of a collective while kernels run, where links and HBM leave room for more
  double copy_beside_kernels = 1;        // the same for copies between host and device

  // What the fit has seen: outside it, a cost is marked as extrapolated. Zero rows: everything is.
  double fitted_gemm_rows = 0, fitted_gemm_minimum = 0, fitted_gemm_maximum = 0;  // smallest, largest of m, n, k
  double fitted_attention_rows = 0, fitted_attention_minimum = 0, fitted_attention_maximum = 0;  // sequence
  double fitted_memory_rows = 0, fitted_memory_minimum = 0, fitted_memory_maximum = 0;           // bytes
};

/// Name in the data files ("flash2_forward_fraction") and the field it fills; a `fraction` lies in (0, 1].
struct ParameterField {
  std::string_view name;
  double& (*field)(KernelParameters&);
  bool is_fraction;
};
std::span<const ParameterField> kernel_parameter_fields();

/// Precondition: every name is one of kernel_parameter_fields() (load_gpu has checked); absent ones keep defaults.
KernelParameters kernel_parameters_from(const std::map<std::string, double>& values);

}  // namespace rehearse::hwmodels
