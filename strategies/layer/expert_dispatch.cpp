// How tokens get to their experts and back: copies in the order of experts, exchanges between ranks, the sum at the end.
// Leaves out which of them a layer has (experts.cpp) and how many tokens there are (expert_load.h).
#include <algorithm>
#include <cmath>

#include "strategies/layer/expert_layer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::GroupAxis;
using plan::Stream;

namespace {
constexpr int kBeside = plan::kAfterCompute | plan::kMeets, kBoth = kBeside | plan::kComputeWaits;
}

/// With each token DeepEP delivers a list of its experts; the permutation wants a map of tokens and experts. PyTorch's operators
/// find the valid entries of the lists, whose number the host must know: three times in forward, once in backward.
/// Sources: Megatron-Core transformer/moe/token_dispatcher.py (_indices_to_multihot), fusions/fused_indices_converter.py; PyTorch
/// Nonzero.cu (two passes that count, two that select, one that makes indices), Repeat.cu, TensorAdvancedIndexing and Indexing.cu
/// (gradients that accumulate are sorted: indices, five passes of a radix sort over them, the sum).
ExpertLayer::Slots ExpertLayer::index_map(const Slots& in) {
  const std::int64_t listed = in.rows * moe_.top_k, cells = in.rows * load_.local, chosen = load_.received;
  Slots out{in.tokens, tape_.tensor("weights of the map", cells * 4), in.rows};
  const TensorId map = tape_.tensor("index map", cells, false), places = tape_.tensor("map places", fused_map_ ? cells * 4 : listed + chosen * 16, false);
  Node node{.name = "index map", .inputs = {in.weights}, .outputs = {out.weights}, .saved = {places}, .intermediates = {map, places}};
  if (fused_map_) {
    node.forward = {op_.kernel("index map", listed * 12, cells * 9)};
    node.backward = {op_.kernel("index map backward", cells * 8, listed * 4)};
    tape_.nodes.push_back(std::move(node));
    return out;
  }
  const Item sync{.kind = Item::Kind::host_sync};
  const auto valid = [&](std::vector<Item>& list) { valid_places(list, listed, chosen); };
  std::vector<Item>& f = node.forward;
  f = {op_.kernel("zero map", 0, cells * 8), op_.kernel("zero weights", 0, cells * 4), op_.kernel("valid", listed * 8, listed)};
  valid(f);
  f.insert(f.end(), {op_.kernel("chosen experts", chosen * 24, chosen * 8), op_.kernel("rows", 0, in.rows * 8), op_.kernel("valid of rows", listed, in.rows * 8, KernelKind::reduction),
                     op_.kernel("sums of rows", 8, 8), op_.kernel("sums of rows", in.rows * 8, in.rows * 8), sync, op_.kernel("repeat rows", in.rows * 16, chosen * 8), op_.kernel("chosen rows", chosen * 16, chosen * 8),
                     op_.kernel("one", 0, 8), op_.kernel("put ones", chosen * 16, chosen * 8)});
  valid(f);
  f.insert(f.end(), {op_.kernel("chosen weights", chosen * 20, chosen * 4), op_.kernel("put weights", chosen * 20, chosen * 4), op_.kernel("cast map", cells * 8, cells)});
  std::vector<Item>& b = node.backward;
  b = {op_.kernel("chosen weights gradient", chosen * 20, chosen * 4), op_.kernel("zero weights gradient", 0, listed * 4)};
  valid(b);
  for (const char* step : {"linear indices", "linear indices", "linear indices", "order", "sort", "sort", "sort", "sort", "sort"}) b.push_back(op_.kernel(step, chosen * 16, chosen * 16));
  b.push_back(op_.kernel("sum weights gradient", chosen * 20, chosen * 4));
  tape_.nodes.push_back(std::move(node));
  return out;
}

