#include "strategies/layer/transformer_layer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "strategies/layer/blocks.h"
#include "strategies/layer/graph_capture.h"
#include "strategies/layer/linear_layer.h"
#include "strategies/layer/offload_groups.h"

namespace rehearse::strategies {
namespace {

/// Weight gradients whose operands are made in backward read the product's input itself where that is made again: its 8-bit form is not kept.
void keep_nothing_made_again(Tape& tape) {
  std::set<TensorId> made_again;
  for (Node& n : tape.nodes) {
    if (n.discard_output)
      for (TensorId t : n.outputs) made_again.insert(t);
    if (n.weight_operand == kNoTensor || !made_again.contains(n.inputs.front())) continue;
    std::replace(n.saved.begin(), n.saved.end(), n.weight_operand, n.inputs.front());
    n.weight_operand = kNoTensor;
  }
}

/// A checkpoint that is compiled with its layer keeps of what its policy lists only what backward, or what runs again for it, reads: not the product whose
/// output goes into the residual stream. An eager one keeps all of it. Layers whose exchanges of tokens break the graph are left as they are.
/// Source: tests/oracles/torch_selective_checkpoint.py.
void keep_only_what_is_read(Tape& tape) {
  if (std::any_of(tape.weights.begin(), tape.weights.end(), [](const Weight& w) { return w.expert; })) return;
  std::set<TensorId> read;
  for (const Node& n : tape.nodes)
    for (const TensorId t : n.saved) read.insert(tape.root(t));
  for (auto n = tape.nodes.rbegin(); n != tape.nodes.rend(); ++n) {
    const auto is_read = [&](TensorId t) { return read.contains(tape.root(t)); };
    const bool any = std::any_of(n->outputs.begin(), n->outputs.end(), is_read) || std::any_of(n->intermediates.begin(), n->intermediates.end(), is_read);
    if (!any) n->cached = false;
    if (!any || n->cached) continue;
    for (const auto* list : {&n->inputs, &n->holds})
      for (const TensorId t : *list) read.insert(tape.root(t));
  }
}

/// Which nodes a selective policy recomputes, by module name (Megatron's recompute_modules; torchtitan's operator policy).
void apply_selective(const LowerContext& c, Tape& tape) {
  const Memory& memory = c.strategy.memory;
  if (memory.recompute != Recompute::selective) return;
  const std::vector<std::string>& names = selective_modules(c.profile, memory);
  const std::set<std::string> modules(names.begin(), names.end());
  auto has = [&](const Node& n, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* w) { return n.name.find(w) != std::string::npos; });
  };
  const bool qkv_only = modules.contains("qkv_products"), projections = qkv_only || modules.contains("attention_projections");
  if (projections || modules.contains("operators") || modules.contains("products") || modules.contains("weight_products") || modules.contains("attention_products")) {
    // torchtitan: the whole layer is one checkpoint whose matrix products (every second one), attention and exchanges of tokens are
    // kept: aten.mm, which nvfp4's scaled_mm and experts' grouped_mm are not, and all_to_all_single, which is on the lists of llama4,
    // deepseek_v3 and gpt_oss, not on qwen3's (their parallelize.py, _op_sac_save_list, 2025-12; torchao nvfp4_linear.py). Products with a bias are aten.addmm:
    // on none of these lists, all kept from 2026-03 on (distributed/activation_checkpoint.py at 114151ad4, _get_default_save_ops), where the router's is made again. MaxText's `minimal_flash` policies keep all products and attention, those
    // "with_context_except_mlp" only attention's; `save_dot_except_mlp` keeps attention's projections but not attention itself,
    // `save_qkv_proj` the queries, keys and values alone (layers/decoders.py, get_remat_policy).
    // jax.checkpoint_policies.dots_with_no_batch_dims_saveable knows products with weights alone.
    const bool every_second = modules.contains("operators"), keeps_grouped = modules.contains("grouped_products"), weights_only = modules.contains("weight_products");
    const bool keeps_exchanges = every_second && (c.profile.default_save_list || !c.model.family.starts_with("qwen3")), grouped = every_second && c.profile.grouped_experts;
    const bool but_mlp = !every_second && !weights_only && !modules.contains("products");
    int products = 0;
    for (Node& n : tape.nodes) {
      n.region = 0;
      const bool product = !n.backward.empty() && std::any_of(n.backward.begin(), n.backward.end(), [&](const Item& i) {
        return i.kind == Item::Kind::weight_gradient && tape.weights[static_cast<std::size_t>(i.weight)].matrix;
      });
      const bool mlp = has(n, {"fc1", "fc2", "gate_up", "gate_proj", "up_proj", "down_proj"});
      const bool left_out = (but_mlp && mlp) || (qkv_only && has(n, {"o_proj"}));
      if (grouped && product && n.name.starts_with("experts ")) {
        n.cached = keeps_grouped, n.discard_output = false;
        continue;
      }
      const bool biased = std::any_of(n.backward.begin(), n.backward.end(), [&](const Item& i) {
        return i.kind == Item::Kind::weight_gradient && !tape.weights[static_cast<std::size_t>(i.weight)].matrix;
      });
      const auto listed = [&] {
        if (c.gemm == DType::nvfp4) return false;
        if (biased || (c.profile.default_save_list && n.name == "router")) return biased && c.profile.default_save_list;
        return products++ % 2 == 0;
      };
      n.cached = (n.name == "attention" && !weights_only && !projections) || (keeps_exchanges && n.cached) || (product && (every_second ? listed() : !left_out));
      // reduce_scatter_tensor is on torchtitan's lists too: the sums of row-parallel products (tests/oracles/torch_selective_checkpoint.py).
      if (every_second && c.profile.compiled && c.tensor > 1 && c.strategy.parallelism.sequence_parallel && has(n, {"o_proj", "down_proj", "fc2"})) n.cached = true;
      n.discard_output = false;
    }
    // A part that torch.compile made by itself is one call, inductor_compiled_code, of which all outputs are kept: of FlexAttention what its
    // backward reads too, its operands.
    const bool compiled_attention = every_second && c.profile.default_save_list && !c.profile.compiled && c.profile.attention == model::AttentionKernel::flex;
    const auto attention = std::find_if(tape.nodes.begin(), tape.nodes.end(), [](const Node& n) { return n.name == "attention"; });
    if (compiled_attention && attention != tape.nodes.end())
      for (Node& n : tape.nodes)
        for (TensorId operand : attention->inputs)
          if (std::find(n.outputs.begin(), n.outputs.end(), operand) != n.outputs.end()) n.cached = true;
    if (c.profile.compiled) keep_only_what_is_read(tape);
    tape.regions = 1;
    return;
  }
  // Megatron: whole regions are checkpoints of their own; the others drop an output and make it again when backward asks.
  auto begins = [](const Node& n, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* w) { return n.name.starts_with(w); });
  };
  int regions = 0;
  auto region = [&](const char* module, const auto& belongs) {
    if (!modules.contains(module)) return;
    bool any = false;
    for (Node& n : tape.nodes)
      if (belongs(n)) n.region = regions, any = true;
    regions += any;
  };
  const bool unfused = c.attention == "unfused", whole = c.profile.checkpoints_fused_attention;
  region("core_attn", [&](const Node& n) { return (unfused && begins(n, {"scores", "softmax", "attention dropout", "attention values"})) || ((unfused || whole) && (n.name == "attention" || n.name == "copy value")); });
  region("mlp", [&](const Node& n) { return begins(n, {"fc1", "fc2", "gate_up", "gate_proj", "gate product", "up_proj", "down_proj", "gelu", "swiglu", "silu"}); });
  region("shared_experts", [&](const Node& n) { return begins(n, {"shared experts "}) && n.name != "shared experts add"; });
  region("moe", [&](const Node& n) { return begins(n, {"router", "latent_down", "latent_up", "permute", "dispatch", "index map", "sort by", "experts ", "combine", "unpermute"}); });
  for (Node& n : tape.nodes) {
    if (modules.contains("layernorm") && has(n, {"norm"}) && !has(n, {"latent"})) n.discard_output = true;
    if (modules.contains("latent_layernorm") && has(n, {"latent norm"})) n.discard_output = true;
    if (modules.contains("mlp_act") && begins(n, {"gelu", "swiglu"})) n.discard_output = true;
    if (modules.contains("shared_experts_act") && begins(n, {"shared experts gelu", "shared experts swiglu"})) n.discard_output = true;
    // The clamping before it is in the same checkpoint (megatron/core/transformer/moe/experts.py, TEGroupedMLP: bias_act_func).
    if (modules.contains("moe_act") && (n.name == "experts activation" || n.name == "experts clamp")) n.discard_output = true;
    if (modules.contains("mla_up_proj") && begins(n, {"q_up", "kv_up", "latent rope"})) n.discard_output = true;
    if (n.region >= 0) n.cached = false;
  }
  tape.regions = regions;
  if (c.profile.columns_in_backward) keep_nothing_made_again(tape);
}

