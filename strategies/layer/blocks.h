// The larger blocks of a transformer: layers, attention with its projections, dense and expert MLPs, the loss.
// Leaves out lifetimes (tape_emitter.h).
#pragma once

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

/// A whole layer: norms, attention, MLP or experts, residuals. Returns the residual stream.
TensorId layer_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x, const model::Layer& layer);

/// Multi-head latent attention (DeepSeek-V2): queries, keys and values come from low-rank latents; only a small part of
/// each head rotates. Source: DeepSeek-V2 report, section 2.1; Megatron-Core multi_latent_attention.py.
TensorId latent_attention_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x, const model::Layer& layer);

/// A state-space mixer in place of attention, with its two products.
TensorId state_space_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x);

/// A gated delta rule in place of attention, with its products.
TensorId delta_net_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x);

/// Attention's output of `width` elements per token times the sigmoid of its gate.
TensorId gated_attention(const LowerContext& context, Operators& op, Tape& tape, TensorId y, TensorId gate, std::int64_t width);

/// A dense MLP of `width` (unsharded), gated or not; names begin with `prefix` ("" or "shared experts ").
TensorId mlp_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x, std::int64_t width, const std::string& prefix = "");

/// A dense MLP, one piece of the sequence at a time; only its input is kept.
TensorId tiled_mlp_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x, std::int64_t width);
/// How many pieces: as asked for, or as many as make a piece no longer than the model is wide (ALST).
std::int64_t mlp_tiles(const LowerContext& context);

/// Output layer and loss, a piece of the tokens at a time: no more than a gibibyte of fp32 logits each.
void add_tiled_output(const LowerContext& context, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns);

/// The same in eight pieces along the sequence, as torchtitan does it; ranks of a tensor group share the vocabulary.
void add_chunked_linear(const LowerContext& context, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns);
/// Whether a job's loss comes that way: capped logits, a bias of the output layer, further heads and passes without gradients want all logits.
bool chunks_output(const LowerContext& context);

/// The same as Liger's fused linear cross-entropy: pieces whose logits are about as large as all hidden states.
void add_linear_loss(const LowerContext& context, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns);

/// Attention with its projections, a chunk of the sequence at a time, the rest in host memory (Memory::sequence_chunk).
/// `rotates`: rotary positions. Precondition: rules.cpp has nothing against it.
TensorId chunked_attention_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x, bool rotates);
/// How many chunks; 1: the sequence is whole.
std::int64_t sequence_chunks(const LowerContext& context);
/// Pinned host memory of one rank's `layers` layers, bytes.
std::int64_t chunked_host_bytes(const LowerContext& context, std::int64_t layers);
/// Output layer and loss, 32 pieces of each chunk.
void add_chunked_output(const LowerContext& context, Operators& op, Tape& tape, TensorId hidden, std::int64_t width, std::int64_t columns);

/// A branch's output times a learned vector, before it is added to the stream.
TensorId scaled_branch(const LowerContext& context, Operators& op, Tape& tape, TensorId branch, const std::string& name);

/// The stream times a learned vector and the embedding's output times another. The latter is one tensor for all layers: the first layer's input,
/// which that keeps; the sum of its gradients, as large as one layer's input, is not in the memory.
TensorId mixed_with_embedding(const LowerContext& context, Operators& op, Tape& tape, TensorId x);

/// Queries of `width` elements per token times a learned factor per head.
TensorId scaled_queries(const LowerContext& context, Operators& op, Tape& tape, TensorId q, std::int64_t width);

/// Mixture of experts: router, dispatch to the ranks that hold the experts, expert MLPs, combine, shared experts.
TensorId experts_block(const LowerContext& context, Operators& op, Tape& tape, TensorId x);

/// The loss over logits of `columns` columns on this rank; `hidden` is what they were made from.
void add_loss(const LowerContext& context, Operators& op, Tape& tape, TensorId hidden, TensorId logits, std::int64_t columns);

}  // namespace rehearse::strategies