/// Gradient of rows that one or two lists of indices have picked out of `whole` bytes: zeros of all of it, the indices made linear and sorted, what was
/// picked added up in their order. Source: PyTorch Indexing.cu (index_put_with_sort_kernel), cub's radix sort: one kernel for few indices; seen
/// over the GPU on paper (calibrate/paper_gpu) with PyTorch 2.3.1 and 2.6.0.
void ExpertLayer::pick_backward(std::vector<Item>& list, std::int64_t picked, int indices, std::int64_t whole, std::int64_t part) const {
  constexpr std::int64_t kSortedInOneTile = 2048;
  list.push_back(op_.kernel("zero gradients", 0, whole));
  const int steps = 2 * indices + (indices - 1) + 2;   // remainder and product of each, sums; division, order
  for (int i = 0; i < steps; ++i) list.push_back(op_.kernel("linear indices", picked * 8, picked * 8));
  const int sorts = picked <= kSortedInOneTile ? 1 : 8;   // else a histogram, its sums and two passes, and what they zero
  for (int i = 0; i < sorts; ++i) list.push_back(op_.kernel("sort indices", picked * 16, picked * 16));
  list.push_back(op_.kernel("add up picked", 2 * part, part, KernelKind::permute));
}

/// One token in each column of a mask, or none: the product copies, or weighs and adds.
Item ExpertLayer::mask_product(const std::string& name, model::GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k) const {
  return {.kind = Item::Kind::kernel, .spec = c_.builder.kernel({.kind = KernelKind::gemm, .role = role, .dtype = c_.product(), .output_dtype = c_.activation, .batch = masks(), .m = m, .n = n, .k = k, .name = name})};
}

/// GShard's dispatch: each slot's place among its expert's by a running sum over the tokens, masks of tokens and slots (with ones, and with the
/// router's weights), and a product that fills every slot.
/// Sources: Lepikhin et al. 2020 (GShard, arXiv 2006.16668), algorithm 2; AI-Hypercomputer/maxtext layers/moe.py, generate_masks and dense_matmul
/// (BSM,BSEC -> EBCM and back, sparse_matmul: false); DeepSpeed moe/sharded_moe.py, top2gating and MOELayer.forward (sec,sm -> ecm and back, without Tutel).
void ExpertLayer::permute_by_masks(Node& node, std::int64_t rows, std::int64_t slots) const {
  const std::int64_t groups = masks(), tokens = rows / groups, each = slots / groups, mask = mask_bytes(rows, slots), scores = rows * moe_.experts * 4;
  node.forward = {op_.kernel("places of slots", scores, scores, KernelKind::reduction), op_.kernel("combine mask", scores, mask), op_.kernel("dispatch mask", mask, mask),
                  mask_product("dispatch by mask", model::GemmRole::forward, each, hidden_, tokens)};
  node.backward = {mask_product("dispatch by mask backward", model::GemmRole::data_gradient, tokens, hidden_, each)};
}

/// And back: outputs are weighed and added up; the gradient of the mask is that of the weights.
void ExpertLayer::unpermute_by_masks(Node& node, std::int64_t rows, std::int64_t slots) const {
  const std::int64_t groups = masks(), tokens = rows / groups, each = slots / groups, mask = mask_bytes(rows, slots);
  node.forward = {mask_product("combine by mask", model::GemmRole::forward, tokens, hidden_, each)};
  node.backward = {mask_product("combine by mask backward", model::GemmRole::data_gradient, each, hidden_, tokens), Operators::alloc(0, mask),
                   mask_product("gradient of the mask", model::GemmRole::data_gradient, tokens, each, hidden_), op_.kernel("gradient of weights", mask, rows * moe_.experts * 4, KernelKind::reduction), Operators::free(0)};
}

void ExpertLayer::launch_by_triton(Node& node, int forward, int backward) const {
  node.forward_host += c_.profile.triton_host * forward;
  node.backward_host += c_.profile.triton_host * backward;
}

TensorId ExpertLayer::travelling_tensor(const char* name, std::int64_t rows) {
  const TensorId t = tape_.tensor(name, travelling(rows));
  tape_.tensors[static_cast<std::size_t>(t)].gradient_bytes = bytes(rows);
  return t;
}