/// nanotron's layers make the bounds of its sequences anew of two masks (CoreAttention.forward: torch.zeros, sum, cumsum; the kernels are what the GPU on paper
/// records, calibrate/paper_gpu).
void sequence_lengths(const LowerContext& c, const Operators& op, Node& attention) {
  const std::int64_t mask = c.tokens, lengths = c.batch * 4;
  std::vector<Item> made;
  for (int zeros = 0; zeros < 2; ++zeros) made.push_back(op.kernel("bounds of sequences", 0, lengths, model::KernelKind::memset));
  for (int of = 0; of < 2; ++of)   // queries, keys
    made.insert(made.end(), {op.convert("mask as integers", mask, mask * 4), op.kernel("lengths of sequences", mask * 4, lengths, model::KernelKind::reduction), op.kernel("sum up lengths", lengths, lengths), op.kernel("sum up lengths", lengths, lengths)});
  attention.forward.insert(attention.forward.begin(), made.begin(), made.end());
}

/// nanotron's attention (models/llama.py, CausalSelfAttention.forward): q, k and v are permuted into a tensor of their own (with grouped
/// queries into one each), keys and values joined and permuted again. Both are rotated in place (flash-attn layers/rotary.py,
/// RotaryEmbedding.forward, `inplace=True`), so what attention keeps of the queries is a view that holds the permuted keys and
/// values too. The projection's output is a variable of the caller until the end. With several samples the result is copied
/// into [sequence, batch] for the output product, which keeps the copy; an asynchronous product makes it in each direction
/// (parallel/tensor_parallel/functional.py, _RowLinearAsyncCommunication). Gradients of the joined keys and values are views.
/// Kernels as PyTorch dispatched them for nanotron's own modules.
TensorId repacked_attention(const LowerContext& c, Operators& op, Tape& tape, TensorId qkv, const model::Layer& layer) {
  const auto& m = c.model;
  const std::int64_t per = c.tokens / c.tensor * c.element(), one = per * m.heads * m.head_dim, pair = per * 2 * m.kv_heads * m.head_dim, all = one + pair;
  const bool together = m.kv_heads == m.heads;
  TensorId from_q, from_kv;
  Node permute{.name = "permute qkv", .inputs = {qkv}, .forward = {op.kernel("permute qkv", all, all, model::KernelKind::strided)}, .backward = {op.kernel("permute qkv gradients", all, all, model::KernelKind::strided)}};
  if (together) {
    const TensorId packed = tape.tensor("permuted qkv", all);
    permute.outputs = {packed};
    tape.nodes.push_back(std::move(permute));
    from_q = tape.part("permuted query", packed, one), from_kv = tape.part("permuted keys and values", packed, pair);
    tape.nodes.push_back({.name = "take apart", .inputs = {packed}, .outputs = {from_q, from_kv}, .backward = {op.kernel("join qkv gradients", all, all)}});
  } else {
    from_q = tape.tensor("permuted query", one), from_kv = tape.tensor("permuted keys and values", pair);
    permute.outputs = {from_q, from_kv};
    tape.nodes.push_back(std::move(permute));
  }
  const TensorId q = tape.part("query", from_q, one), kv = tape.tensor("keys and values", pair);
  tape.nodes.push_back({.name = "join kv", .inputs = {from_kv}, .outputs = {kv},
                        .forward = {Operators::alloc(0, pair), op.kernel("join kv", pair, pair), {.kind = Item::Kind::produce_outputs}, op.kernel("permute kv", pair, pair, model::KernelKind::strided), Operators::free(0)},
                        .passed_inputs = 1});
  tape.nodes.push_back({.name = "rope", .inputs = {from_q}, .outputs = {q}, .forward = {op.kernel("rope", one + pair / 2, one + pair / 2)}, .backward = {op.kernel("rope backward", one + pair / 2, one + pair / 2)}, .gradient_in_place = true});
  const TensorId k = tape.part("key", kv, pair / 2), v = tape.part("value", kv, pair / 2);
  tape.nodes.push_back({.name = "split kv", .inputs = {kv}, .outputs = {k, v}, .backward = {op.kernel("join kv gradients", pair, pair, model::KernelKind::strided)}});
  TensorId out = op.attention(q, k, v, layer);
  sequence_lengths(c, op, tape.nodes.back());
  const bool reorders = c.batch > 1, keeps_copy = reorders && !c.profile.asynchronous_row;
  const auto reorder = [&](const char* name) { return op.kernel(name, one, one, model::KernelKind::strided); };
  constexpr int kReordered = LinearLayer::kFirstFree;
  if (reorders) {
    std::vector<Item>& b = tape.nodes.back().backward;
    b.insert(b.begin(), {Operators::alloc(kReordered, one), reorder("order gradients by sample"), {.kind = Item::Kind::release_output_gradients}});
    b.push_back(Operators::free(kReordered));
  }
  if (keeps_copy) {
    const TensorId copy = tape.tensor("attention output by position", one);
    tape.nodes.push_back({.name = "order by position", .inputs = {out}, .outputs = {copy}, .forward = {reorder("order by position")}, .passed_inputs = 1});
    out = copy;
  }
  const TensorId projected = op.linear(out, "o_proj", m.heads * m.head_dim, m.hidden, m.attention_output_bias, Operators::Split::row);
  if (reorders && !keeps_copy) {
    const auto around = [&](std::vector<Item>& list, Item::Kind product, bool for_weights) {
      const auto at = std::find_if(list.begin(), list.end(), [&](const Item& i) { return i.kind == product; });
      if (at == list.end()) return;   // a frozen weight
      std::vector<Item> copied{Operators::alloc(kReordered, one), reorder("order by position"), *at, Operators::free(kReordered)};
      for (Item& i : copied) i.for_weights = i.for_weights || for_weights;
      list.insert(list.erase(at), std::make_move_iterator(copied.begin()), std::make_move_iterator(copied.end()));
    };
    around(tape.nodes.back().forward, Item::Kind::kernel, false);
    around(tape.nodes.back().backward, Item::Kind::weight_gradient, true);
  }
  tape.nodes.back().holds.push_back(qkv);
  return projected;
}

