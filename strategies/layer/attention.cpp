// Scaled dot-product attention, fused (flash) and unfused (scores in memory).
#include "strategies/layer/operators.h"

namespace rehearse::strategies {

using model::KernelKind;

TensorId Operators::attention(TensorId q, TensorId k, TensorId v, const model::Layer& layer) {
  if (c_.attention == "unfused") return attention_unfused(q, k, v, layer);
  const auto& m = c_.model;
  const std::int64_t e = c_.element(), t = c_.tensor;
  const bool repeated = c_.profile.repeat_kv && m.kv_heads < m.heads;
  const std::int64_t heads = m.heads / t, kv_heads = repeated ? heads : std::max<std::int64_t>(1, m.kv_heads / t);
  const std::int64_t value_dim = m.latent.present() ? m.latent.v_head_dim : m.head_dim;
  const std::int64_t head_dim = m.query_width() / m.heads;
  const TensorId out = tape_.tensor("attention output", c_.tokens * heads * value_dim * e);
  const TensorId lse = tape_.tensor("attention log-sum-exp", c_.tokens * heads * 4, false);

  // Context parallelism splits the queries; every rank meets all keys (ring or gathered): balanced, so each rank computes
  // 1/c of the causal area.
  const std::int64_t context = c_.strategy.parallelism.degrees.context;
  model::KernelSpec spec{.kind = KernelKind::attention_forward, .attention = c_.profile.attention, .dtype = c_.activation, .output_dtype = c_.activation,
                         .causal = true, .batch = c_.batch, .heads = heads, .kv_heads = kv_heads, .query_length = c_.sequence,
                         .key_length = (c_.sequence * context + c_.sequence) / 2, .head_dim = head_dim, .value_head_dim = value_dim,
                         .window = layer.window < c_.sequence ? layer.window : 0, .name = "attention"};
  Node node{.name = "attention", .inputs = {q, k, v}, .outputs = {out}, .saved = {q, k, v, out, lse}, .intermediates = {lse}};
  // Ring attention: keys and values (backward: and their gradients) go round on a stream of their own while blocks are computed.
  const std::int64_t ring = c_.batch * c_.sequence * context * kv_heads * (head_dim + value_dim) * e;
  auto exchange = [&](const char* name, std::int64_t bytes) {
    return Item{.kind = Item::Kind::collective, .stream = plan::Stream::context, .sync = plan::kAfterCompute,
                .spec = c_.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::context, Bytes{bytes}, name})};
  };
  const std::int64_t buffers = 2 * ring / context;   // two blocks of keys and values in flight
  if (context > 1) node.forward = {Operators::alloc(2, buffers), exchange("ring of keys and values", ring)};
  node.forward.push_back({.kind = Item::Kind::kernel, .spec = c_.builder.kernel(spec)});
  if (context > 1) node.forward.insert(node.forward.end(), {wait(plan::Stream::context), Operators::free(2)});
  spec.kind = KernelKind::attention_backward;
  spec.name = "attention backward";
  // The fp32 accumulator of dQ and the row sums live while the kernel runs (flash_api.cpp, mha_bwd: dq_accum, softmax_d).
  const std::int64_t accumulator = c_.tokens * heads * head_dim * 4, sums = c_.tokens * heads * 4;
  if (context > 1) node.backward = {Operators::alloc(2, 2 * buffers), exchange("ring of keys, values and gradients", 2 * ring)};
  node.backward.insert(node.backward.end(), {Operators::workspace(0, accumulator), Operators::workspace(1, sums),
                                             {.kind = Item::Kind::kernel, .spec = c_.builder.kernel(spec)}, Operators::free(0), Operators::free(1)});
  if (context > 1) node.backward.insert(node.backward.end(), {wait(plan::Stream::context), Operators::free(2)});
  sinks(node);
  tape_.nodes.push_back(std::move(node));
  return out;
}

/// One learned logit per head beside the scores (GPT-OSS): its gradient is a sum over all rows.
void Operators::sinks(Node& node) {
  if (!c_.model.attention_sinks) return;
  const std::int64_t heads = c_.model.heads / c_.tensor;
  Weight sinks = weight("sinks", heads);
  sinks.matrix = false;
  const bool trained = sinks.trainable;
  const int w = tape_.weight(std::move(sinks));
  if (trained) node.backward.push_back(weight_gradient(w, kernel("sinks gradient", c_.tokens * heads * 4, heads * 4, KernelKind::reduction)));
}

