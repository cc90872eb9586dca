// Scaled dot-product attention, fused (flash) and unfused (scores in memory).
#include <algorithm>
#include <string>

#include "strategies/layer/context_attention.h"

namespace rehearse::strategies {

using model::KernelKind;

TensorId Operators::attention(TensorId q, TensorId k, TensorId v, const model::Layer& layer) {
  if (c_.attention == "unfused") return attention_unfused(q, k, v, layer);
  const auto& m = c_.model;
  AttentionShape shape{.batch = c_.batch, .heads = m.heads / c_.tensor, .length = c_.sequence};
  shape.kv_heads = c_.repeats_before_exchange() ? shape.heads : std::max<std::int64_t>(1, m.kv_heads / c_.tensor);
  shape.head_dim = m.query_width() / m.heads;
  shape.value_dim = m.latent.present() ? m.latent.v_head_dim : m.head_dim;
  shape.window = layer.window < c_.strategy.training.attended_length() ? layer.window : 0;
  return c_.strategy.parallelism.degrees.context == 1 ? attention(q, k, v, shape) : context_attention(c_, *this, tape_, {q, k, v}, shape);
}

Item Operators::attention_kernel(KernelKind kind, const AttentionShape& s, bool causal, std::int64_t queries, std::int64_t keys) const {
  using model::AttentionKernel;
  const bool narrow = has_narrow_attention();
  const DType eight = c_.gemm == DType::mxfp8 ? DType::mxfp8 : DType::fp8;
  const AttentionKernel which = !narrow ? c_.profile.attention : eight == DType::mxfp8 ? AttentionKernel::cudnn_mxfp8 : AttentionKernel::cudnn_fp8;
  return {.kind = Item::Kind::kernel,
          .spec = c_.builder.kernel({.kind = kind, .attention = which, .dtype = narrow ? eight : c_.activation, .output_dtype = c_.activation, .causal = causal, .dropout = c_.profile.dropout && c_.model.attention_dropout > 0, .batch = s.batch, .heads = s.heads,
                                     .kv_heads = s.kv_heads, .query_length = queries, .key_length = keys, .head_dim = s.head_dim, .value_head_dim = s.value_dim, .window = s.window,
                                     .name = kind == KernelKind::attention_forward ? "attention" : "attention backward"})};
}

/// Packed documents are so many short sequences to the kernel. Under a mask in a tensor all scores are computed, documents' and windows' as well
/// (ATen/native/transformers/cuda/mem_eff_attention: custom_mask_type is none beside attn_bias). Leaves out the mask's own traffic,
/// one value per score for all heads, which L2 keeps.
AttentionShape Operators::computed_attention(const AttentionShape& s) const {
  AttentionShape computed = s;
  if (c_.profile.masked_attention) {
    computed.window = 0;
    return computed;
  }
  computed.length = std::min(s.length, c_.strategy.training.attended_length());
  computed.batch = (s.batch * s.length + computed.length - 1) / computed.length;
  return computed;
}

TensorId Operators::attention(TensorId q, TensorId k, TensorId v, const AttentionShape& s) {
  const std::int64_t tokens = s.batch * s.length;
  const AttentionShape computed = computed_attention(s);
  const bool causal = !c_.profile.masked_attention;
  const TensorId out = tape_.tensor("attention output", tokens * s.heads * s.value_dim * c_.element());
  const TensorId lse = tape_.tensor("attention log-sum-exp", tokens * s.heads * 4, false);
  Node node{.name = "attention", .inputs = {q, k, v}, .outputs = {out}, .saved = {q, k, v, out, lse}, .intermediates = {lse},
            .forward = {attention_kernel(KernelKind::attention_forward, computed, causal, computed.length, computed.length)}};
  // The fp32 accumulator of dQ and the row sums live while the kernel runs (flash_api.cpp, mha_bwd: dq_accum, softmax_d).
  node.backward = {workspace(0, tokens * s.heads * s.head_dim * 4), workspace(1, tokens * s.heads * 4), attention_kernel(KernelKind::attention_backward, computed, causal, computed.length, computed.length), free(0), free(1)};
  if (has_narrow_attention()) narrow_attention(node, s);
  sinks(node);
  if (c_.profile.attention_output_bits > 0) pack_attention_output(node, out);
  tape_.nodes.push_back(std::move(node));
  return c_.profile.sinks_rescale && c_.model.attention_sinks ? rescaled_for_sinks(out, lse, s) : out;
}

/// The sigmoid of the kernel's log-sum-exp less the head's sink, times its output; a scale per token and head. Source: torchtitan
/// models/gpt_oss/model.py, apply_attention_sink_rescale.
TensorId Operators::rescaled_for_sinks(TensorId out, TensorId lse, const AttentionShape& s) {
  const std::int64_t scales = s.batch * s.length * s.heads, bytes = scales * s.value_dim * c_.element();
  const bool compiled = c_.profile.activation == Fusion::compiled;
  const TensorId rescaled = tape_.tensor("attention output rescaled", bytes);
  Node node{.name = "sinks rescale", .inputs = {out}, .outputs = {rescaled}, .saved = {out, lse}};
  if (compiled) {
    node.forward = {kernel("sinks rescale", bytes + scales * 4, bytes)};
    node.backward = {kernel("sinks rescale backward", 2 * bytes + scales * 4, bytes + scales * 4, KernelKind::reduction)};
  } else {
    const TensorId sigmoid = tape_.tensor("sinks scale", scales * 4, false), scale = tape_.tensor("sinks scale in 16 bits", scales * c_.element(), false);
    node.saved.insert(node.saved.end(), {sigmoid, scale});
    node.intermediates = {sigmoid, scale};
    node.forward = {strided("less sinks", scales * 4, scales * 4, 4), kernel("sigmoid", scales * 4, scales * 4), convert("cast", scales * 4, scales * c_.element()), strided("sinks rescale", bytes + scales * c_.element(), bytes, c_.element())};
    node.backward = {strided("sinks rescale backward", bytes + scales * c_.element(), bytes, c_.element()), workspace(0, bytes), kernel("mul backward", 2 * bytes, bytes), kernel("sum over heads' width", bytes, scales * c_.element(), KernelKind::reduction), free(0),
                     convert("cast", scales * c_.element(), scales * 4), kernel("sigmoid backward", 2 * scales * 4, scales * 4)};
  }
  tape_.nodes.push_back(std::move(node));
  return rescaled;
}

/// Transformer Engine's FusedAttention with fp8_dpa. mxfp8: each of queries, keys, values and the output's gradient is quantised along both
/// of its dimensions at once, the scales are brought into the order of the kernel in a second pass; backward keeps both copies and the bf16
/// output. fp8: queries, keys and values are joined and quantised with one scale, the gradient with one of its own; with current scaling
/// their maxima are found first. Delayed scaling, whose kernel writes 8 bits: output and gradients are brought back into 16, and backward
/// keeps the narrow output. Beside products in 4 bits attention is fp8's (NVTE_DPA_FP8_RECIPE Float8CurrentScaling or DelayedScaling).
/// Source: pytorch/attention/dot_product_attention/backends.py (FusedAttnFunc) and utils.py (combine_and_quantize,
/// mxfp8_quantize_fast_path), 2.16.
void Operators::narrow_attention(Node& node, const AttentionShape& s) {
  constexpr int kNarrowGradient = 2, kJoined = 3;   // temporaries before them are attention's own
  const bool blocks = c_.gemm == DType::mxfp8, current = !blocks && c_.profile.current_scaling;
  const std::int64_t tokens = s.batch * s.length, e = c_.element();
  const std::int64_t queries = tokens * s.heads * s.head_dim, keys = tokens * s.kv_heads * s.head_dim, values = tokens * s.kv_heads * s.value_dim;
  const std::int64_t inputs = queries + keys + values, outputs = tokens * s.heads * s.value_dim;
  const auto narrow = [&](std::int64_t elements) { return blocks ? 2 * (elements + elements / 32) : elements; };
  const auto quantised = [&](const std::string& what, std::initializer_list<std::int64_t> parts) {
    std::vector<Item> list;
    std::int64_t all = 0;
    for (const std::int64_t elements : parts) {
      if (current) list = {kernel(what + " maximum reset", 0, 4), kernel(what + " maximum", elements * e, 4, KernelKind::reduction), kernel(what + " scale", 4, 8)};
      list.push_back(kernel(what + " cast", elements * e, narrow(elements)));
      all += elements;
    }
    if (blocks) list.push_back(kernel(what + " swizzle scales", all / 16, all / 16));
    return list;
  };
  const TensorId kept = tape_.tensor("attention inputs in 8 bits", narrow(inputs), false), out = node.outputs.front();
  std::vector<Item> before;
  if (!blocks) before = {alloc(kJoined, inputs * e), kernel("attention join inputs", inputs * e, inputs * e)};
  for (const Item& i : blocks ? quantised("attention inputs", {queries, keys, values}) : quantised("attention inputs", {inputs})) before.push_back(i);
  if (!blocks) before.push_back(free(kJoined));
  node.forward.insert(node.forward.begin(), before.begin(), before.end());
  std::vector<TensorId> saved{kept, out};
  if (!blocks && !current) {
    saved.back() = tape_.tensor("attention output in 8 bits", outputs, false);
    node.intermediates.push_back(saved.back());
    node.forward.push_back(kernel("attention output cast back", outputs, outputs * e));
    node.backward.push_back(kernel("attention gradients cast back", inputs, inputs * e));
  }
  saved.insert(saved.end(), node.intermediates.begin(), node.intermediates.begin() + 1);   // the row sums
  node.intermediates.push_back(kept);
  node.saved = std::move(saved);
  std::vector<Item> gradient{alloc(kNarrowGradient, narrow(outputs))};
  for (const Item& i : quantised("attention gradient", {outputs})) gradient.push_back(i);
  node.backward.insert(node.backward.begin(), gradient.begin(), gradient.end());
  node.backward.push_back(free(kNarrowGradient));
}

/// What backward needs of the output waits in fewer bits, with a scale per 128 values, and is unpacked once for all that read it.
void Operators::pack_attention_output(Node& node, TensorId out) {
  const std::int64_t bytes = tape_.tensors[static_cast<std::size_t>(out)].bytes, values = bytes / c_.element();
  const std::int64_t packed = values * c_.profile.attention_output_bits / 8 + values / 128 * 4;
  const TensorId kept = tape_.tensor("attention output in " + std::to_string(c_.profile.attention_output_bits) + " bits", packed, false);
  std::replace(node.saved.begin(), node.saved.end(), out, kept);
  node.intermediates.push_back(kept);
  tape_.tensors[static_cast<std::size_t>(out)].kept_as = kept;
  constexpr int kUnpacked = 2;   // temporaries before it are attention's own
  node.forward.push_back(kernel("attention output pack", bytes, packed));
  node.backward.insert(node.backward.begin(), {alloc(kUnpacked, bytes), kernel("attention output unpack", packed, bytes)});
  node.backward.push_back(free(kUnpacked));
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

/// The mask that Transformer Engine's unfused attention makes anew in every call: distances of keys from queries in int32, compared with
/// either end of the window; ones and zeros of both in int64, their difference, and its negation in bytes.
/// Source: pytorch/attention/dot_product_attention/utils.py, get_full_mask (2.3).
std::vector<Item> Operators::causal_mask() const {
  const std::int64_t n = c_.sequence * c_.sequence;
  return {alloc(0, 4 * n), kernel("mask distances", 0, 4 * n), alloc(1, 4 * n), kernel("mask left", 4 * n, 4 * n), alloc(2, 4 * n), kernel("mask right", 4 * n, 4 * n),
          alloc(3, n), kernel("mask compare", 4 * n, n), alloc(4, 8 * n), kernel("mask ones", n, 8 * n), free(3), alloc(5, n), kernel("mask compare", 4 * n, n), alloc(6, 8 * n), kernel("mask ones", n, 8 * n), free(5),
          alloc(7, 8 * n), kernel("mask difference", 16 * n, 8 * n), free(4), free(6), alloc(8, n), kernel("mask not", 8 * n, n), free(7), free(8), free(2), free(1), free(0)};
}

/// The maximum of scores and a number. Source: PyTorch tools/autograd/derivatives.yaml, maximum: where(self == other, grad / 2, grad), then masked_fill(self < other).
TensorId Operators::clamp(TensorId scores, std::int64_t elements, std::int64_t bytes) {
  const TensorId clamped = tape_.tensor("scores clamped", bytes);
  tape_.nodes.push_back({.name = "scores clamp", .inputs = {scores}, .outputs = {clamped}, .saved = {scores}, .forward = {kernel("scores clamp", bytes, bytes)},
                         .backward = {kernel("scores equal", bytes, elements), kernel("half gradient", bytes, bytes), kernel("where equal", 2 * bytes, bytes), kernel("scores less", bytes, elements), kernel("fill where less", bytes, bytes)}});
  return clamped;
}

/// Scale, mask and softmax of `elements` scores: one kernel that works in place, or an operator each. Modules with rotary
/// positions (Hugging Face's Llama and its relatives) and autocast take it in fp32 and keep the fp32 result beside the 16-bit one.
TensorId Operators::softmax(TensorId scores, std::int64_t elements) {
  const std::int64_t narrow = elements * c_.element(), wide = elements * 4;
  const TensorId probabilities = tape_.tensor("softmax", narrow);
  if (fuses_softmax()) {
    std::vector<Item> forward = c_.profile.transformer_engine ? causal_mask() : std::vector<Item>{};
    forward.push_back(kernel("scale mask softmax", narrow, narrow, KernelKind::softmax));
    tape_.nodes.push_back({.name = "softmax", .inputs = {scores}, .outputs = {probabilities}, .saved = {probabilities},
                           .forward = std::move(forward),
                           .backward = {kernel("scale mask softmax backward", 2 * narrow, narrow, KernelKind::softmax)}, .gradient_in_place = true});
    return probabilities;
  }
  auto pointwise = [&](const std::string& name, TensorId x, TensorId y, std::int64_t in, std::int64_t out) {
    tape_.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {in == out ? kernel(name, in, out) : convert(name, in, out)}, .backward = {in == out ? kernel(name + " backward", out, in) : convert(name + " backward", out, in)}});
  };
  TensorId scaled = tape_.tensor("scores scaled", narrow);
  pointwise("scores scale", scores, scaled, narrow, narrow);
  if (c_.profile.masks_by_product) {
    const TensorId kept = tape_.tensor("scores kept", narrow), masked = tape_.tensor("scores masked", narrow);
    // The mask is one square for all samples and heads: operands of two shapes are loaded one by one.
    tape_.nodes.push_back({.name = "scores times mask", .inputs = {scaled}, .outputs = {kept}, .forward = {kernel("scores times mask", narrow, narrow, KernelKind::strided)},
                           .backward = {kernel("scores times mask backward", narrow, narrow, KernelKind::strided)}});
    tape_.nodes.push_back({.name = "scores less mask", .inputs = {kept}, .outputs = {masked}, .forward = {kernel("scores less mask", narrow, narrow, KernelKind::strided)}, .passed_inputs = 1});
    scaled = masked;
  }
  const bool clamps = c_.profile.clamps_scores, fp16 = c_.strategy.training.precision == Precision::fp16;
  const bool in_fp32 = c_.element() != 4 && (c_.profile.softmax_in_fp32 || c_.profile.autocast || (clamps && fp16) || c_.model.position == model::Position::rotary);
  TensorId in = in_fp32 ? tape_.tensor("scores fp32", wide) : scaled;
  const TensorId out = in_fp32 ? tape_.tensor("softmax fp32", wide) : probabilities;
  const std::int64_t bytes = in_fp32 ? wide : narrow;
  // torch.max(scores + mask, least): its backward looks at the scores again. Under autocast the mask, and so the sum, is fp32; otherwise softmax reads 16 bits.
  if (clamps && !c_.profile.autocast) scaled = clamp(scaled, elements, narrow);
  if (in_fp32) pointwise("scores cast", scaled, in, narrow, wide);
  if (clamps && c_.profile.autocast) in = clamp(in, elements, bytes);
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
  const std::int64_t heads = m.heads / c_.tensor, head_dim = m.query_width() / m.heads, value_dim = m.latent.present() ? m.latent.v_head_dim : m.head_dim;
  const std::int64_t s = c_.sequence, batches = c_.batch * heads;
  const std::int64_t scores_elements = batches * s * s, scores_bytes = scores_elements * e;
  auto product = [&](const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t depth) {
    return Item{.kind = Item::Kind::kernel, .spec = c_.builder.kernel({.kind = KernelKind::gemm, .dtype = c_.product(), .output_dtype = c_.activation, .batch = batches,
                                                                       .m = rows, .n = columns, .k = depth, .name = name})};
  };
  // Strided views of one product have to be copied for the batched products, and so has their result for the next layer
  // (microsoft/DeepSpeedExamples a3cfec7c Megatron-LM/mpu/transformer.py, GPT2ParallelSelfAttention.forward).
  const auto copied = [&](TensorId x, const char* name) {
    const std::int64_t bytes = c_.tokens * heads * head_dim * e;
    const TensorId y = tape_.tensor(name, bytes);
    tape_.nodes.push_back({.name = name, .inputs = {x}, .outputs = {y}, .forward = {kernel("copy heads", bytes, bytes, KernelKind::strided)}, .backward = {kernel("copy heads backward", bytes, bytes, KernelKind::strided)}});
    return y;
  };
  if (c_.profile.masks_by_product) q = copied(q, "query heads"), k = copied(k, "key heads"), v = copied(v, "value heads");
  const TensorId scores = tape_.tensor("scores", scores_bytes);
  // ALiBi's biases are what the product adds to: they are written out for all rows, and read by it (bigscience-workshop/Megatron-DeepSpeed
  // c839a8aa megatron/model/transformer.py and transformers modeling_bloom.py, baddbmm; MPT adds them afterwards, the same bytes).
  std::vector<Item> make_scores;
  if (m.position == model::Position::alibi) make_scores.push_back(kernel("position biases", scores_bytes, scores_bytes));
  make_scores.push_back(product("scores", s, s, head_dim));
  tape_.nodes.push_back({.name = "scores", .inputs = {q, k}, .outputs = {scores}, .saved = {q, k}, .forward = make_scores,
                         .backward = {product("scores query gradient", s, head_dim, s), product("scores key gradient", s, head_dim, s)}});
  TensorId probabilities = softmax(scores, scores_elements);
  if (c_.profile.dropout && m.attention_dropout > 0) {
    const TensorId mask = tape_.tensor("attention dropout mask", scores_elements, false);
    const TensorId dropped = tape_.tensor("attention dropout", scores_bytes);
    tape_.nodes.push_back({.name = "attention dropout", .inputs = {probabilities}, .outputs = {dropped}, .saved = {mask}, .intermediates = {mask},
                           .forward = {kernel("dropout", scores_bytes, scores_bytes + scores_elements)},
                           .backward = {kernel("dropout backward", scores_bytes + scores_elements, scores_bytes)}});
    if (fuses_softmax()) tape_.nodes.back().holds = {scores};
    probabilities = dropped;
  }
  const TensorId out = tape_.tensor("attention output", c_.tokens * heads * value_dim * e);
  sinks(tape_.nodes.back());
  tape_.nodes.push_back({.name = "attention values", .inputs = {probabilities, v}, .outputs = {out}, .saved = {probabilities, v},
                         .forward = {product("attention values", s, value_dim, s)},
                         .backward = {product("attention probabilities gradient", s, s, value_dim), product("attention value gradient", s, value_dim, s)}});
  if (fuses_softmax()) tape_.nodes.back().holds = {scores};
  return c_.profile.masks_by_product ? copied(out, "heads side by side") : out;
}

}  // namespace rehearse::strategies