/// GPT-NeoX's way to its attention kernel (v1.0 megatron/model/transformer.py, flash_attention): each of q, k and v is copied
/// from [sequence, batch] into [batch, sequence], then all into one tensor, whose gradients are views.
TensorId packed(const LowerContext& c, Operators& op, Tape& tape, TensorId x, const std::string& name, std::int64_t width) {
  const std::int64_t bytes = c.tokens * width / c.tensor * c.element();
  const TensorId y = tape.tensor("packed " + name, bytes);
  tape.nodes.push_back({.name = "pack " + name, .inputs = {x}, .outputs = {y},
                        .forward = {Operators::alloc(0, bytes), op.kernel("order by sample", bytes, bytes, model::KernelKind::strided), {.kind = Item::Kind::produce_outputs}, op.kernel("join qkv", bytes, bytes), Operators::free(0)},
                        .passed_inputs = 1});
  return y;
}

/// From [sequence, batch] into [batch, sequence]. Source: NVIDIA/Megatron-LM (2023) and deepspeedai/Megatron-DeepSpeed megatron/model/transformer.py,
/// ParallelAttention.forward: rearrange(x, 's b ... -> b s ...').contiguous(), which copies what is not one block already.
TensorId ordered(const LowerContext& c, Operators& op, Tape& tape, TensorId x, const std::string& name, std::int64_t width) {
  const std::int64_t bytes = c.tokens * width / c.tensor * c.element();
  const TensorId y = tape.tensor(name + " by sample", bytes);
  const auto copy = [&](const char* kernel) { return op.kernel(kernel, bytes, bytes, model::KernelKind::strided); };
  tape.nodes.push_back({.name = "order " + name, .inputs = {x}, .outputs = {y}, .forward = {copy("order by sample")}, .backward = {copy("order by position")}});
  return y;
}

