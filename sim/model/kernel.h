// One GPU kernel as the cost model needs to know it: what it computes, in which number formats, on which shapes.
// Leaves out how long it takes (hwmodels/device) and where in a program it runs (sim/plan).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/core/dtype.h"
#include "sim/core/units.h"

namespace rehearse::model {

enum class KernelKind : std::uint8_t {
  gemm,               // C[b,m,n] (+)= A[b,m,k] * B[b,k,n]
  grouped_gemm,       // `batch` independent GEMMs of mean size m x n x k (experts)
  native_grouped_gemm, // the same by PyTorch's own kernel (torch._grouped_mm)
  attention_forward,  // fused (flash / cuDNN) attention
  attention_backward,
  elementwise,        // add, copy, cast, activation, dropout, rope: reads and writes streams
  strided,            // elementwise, an operand broadcast or not contiguous: PyTorch loads such operands one by one
  converting,         // elementwise, tensors of several types: PyTorch's kernels convert element by element (LoadWithCast)
  transposing,        // elementwise, its result or one of them written along the other dimension (TorchInductor's casts to 8 bits)
  normalization,      // LayerNorm, RMSNorm: row reductions and a stream
  native_normalization, // the same by PyTorch's own kernel
  softmax,            // unfused attention scores
  cross_entropy,      // loss over the vocabulary
  embedding,          // gather (forward) or scatter-add (backward)
  permute,            // MoE token permutation and un-permutation
  optimizer,          // fused or multi-tensor parameter update
  reduction,          // norms of gradients, sums
  convolution,        // a causal one over a few neighbours along the sequence (causal_conv1d)
  scan,               // chunks of a state-space scan by Triton: products of tiles, and a decay for each pair of tokens (scan_kernels.h)
  delta_rule,         // chunks of a gated delta rule by Triton: products of tiles; states are made chunk after chunk (delta_kernels.h)
  memset,
};

/// Which GEMM of a linear layer this is: they differ in layout, accumulation and achieved speed.
enum class GemmRole : std::uint8_t { forward, data_gradient, weight_gradient };

/// Which implementation of fused attention runs.
/// triton: FlashAttention of 2022 as Triton kernels (llm-foundry's attn_impl).
/// On AMD's GPUs: aotriton is PyTorch's until AOTriton 0.10, aotriton_assembly from 0.11 on, whose backward is AITER's assembly;
/// composable is flash-attn's, of Composable Kernel; flash2 is AITER's.
/// cudnn: 9.4 (September 2024) to 9.12, a tenth slower backward on Hopper and a fifth on Blackwell than cudnn_9_13 and later.
/// cudnn_fp8, cudnn_mxfp8: 9.21 and later on operands in 8 bits, with a scale per tensor or per 32 elements; results are bf16.
enum class AttentionKernel : std::uint8_t {
  flash1, flash2, flash3, cudnn, cudnn_9_13, sdpa_math, mem_efficient, triton, cudnn_fp8, cudnn_mxfp8, aotriton, aotriton_assembly, composable, flex
};

/// Shapes and traffic of one kernel launch. Sizes are of one rank.
///   products               batch, m, n, k; dtype = operands, output_dtype = C; accumulate: C is also read; bytes_read, bytes_written: of copies of operands beside it; staggered: a piece of a product, with the next piece on
///                          another stream, whose blocks take the SMs that this one's leave
///   attention              batch, heads, kv_heads, query_length, key_length, head_dim, value_head_dim, causal, window; dropout: which scores are kept is drawn in the kernel
///   everything else        bytes_read, bytes_written (HBM traffic if nothing stays in L2), flops; strided, convolution: elements of the result; converting: of all operands and the result; scan: decays; delta_rule: chunks that wait for one another; embedding backward: additions
///                          at repeated places, in those of scatter_add_; optimizer: parameters, where it is AdamW in one pass
struct KernelSpec {
  KernelKind kind = KernelKind::elementwise;
  GemmRole role = GemmRole::forward;
  AttentionKernel attention = AttentionKernel::flash2;
  DType dtype = DType::bf16;
  DType output_dtype = DType::bf16;
  bool accumulate = false;
  bool staggered = false;
  bool causal = true;
  bool dropout = false;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  std::int64_t heads = 0, kv_heads = 0, query_length = 0, key_length = 0, head_dim = 0, value_head_dim = 0, window = 0;
  std::int64_t bytes_read = 0, bytes_written = 0, elements = 0;
  double flops = 0;  // used by the non-GEMM, non-attention kinds; see flops_of() for all kinds
  std::string name;  // for traces: "fc1", "rms_norm backward"

  friend bool operator==(const KernelSpec&, const KernelSpec&) = default;
};

/// A matrix product, of one matrix or of several.
constexpr bool is_product(KernelKind k) { return k == KernelKind::gemm || k == KernelKind::grouped_gemm || k == KernelKind::native_grouped_gemm; }

/// Operations the kernel executes: GEMM 2*batch*m*n*k; attention forward 2*batch*heads*area*(d+dv), where area is the
/// number of (query, key) pairs that are computed (half for causal, less with a window); backward 2.5 times that when
/// the scores are recomputed (flash), 2 times otherwise; `flops` for the rest.
/// Source: Dao 2023 (FlashAttention-2), section 4, for the factor 2.5.
Flops flops_of(const KernelSpec& kernel);

/// HBM bytes the kernel moves if every operand is read once and every result written once.
Bytes traffic_of(const KernelSpec& kernel);

/// (query, key) pairs of one head and one batch element under the causal mask and the sliding window.
double attention_area(std::int64_t query_length, std::int64_t key_length, bool causal, std::int64_t window);

std::string_view name_of(KernelKind kind);
/// As measurements and tables of them write it. One list of all kernels of fused attention serves both ways.
std::string_view name_of(AttentionKernel kernel);
std::optional<AttentionKernel> attention_kernel_named(std::string_view name);
std::span<const AttentionKernel> all_attention_kernels();

}  // namespace rehearse::model
