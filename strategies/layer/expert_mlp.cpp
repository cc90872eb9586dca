// The MLPs of all experts of a rank: two products with the activation between them, and what Megatron does apart from
// its kernels (clamping, output bias, padding). Leaves out the products themselves (expert_products.cpp).
#include "strategies/layer/expert_layer.h"

namespace rehearse::strategies {

using model::KernelKind;

TensorId ExpertLayer::experts(const Slots& in) {
  const std::int64_t width = moe_.ffn_hidden / load_.tensor;
  const std::size_t first_node = tape_.nodes.size();
  TensorId h;
  const TensorId x = pads() ? copy(in.tokens, "padding") : in.tokens;
  if (pads()) {   // the slots' weights are padded alike (TEGroupedMLP.forward)
    const std::int64_t slots = load_.received * 4;
    tape_.nodes.back().forward.push_back(op_.kernel("pad weights", slots, slots));
    tape_.nodes.back().backward.push_back(op_.kernel("pad weights backward", slots, slots));
  }
  if (c_.model.gated_mlp) {
    h = first_bias(product(x, "experts gate_up", hidden_, 2 * width, Place::first), 2 * width);
    h = activation(h, in.weights, width);
    h = product(h, "experts down", width, hidden_, Place::second);
  } else {
    h = activation(first_bias(product(x, "experts fc1", hidden_, width, Place::first), width), in.weights, width);
    h = product(h, "experts fc2", width, hidden_, Place::second);
  }
  if (c_.model.mlp_bias && separate_bias()) h = output_bias(h, in.weights);
  if (c_.strategy.experts.paged_stash && fused_ && dropless_ && low_) stash(first_node, width);
  return pads() ? copy(h, "unpadding") : h;
}

/// What backward reads of fused experts in 8 bits (the two products' inputs by columns with their scales, the activation's input, the slots'
/// weights) lies in buffers that every layer uses. After forward it is copied into pages, on a stream of its own, which the next layer's experts wait
/// for; after the experts of a backward what those of the next one want is copied back.
/// Source: megatron/core/transformer/moe/paged_stash.py (core 0.18): PipelinePostScheduleFunction, PipelinePreScheduleFunction, one kernel per tensor each
/// way; Transformer Engine pytorch/ops/fused/grouped_mlp.py, mark_grouped_tensor.
void ExpertLayer::stash(std::size_t first_node, std::int64_t width) {
  const std::int64_t slots = load_.received, inner = c_.model.gated_mlp ? 2 * width : width;
  const auto narrow = [&](std::int64_t elements) { return elements * bits(c_.gemm) / 8 + elements / 32; };
  const std::int64_t kept = narrow(slots * hidden_) + slots * inner * e() + slots * 4 + narrow(slots * width);
  const auto copied = [&](const char* name) {
    Item copy = op_.kernel(name, kept, kept);
    copy.stream = plan::Stream::stash;
    copy.sync = plan::kAfterCompute;
    return copy;
  };
  Node &first = tape_.nodes[first_node], &last = tape_.nodes.back();
  first.forward.insert(first.forward.begin(), Operators::wait(plan::Stream::stash));
  last.forward.push_back(copied("experts stash"));
  last.backward.insert(last.backward.begin(), Operators::wait(plan::Stream::stash));
  first.backward.push_back(copied("experts restore"));
}

/// Megatron multiplies by the router's weights here, so that nothing has to be kept for it later: in the kernel of a gated
/// activation; after any other, of which the product then keeps the result.
/// Source: megatron/core/transformer/moe/experts.py, TEGroupedMLP.bias_act_func; mlp.py, MLP.forward (per_token_scale).
TensorId ExpertLayer::activation(TensorId x, TensorId weights, std::int64_t width) {
  if (by_operations_) return activation_by_operations(x, weights, width);
  const std::int64_t size = load_.received * width * e(), in = c_.model.gated_mlp ? 2 * size : size;
  if (separate_clamp()) x = clamp(x, in);
  const TensorId y = tape_.tensor("experts activation", size);
  Node node{.name = "experts activation", .inputs = {x}, .outputs = {y}, .saved = {x}};
  // The scalar of the gate is copied to the device for each call, and such a copy waits for the stream
  // (fused_bias_geglu.py: torch.tensor(linear_offset, device=...)).
  if (separate_clamp()) node.forward.push_back({.kind = Item::Kind::host_sync});
  if (!weighs_outputs()) {
    node.inputs.push_back(weights);
    node.saved.push_back(weights);
  }
  if (weighs_apart()) {
    const TensorId plain = tape_.tensor("experts unweighted activation", size);
    node.intermediates.push_back(plain);
    node.saved.push_back(plain);
  }
  const std::int64_t parts = loops() ? load_.local : 1;
  const KernelKind halves = gates_natively() ? KernelKind::strided : KernelKind::elementwise;  // as Operators::activation
  // silu(gate), times up, an operator each: the product's operands are kept too.
  const bool apart = gates_natively() || (!fused_ && loops() && c_.model.gated_mlp && (weighs_outputs() || c_.model.activation != model::Activation::silu));
  const bool clamped = apart && c_.model.clamped_activation;
  const bool offset = apart && !clamped && !loops() && c_.profile.gate_offset;   // added to the linear half, were it zero
  const auto kept = [&](const char* name) {
    node.intermediates.push_back(tape_.tensor(name, size));
    node.saved.push_back(node.intermediates.back());
    tape_.tensors.back().stays = c_.profile.offloads_marked;
  };
  if (gates_natively() && c_.profile.transformer_engine) tape_.tensors[static_cast<std::size_t>(tape_.root(x))].stays = true;   // as Operators::swiglu_native
  if (clamped) {
    for (const char* name : {"experts clamped gate", "experts clamped up", "experts sigmoid", "experts gated"}) kept(name);
  } else if (apart) {
    kept("experts silu");
    if (offset) kept("experts linear half");
  }
  for (std::int64_t i = 0; i < parts && !fused_; ++i) {
    if (clamped) {
      clamped_activation(node, size / parts);
      continue;
    }
    node.forward.push_back(op_.kernel("experts activation", (offset ? size : in) / parts, size / parts, halves));
    if (offset) node.forward.push_back(op_.kernel("experts gate offset", size / parts, size / parts, halves));
    if (apart) node.forward.push_back(op_.kernel("experts gate product", 2 * size / parts, size / parts));
    node.backward.push_back(op_.kernel("experts activation backward", (in + size) / parts, in / parts, halves));
    // The slots' weights want a sum over the width: a second pass (weighted_swiglu_back, weighted_quick_geglu_back under torch.compile).
    if (by_expert_) node.backward.push_back(op_.kernel("experts activation weights backward", in + size, load_.received * 4, KernelKind::reduction));
    if (apart) node.backward.insert(node.backward.end(), {op_.kernel("experts gate product backward", 2 * size / parts, size / parts), op_.kernel("experts gate product backward", 2 * size / parts, size / parts)});
  }
  // As Operators::activation: WeightedSwiGLUFunction.
  if (c_.profile.narrows_activation_input && c_.model.gated_mlp && c_.model.activation == model::Activation::silu && !loops() && !fused_) {
    const TensorId narrow = tape_.tensor("experts activation input in 8 bits", in / e(), false);
    node.saved.front() = narrow;
    if (c_.profile.remakes_from_narrow) tape_.keep_as(x, narrow);
    else node.intermediates.push_back(narrow);
    node.forward.push_back(op_.kernel("experts activation input cast", in, in / e()));
    node.backward.insert(node.backward.begin(), {op_.alloc(0, in), op_.kernel("experts activation input cast back", in / e(), in)});
    node.backward.push_back(op_.free(0));
  }
  if (weighs_apart()) {
    node.forward.push_back(op_.kernel("experts weigh activation", size, size));
    node.backward.push_back(op_.kernel("experts weigh activation backward", 2 * size, size));
  }
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// Gate and up lie in turns of 32, as the fused kernels want them, and are put apart first; the router's weights multiply the result. Backward does
/// both again, and the activation a second time, for the weights' gradient.
/// Source: NVIDIA/TransformerEngine v2.16 pytorch/ops/basic/swiglu.py (_ScaledGLU) and ops/_common.py, fuse_grouped_mlp_ops: without a recipe of MXFP8 (2.17 on: or
/// NVFP4) operations stay as they are; Megatron-Bridge utils/overrides.py: moe_mlp_glu_interleave_size 32 with the fused MLP, whatever the precision.
TensorId ExpertLayer::activation_by_operations(TensorId x, TensorId weights, std::int64_t width) {
  // They know the buffer's length, not how much of it is filled.
  const auto rows = static_cast<std::int64_t>(static_cast<double>(load_.received) * std::max(1.0, c_.strategy.experts.rank_capacity_factor));
  const std::int64_t size = rows * width * e(), in = c_.model.gated_mlp ? 2 * size : size, slots = rows * 4;
  const TensorId y = tape_.tensor("experts activation", load_.received * width * e());
  Node node{.name = "experts activation", .inputs = {x, weights}, .outputs = {y}, .saved = {x, weights}};
  const auto apart = [&](std::vector<Item>& list) {
    if (c_.model.gated_mlp) list.insert(list.end(), {Operators::alloc(0, in), op_.kernel("experts gate and up apart", in, in, KernelKind::strided)});
  };
  apart(node.forward);
  node.forward.insert(node.forward.end(), {Operators::alloc(1, size), op_.kernel("experts activation", in, size)});
  if (c_.model.gated_mlp) node.forward.push_back(Operators::free(0));
  node.forward.insert(node.forward.end(), {op_.kernel("experts weigh activation", size, size), Operators::free(1)});
  apart(node.backward);
  node.backward.insert(node.backward.end(), {Operators::alloc(1, size), op_.kernel("experts weigh gradient", size, size), Operators::alloc(2, in), op_.kernel("experts activation backward", in + size, in), Operators::free(1)});
  if (c_.model.gated_mlp) node.backward.push_back(op_.kernel("experts gate and up in turns", in, in, KernelKind::strided));
  node.backward.insert(node.backward.end(), {Operators::free(2), Operators::alloc(1, size), op_.kernel("experts activation again", in, size), op_.kernel("experts weights gradient", 2 * size, slots, KernelKind::reduction), Operators::free(1)});
  if (c_.model.gated_mlp) node.backward.push_back(Operators::free(0));
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// Every second element of the first product, clamped, times its own sigmoid; times the others, clamped, and one: operators of PyTorch.
/// Source: torchtitan models/gpt_oss/moe.py, swiglu; transformers modeling_gpt_oss.py, _apply_gate; backward as autograd records it.
void ExpertLayer::clamped_activation(Node& node, std::int64_t size) {
  auto &f = node.forward, &b = node.backward;
  const auto operation = [&](const char* name, std::int64_t operands) { return op_.kernel(name, operands * size, size); };
  for (const char* name : {"clamp gate", "clamp up"}) f.push_back(op_.kernel(name, size, size, KernelKind::strided));
  f.insert(f.end(), {Operators::alloc(0, size), operation("scale gate", 1), operation("sigmoid", 1), Operators::free(0), operation("gate product", 2), operation("up product", 2)});
  b.insert(b.end(), {Operators::alloc(1, size), operation("up gradient", 2), Operators::alloc(2, size), operation("gated gradient", 2), operation("gated gradient sum", 2), Operators::alloc(3, size), operation("sigmoid gradient", 2),
                     operation("gate gradient", 2), operation("sigmoid backward", 2), operation("scale gate backward", 1), operation("gate gradient sum", 2), Operators::free(3)});
  for (const char* name : {"clamp gate backward", "clamp up backward"}) b.push_back(op_.kernel(name, 2 * size, size, KernelKind::strided));
  b.push_back(Operators::alloc(4, 2 * size));
  for (const char* name : {"cut gate backward", "cut up backward"}) b.insert(b.end(), {op_.kernel(name, 0, 2 * size, KernelKind::memset), op_.kernel(name, size, size, KernelKind::strided)});
  b.insert(b.end(), {op_.kernel("gate and up gradient", 4 * size, 2 * size), Operators::free(4), Operators::free(2), Operators::free(1)});
}

/// Gate and up cut apart, clamped and joined again before the activation's kernel.
/// Source: megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl.
TensorId ExpertLayer::clamp(TensorId x, std::int64_t size) {
  const TensorId y = tape_.tensor("experts clamped", size);
  const std::int64_t half = size / 2;
  Node node{.name = "experts clamp", .inputs = {x}, .outputs = {y}, .saved = {x}};
  node.forward = {Operators::alloc(0, half), op_.kernel("clamp gate", half, half, KernelKind::strided), Operators::alloc(1, half), op_.kernel("clamp up", half, half, KernelKind::strided),
                  op_.kernel("join gate and up", size, size), Operators::free(0), Operators::free(1)};
  node.backward = {Operators::alloc(0, half), op_.kernel("clamp gate backward", size, half, KernelKind::strided), Operators::alloc(1, half), op_.kernel("clamp up backward", size, half, KernelKind::strided),
                   op_.kernel("cut gate and up backward", size, size), Operators::free(0), Operators::free(1)};
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// The bias of the first product where it is added to each expert's slots apart: sums, joined; autograd joins the gradients of the slices.
/// Source: NeMo AutoModel components/moe/layers.py@89e3a9f, _apply_bias; its parameter's gradient is the product's (expert_products.cpp).
TensorId ExpertLayer::first_bias(TensorId x, std::int64_t width) {
  if (loops() || fused_ || by_operations_ || !c_.model.mlp_bias || !c_.profile.separate_first_expert_bias) return x;
  const std::int64_t size = load_.received * width * e();
  const TensorId y = tape_.tensor("experts biased first output", size);
  Node node{.name = "experts first bias", .inputs = {x}, .outputs = {y}};
  node.forward.push_back(Operators::alloc(0, size));
  per_expert(node.forward, "bias add", size, size);
  node.forward.insert(node.forward.end(), {op_.kernel("join experts", size, size), Operators::free(0)});
  node.backward = {op_.kernel("join gradients", size, size)};
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// The bias after the experts, times each slot's weight: an fp32 product and an fp32 sum for each expert, joined and cast.
/// Source: megatron/core/transformer/moe/experts.py, TEGroupedMLP._apply_bias; backward as autograd records it.
TensorId ExpertLayer::output_bias(TensorId x, TensorId weights) {
  const std::int64_t narrow = bytes(load_.received), wide = load_.received * hidden_ * 4, slots = load_.received * 4;
  const TensorId y = tape_.tensor("experts biased output", narrow);
  Weight added = op_.weight("experts down.bias", load_.local * hidden_);
  added.matrix = false;
  added.expert = own_group_;
  const bool trains = added.trainable;
  const int b = tape_.weight(std::move(added));
  Node node{.name = "experts output bias", .inputs = {x, weights}, .outputs = {y}, .saved = {weights}};
  auto& f = node.forward;
  f.push_back(Operators::alloc(0, wide));
  f.push_back(Operators::alloc(1, wide / load_.local));
  per_expert(f, "bias times weight", slots, wide);
  per_expert(f, "bias add", narrow + wide, wide);
  f.push_back(Operators::free(1));
  f.insert(f.end(), {Operators::alloc(2, wide), op_.kernel("join experts", wide, wide), Operators::free(0), op_.convert("cast", wide, narrow), Operators::free(2)});
  auto& back = node.backward;
  back.insert(back.end(), {Operators::alloc(3, wide), op_.convert("cast backward", narrow, wide)});
  per_expert(back, "bias add backward", wide, narrow);
  if (trains) {
    back.push_back(Operators::alloc(4, wide / load_.local));
    per_expert(back, "bias times weight backward", wide + slots, wide);
    std::vector<Item> sums;
    per_expert(sums, "experts down bias gradient", wide, load_.local * hidden_ * 4, KernelKind::reduction);
    for (std::size_t i = 0; i + 1 < sums.size(); ++i) back.push_back(sums[i]);
    back.push_back(op_.weight_gradient(b, sums.back()));
    back.push_back(Operators::free(4));
  }
  back.push_back(Operators::alloc(5, wide / load_.local));
  per_expert(back, "slot weight backward", wide, wide);
  per_expert(back, "slot weight backward sum", wide, slots, KernelKind::reduction);
  back.push_back(Operators::free(5));
  back.insert(back.end(), {op_.kernel("join gradients", narrow, narrow), Operators::free(3)});
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// Experts' rows filled up to what 8-bit products want, where the dispatcher has not done it (HybridEP does): a copy.
/// Source: Transformer Engine, Fp8Padding and Fp8Unpadding in TEGroupedMLP.
TensorId ExpertLayer::copy(TensorId x, const char* name) {
  const TensorId y = tape_.tensor(name, bytes(load_.received));
  tape_.nodes.push_back({.name = std::string("experts ") + name, .inputs = {x}, .outputs = {y}, .forward = {op_.kernel(name, bytes(load_.received), bytes(load_.received))},
                         .backward = {op_.kernel(std::string(name) + " backward", bytes(load_.received), bytes(load_.received))}});
  return y;
}

}  // namespace rehearse::strategies
