// The probe's own fused attention: bf16, tiles of 64 keys, register-resident like FlashAttention-2 but without its
// pipelining, so its times are a lower bound of what libraries reach. Leaves out dropout, windows and other masks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace rehearse::calibrate {

struct AttentionShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, query_length = 64, key_length = 64, head_dim = 128;
  bool causal = true;
};

/// Tensors are [batch, heads, length, head_dim] in bf16; `logsumexp` and `delta` [batch, heads, query_length] in fp32.
/// Key and value gradients are per query head: the sum over the heads that share a key head is left to the caller.
struct AttentionTensors {
  const void *query, *key, *value;
  void* output;
  float* logsumexp;
  const void* output_gradient;
  float* delta;
  void *query_gradient, *key_gradient, *value_gradient;
};

/// Lengths must be multiples of 64, head_dim 64 or 128: throws NotPossible otherwise.
void attention_forward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream);
void attention_backward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream);

}  // namespace rehearse::calibrate