/// One norm per head, or one over all heads of the rank: each tensor-parallel rank has its part of that weight, and the few
/// bytes of statistics that the ranks would add up are left out.
void norm_queries_and_keys(const LowerContext& c, Operators& op, TensorId& q, TensorId& k, bool rotates) {
  const auto& m = c.model;
  const std::int64_t q_heads = m.heads / c.tensor, k_heads = std::max<std::int64_t>(1, m.kv_heads / c.tensor);
  const bool joint = m.joint_qk_norm;
  const bool rotated = rotates && op.rotates_what_it_normalises();
  q = op.norm(q, "q_norm", c.tokens * (joint ? 1 : q_heads), m.head_dim * (joint ? q_heads : 1), !joint, m.qk_norm_weight, rotated);
  k = op.norm(k, "k_norm", c.tokens * (joint ? 1 : k_heads), m.head_dim * (joint ? k_heads : 1), !joint, m.qk_norm_weight, rotated);
}

/// What attention reads: as many tokens of each as the rank has.
struct QueryKeyValue {
  TensorId q = kNoTensor, k = kNoTensor, v = kNoTensor;
  TensorId gate = kNoTensor;   // of attention's output
};

std::int64_t query_width(const LowerContext& c) { return c.model.heads * c.model.head_dim; }
std::int64_t key_width(const LowerContext& c) { return c.model.kv_heads * c.model.head_dim; }