/// A copy of each token for each of its experts, in the order of experts.
ExpertLayer::Slots ExpertLayer::permute(const Slots& in, std::int64_t slots) {
  Slots out{travelling_tensor("permuted tokens", slots), tape_.tensor("slot weights", slots * 4), slots};
  order_ = by_masks_ ? tape_.tensor("dispatch and combine masks", 2 * mask_bytes(in.rows, slots), false) : tape_.tensor("slot order", slots * 8, false);
  Node node{.name = "permute", .inputs = {in.tokens, in.weights}, .outputs = {out.tokens, out.weights}, .saved = {order_}, .intermediates = {order_}};
  const std::int64_t map = in.rows * (exchanges() && !sends_slots() ? load_.local : moe_.experts);
  if (by_masks_) {
    permute_by_masks(node, in.rows, slots);
  } else if (permutes_by_operators()) {
    permute_by_operators(node, in.rows, slots, map);
  } else if (loops() && !c_.profile.routes_by_map) {
    // torch.where for each expert tells the host how many tokens there are.
    const std::int64_t part = bytes(slots) / moe_.experts;
    const std::int64_t picked = slots / moe_.experts, mask = moe_.top_k * in.rows * 8;
    for (std::int64_t i = 0; i < moe_.experts; ++i) {
      node.forward.insert(node.forward.end(), {op_.kernel("where", mask, 8, KernelKind::reduction), op_.kernel("where", 8, 8), {.kind = Item::Kind::host_sync}, op_.kernel("where", 8, 8), op_.kernel("where", mask, picked * 16),
                                               op_.kernel("select tokens", part, part, KernelKind::permute)});
      pick_backward(node.backward, picked, 1, bytes(in.rows), part);
      if (i > 0) node.backward.push_back(op_.kernel("add up gradients of tokens", 2 * bytes(in.rows), bytes(in.rows)));
    }
  } else if (permutes_by_triton()) {
    // The order in three passes over the map; the weights go with their tokens.
    node.forward = {op_.kernel("slots in blocks", map, map * 4, KernelKind::reduction), op_.kernel("slot order", map * 4, map * 4), op_.kernel("slots by token", map * 4, map * 4),
                    op_.kernel("permute", travelling(std::min(in.rows, slots)) + slots * 4, travelling(slots) + slots * 4, KernelKind::permute)};
    node.backward = {op_.kernel("permute backward", bytes(slots) + slots * 4, bytes(in.rows) + map * 4, KernelKind::permute)};
    launch_by_triton(node, 4, 1);
  } else {
    node.forward = {op_.kernel("slot order", map * 4, slots * 8, KernelKind::reduction),
                    // Each token is read once and written to each of its slots.
                    op_.kernel("permute", travelling(std::min(in.rows, slots)), travelling(slots), KernelKind::permute),
                    op_.kernel("permute weights", slots * 4, slots * 4)};
    if (weighs_eagerly()) pick_backward(node.backward, slots, 1, bytes(in.rows), bytes(slots));
    else node.backward.push_back(op_.kernel("permute backward", bytes(slots), bytes(in.rows), KernelKind::permute));
    node.backward.push_back(op_.kernel("permute weights backward", slots * 4, map * 4));
  }
  // Tokens beyond a capacity are gone: only the device knows how many are left to copy.
  if (c_.profile.routes_by_map && sends_slots() && !dropless_ && !c_.strategy.experts.pad_to_capacity) node.forward.insert(node.forward.begin(), {.kind = Item::Kind::host_sync});
  tape_.nodes.push_back(std::move(node));
  return out;
}

