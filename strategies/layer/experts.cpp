// Mixture of experts: router, dispatch, expert MLPs, combine, shared experts, in the order in which they run.
// Leaves out each of the router (expert_router.cpp), of dispatch and combine (expert_dispatch.cpp) and of the MLPs (expert_mlp.cpp).
//
// Every rank routes the tokens of its own residual stream. A slot is one token at one of its experts. Balanced, a rank
// receives as many slots as it sends; `imbalance` makes it more for all of them, `routing` more for some and less for others.
// Sources: Megatron-Core transformer/moe (router.py, token_dispatcher.py, experts.py); Hugging Face modelling code for
// the loop over experts.
#include "strategies/layer/expert_layer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Stream;

ExpertLayer::ExpertLayer(const LowerContext& c, Operators& op, Tape& tape) : c_(c), op_(op), tape_(tape), moe_(c.model.experts), load_(c), hidden_(moe_.latent > 0 ? moe_.latent : c.model.hidden) {
  const ExpertRouting& routing = c.strategy.experts;
  dispatcher_ = routing.dispatcher.value_or(c.profile.dispatcher);
  dropless_ = routing.capacity_factor == 0;
  fused_router_ = routing.fused_router.value_or(c.profile.fused_router);
  fused_permute_ = routing.fused_permute.value_or(c.profile.fused_permute);
  by_masks_ = routing.mask_products.value_or(c.profile.mask_products);
  fused_map_ = routing.fused_index_map.value_or(c.profile.fused_index_map);
  const bool wants_fused = !loops() && routing.fused_mlp.value_or(c.profile.fused_expert_mlp);
  fused_ = wants_fused && fuses_experts(c.gemm);
  by_operations_ = wants_fused && !fused_;
  by_expert_ = !loops() && !wants_fused && c.profile.expert_launches;
  low_ = bits(c.gemm) <= 8;
  narrow_ = op_.columns_in_backward() && c.profile.narrow_dispatch && exchanges() && !sends_slots();
  own_group_ = !(load_.ranks == 1 && load_.tensor == c.tensor);
}

TensorId ExpertLayer::run(TensorId x) {
  const TensorId weights = route(x), whole = x;
  if (moe_.latent > 0) x = op_.linear(x, "latent_down", c_.model.hidden, moe_.latent, false, Operators::Split::none);   // every tensor rank has all of it
  const bool shared = moe_.shared_ffn_hidden > 0;
  const bool overlap = shared && exchanges() && c_.strategy.experts.overlap_shared.value_or(c_.profile.overlap_shared_experts);
  TensorId own = kNoTensor;
  std::size_t joins_at = 0;   // the node before which compute waits for tokens that travelled beside the shared experts
  auto beside = [&] {
    if (!overlap) return;
    own = shared_experts(whole);
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
  if (moe_.latent > 0) out = op_.linear(out, "latent_up", moe_.latent, c_.model.hidden, false, Operators::Split::none);
  if (!shared) return out;
  if (own == kNoTensor) own = shared_experts(whole);
  const TensorId y = tape_.tensor("experts and shared experts", stream_bytes());
  tape_.nodes.push_back({.name = "shared experts add", .inputs = {out, own}, .outputs = {y}, .forward = {op_.kernel("shared experts add", 2 * stream_bytes(), stream_bytes())}, .passed_inputs = 2});
  return y;
}

TensorId ExpertLayer::shared_experts(TensorId x) {
  const TensorId y = mlp_block(c_, op_, tape_, x, moe_.shared_ffn_hidden, "shared experts ");
  if (!moe_.shared_gate) return y;
  const TensorId gate = op_.linear(x, "shared experts gate", c_.model.hidden, 1, false, Operators::Split::none);
  const TensorId out = tape_.tensor("gated shared experts", stream_bytes());
  tape_.nodes.push_back({.name = "shared experts gate product", .inputs = {y, gate}, .outputs = {out}, .saved = {y, gate}, .forward = {op_.kernel("sigmoid gate", stream_bytes(), stream_bytes())},
                         .backward = {op_.kernel("sigmoid gate backward", 2 * stream_bytes(), stream_bytes()), op_.kernel("gate gradient", 2 * stream_bytes(), load_.rows * e(), KernelKind::reduction)}});
  return out;
}

TensorId experts_block(const LowerContext& c, Operators& op, Tape& tape, TensorId x) { return ExpertLayer(c, op, tape).run(x); }

}  // namespace rehearse::strategies
