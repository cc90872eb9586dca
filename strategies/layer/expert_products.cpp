// The linear layers of all experts of a rank: grouped products or one for each, their weights, casts, biases and adapters.
// Leaves out the MLPs that they make up (expert_mlp.cpp).
#include <algorithm>

#include "strategies/layer/expert_layer.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {

using model::GemmRole;
using model::KernelKind;

/// A linear layer of every expert, with its adapter where the job has one.
TensorId ExpertLayer::product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, Place place) {
  const TensorId y = plain_product(x, name, in, out, op_, false, place);
  const std::vector<std::string> parts = parts_of(name);
  const auto found = static_cast<std::int64_t>(adapted_parts(c_.strategy.tuning, name, parts).size());
  if (found == 0) return y;
  // Gate and up that are modules of their own have adapters of their own.
  const bool apart = c_.profile.adapter_per_part || !c_.profile.fused_gate_up;
  const std::int64_t adapted = apart ? found : 1, of = apart ? static_cast<std::int64_t>(parts.size()) : 1;
  LowerContext inner = c_;
  inner.adapter = true;
  Operators op(inner, tape_);
  const std::int64_t rank = c_.strategy.tuning.rank, width = out * adapted / of;
  const TensorId down = plain_product(x, name + ".lora_A", in, rank * adapted, op, true, place);
  // One rank-wide product per adapted part: as one of the same operations and bytes.
  const TensorId up = plain_product(down, name + ".lora_B", rank, width, op, true, place);
  const TensorId sum = tape_.tensor(name + " with adapter", load_.received * out * e());
  const std::int64_t bytes = load_.received * out * e(), branch = load_.received * width * e();
  tape_.nodes.push_back({.name = name + " adapter add", .inputs = {y, up}, .outputs = {sum}, .forward = {op_.kernel("adapter scaled add", bytes + branch, bytes)},
                         .backward = {op_.kernel("adapter scale backward", bytes, branch)}, .passed_inputs = 1});
  return sum;
}