/// Megatron's permutation without fusion. Dropless: the map by experts, places and weights of its set cells by masked_select, each of which
/// tells the host how many there are, then index_select, whose gradient index_add_ sums. Padded to a capacity: a stable argsort of the map.
/// Sources: megatron/core/transformer/moe/moe_utils.py, permute; PyTorch Indexing.cu, Sort.cu (a segmented radix sort: keys and indices made,
/// four passes), derivatives.yaml (masked_select: zeros, prefix sum of the mask, scatter).
void ExpertLayer::permute_by_operators(Node& node, std::int64_t rows, std::int64_t slots, std::int64_t map) const {
  std::vector<Item>&f = node.forward, &b = node.backward;
  const std::int64_t weights = map * 4;
  if (c_.strategy.experts.pad_to_capacity) {
    f = {op_.kernel("map cast", map, map), op_.kernel("map by expert", map, map, KernelKind::strided)};
    for (int pass = 0; pass < 6; ++pass) f.push_back(op_.kernel("argsort", map * 9, map * 9));
    f.insert(f.end(), {op_.kernel("slot order", slots * 8, slots * 8), op_.kernel("weights by expert", weights, weights, KernelKind::strided), op_.kernel("experts", 0, moe_.experts * 8),
                       op_.kernel("weight places", moe_.experts * 8, moe_.experts * 8), op_.kernel("weight places", slots * 8, slots * 8), op_.kernel("slot weights", slots * 12, slots * 4)});
    b = {op_.kernel("zeros", 0, weights, KernelKind::memset), op_.kernel("slot weights backward", slots * 12, slots * 4), op_.kernel("weights by expert backward", weights, weights, KernelKind::strided)};
  } else {
    f.insert(f.end(), {op_.kernel("map by expert", map, map, KernelKind::strided), op_.kernel("token indices", 0, rows * 8)});
    valid_places(f, map, slots);
    f.insert(f.end(), {op_.kernel("slot order", slots * 16, slots * 8), op_.kernel("weights by expert", weights, weights, KernelKind::strided)});
    valid_places(f, map, slots);
    f.push_back(op_.kernel("slot weights", slots * 20, slots * 4));
    b = {op_.kernel("zeros", 0, weights, KernelKind::memset), op_.kernel("mask sum", map, map * 8), op_.kernel("mask sum", map * 8, map * 8), op_.kernel("slot weights backward", map * 9, slots * 4),
         op_.kernel("weights by expert backward", weights, weights, KernelKind::strided)};
  }
  f.push_back(op_.kernel("select tokens", bytes(std::min(rows, slots)), bytes(slots), KernelKind::permute));
  b.insert(b.end(), {op_.kernel("zeros", 0, bytes(rows), KernelKind::memset), add_by_atomics("select tokens backward", slots * hidden_, true)});
}

/// The way back: scatter_add_ into zeros, whose gradient is gathered.
void ExpertLayer::unpermute_by_operators(Node& node, std::int64_t rows, std::int64_t slots) const {
  node.forward = {op_.kernel("zeros", 0, bytes(rows), KernelKind::memset), add_by_atomics("scatter add", slots * hidden_, false)};
  node.backward = {op_.kernel("scatter add backward", bytes(rows), bytes(slots), KernelKind::permute)};
}

/// index_add_ and scatter_add_ add element by element, 16 bits no faster than 32 (PyTorch pull request 183950, index_add_ on a B200), whatever the
/// order of the places and however many there are: calibrate/ground_truth/operators.py on an H200, 32,768 rows of 2,880 onto 8, 32, 128 and 8,192
/// rows, sorted or not: index_add_ 0.75 to 0.83 ms in bf16, 0.62 to 0.65 in fp32, scatter_add_ 0.36 and 0.32.
Item ExpertLayer::add_by_atomics(const std::string& name, std::int64_t elements, bool by_index_add) const {
  return {.kind = Item::Kind::kernel, .spec = c_.builder.kernel({.kind = KernelKind::embedding, .role = model::GemmRole::data_gradient, .dtype = c_.activation, .output_dtype = c_.activation, .bytes_read = elements * 4,
                                                                 .bytes_written = elements * 4, .elements = by_index_add ? 2 * elements : elements, .name = name})};
}

