// Multi-head latent attention. Legend: r rotating part of a head, c content part, v value part.
#include "strategies/layer/blocks.h"

namespace rehearse::strategies {
namespace {

/// Rotates r of queries and keys and puts whole heads together. A fused kernel rotates queries where they are and writes
/// keys and values as tensors of their own; else queries and keys are concatenated and values stay a view of the
/// projection's output. With sequence parallelism the key's r comes from the tokens of all tensor ranks.
struct Heads {
  TensorId query, key, value;
};

std::vector<Item> together(const std::vector<std::vector<Item>>& lists) {
  std::vector<Item> all;
  for (const std::vector<Item>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Heads rotate(const LowerContext& c, Operators& op, Tape& tape, TensorId q, TensorId latent_rotary, TensorId kv) {
  const auto& mla = c.model.latent;
  const std::int64_t e = c.element(), heads = c.model.heads / c.tensor;
  const std::int64_t whole = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  const std::int64_t q_bytes = c.tokens * heads * whole * e, v_bytes = c.tokens * heads * mla.v_head_dim * e;
  const std::int64_t rotary_bytes = c.tokens * mla.qk_rope_head_dim * e, content_bytes = c.tokens * heads * mla.qk_nope_head_dim * e;
  const bool fused = c.profile.rope == Fusion::fused;
  const bool gathers = c.sequence_parallel;

  const TensorId key = tape.tensor("key", q_bytes);
  TensorId query, value;
  Node node{.name = "latent rope", .inputs = {q, latent_rotary, kv}, .separate_views = true};
  if (fused) {
    query = tape.view("query", q);
    value = tape.tensor("value", v_bytes);
    node.outputs = {query, key, value};
    node.forward = {op.kernel("query rope", q_bytes, q_bytes), op.kernel("key rope", content_bytes + rotary_bytes + v_bytes, q_bytes + v_bytes)};
    node.backward = {op.kernel("query rope backward", q_bytes, q_bytes), op.kernel("key rope backward", q_bytes + v_bytes, content_bytes + rotary_bytes + v_bytes)};
  } else {
    query = tape.tensor("query", q_bytes);
    value = tape.view("value", kv);
    node.outputs = {query, key, value};
    const std::int64_t q_rotary = c.tokens * heads * mla.qk_rope_head_dim * e;
    const std::vector<Item> join{op.kernel("query concatenate", q_bytes, q_bytes), op.kernel("key concatenate", q_bytes, q_bytes)};
    const Item part = op.kernel("concatenate backward", 2 * q_bytes, 2 * q_bytes), sum = op.kernel("key rope backward", q_rotary, rotary_bytes, model::KernelKind::reduction);
    if (c.profile.rope == Fusion::eager && c.profile.rope_form == RopeForm::angles) {
      const auto turns = op.rotation(heads, mla.qk_rope_head_dim, mla.qk_rope_head_dim, true), key_turns = op.rotation(1, mla.qk_rope_head_dim, mla.qk_rope_head_dim, true);
      const std::int64_t table = op.angles_bytes(mla.qk_rope_head_dim);
      for (const char* name : {"query cosines", "query sines", "key cosines", "key sines"}) node.intermediates.push_back(tape.tensor(name, table, false));
      node.saved = node.intermediates;
      node.forward = together({turns.forward, key_turns.forward, join});
      node.backward = together({{part}, turns.backward, {sum}, key_turns.backward});
    } else {
      node.forward = together({{op.kernel("query rope", q_rotary, q_rotary), op.kernel("key rope", rotary_bytes, rotary_bytes)}, join});
      node.backward = {part, op.kernel("query rope backward", q_rotary, q_rotary), sum};
    }
  }
  if (gathers) {
    const int both = plan::kAfterCompute | plan::kComputeWaits;
    constexpr int kGathered = 12;   // beside the temporaries of a rotation
    node.forward.insert(node.forward.begin(), {Operators::alloc(kGathered, rotary_bytes), op.collective(CollectiveKind::all_gather, "gather rotary keys", rotary_bytes, both)});
    node.forward.push_back(Operators::free(kGathered));
    node.backward.insert(node.backward.begin(), Operators::alloc(kGathered, rotary_bytes));
    node.backward.insert(node.backward.end(), {op.collective(CollectiveKind::reduce_scatter, "scatter rotary key gradients", rotary_bytes, both), Operators::free(kGathered)});
  }
  tape.nodes.push_back(std::move(node));
  return {query, key, value};
}

}  // namespace

TensorId latent_attention_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, const model::Layer& layer) {
  const auto& m = c.model;
  const auto& mla = m.latent;
  using Split = Operators::Split;
  const std::int64_t rows = c.stream_tokens();
  TensorId q;
  if (mla.q_lora_rank > 0) {
    const TensorId latent = op.norm(op.linear(x, "q_down", m.hidden, mla.q_lora_rank, m.qkv_bias, Split::none), "q latent norm", rows, mla.q_lora_rank);
    q = op.linear(latent, "q_up", mla.q_lora_rank, m.query_width(), false, Split::column);
  } else {
    q = op.linear(x, "q_proj", m.hidden, m.query_width(), false, Split::column);
  }
  const TensorId down = op.linear(x, "kv_down", m.hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, m.qkv_bias, Split::none);
  const auto parts = op.split(down, "split latent", {mla.kv_lora_rank, mla.qk_rope_head_dim}, rows);
  const TensorId kv = op.linear(op.norm(parts[0], "kv latent norm", rows, mla.kv_lora_rank), "kv_up", mla.kv_lora_rank, m.heads * (mla.qk_nope_head_dim + mla.v_head_dim), false, Split::column);
  const Heads h = rotate(c, op, tape, q, parts[1], kv);
  return op.linear(op.attention(h.query, h.key, h.value, layer), "o_proj", m.heads * mla.v_head_dim, m.hidden, m.attention_output_bias, Split::row);
}

}  // namespace rehearse::strategies
