// Which experts a token goes to: scores, the best of them, weights and a map, the balancing loss, counts that ranks exchange.
// Leaves out tokens on their way (expert_dispatch.cpp).
//
// Megatron's router (routes_by_map) is PyTorch's operators, each a launch, or Transformer Engine's kernels (--moe-router-fusion).
// Sources: Megatron-LM megatron/core/transformer/moe/router.py (aux_loss_load_balancing, apply_load_balancing_loss), moe_utils.py
// (topk_softmax_with_capacity, group_limited_topk, switch_load_balancing_loss_func) at 2025-06; Transformer Engine
// pytorch/router.py; PyTorch TensorTopK.cu (select, then sort), ScatterGatherKernel.cu, TensorAdvancedIndexing.cpp (scatter copies first).
#include <algorithm>

#include "strategies/layer/expert_layer.h"

namespace rehearse::strategies {

using model::KernelKind;

namespace {
constexpr std::int64_t kScalar = 8;
}

TensorId ExpertLayer::route(TensorId x) {
  LowerContext wide = c_;   // never in 8 bit
  wide.gemm = c_.activation;
  if (c_.profile.wide_router && bits(c_.activation) < 32) {
    wide.activation = wide.gemm = DType::fp32;
    x = op_.cast(x, "router input", load_.rows * c_.model.hidden, DType::fp32);
  }
  const TensorId logits = Operators(wide, tape_).linear(x, "router", c_.model.hidden, moe_.experts, moe_.router_bias, Operators::Split::none);
  const std::int64_t scores = load_.rows * moe_.experts * 4, chosen = load_.rows * moe_.top_k;
  const TensorId all = tape_.tensor("router scores", scores, false), map = tape_.tensor("routing map", load_.rows * moe_.experts, false);
  const TensorId weights = tape_.tensor("router weights", loops() ? chosen * 4 : scores);
  Node node{.name = "router scores", .inputs = {logits}, .outputs = {weights}, .saved = {all, map}, .intermediates = {all, map}};
  if (!c_.profile.routes_by_map) score(node);
  else if (fused_router_) score_fused(node);
  else score_by_operators(node);
  if (c_.profile.routes_by_map && !dropless_) limit_to_capacity(node);
  exchange_counts(node);
  // Half of the host's work is routing, half is after the tokens have arrived: three eighths of that in each linear layer, a quarter on the
  // way back (yanring/Megatron-MoE-ModelZoo issue 7, medians of ranges on the host: experts 2.19 ms, 0.44 of them products; MLP less
  // router, dispatch and experts 0.53).
  node.forward_host = c_.profile.expert_host / 2;
  node.backward_host = c_.profile.expert_backward_host / 2;
  if (exchanges_slots_by_all_to_all()) node.forward_host += c_.profile.exchange_host / 2;   // MoEAlltoAllTokenDispatcher.preprocess, which CUDA graphs of the router may hold
  node.outputs_kept = c_.profile.dispatcher_keeps_weights && dispatcher_ == Dispatcher::deepep && exchanges();
  tape_.nodes.push_back(std::move(node));
  return weights;
}

void ExpertLayer::score(Node& node) const {
  const std::int64_t scores = load_.rows * moe_.experts * 4, chosen = load_.rows * moe_.top_k;
  node.forward = {op_.kernel("router softmax", scores, scores, KernelKind::softmax), op_.kernel("router top-k", scores, chosen * 12, KernelKind::reduction)};
  if (moe_.groups > 1) node.forward.insert(node.forward.end(), {op_.kernel("group scores", scores, chosen * 4, KernelKind::reduction), op_.kernel("group mask", scores, scores)});
  // Weights and map in dense form; tokens per expert and the balancing loss.
  for (const char* step : {"zeros", "scatter", "routing map", "tokens per expert", "balancing loss", "balancing loss sum"}) node.forward.push_back(op_.kernel(step, scores, scores));
  node.backward = {op_.kernel("balancing loss backward", scores, scores), op_.kernel("scatter backward", scores, scores), op_.kernel("router softmax backward", 2 * scores, scores, KernelKind::softmax)};
}

/// Scores, the k best (select, sort), weights and map in dense form (zeros, copy, scatter; zeros, cast, copy, scatter, cast), tokens per
/// expert; for the balancing loss scores, map and counts once more, its sum, and the sum that is logged.
void ExpertLayer::score_by_operators(Node& node) const {
  const std::int64_t cells = load_.rows * moe_.experts, scores = cells * 4, chosen = load_.rows * moe_.top_k, counts = moe_.experts * 8;
  std::vector<Item>& f = node.forward;
  const auto best = [&](const char* name) { f.insert(f.end(), {op_.kernel(name, scores, chosen * 12, KernelKind::reduction), op_.kernel(name, chosen * 12, chosen * 12)}); };
  const auto map = [&] {
    f.insert(f.end(), {op_.kernel("zeros", 0, scores, KernelKind::memset), op_.kernel("map cast", scores, scores), op_.kernel("map copy", scores, scores), op_.kernel("map scatter", chosen * 8, chosen * 4),
                       op_.kernel("routing map", scores, cells), op_.kernel("tokens per expert", cells, counts, KernelKind::reduction)});
  };
  f.push_back(op_.kernel("router softmax", scores, scores, KernelKind::softmax));
  if (moe_.groups > 1) {
    const std::int64_t groups = load_.rows * moe_.groups * 4;
    best("group top-k");
    f.insert(f.end(), {op_.kernel("group scores", chosen * 4, groups, KernelKind::reduction), op_.kernel("group choice", groups, groups, KernelKind::reduction), op_.kernel("zeros", 0, groups, KernelKind::memset),
                       op_.kernel("group scatter", groups, groups), op_.kernel("group mask", groups, scores), op_.kernel("group mask cast", scores, cells), op_.kernel("group mask not", cells, cells),
                       op_.kernel("scores copy", scores, scores), op_.kernel("scores masked", cells, scores)});
  }
  best("router top-k");
  f.insert(f.end(), {op_.kernel("zeros", 0, scores, KernelKind::memset), op_.kernel("weights copy", scores, scores), op_.kernel("weights scatter", chosen * 12, chosen * 4)});
  map();
  f.push_back(op_.kernel("balancing scores", scores, scores, KernelKind::softmax));
  best("balancing top-k");
  map();
  // With the sequence cut over the tensor group, counts of all its ranks.
  if (c_.tensor > 1) f.push_back(op_.collective(CollectiveKind::all_reduce, "tokens per expert", counts, plan::kAfterCompute | plan::kComputeWaits));
  f.push_back(op_.kernel("scores per expert", scores, counts, KernelKind::reduction));
  for (const char* step : {"balancing loss", "balancing loss sum", "balancing loss scale", "balancing loss log", "balancing loss log sum"}) f.push_back(op_.kernel(step, counts, kScalar));
  node.backward = {op_.kernel("loss scale", kScalar, kScalar),         op_.kernel("loss scale", kScalar, kScalar),
                   op_.kernel("balancing loss backward", kScalar, kScalar), op_.kernel("balancing loss backward", counts, counts),
                   op_.kernel("scores per expert backward", counts, scores), op_.kernel("balancing scores backward", 2 * scores, scores, KernelKind::softmax),
                   op_.kernel("weights scatter backward", chosen * 12, chosen * 4), op_.kernel("zeros", 0, scores, KernelKind::memset),
                   op_.kernel("router top-k backward", chosen * 12, chosen * 4), op_.kernel("router softmax backward", 2 * scores, scores, KernelKind::softmax),
                   op_.kernel("logits gradient add", 2 * scores, scores)};
}

/// fused_topk_with_score_function, fused_compute_score_for_moe_aux_loss, fused_moe_aux_loss.
void ExpertLayer::score_fused(Node& node) const {
  const std::int64_t cells = load_.rows * moe_.experts, scores = cells * 4, counts = moe_.experts * 8;
  std::vector<Item>& f = node.forward;
  f = {op_.kernel("fused router", scores, 2 * scores + cells), op_.kernel("fused balancing scores", scores, scores + cells), op_.kernel("tokens per expert", cells, counts, KernelKind::reduction)};
  if (c_.tensor > 1) f.push_back(op_.collective(CollectiveKind::all_reduce, "tokens per expert", counts, plan::kAfterCompute | plan::kComputeWaits));
  f.insert(f.end(), {op_.kernel("fused balancing loss", scores, kScalar, KernelKind::reduction), op_.kernel("balancing loss log", kScalar, kScalar), op_.kernel("balancing loss log sum", kScalar, kScalar)});
  node.backward = {op_.kernel("loss scale", kScalar, kScalar), op_.kernel("loss scale", kScalar, kScalar), op_.kernel("fused balancing loss backward", counts, scores),
                   op_.kernel("fused balancing scores backward", 2 * scores, scores), op_.kernel("fused router backward", 2 * scores + cells, scores), op_.kernel("logits gradient add", 2 * scores, scores)};
}

/// Each expert's best tokens up to its capacity: top-k over the tokens, a mask of zeros, copy, scatter and cast, weights under it; slots
/// that stay empty are left out of the map unless they are padded.
void ExpertLayer::limit_to_capacity(Node& node) const {
  const std::int64_t cells = load_.rows * moe_.experts, scores = cells * 4, kept = std::max<std::int64_t>(1, load_.sent) * 8;
  std::vector<Item>& f = node.forward;
  f.insert(f.end(), {op_.kernel("capacity top-k", scores, kept, KernelKind::reduction), op_.kernel("zeros", 0, scores, KernelKind::memset), op_.kernel("capacity mask copy", scores, scores),
                     op_.kernel("capacity mask scatter", kept, kept), op_.kernel("capacity mask cast", scores, cells)});
  if (!c_.strategy.experts.pad_to_capacity) f.push_back(op_.kernel("capacity and map", 2 * cells, cells));
  f.push_back(op_.kernel("weights within capacity", scores + cells, scores));
  node.backward.insert(node.backward.begin(), op_.kernel("weights within capacity backward", scores + cells, scores));
}

/// Before tokens leave, ranks of an expert group tell each other how many go where; what the host must know is copied to it (sizes sent
/// and received, tokens of each local expert). With slots padded to a capacity everybody knows. DeepEP's kernels do it themselves.
/// Source: megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.preprocess.
void ExpertLayer::exchange_counts(Node& node) const {
  if (!c_.profile.routes_by_map || !sends_slots() || !exchanges() || c_.strategy.experts.pad_to_capacity) return;
  const std::int64_t counts = moe_.experts * 8, all = counts * load_.ranks * load_.tensor, own = load_.local * load_.ranks * load_.tensor * 8;
  std::vector<Item>& f = node.forward;
  f.insert(f.end(), {op_.kernel("counts", load_.rows * moe_.experts, counts, KernelKind::reduction), op_.kernel("sizes sent", counts, load_.ranks * 8, KernelKind::reduction)});
  if (load_.ranks > 1) f.push_back(exchange_item(CollectiveKind::all_gather, "counts", all, plan::kAfterCompute | plan::kComputeWaits));
  f.push_back(op_.kernel("counts of local experts", own, own));
  for (const char* step : {"sizes received", "sizes over tensor ranks", "tokens of local experts"}) f.push_back(op_.kernel(step, own, load_.ranks * 8, KernelKind::reduction));
  for (const char* what : {"sizes sent to host", "sizes received to host", "sizes over tensor ranks to host", "tokens of local experts to host"}) f.push_back(op_.kernel(what, kScalar, kScalar));
}

/// Count (two passes), wait, select (two), make indices. Source: PyTorch Nonzero.cu.
void ExpertLayer::valid_places(std::vector<Item>& list, std::int64_t mask, std::int64_t chosen) const {
  list.insert(list.end(), {op_.kernel("count valid", mask, kScalar, KernelKind::reduction), op_.kernel("count valid", kScalar, kScalar, KernelKind::reduction), {.kind = Item::Kind::host_sync},
                           op_.kernel("select valid", kScalar, kScalar), op_.kernel("select valid", mask, chosen * 8), op_.kernel("valid places", chosen * 8, chosen * 16)});
}

}  // namespace rehearse::strategies