/// Of a fused projection, queries and keys are rotated after it has been split; else one kernel splits and rotates.
bool rotates_parts(const LowerContext& c) {
  const bool by_operators = c.profile.rope == Fusion::eager && c.profile.rope_form == RopeForm::angles;
  return c.profile.value_is_view || c.profile.packs_qkv || !c.profile.fused_qkv || by_operators || c.profile.copies_fused_qkv;
}

/// What products read is gathered for all of them at once, unless it travels under them. Blocks with scales of their own are not known to.
bool gathers_at_once(const LowerContext& c) {
  const bool format = bits(c.gemm) > 8 || (c.gemm == DType::fp8 && !c.profile.transformer_engine);
  return c.profile.gathers_by_block && !c.profile.overlap_tensor && c.sequence_parallel && c.tensor > 1 && format && !c.mixed();
}

/// The second and third product of an input. Source: torch/_functorch/compile_utils.py, fx_graph_cse, which takes functional collectives for
/// pure. Frozen layers keep nothing that another could read.
bool reads_gathered(const LowerContext& c) { return c.profile.shares_gathered && c.sequence_parallel && c.tensor > 1 && c.strategy.tuning.kind == TuningKind::full && bits(c.gemm) > 8; }

/// A part of what a product gave, copied into a tensor of its own: a head's gate lies behind its queries.
TensorId own_tensor(const LowerContext& c, const Operators& op, Tape& tape, TensorId part, const std::string& name, std::int64_t width) {
  const std::int64_t bytes = c.tokens * width / c.tensor * c.element();
  const TensorId copy = tape.tensor(name, bytes);
  tape.nodes.push_back({.name = "copy " + name, .inputs = {part}, .outputs = {copy}, .forward = {op.kernel("copy " + name, bytes, bytes, model::KernelKind::strided)}, .passed_inputs = 1});
  return copy;
}

QueryKeyValue separate_projections(const LowerContext& c, Operators& op, Tape& tape, TensorId x, bool rotates) {
  const auto& m = c.model;
  LowerContext inner = c;
  inner.gathered = gathers_at_once(c);
  if (inner.gathered) x = op.gather_sequence(x, "attention", m.hidden);
  LowerContext other = inner;
  other.reads_gathered = reads_gathered(c);
  Operators projections(inner, tape), others(other, tape);
  QueryKeyValue h;
  h.q = projections.linear(x, "q_proj", m.hidden, m.query_product_width(), m.qkv_bias, Operators::Split::column);
  if (m.attention_gate) {
    const std::int64_t width = query_width(c) / c.tensor;
    const auto parts = op.split(h.q, "split gate", {width, width});
    h.q = parts[0];
    h.gate = own_tensor(c, op, tape, parts[1], "gate", query_width(c));
  }
  h.k = others.linear(x, "k_proj", m.hidden, key_width(c), m.qkv_bias, Operators::Split::column);
  h.v = others.linear(x, "v_proj", m.hidden, key_width(c), m.qkv_bias, Operators::Split::column);
  if (m.qk_norm) norm_queries_and_keys(c, op, h.q, h.k, rotates);
  if (!rotates) return h;
  h.q = op.rope(h.q, "query rope", query_width(c) / c.tensor);
  h.k = op.rope(h.k, "key rope", key_width(c) / c.tensor);
  return h;
}

/// Fused attention inside a checkpoint of its own gets the values as a view of the projection, which therefore stays; it copies them itself.
/// Source: megatron/core/transformer/attention.py, _checkpointed_attention_forward; Transformer Engine's DotProductAttention (contiguous).
bool checkpoints_view_of_values(const LowerContext& c) {
  return recomputes_selectively(c.profile, c.strategy.memory, "core_attn") && c.profile.checkpoints_fused_attention && c.profile.transformer_engine && c.attention != "unfused";
}