TensorId ExpertLayer::plain_product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, const Operators& op, bool adapter, Place place) {
  const TensorId y = tape_.tensor(name, load_.received * out * e());
  const Matrices w = matrices(name, in * out, op, adapter);
  const bool low = low_ && !adapter;
  Node node{.name = name, .inputs = {x}, .outputs = {y}};
  keep_input(node, x, in, w, low, low && narrow_ && place == Place::first);
  if (!adapter) {
    node.forward_host = 3 * c_.profile.expert_host / 16;
    node.backward_host = 3 * c_.profile.expert_backward_host / 16;
  }
  if ((by_expert_ || loops()) && !adapter) {
    node.forward_host += (low ? c_.profile.grouped_low_host : c_.profile.grouped_host) * load_.local;
    node.backward_host += (low ? c_.profile.grouped_low_backward_host : c_.profile.grouped_backward_host) * load_.local;
  }
  const bool swizzles = low && by_expert_ && (c_.gemm == DType::mxfp8 || c_.gemm == DType::nvfp4);   // as linear layers (linear_casts.cpp)
  const bool came_narrow = low && narrow_ && place == Place::first, gradient_came_narrow = low && narrow_ && place == Place::second;
  if (low && !(fused_ && place == Place::second) && !came_narrow) quantise(node.forward, name + " cast input", load_.received * in);
  if (swizzles) node.forward.push_back(op.swizzle(name, load_.local * in * out));
  products(node.forward, name, GemmRole::forward, out, in, c_.activation, false, w.quantised);
  if (low && !(fused_ && place == Place::first) && !gradient_came_narrow) quantise(node.backward, name + " cast gradient", load_.received * out);
  const std::size_t input_from = node.backward.size();
  if (swizzles) node.backward.push_back(op.swizzle(name, load_.local * in * out));
  products(node.backward, name + " data gradient", GemmRole::data_gradient, in, out, c_.activation, false, w.quantised);
  for (std::size_t i = input_from; i < node.backward.size(); ++i) node.backward[i].for_input = true;
  if (w.trains && low && op_.columns_in_backward()) {   // as linear layers
    const std::int64_t input = load_.received * in, gradient = load_.received * out;
    constexpr int kGradientColumns = 1, kInputColumns = 2;
    for (const Item& i : {Operators::alloc(kGradientColumns, gradient), op_.kernel(name + " cast gradient columns", gradient_came_narrow ? gradient : gradient * e(), gradient),
                          Operators::alloc(kInputColumns, input), op_.kernel(name + " cast input columns", input, input)}) node.backward.push_back(i);
    node.copies_for_weights = true;
    weight_gradients(node, in, out, w);
    for (const int columns : {kGradientColumns, kInputColumns}) node.backward.push_back(op_.for_weights(Operators::free(columns)));
  } else if (w.trains) {
    weight_gradients(node, in, out, w);
  }
  if (c_.model.mlp_bias && !adapter && !(separate_bias() && place == Place::second)) product_bias(node, out);
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// `elements`: of one expert. Experts that are modules of their own can be trained one by one; the others' weights are
/// counted beside.
ExpertLayer::Matrices ExpertLayer::matrices(const std::string& name, std::int64_t elements, const Operators& op, bool adapter) {
  Matrices out;
  out.own = adapter ? load_.local : std::min(load_.local, trained_experts(c_.strategy.tuning, c_.layer, moe_.experts));
  const bool some = out.own > 0 && out.own < load_.local;
  if (!some) out.own = load_.local;
  Weight matrix = op.weight(name + ".weight", out.own * elements);
  matrix.expert = own_group_;
  matrix.one_of_several = some;
  matrix.experts = out.own;
  out.trains = matrix.trainable;
  if (!out.trains && !adapter && quantises(c_.strategy.tuning, c_.profile, name)) {
    out.quantised = true;
    matrix.packed_bytes = quantised_bytes(load_.local * elements, c_.strategy.tuning);
    matrix.packed_states = quantisation_states(load_.local * elements, c_.strategy.tuning);
    matrix.wide_bytes = 0;
  }
  op.cast_by_engine(matrix);
  if (some) {
    Weight others = matrix;
    others.name = name + ".others";
    others.elements = (load_.local - out.own) * elements;
    others.trainable = others.one_of_several = false;
    tape_.weight(std::move(others));
  }
  out.weight = tape_.weight(std::move(matrix));
  return out;
}

/// What the gradients of the weights read.
void ExpertLayer::keep_input(Node& node, TensorId x, std::int64_t in, const Matrices& w, bool low, bool came_narrow) {
  if (w.trains && low && !came_narrow && c_.profile.transformer_engine) {  // as linear layers (linear_casts.cpp)
    const std::int64_t elements = load_.received * in, blocks = c_.gemm == DType::fp8 ? 0 : elements / (c_.gemm == DType::nvfp4 ? 16 : 32);
    node.intermediates.push_back(tape_.tensor(node.name + " cast input", op_.columns_in_backward() ? Operators::block_scaled(elements) : elements * bits(c_.gemm) / 8 + blocks, false));
    node.saved.push_back(node.intermediates.back());
    node.weight_operand = node.intermediates.back();
  } else if (w.trains) {
    node.saved.push_back(x);
  } else if (w.quantised && c_.profile.keeps_quantised_inputs) {
    node.attributes.push_back(x);   // as linear layers
  }
}

/// The gradients of all experts are one tensor; each product writes its part.
void ExpertLayer::weight_gradients(Node& node, std::int64_t in, std::int64_t out, const Matrices& w) {
  const bool fused = c_.profile.fused_gradient_accumulation;
  std::vector<Item> made;
  products(made, node.name + " weight gradient", GemmRole::weight_gradient, out, in, fused ? c_.profile.gradient : c_.activation, fused);
  if (w.own < load_.local && loops()) made.resize(static_cast<std::size_t>(w.own));   // a grouped product makes them all (and is refused: tuning/problems.cpp)
  for (std::size_t i = 0; i + 1 < made.size(); ++i) node.backward.push_back(made[i]);
  node.backward.push_back(op_.weight_gradient(w.weight, made.back()));
}

void ExpertLayer::product_bias(Node& node, std::int64_t out) {
  Weight added = op_.weight(node.name + ".bias", load_.local * out);
  added.matrix = false;
  added.expert = own_group_;
  const bool trains = added.trainable;
  const int b = tape_.weight(std::move(added));
  // In the product's epilogue, and its gradient in the weight gradient's or in the quantisation of the output's gradient.
  const bool epilogue = fused_ || by_operations_ || separate_bias();
  const std::int64_t all = load_.received * out * e();
  // torchtitan models/gpt_oss/moe.py: the biases by repeat_interleave with an output size, which is index_select, whose backward is index_add.
  if (!epilogue && c_.profile.repeats_expert_bias && !c_.profile.compiled) {
    const std::int64_t own = load_.local * out;
    node.forward.insert(node.forward.end(), {Operators::alloc(6, all), op_.kernel(node.name + " bias rows", own * e(), all, KernelKind::permute), Operators::alloc(7, all), op_.kernel(node.name + " bias", 2 * all, all), Operators::free(6), Operators::free(7)});
    if (trains) node.backward.insert(node.backward.end(), {op_.kernel(node.name + " bias gradient zeros", 0, own * e(), KernelKind::memset), op_.weight_gradient(b, add_by_atomics(node.name + " bias gradient", load_.received * out, true))});
    return;
  }
  if (!epilogue) node.forward.push_back(op_.kernel(node.name + " bias", all, all));
  if (trains) node.backward.push_back(op_.weight_gradient(b, op_.kernel(node.name + " bias gradient", epilogue ? load_.local * out * 4 : all, load_.local * out * 4, KernelKind::reduction)));
}

/// All experts of the rank: one grouped product, or one product each.
void ExpertLayer::products(std::vector<Item>& out, const std::string& name, GemmRole role, std::int64_t n, std::int64_t k, DType result, bool accumulate, bool quantised) const {
  // Weight gradients sum over tokens: an n x k result with the tokens as depth.
  const bool weight = role == GemmRole::weight_gradient;
  const std::int64_t columns = weight ? k : n;
  const std::int64_t launches = loops() ? load_.local : 1;
  for (std::int64_t i = 0; i < launches; ++i) {
    // A grouped product is priced by the mean of its experts, a loop expert by expert.
    const std::int64_t tokens = std::max<std::int64_t>(1, loops() && load_.uneven() ? load_.rows_of[static_cast<std::size_t>(i)] : load_.received / load_.local);
    const std::int64_t rows = weight ? n : tokens, depth = weight ? tokens : k;
    if (quantised) op_.dequantise(out, 9, load_.local / launches * n * k);
    if (loops()) out.push_back(op_.gemm(name, role, rows, columns, depth, result, accumulate));
    else out.push_back({.kind = Item::Kind::kernel,
                        // Fused kernels schedule the tiles of all experts as one product; others hand over from expert to expert.
                        .spec = c_.builder.kernel({.kind = fused_ ? KernelKind::gemm : c_.profile.native_grouped ? KernelKind::native_grouped_gemm : KernelKind::grouped_gemm, .role = role, .dtype = c_.gemm, .output_dtype = result, .accumulate = accumulate, .batch = load_.local,
                                                   .m = rows, .n = columns, .k = depth, .name = name}),
                        .launches = by_expert_ ? static_cast<int>(load_.local) : 1});
    if (quantised) out.push_back(Operators::free(9));
  }
}

/// One kernel over the slots of all experts, or one for each expert's.
void ExpertLayer::per_expert(std::vector<Item>& list, const std::string& name, std::int64_t read, std::int64_t written, KernelKind kind) const {
  const std::int64_t parts = by_expert_ ? load_.local : 1;
  for (std::int64_t i = 0; i < parts; ++i) list.push_back(op_.kernel(name, read / parts, written / parts, kind));
}

/// Operands of 8-bit products, each expert's with scales of its own.
void ExpertLayer::quantise(std::vector<Item>& list, const std::string& name, std::int64_t elements) const {
  if (op_.scales_from_tensor()) {   // as linear layers (linear_casts.cpp); fused kernels find their scales themselves
    if (by_expert_) per_expert(list, name + " maximum reset", 0, load_.local * 4);
    per_expert(list, name + " maximum", elements * e(), load_.local * 4, KernelKind::reduction);
    if (by_expert_) per_expert(list, name + " scale", load_.local * 4, load_.local * 8);
  }
  per_expert(list, name, elements * e(), elements * op_.quantised_copies() * bits(c_.gemm) / 8);
}

}  // namespace rehearse::strategies
