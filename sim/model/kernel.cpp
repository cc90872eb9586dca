#include "sim/model/kernel.h"

#include <algorithm>
#include <array>

namespace rehearse::model {

double attention_area(std::int64_t query_length, std::int64_t key_length, bool causal, std::int64_t window) {
  const double q = static_cast<double>(query_length), k = static_cast<double>(key_length);
  if (!causal) return q * (window > 0 ? std::min(k, 2.0 * static_cast<double>(window)) : k);
  // Query i (counted from the end of the keys) sees keys 0..k-q+i: a trapezoid, cut by the window.
  const double offset = std::max(0.0, k - q);
  const double full = q * offset + q * (q + 1) / 2;
  if (window <= 0 || static_cast<double>(window) >= k) return full;
  const double w = static_cast<double>(window);
  const double ramp = std::clamp(w - offset, 0.0, q);  // queries that see fewer than w keys
  return ramp * offset + ramp * (ramp + 1) / 2 + (q - ramp) * w;
}

Flops flops_of(const KernelSpec& s) {
  switch (s.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::native_grouped_gemm:
      return Flops{2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k)};
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: {
      const double area = attention_area(s.query_length, s.key_length, s.causal, s.window);
      const double forward = 2.0 * static_cast<double>(s.batch * s.heads) * area * static_cast<double>(s.head_dim + s.value_head_dim);
      if (s.kind == KernelKind::attention_forward) return Flops{forward};
      return Flops{forward * (s.attention == AttentionKernel::sdpa_math ? 2.0 : 2.5)};
    }
    default:
      return Flops{s.flops};
  }
}

Bytes traffic_of(const KernelSpec& s) {
  switch (s.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::native_grouped_gemm: {
      const std::int64_t in = byte_size(s.dtype, s.batch * (s.m * s.k + s.k * s.n));
      const std::int64_t out = byte_size(s.output_dtype, s.batch * s.m * s.n);
      return Bytes{in + out * (s.accumulate ? 2 : 1)};
    }
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: {
      const std::int64_t q = s.batch * s.heads * s.query_length * s.head_dim;
      const std::int64_t kv = s.batch * s.kv_heads * s.key_length * (s.head_dim + s.value_head_dim);
      const std::int64_t o = s.batch * s.heads * s.query_length * s.value_head_dim;
      if (s.kind == KernelKind::attention_forward) return Bytes{byte_size(s.dtype, q + kv + o)};
      return Bytes{byte_size(s.dtype, 2 * q + 2 * kv + 2 * o) + 2 * byte_size(DType::fp32, q)};  // fp32 dQ accumulator
    }
    default:
      return Bytes{s.bytes_read + s.bytes_written};
  }
}

std::string_view name_of(KernelKind kind) {
  switch (kind) {
    case KernelKind::gemm: return "gemm";
    case KernelKind::grouped_gemm: return "grouped_gemm";
    case KernelKind::native_grouped_gemm: return "native_grouped_gemm";
    case KernelKind::attention_forward: return "attention_forward";
    case KernelKind::attention_backward: return "attention_backward";
    case KernelKind::elementwise: return "elementwise";
    case KernelKind::strided: return "strided";
    case KernelKind::converting: return "converting";
    case KernelKind::transposing: return "transposing";
    case KernelKind::normalization: return "normalization";
    case KernelKind::native_normalization: return "native_normalization";
    case KernelKind::softmax: return "softmax";
    case KernelKind::cross_entropy: return "cross_entropy";
    case KernelKind::embedding: return "embedding";
    case KernelKind::permute: return "permute";
    case KernelKind::optimizer: return "optimizer";
    case KernelKind::reduction: return "reduction";
    case KernelKind::convolution: return "convolution";
    case KernelKind::scan: return "scan";
    case KernelKind::delta_rule: return "delta rule";
    case KernelKind::memset: return "memset";
  }
  return "?";
}

std::string_view name_of(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::flash1: return "flash1";
    case AttentionKernel::flash2: return "flash2";
    case AttentionKernel::flash3: return "flash3";
    case AttentionKernel::cudnn: return "cudnn";
    case AttentionKernel::cudnn_9_13: return "cudnn_9_13";
    case AttentionKernel::sdpa_math: return "sdpa_math";
    case AttentionKernel::mem_efficient: return "mem_efficient";
    case AttentionKernel::triton: return "triton";
    case AttentionKernel::cudnn_fp8: return "cudnn_fp8";
    case AttentionKernel::cudnn_mxfp8: return "cudnn_mxfp8";
    case AttentionKernel::aotriton: return "aotriton";
    case AttentionKernel::aotriton_assembly: return "aotriton_assembly";
    case AttentionKernel::composable: return "composable";
    case AttentionKernel::flex: return "flex";
  }
  return "?";
}

std::span<const AttentionKernel> all_attention_kernels() {
  static const auto all = [] {
    std::array<AttentionKernel, static_cast<std::size_t>(AttentionKernel::flex) + 1> kernels{};   // flex is the enum's last
    for (std::size_t i = 0; i < kernels.size(); ++i) kernels[i] = static_cast<AttentionKernel>(i);
    return kernels;
  }();
  return all;
}

std::optional<AttentionKernel> attention_kernel_named(std::string_view name) {
  for (const AttentionKernel kernel : all_attention_kernels())
    if (name_of(kernel) == name) return kernel;
  return std::nullopt;
}

}  // namespace rehearse::model