QueryKeyValue split_and_rotated(const LowerContext& c, Operators& op, Tape& tape, TensorId qkv, bool rotates) {
  if (rotates && !rotates_parts(c)) {
    // Rotary embedding makes q, k and v tensors of their own.
    const std::int64_t column = c.tokens / c.tensor * c.element(), query = column * query_width(c), key = column * key_width(c), bytes = query + 2 * key;
    QueryKeyValue h{tape.tensor("query", query), tape.tensor("key", key), tape.tensor("value", key)};
    const std::int64_t all = bytes + (c.model.attention_gate ? query : 0);
    Node node{.name = "split and rope", .inputs = {qkv}, .outputs = {h.q, h.k, h.v}, .forward = {op.kernel("rope", all, all)}, .backward = {op.kernel("rope backward", all, all)}};
    if (c.model.attention_gate) node.outputs.push_back(h.gate = tape.tensor("gate", query));
    const bool view = checkpoints_view_of_values(c);
    if (view) {
      h.v = node.outputs[2] = tape.part("value", qkv, key);
      node.forward = {op.kernel("rope", all - key, all - key)};
      node.separate_views = true;
    }
    tape.nodes.push_back(std::move(node));
    if (view) h.v = own_tensor(c, op, tape, h.v, "value", key_width(c));
    return h;
  }
  const std::int64_t q_width = query_width(c) / c.tensor, kv_width = key_width(c) / c.tensor;
  std::vector<std::int64_t> widths{q_width, kv_width, kv_width};
  if (c.model.attention_gate) widths.push_back(q_width);
  const auto parts = op.split(qkv, "split", widths);
  QueryKeyValue h{parts[0], parts[1], parts[2]};
  if (c.model.attention_gate) h.gate = own_tensor(c, op, tape, parts[3], "gate", query_width(c));
  if (c.profile.copies_fused_qkv) {
    // What is rotated next reads the product itself where one kernel makes both.
    if (!rotates || c.profile.rope == Fusion::eager) {
      h.q = own_tensor(c, op, tape, h.q, "query", query_width(c));
      h.k = own_tensor(c, op, tape, h.k, "key", key_width(c));
    }
    h.v = own_tensor(c, op, tape, h.v, "value", key_width(c));
    if (c.model.qk_norm) norm_queries_and_keys(c, op, h.q, h.k, rotates);
  }
  if (!rotates) return h;
  h.q = op.rope(h.q, "query rope", q_width);
  h.k = op.rope(h.k, "key rope", kv_width);
  return h;
}

/// Attention's output, from heads in the format that its kernels take.
TensorId attended(const LowerContext& c, Operators& op, Tape& tape, QueryKeyValue h, const model::Layer& layer) {
  const std::int64_t q_width = query_width(c), kv_width = key_width(c);
  // Products of scores need as many keys as queries; fused kernels read grouped ones as they are.
  if (c.repeats_before_exchange() || (c.attention == "unfused" && c.model.kv_heads < c.model.heads)) {
    h.k = op.repeat(h.k, "repeat keys", kv_width / c.tensor, q_width / c.tensor);
    h.v = op.repeat(h.v, "repeat values", kv_width / c.tensor, q_width / c.tensor);
  }
  if (c.profile.packs_qkv && c.attention == "flash") {
    h.q = packed(c, op, tape, h.q, "query", q_width);
    h.k = packed(c, op, tape, h.k, "key", kv_width);
    h.v = packed(c, op, tape, h.v, "value", kv_width);
  }
  if (c.profile.orders_by_sample && c.attention == "flash") {
    if (c.batch > 1) {
      h.q = ordered(c, op, tape, h.q, "query", q_width);
      h.k = ordered(c, op, tape, h.k, "key", kv_width);
    }
    h.v = ordered(c, op, tape, h.v, "value", kv_width);
  }
  const TensorId out = op.attention(h.q, h.k, h.v, layer);
  return has_prompt(c.strategy.tuning, c.layer) ? op.with_prompt(h.q, out) : out;
}

