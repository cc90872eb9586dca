// LLaMA-Adapter and its second version, as LitGPT computes them: a learned prompt in the attention of the upper layers; a
// learned shift and scale behind every linear layer. Sources: Lightning-AI/litgpt adapter.py
// (CausalSelfAttention.scaled_dot_product_attention), adapter_v2.py (AdapterV2Linear.forward).
#include "strategies/layer/operators.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

TensorId Operators::with_prompt(TensorId q, TensorId y) {
  const auto& m = c_.model;
  const std::int64_t e = c_.element(), width = m.heads * m.head_dim, kv_width = m.kv_heads * m.head_dim, all = width + 2 * kv_width, bytes = c_.tokens * width * e;
  LowerContext inner = c_;
  inner.adapter = true;
  const Operators op(inner, tape_);

  // The prompt goes through the layer's own projection, 4-bit weights written out for it once more.
  Weight prompt = op.weight("prompt.weight", kPromptLength * m.hidden);
  prompt.matrix = false;
  prompt.columns = m.hidden;
  const int w = tape_.weight(std::move(prompt));
  const TensorId projected = tape_.tensor("prompt qkv", kPromptLength * all * e);
  Node projection{.name = "prompt projection", .outputs = {projected}};
  const bool quantised = quantises(c_.strategy.tuning, c_.profile, "qkv");
  const auto product = [&](std::vector<Item>& list, const std::string& name, GemmRole role, std::int64_t columns, std::int64_t depth) {
    if (quantised) dequantise(list, 0, m.hidden * all);
    const Item made = gemm(name, role, kPromptLength, columns, depth, c_.activation, false);
    list.push_back(role == GemmRole::data_gradient ? op.weight_gradient(w, made) : made);
    if (quantised) list.push_back(free(0));
  };
  product(projection.forward, "prompt projection", GemmRole::forward, all, m.hidden);
  product(projection.backward, "prompt gradient", GemmRole::data_gradient, m.hidden, all);
  tape_.nodes.push_back(std::move(projection));

  // Queries against a handful of keys, none of them masked.
  const AttentionShape shape{.batch = c_.batch, .heads = m.heads, .kv_heads = m.heads, .head_dim = m.head_dim, .value_dim = m.head_dim, .length = c_.sequence};
  const TensorId found = tape_.tensor("prompt attention", bytes), lse = tape_.tensor("prompt log-sum-exp", c_.tokens * m.heads * 4, false);
  tape_.nodes.push_back({.name = "prompt attention", .inputs = {q, projected}, .outputs = {found}, .saved = {q, projected, found, lse}, .intermediates = {lse},
                         .forward = {attention_kernel(KernelKind::attention_forward, shape, false, c_.sequence, kPromptLength)},
                         .backward = {attention_kernel(KernelKind::attention_backward, shape, false, c_.sequence, kPromptLength)}});

  Weight gate = op.weight("prompt gate", m.heads);
  gate.matrix = false;
  const int g = tape_.weight(std::move(gate));
  const TensorId sum = tape_.tensor("attention with prompt", bytes);
  tape_.nodes.push_back({.name = "prompt gate", .inputs = {y, found}, .outputs = {sum}, .saved = {found},
                         .forward = {alloc(0, bytes), kernel("prompt gate", bytes, bytes), kernel("prompt add", 2 * bytes, bytes), free(0)},
                         .backward = {kernel("prompt gate backward", bytes, bytes), alloc(1, bytes), kernel("prompt gate product", 2 * bytes, bytes),
                                      op.weight_gradient(g, kernel("prompt gate gradient", bytes, m.heads * e, KernelKind::reduction)), free(1)},
                         .passed_inputs = 1});
  return sum;
}

TensorId Operators::scaled_and_shifted(TensorId y, const std::string& name, std::int64_t out, Split split) {
  const std::int64_t e = c_.element(), rows = split == Split::none ? c_.stream_tokens() : c_.tokens, bytes = rows * out * e;
  LowerContext inner = c_;
  inner.adapter = true;
  const Operators op(inner, tape_);
  const auto vector = [&](const std::string& what) {
    Weight v = op.weight(name + " " + what, out);
    v.matrix = false;
    return tape_.weight(std::move(v));
  };
  const int bias = vector("adapter bias"), scale = vector("adapter scale");
  const TensorId shifted = tape_.tensor(name + " shifted", bytes), result = tape_.tensor(name + " scaled", bytes);
  tape_.nodes.push_back({.name = name + " shift", .inputs = {y}, .outputs = {shifted}, .forward = {kernel("adapter shift", bytes, bytes)},
                         .backward = {op.weight_gradient(bias, kernel("adapter bias gradient", bytes, out * e, KernelKind::reduction))}, .passed_inputs = 1});
  tape_.nodes.push_back({.name = name + " scale", .inputs = {shifted}, .outputs = {result}, .saved = {shifted}, .forward = {kernel("adapter scale", bytes, bytes)},
                         .backward = {kernel("adapter scale backward", bytes, bytes), alloc(0, bytes), kernel("adapter scale product", 2 * bytes, bytes),
                                      op.weight_gradient(scale, kernel("adapter scale gradient", bytes, out * e, KernelKind::reduction)), free(0)}});
  return result;
}

}  // namespace rehearse::strategies