/// Sums each token's outputs, weighed here where the experts did not.
TensorId ExpertLayer::unpermute(TensorId x, TensorId weights, std::int64_t rows) {
  const std::int64_t slots = sends_slots() && exchanges() ? load_.sent : load_.received;
  const TensorId y = tape_.tensor("experts output", bytes(rows));
  if (narrow_) tape_.tensors[static_cast<std::size_t>(x)].gradient_bytes = travelling(slots);
  Node node{.name = "unpermute", .inputs = {x}, .outputs = {y}, .saved = {order_}, .forward_host = c_.profile.expert_host / 8, .backward_host = c_.profile.expert_backward_host / 8};
  if (weighs_outputs()) {
    node.inputs.push_back(weights);
    const bool wide = weighs_eagerly() && c_.profile.weighs_wide_outputs;
    const TensorId weighed = wide ? tape_.tensor("expert outputs fp32", slots * hidden_ * 4) : x;
    node.saved.insert(node.saved.end(), {weighed, weights});
    if (wide) node.intermediates.push_back(weighed);
  }
  // PyTorch's derivative of index_add_ asks its source for its shape, and so keeps it (derivatives.yaml: expand_as(source)).
  if (c_.profile.sums_slots_by_index_add && !weighs_outputs()) node.saved.push_back(x);
  if (by_masks_) {
    unpermute_by_masks(node, rows, slots);
  } else if (permutes_by_operators()) {
    unpermute_by_operators(node, rows, slots);
  } else if (loops() && weighs_outputs()) {
    const std::int64_t part = bytes(slots) / moe_.experts, picked = slots / moe_.experts;
    for (std::int64_t i = 0; i < moe_.experts; ++i) {
      node.forward.insert(node.forward.end(), {op_.kernel("pick weights", picked * 16, picked * 2, KernelKind::permute), op_.kernel("weigh outputs", part, part), op_.kernel("add to tokens", 2 * part, part, KernelKind::permute)});
      node.backward.insert(node.backward.end(), {op_.kernel("add to tokens backward", part, part, KernelKind::permute), op_.kernel("weigh outputs backward", 2 * part, part),
                                                 op_.kernel("weigh outputs backward", 2 * part, part), op_.kernel("weigh outputs backward", part, part / hidden_, KernelKind::reduction)});
      const std::int64_t router = rows * moe_.top_k * 2;
      pick_backward(node.backward, picked, 2, router, picked * 2);
      if (i > 0) node.backward.push_back(op_.kernel("add up gradients of weights", 2 * router, router));
    }
  } else if (weighs_eagerly()) {
    weigh_and_add(node, rows, slots);
  } else {
    node.forward = {op_.kernel("unpermute", bytes(slots), bytes(rows), KernelKind::permute)};
    node.backward = {op_.kernel("unpermute backward", travelling(rows) + (weighs_outputs() && c_.profile.compiled ? bytes(slots) : 0), travelling(slots), KernelKind::permute)};
    if (permutes_by_triton()) launch_by_triton(node, 1, 1);
  }
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// Weights times outputs, which go home and are summed, operator by operator. Sources: transformers integrations/moe.py (5.x),
/// grouped_mm_experts_forward: product, order restored by index, sum over each token's slots. torchtitan models/moe/moe.py (2025) and
/// models/common/token_dispatcher.py (0.3), combine: an fp32 copy, product and cast, scatter_add into zeros.
void ExpertLayer::weigh_and_add(Node& node, std::int64_t rows, std::int64_t slots) const {
  std::vector<Item>&f = node.forward, &b = node.backward;
  const std::int64_t narrow = bytes(slots), wide = slots * hidden_ * 4;
  if (c_.profile.weighs_wide_outputs) {
    f = {op_.kernel("zeros", 0, bytes(rows), KernelKind::memset), op_.convert("outputs fp32", narrow, wide), Operators::alloc(0, wide), op_.kernel("weigh outputs", wide, wide), Operators::alloc(1, narrow),
         op_.convert("weighed outputs", wide, narrow), Operators::free(0), add_by_atomics("scatter add", slots * hidden_, false), Operators::free(1)};
    b = {Operators::alloc(0, narrow), op_.kernel("scatter add backward", bytes(rows), narrow, KernelKind::permute), Operators::alloc(1, wide), op_.convert("gradient fp32", narrow, wide), Operators::free(0),
         Operators::alloc(2, wide), op_.kernel("gradient of weights", 2 * wide, wide), op_.kernel("gradient of weights", wide, slots * 4, KernelKind::reduction), op_.kernel("weigh gradient", wide, wide), Operators::free(1),
         op_.convert("gradient of outputs", wide, narrow), Operators::free(2)};
    return;
  }
  f = {Operators::alloc(0, narrow), op_.kernel("weigh outputs", narrow, narrow), op_.kernel("slot places", slots * 8, slots * 8), Operators::alloc(1, narrow), op_.kernel("restore order", narrow, narrow, KernelKind::permute),
       Operators::free(0), op_.kernel("sum slots", narrow, bytes(rows), KernelKind::reduction), Operators::free(1)};
  b = {Operators::alloc(0, narrow)};
  pick_backward(b, slots, 1, narrow, narrow);
  b.insert(b.end(), {Operators::alloc(1, narrow), op_.kernel("gradient of weights", 2 * narrow, narrow), op_.kernel("gradient of weights", narrow, slots * 4, KernelKind::reduction), Operators::free(1),
                     op_.kernel("weigh gradient", narrow, narrow), Operators::free(0)});
}

/// Slots arrive by sender; experts want them by expert (and back).
ExpertLayer::Slots ExpertLayer::sort(Slots in, bool there) {
  Slots out{tape_.tensor(there ? "sorted tokens" : "unsorted outputs", bytes(load_.received)), in.weights, load_.received};
  const std::string name = there ? "sort by expert" : "sort by sender";
  Node node{.name = name, .inputs = {in.tokens}, .outputs = {out.tokens}, .forward = {op_.kernel(name, bytes(load_.received), bytes(load_.received), KernelKind::permute)},
            .backward = {op_.kernel(name + " backward", bytes(load_.received), bytes(load_.received), KernelKind::permute)}};
  if (permutes_by_triton()) {
    node.forward.insert(node.forward.begin(), op_.kernel(name + " order", load_.ranks * load_.local * 8, load_.received * 4));
    launch_by_triton(node, 2, 1);
  }
  tape_.nodes.push_back(std::move(node));
  return out;
}

/// The host's part of sending slots there or back: a quarter of forward's, the other half of which is routing (expert_router.cpp), and half of backward's.
void ExpertLayer::take_exchange_host(Node& node) const {
  if (!exchanges_slots_by_all_to_all()) return;
  node.forward_host += c_.profile.exchange_host / 4;
  node.backward_host += c_.profile.exchange_backward_host / 2;
}

bool ExpertLayer::exchanges_slots_by_all_to_all() const { return dispatcher_ == Dispatcher::all_to_all && load_.ranks > 1; }

/// Before its first exchange in a layer every rank of HybridEP learns the others' maps, bytes of tokens and experts, and makes of them the places
/// of every token, in two passes; on the exchange's stream.
/// Source: deepseek-ai/DeepEP hybrid-ep, csrc/hybrid_ep/executor/executor.cu (allgather_routing_map, metadata_preprocess_core), backend/hybrid_ep_backend.cuh (scan).
void ExpertLayer::prepare_bulk(std::vector<Item>& list) const {
  const std::int64_t map = load_.rows * moe_.experts, all = map * load_.ranks, places = load_.rows * load_.ranks * 4 + load_.visiting_tokens() * load_.local * 5;
  list.push_back(exchange_item(CollectiveKind::all_gather, "routing maps", all, plan::kAfterCompute));
  Item scan = op_.kernel("places of tokens", 2 * all, places, KernelKind::reduction);
  scan.stream = Stream::expert;
  list.push_back(scan);
}

/// To the ranks of the experts. Dropless, the host must know the sizes before it can issue.
ExpertLayer::Slots ExpertLayer::exchange(const Slots& in, std::int64_t arriving, bool overlap) {
  const Slots out{travelling_tensor("received tokens", arriving), tape_.tensor("received weights", arriving * 4), arriving};
  Node node{.name = "dispatch", .inputs = {in.tokens, in.weights}, .outputs = {out.tokens, out.weights}, .cached = true};
  if (load_.ranks > 1 && dispatcher_ == Dispatcher::hybridep) prepare_bulk(node.forward);
  if (dropless_ && dispatcher_ != Dispatcher::all_gather) node.forward.push_back({.kind = Item::Kind::host_sync});
  const std::vector<Item> items = outward("dispatch", overlap ? kBeside : kBoth, true);
  node.forward.insert(node.forward.end(), items.begin(), items.end());
  node.backward = homeward("dispatch back", true);
  take_exchange_host(node);
  tape_.nodes.push_back(std::move(node));
  return out;
}

/// Outputs return to their tokens' owners; the weights have been used where the experts are.
TensorId ExpertLayer::home(TensorId x, std::int64_t arriving) {
  const TensorId y = tape_.tensor("returned outputs", bytes(arriving));
  if (narrow_) tape_.tensors[static_cast<std::size_t>(x)].gradient_bytes = travelling(load_.visiting_tokens());
  Node node{.name = "combine", .inputs = {x}, .outputs = {y}, .forward = homeward("combine", false), .backward = outward("combine back", kBoth, false), .cached = true};
  take_exchange_host(node);
  tape_.nodes.push_back(std::move(node));
  return y;
}

/// Slots of `size` bytes each from everybody to everybody: the fullest rank's side decides. `there`: to the experts, else back.
void ExpertLayer::send_slots(std::vector<Item>& out, const std::string& name, bool there, std::int64_t size, int sync) const {
  if (in_two_steps()) return send_slots_in_two_steps(out, name, there, size, sync);
  if (!load_.uneven()) return out.push_back(exchange_item(CollectiveKind::all_to_all, name, std::max(load_.sent, load_.received / load_.tensor) * size, sync));
  const std::int64_t leaving = there ? load_.sent : load_.received / load_.tensor;
  out.push_back({.kind = Item::Kind::collective, .stream = Stream::expert, .sync = sync,
                 .spec = c_.builder.collective({.kind = CollectiveKind::all_to_all, .axis = GroupAxis::expert, .bytes = Bytes{leaving * size}, .name = name, .fullest = Bytes{load_.fullest * size}})});
}

/// The same through the neighbours of a node: slots for the place l of any node go to neighbour l, from there to their node;
/// homeward the other way round. Before each step they are copied into the order in which they leave.
/// Sources: Rajbhandari et al. 2022 (DeepSpeed-MoE, hierarchical all-to-all); Hwang et al. 2023 (Tutel, 2DH all-to-all).
void ExpertLayer::send_slots_in_two_steps(std::vector<Item>& out, const std::string& name, bool there, std::int64_t size, int sync) const {
  const std::int64_t even = std::max(load_.sent, load_.received / load_.tensor), arrived = load_.received / load_.tensor;
  struct Step {
    GroupAxis axis;
    const char* where;
    std::int64_t leaving, fullest, arriving;
  };
  Step inside{GroupAxis::expert_inside, " in the node", even, 0, even}, across{GroupAxis::expert_across, " between nodes", even, 0, even};
  if (load_.uneven()) {
    inside = {inside.axis, inside.where, there ? load_.sent : load_.halfway, std::max(load_.sent, load_.fullest_halfway), there ? load_.halfway : load_.sent};
    across = {across.axis, across.where, there ? load_.halfway : arrived, std::max(load_.fullest, load_.fullest_halfway), there ? arrived : load_.halfway};
  }
  const Step first = there ? inside : across, second = there ? across : inside;
  const bool beside = (sync & plan::kComputeWaits) == 0;   // compute goes on: the copy between the steps is not its
  const auto send = [&](const Step& step, int how) {
    out.push_back({.kind = Item::Kind::collective, .stream = Stream::expert, .sync = how,
                   .spec = c_.builder.collective({.kind = CollectiveKind::all_to_all, .axis = step.axis, .bytes = Bytes{step.leaving * size}, .name = name + step.where, .fullest = Bytes{step.fullest * size}})});
  };
  const auto order = [&](const Step& step, Stream stream) {
    Item copy = op_.kernel(name + " ordered" + step.where, step.leaving * size, step.leaving * size);   // whole stretches of slots, one for each place
    copy.stream = stream;
    out.push_back(copy);
  };
  out.push_back(Operators::alloc(0, first.leaving * size));
  order(first, Stream::compute);
  out.push_back(Operators::alloc(1, first.arriving * size));
  send(first, beside ? sync & ~plan::kMeets : sync);
  out.push_back(Operators::free(0));
  out.push_back(Operators::alloc(2, second.leaving * size));
  order(second, beside ? Stream::expert : Stream::compute);
  out.push_back(Operators::free(1));
  send(second, beside ? sync & plan::kMeets : sync);
  out.push_back(Operators::free(2));
}

Item ExpertLayer::over_ranks(const std::string& name, bool there, int sync, bool weights) const {
  if (dispatcher_ == Dispatcher::all_gather) return exchange_item(there ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter, name, bytes(load_.rows) * load_.ranks, sync);
  const std::int64_t size = there ? travelling(load_.rows) : bytes(load_.rows);
  plan::CollectiveSpec spec{.kind = CollectiveKind::all_to_all, .axis = GroupAxis::expert, .bytes = Bytes{size}, .name = name,
                            .tokens = {.choices = static_cast<std::uint16_t>(moe_.top_k), .places = static_cast<std::uint16_t>(moe_.experts),
                                       .groups = static_cast<std::uint16_t>(moe_.groups), .group_limit = static_cast<std::uint16_t>(moe_.groups_per_token), .token_bytes = static_cast<std::uint32_t>(there ? travelling(1) : bytes(1)),
                                       .home = !there, .bulk = dispatcher_ == Dispatcher::hybridep, .round_robin = c_.strategy.experts.routing.round_robin(), .weights = weights,
                                       .sms = static_cast<std::uint16_t>(c_.strategy.experts.dispatch_sms.value_or(0))}};
  if (load_.uneven()) spec.fullest = Bytes{std::llround(static_cast<double>(size) * load_.visits_over_mean)};
  return {.kind = Item::Kind::collective, .stream = Stream::expert, .sync = sync, .spec = c_.builder.collective(spec)};
}

/// From token owners to experts. With expert tensor parallelism every rank of that group computes its slice of the
/// experts for the tokens of all.
std::vector<Item> ExpertLayer::outward(const std::string& name, int sync, bool weights) const {
  std::vector<Item> out;
  if (load_.ranks > 1 && sends_slots()) {
    if (weights) send_slots(out, name + " weights", true, 4, sync);
    send_slots(out, name, true, bytes(1), sync);
  } else if (load_.ranks > 1) {
    if (narrow_) out.push_back(op_.kernel(name + " cast", bytes(load_.rows), travelling(load_.rows)));
    out.push_back(over_ranks(name, true, sync, weights));
  }
  if (load_.tensor > 1) out.push_back(exchange_item(CollectiveKind::all_gather, name + " over expert tensor", arriving_bytes(), sync, GroupAxis::expert_tensor));
  return out;
}

std::vector<Item> ExpertLayer::homeward(const std::string& name, bool weights) const {
  std::vector<Item> out;
  if (load_.tensor > 1) out.push_back(exchange_item(CollectiveKind::reduce_scatter, name + " over expert tensor", arriving_bytes(), kBoth, GroupAxis::expert_tensor));
  if (load_.ranks > 1 && sends_slots()) {
    send_slots(out, name, false, bytes(1), kBoth);
    if (weights) send_slots(out, name + " weights", false, 4, kBoth);
  } else if (load_.ranks > 1) {
    out.push_back(over_ranks(name, false, kBoth, weights));
  }
  return out;
}

std::int64_t ExpertLayer::arriving_bytes() const { return bytes(sends_slots() ? load_.received : arriving_tokens()); }

/// Tokens after an exchange that copies none for the experts of one rank.
std::int64_t ExpertLayer::arriving_tokens() const { return dispatcher_ == Dispatcher::all_gather ? load_.rows * load_.ranks * load_.tensor : load_.visiting_tokens(); }

Item ExpertLayer::exchange_item(CollectiveKind kind, const std::string& name, std::int64_t size, int sync, GroupAxis axis) const {
  return op_.collective(kind, name, size, sync, axis, Stream::expert);
}

}  // namespace rehearse::strategies