/// Scale, mask and softmax of `elements` scores: one kernel that works in place, or an operator each. Modules with rotary
/// positions (Hugging Face's Llama and its relatives) take it in fp32 and keep the fp32 result beside the 16-bit one.
TensorId Operators::softmax(TensorId scores, std::int64_t elements) {
  const std::int64_t narrow = elements * c_.element(), wide = elements * 4;
  const TensorId probabilities = tape_.tensor("softmax", narrow);
  if (c_.profile.activation == Fusion::fused) {
    tape_.nodes.push_back({.name = "softmax", .inputs = {scores}, .outputs = {probabilities}, .saved = {probabilities},
                           .forward = {kernel("scale mask softmax", narrow, narrow, KernelKind::softmax)},
                           .backward = {kernel("scale mask softmax backward", 2 * narrow, narrow, KernelKind::softmax)}, .gradient_in_place = true});
    return probabilities;
  }
  auto pointwise = [&](const std::string& name, TensorId x, TensorId y, std::int64_t in, std::int64_t out) {
    tape_.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {kernel(name, in, out)}, .backward = {kernel(name + " backward", out, in)}});
  };
  const TensorId scaled = tape_.tensor("scores scaled", narrow);
  pointwise("scores scale", scores, scaled, narrow, narrow);
  const bool in_fp32 = c_.element() != 4 && c_.model.position == model::Position::rotary;
  const TensorId in = in_fp32 ? tape_.tensor("scores fp32", wide) : scaled, out = in_fp32 ? tape_.tensor("softmax fp32", wide) : probabilities;
  const std::int64_t bytes = in_fp32 ? wide : narrow;
  if (in_fp32) pointwise("scores cast", scaled, in, narrow, wide);
  tape_.nodes.push_back({.name = "softmax", .inputs = {in}, .outputs = {out}, .saved = {out}, .forward = {kernel("softmax", bytes, bytes, KernelKind::softmax)},
                         .backward = {kernel("softmax backward", 2 * bytes, bytes, KernelKind::softmax)}});
  if (in_fp32) {
    pointwise("softmax cast", out, probabilities, wide, narrow);
    tape_.nodes.back().holds = {scaled};  // the variable that the result is assigned to
  }
  return probabilities;
}

/// QK^T, scale + mask + softmax, dropout, times V: Megatron-LM's attention of 2021 and "eager" attention elsewhere.
TensorId Operators::attention_unfused(TensorId q, TensorId k, TensorId v, const model::Layer&) {
  const auto& m = c_.model;
  const std::int64_t e = c_.element();
  const std::int64_t heads = m.heads / c_.tensor, head_dim = m.query_width() / m.heads;
  const std::int64_t s = c_.sequence, batches = c_.batch * heads;
  const std::int64_t scores_elements = batches * s * s, scores_bytes = scores_elements * e;
  auto product = [&](const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    return Item{.kind = Item::Kind::kernel, .spec = c_.builder.kernel({.kind = KernelKind::gemm, .dtype = c_.activation, .output_dtype = c_.activation, .batch = batches,
                                                                       .m = rows, .n = columns, .k = depth, .name = name})};
  };
  const TensorId scores = tape_.tensor("scores", scores_bytes);
  tape_.nodes.push_back({.name = "scores", .inputs = {q, k}, .outputs = {scores}, .saved = {q, k}, .forward = {product("scores", s, s, head_dim)},
                         .backward = {product("scores query gradient", s, head_dim, s), product("scores key gradient", s, head_dim, s)}});
  TensorId probabilities = softmax(scores, scores_elements);
  if (c_.profile.dropout && m.attention_dropout > 0) {
    const TensorId mask = tape_.tensor("attention dropout mask", scores_elements, false);
    const TensorId dropped = tape_.tensor("attention dropout", scores_bytes);
    tape_.nodes.push_back({.name = "attention dropout", .inputs = {probabilities}, .outputs = {dropped}, .saved = {mask}, .intermediates = {mask},
                           .forward = {kernel("dropout", scores_bytes, scores_bytes + scores_elements)},
                           .backward = {kernel("dropout backward", scores_bytes + scores_elements, scores_bytes)}});
    probabilities = dropped;
  }
  const TensorId out = tape_.tensor("attention output", c_.tokens * heads * head_dim * e);
  sinks(tape_.nodes.back());
  tape_.nodes.push_back({.name = "attention values", .inputs = {probabilities, v}, .outputs = {out}, .saved = {probabilities, v},
                         .forward = {product("attention values", s, head_dim, s)},
                         .backward = {product("attention probabilities gradient", s, s, head_dim), product("attention value gradient", s, head_dim, s)}});
  return out;
}

}  // namespace rehearse::strategies