/// The kernel's output is [batch, sequence, heads, dim]. Hugging Face's transpose back needs a contiguous copy before the
/// projection; so do Megatron's [sequence, batch] activations, except with cuDNN, which writes that layout itself. Where a part of each head is
/// rotated, by an operator each, torch.cat brings queries into [batch, heads, sequence, dim], and PyTorch's kernel writes what it reads.
TensorId contiguous(const LowerContext& c, Operators& op, Tape& tape, TensorId out) {
  const bool transposes = c.profile.transformer_engine && c.profile.attention == model::AttentionKernel::flash2 && c.attention == "flash";
  const bool copies_gradient = transposes || c.profile.packs_qkv || (c.profile.orders_by_sample && c.attention == "flash" && c.batch > 1);   // the kernel wants it in its own order
  const auto& m = c.model;
  const bool joined = c.profile.rope == Fusion::eager && c.profile.rope_form == RopeForm::rotate_half && m.position == model::Position::rotary && m.rotary_dim < m.head_dim && c.attention == "flash";
  if (!c.profile.repeat_kv && !copies_gradient && !joined) return out;
  const std::int64_t bytes = c.tokens * query_width(c) / c.tensor * c.element();
  const TensorId copy = tape.tensor("contiguous attention output", bytes);
  Node node{.name = "contiguous", .inputs = {out}, .outputs = {copy}, .forward = {op.kernel("contiguous", bytes, bytes, model::KernelKind::strided)}};
  if (copies_gradient) node.backward = {op.kernel("contiguous backward", bytes, bytes, model::KernelKind::strided)};
  else node.passed_inputs = 1;
  tape.nodes.push_back(std::move(node));
  return copy;
}

TensorId attention_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, const model::Layer& layer) {
  const auto& m = c.model;
  const bool rotates = m.position == model::Position::rotary && layer.rotary;
  if (m.latent.present()) return latent_attention_block(c, op, tape, x, layer);
  if (c.strategy.memory.sequence_chunk > 0) return chunked_attention_block(c, op, tape, x, rotates);
  QueryKeyValue h;
  if (c.profile.fused_qkv || m.fused_qkv) {
    LowerContext whole = c;
    whole.gathered = gathers_at_once(c);
    if (whole.gathered) x = op.gather_sequence(x, "attention", m.hidden);
    const TensorId qkv = Operators(whole, tape).linear(x, "qkv", m.hidden, m.query_product_width() + 2 * key_width(c), m.qkv_bias, Operators::Split::column);
    if (rotates && !rotates_parts(c) && c.profile.repacks_qkv) return repacked_attention(c, op, tape, qkv, layer);
    h = split_and_rotated(c, op, tape, qkv, rotates);
    if (m.qk_norm && !c.profile.copies_fused_qkv) norm_queries_and_keys(c, op, h.q, h.k, rotates && rotates_parts(c));
  } else {
    h = separate_projections(c, op, tape, x, rotates);
  }
  if (m.scales.queries) h.q = scaled_queries(c, op, tape, h.q, query_width(c) / c.tensor);
  const LowerContext narrow = c.narrowed();
  Operators inner(narrow, tape);
  if (c.mixed()) {  // fused kernels take 16 bits (transformers, flash_attention_forward: target_dtype)
    h.q = op.cast(h.q, "query", c.tokens * query_width(c) / c.tensor, narrow.activation);
    h.k = op.cast(h.k, "key", c.tokens * key_width(c) / c.tensor, narrow.activation);
    h.v = op.cast(h.v, "value", c.tokens * key_width(c) / c.tensor, narrow.activation);
  }
  TensorId out = contiguous(narrow, inner, tape, attended(narrow, inner, tape, h, layer));
  if (m.attention_gate) out = gated_attention(narrow, inner, tape, out, h.gate, query_width(c) / c.tensor);
  const TensorId projected = inner.linear(out, "o_proj", query_width(c), m.hidden, m.attention_output_bias, Operators::Split::row);
  if (c.attention == "unfused" && op.fuses_softmax()) tape.nodes.back().holds.push_back(x);   // layernorm_output, a variable of the layer meanwhile
  return projected;
}

}  // namespace

TensorId mlp_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, std::int64_t width, const std::string& prefix) {
  const auto& m = c.model;
  using Split = Operators::Split;
  LowerContext inner = c;
  inner.gathered = gathers_at_once(c);
  if (inner.gathered) x = op.gather_sequence(x, prefix + "mlp", m.hidden);
  LowerContext other = inner;
  other.reads_gathered = reads_gathered(c);
  Operators first(inner, tape), second(other, tape);
  if (!m.gated_mlp) {
    const TensorId h = first.linear(x, prefix + "fc1", m.hidden, width, m.mlp_bias, Split::column);
    return op.linear(op.activation(h, kNoTensor, width / c.tensor, prefix), prefix + "fc2", width, m.hidden, m.mlp_bias, Split::row);
  }
  TensorId gate, up = kNoTensor;
  if (c.profile.fused_gate_up) {
    gate = first.linear(x, prefix + "gate_up", m.hidden, 2 * width, m.mlp_bias, Split::column);
  } else {
    gate = first.linear(x, prefix + "gate_proj", m.hidden, width, m.mlp_bias, Split::column);
    up = second.linear(x, prefix + "up_proj", m.hidden, width, m.mlp_bias, Split::column);
  }
  return op.linear(op.activation(gate, up, width / c.tensor, prefix), prefix + "down_proj", width, m.hidden, m.mlp_bias, Split::row);
}

