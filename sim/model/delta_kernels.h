// The kernels of a gated delta rule over chunks of tokens, as flash-linear-attention's Triton code launches them on one rank.
// Leaves out which tensors live how long (strategies/layer/delta_net.cpp) and how fast the kernels are (hwmodels/device).
#pragma once

#include "sim/model/description.h"
#include "sim/model/kernel.h"

namespace rehearse::model {

/// One rank's delta rule: tokens of `samples` of `sequence` each, and its heads of a mixer. Bytes are those of the tensors named.
struct DeltaShape {
  static constexpr std::int64_t kChunk = 64;   // tokens that are computed as one block

  std::int64_t samples = 1, sequence = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  DType dtype = DType::bf16;

  /// Of `mixer` over `ranks` tensor-parallel ranks. Precondition: they divide its heads.
  static DeltaShape of(const DeltaNet& mixer, std::int64_t samples, std::int64_t sequence, std::int64_t ranks, DType dtype);

  std::int64_t tokens() const { return samples * sequence; }
  std::int64_t element() const { return bits(dtype) / 8; }
  std::int64_t convolved() const { return 2 * keys() + values(); }
  std::int64_t keys() const { return tokens() * key_heads * key_dim * element(); }         // or queries
  std::int64_t wide_keys() const { return tokens() * value_heads * key_dim * element(); }  // the same for each head of the values
  std::int64_t values() const { return tokens() * value_heads * value_dim * element(); }   // values, the gate, the output
  std::int64_t decays() const { return tokens() * value_heads * 4; }                       // decays or their running sums, fp32
  std::int64_t steps() const { return tokens() * value_heads * element(); }                // step sizes of the rule (beta)
  std::int64_t inverses() const { return tokens() * value_heads * kChunk * element(); }    // of each chunk's triangle (A)
  std::int64_t states() const { return (sequence + kChunk - 1) / kChunk * samples * value_heads * key_dim * value_dim * element(); }   // one per chunk
};

/// What the forward pass launches: running sums of decays; products of keys within chunks with their inverses, and what these make of keys and
/// values; a state per chunk, one after the other; output.
/// Source: fla-org/flash-linear-attention@bc3b101d fla/ops/gated_delta_rule/chunk.py, chunk_gated_delta_rule_fwd.
struct DeltaForward {
  KernelSpec sums, within, states, output;
};
DeltaForward delta_forward(const DeltaShape& shape);

/// What the backward pass launches: keys and values within chunks and states again; gradients of values within chunks; of states, one after the
/// other; of queries, keys and what chunks made of keys; of what they were made from; sums.
/// Source: the same file, chunk_gated_delta_rule_bwd.
struct DeltaBackward {
  KernelSpec within_again, states_again, local, states, operands, within, add_keys, add_decays, sums;
};
DeltaBackward delta_backward(const DeltaShape& shape);

}  // namespace rehearse::model
