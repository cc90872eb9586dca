// Mixture of experts: router, dispatch, expert MLPs, combine, shared experts, in the order in which they run.
// Leaves out each of dispatch and combine (expert_dispatch.cpp) and of the MLPs (expert_mlp.cpp).
//
// Every rank routes the tokens of its own residual stream. A slot is one token at one of its experts. Balanced, a rank
// receives as many slots as it sends; `imbalance` makes it more for all of them, `routing` more for some and less for others.
// Sources: Megatron-Core transformer/moe (router.py, token_dispatcher.py, experts.py); Hugging Face modelling code for
// the loop over experts.
#include "strategies/layer/expert_layer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Stream;

ExpertLayer::ExpertLayer(const LowerContext& c, Operators& op, Tape& tape) : c_(c), op_(op), tape_(tape), moe_(c.model.experts), load_(c), hidden_(c.model.hidden) {
  const ExpertRouting& routing = c.strategy.experts;
  dispatcher_ = routing.dispatcher.value_or(c.profile.dispatcher);
  dropless_ = routing.capacity_factor == 0;
  fused_map_ = routing.fused_index_map.value_or(c.profile.fused_index_map);
  fused_ = !loops() && routing.fused_mlp.value_or(c.profile.fused_expert_mlp);
  by_expert_ = !loops() && !fused_ && c.profile.expert_launches;
  low_ = bits(c.gemm) <= 8;
  own_group_ = !(load_.ranks == 1 && load_.tensor == c.tensor);
}

TensorId ExpertLayer::run(TensorId x) {
  const TensorId weights = route(x);
  const bool shared = moe_.shared_ffn_hidden > 0;
  const bool overlap = shared && exchanges() && c_.strategy.experts.overlap_shared.value_or(c_.profile.overlap_shared_experts);
  TensorId own = kNoTensor;
  std::size_t joins_at = 0;   // the node before which compute waits for tokens that travelled beside the shared experts
  auto beside = [&] {
    if (!overlap) return;
    own = shared_experts(x);
    joins_at = tape_.nodes.size();
  };
  TensorId out;
  if (exchanges() && !sends_slots()) {
    // Tokens travel as they are; copies for each expert are made where they arrive.
    Slots tokens = exchange({x, weights, load_.rows}, arriving_tokens(), overlap);
    beside();
    if (dispatcher_ == Dispatcher::deepep) tokens = index_map(tokens);
    Slots slots = permute(tokens, load_.received);
    slots.tokens = experts(slots);
    out = home(unpermute(slots.tokens, weights, tokens.rows), load_.rows);
  } else {
    Slots slots = permute({x, weights, load_.rows}, exchanges() ? load_.sent : load_.received);
    if (exchanges()) {
      slots = exchange(slots, load_.received, overlap);
      beside();
      if (load_.local > 1) slots = sort(slots, true);
    }
    slots.tokens = experts(slots);
    if (exchanges() && load_.local > 1) slots = sort(slots, false);
    out = exchanges() ? home(slots.tokens, load_.sent) : slots.tokens;
    out = unpermute(out, weights, load_.rows);
  }
  if (overlap) {
    std::vector<Item>& first = tape_.nodes[joins_at].forward;
    first.insert(first.begin(), Operators::wait(Stream::expert));
  }
  if (!shared) return out;
  if (own == kNoTensor) own = shared_experts(x);
  const TensorId y = tape_.tensor("experts and shared experts", bytes(load_.rows));
  tape_.nodes.push_back({.name = "shared experts add", .inputs = {out, own}, .outputs = {y}, .forward = {op_.kernel("shared experts add", 2 * bytes(load_.rows), bytes(load_.rows))}, .passed_inputs = 2});
  return y;
}

TensorId ExpertLayer::route(TensorId x) {
  LowerContext wide = c_;   // never in 8 bit
  wide.gemm = c_.activation;
  const TensorId logits = Operators(wide, tape_).linear(x, "router", hidden_, moe_.experts, moe_.router_bias, Operators::Split::none);
  const std::int64_t scores = load_.rows * moe_.experts * 4, chosen = load_.rows * moe_.top_k;
  const TensorId all = tape_.tensor("router scores", scores, false), map = tape_.tensor("routing map", load_.rows * moe_.experts, false);
  const TensorId weights = tape_.tensor("router weights", loops() ? chosen * 4 : scores);
  Node node{.name = "router scores", .inputs = {logits}, .outputs = {weights}, .saved = {all, map}, .intermediates = {all, map}};
  node.forward = {op_.kernel("router softmax", scores, scores, KernelKind::softmax), op_.kernel("router top-k", scores, chosen * 12, KernelKind::reduction)};
  if (moe_.groups > 1) node.forward.insert(node.forward.end(), {op_.kernel("group scores", scores, chosen * 4, KernelKind::reduction), op_.kernel("group mask", scores, scores)});
  // Weights and map in dense form; tokens per expert and the balancing loss.
  for (const char* step : {"zeros", "scatter", "routing map", "tokens per expert", "balancing loss", "balancing loss sum"}) node.forward.push_back(op_.kernel(step, scores, scores));
  // Half of the host's work is routing, half is after the tokens have arrived: three eighths of that in each linear layer, a quarter on the
  // way back (yanring/Megatron-MoE-ModelZoo issue 7, medians of ranges on the host: experts 2.19 ms, 0.44 of them products; MLP less
  // router, dispatch and experts 0.53).
  node.forward_host = c_.profile.expert_host / 2;
  node.backward_host = c_.profile.expert_backward_host / 2;
  node.backward = {op_.kernel("balancing loss backward", scores, scores), op_.kernel("scatter backward", scores, scores), op_.kernel("router softmax backward", 2 * scores, scores, KernelKind::softmax)};
  tape_.nodes.push_back(std::move(node));
  return weights;
}

TensorId ExpertLayer::shared_experts(TensorId x) {
  const TensorId y = mlp_block(c_, op_, tape_, x, moe_.shared_ffn_hidden, "shared experts ");
  if (!moe_.shared_gate) return y;
  const TensorId gate = op_.linear(x, "shared experts gate", hidden_, 1, false, Operators::Split::none);
  const TensorId out = tape_.tensor("gated shared experts", bytes(load_.rows));
  tape_.nodes.push_back({.name = "shared experts gate product", .inputs = {y, gate}, .outputs = {out}, .saved = {y, gate}, .forward = {op_.kernel("sigmoid gate", bytes(load_.rows), bytes(load_.rows))},
                         .backward = {op_.kernel("sigmoid gate backward", 2 * bytes(load_.rows), bytes(load_.rows)), op_.kernel("gate gradient", 2 * bytes(load_.rows), load_.rows * e(), KernelKind::reduction)}});
  return out;
}

TensorId experts_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x) { return ExpertLayer(c, op, tape).run(x); }

}  // namespace rehearse::strategies