TensorId layer_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x, const model::Layer& layer) {
  const auto& m = c.model;
  const std::int64_t rows = c.stream_tokens();
  if (m.scales.embedding) x = mixed_with_embedding(c, op, tape, x);
  const auto mlp = [&](TensorId in) { 
    if (layer.moe) return experts_block(c, op, tape, in);
    return c.strategy.memory.tiled_mlp || c.strategy.memory.sequence_chunk > 0 ? tiled_mlp_block(c, op, tape, in, m.ffn_hidden) : mlp_block(c, op, tape, in, m.ffn_hidden);
  };
  if (m.parallel_residual) {
    const TensorId n1 = op.norm(x, "input norm", rows, m.hidden);
    const TensorId n2 = m.norms_per_layer == 1 ? n1 : op.norm(x, "mlp norm", rows, m.hidden);
    if (!c.profile.joint_branches || c.sequence_parallel) {
      const TensorId a = attention_block(c, op, tape, n1, layer);
      return op.residual(op.residual(a, mlp(n2), "branches add"), x, "residual add");
    }
    // GPT-NeoX v1.0 megatron/model/transformer.py, ParallelTransformerLayer.forward, gpt_j_residual.
    LowerContext joint = c;
    joint.joint_reduction = true;
    Operators branch(joint, tape);
    const std::int64_t bytes = rows * m.hidden * c.element();
    const TensorId a = attention_block(joint, branch, tape, n1, layer);
    const TensorId f = layer.moe ? experts_block(c, op, tape, n2) : mlp_block(joint, branch, tape, n2, m.ffn_hidden);
    const TensorId sum = op.residual(a, f, "branches add");
    std::vector<Item>& work = tape.nodes.back().forward;
    if (m.attention_output_bias) work.insert(work.begin(), op.kernel("attention bias", bytes, bytes));
    if (c.tensor > 1) work.push_back(op.collective(CollectiveKind::all_reduce, "reduce branches", bytes, plan::kAfterCompute | plan::kComputeWaits));
    return op.residual(sum, x, "residual add");
  }
  const bool before = !m.norms_after, after = m.norms_after || m.norms_per_layer == 4;
  TensorId y = x, a = kNoTensor;
  if (layer.mixer != model::Mixer::none) {
    const TensorId normed = before ? op.norm(x, "input norm", rows, m.hidden) : x;
    a = layer.mixer == model::Mixer::state_space ? state_space_block(c, op, tape, normed) : layer.mixer == model::Mixer::delta_net ? delta_net_block(c, op, tape, normed) : attention_block(c, op, tape, normed, layer);
    if (after) a = op.norm(a, "post attention norm", rows, m.hidden);
    if (m.scales.branches) a = scaled_branch(c, op, tape, a, "attention scale");
    y = op.residual(x, a, kMixerResidual);
  }
  if (!layer.feed_forward) return y;
  TensorId f = mlp(before ? op.norm(y, "mlp norm", rows, m.hidden) : y);
  if (after) f = op.norm(f, "post mlp norm", rows, m.hidden);
  if (m.scales.branches) f = scaled_branch(c, op, tape, f, "mlp scale");
  const TensorId out = op.residual(y, f, "mlp residual");
  if (c.profile.repacks_qkv && a != kNoTensor) tape.nodes.back().holds.push_back(a);  // the attention's result is a variable of the layer (nanotron)
  return out;
}

Tape layer_tape(const LowerContext& c, const model::Layer& layer) {
  Tape tape;
  tape.name = "layer";
  Operators op(c, tape);
  tape.input = tape.tensor("layer input", c.stream_tokens() * c.model.hidden * c.stream_element());
  tape.output = layer_block(c, op, tape, tape.input, layer);
  apply_selective(c, tape);
  capture_graphs(c, op, layer, tape);
  mark_offloaded(c, layer, tape);
  tape.parts = layer.one_part() ? 1 : 2;
  return tape;
}

}  // namespace rehearse::strategies
