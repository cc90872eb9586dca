// Backward of a tape: its nodes in reverse, what they recompute first, and what they leave to the weight gradients.
// Leaves out buffers of gradients (tape_gradients.cpp).
#include <algorithm>
#include <set>

#include "sim/core/contract.h"
#include "strategies/layer/emitter.h"

namespace rehearse::strategies {

using plan::Category;
using plan::Frame;

void TapeEmitter::emit_backward() {
  out_->reserve_slots(2);
  const bool held = options_.above_retains || reentrant();   // the output's gradient is not this layer's alone
  if (tape_.output != kNoTensor && !graph_.wants(tape_.output)) {
    if (!options_.above_retains) out_->free(kInputGradientSlot, Frame::above);  // a gradient that ends here
  } else if (tape_.output != kNoTensor) {
    storages_.push_back({Frame::above, kInputGradientSlot, held ? 2 : 1});
    gradient_of_[static_cast<std::size_t>(tape_.root(tape_.output))] = 0;
  }
  for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].uses = 0;
  // The layer's output belongs to the layer above, which has freed it.
  if (tape_.output != kNoTensor && tensor(tape_.output).saved == 0) tensor(tape_.output).live = false;
  const auto offloads = [&](std::size_t group) { return group < offloaded_.size() && !offloaded_[group].copied.empty(); };
  const auto point = [&](OffloadPoint::Kind kind, std::size_t group) { backward_offloads_.push_back({kind, out_->position(), group}); };
  for (int n = node_count() - 1; n >= 0; --n) {
    for (std::size_t g = tape_.offload_groups.size(); g-- > 0;)
      if (offloads(g) && tape_.offload_groups[g].commit == n) point(OffloadPoint::Kind::begins, g);
    backward_node(n);
    for (std::size_t g = tape_.offload_groups.size(); g-- > 0;)
      if (offloads(g) && tape_.offload_groups[g].nodes.front() == n) point(OffloadPoint::Kind::ends, g);
  }
  if (options_.hooks_above >= 0 && options_.output_gradient_asked && !graph_.any_active()) modules_begin_at(0, false);
  if (held && !options_.above_retains && !storages_.empty()) unref(0);
  if (reentered_)
    for (const TensorId t : {tape_.input, tape_.output}) {
      --tensor(t).saved;
      release_if_unused(t);
    }
  if (options_.checkpoint || split()) drop_attributes();   // the graph of a recomputation goes with it
  set_kept_graph_aside();
  if (tape_.input == kNoTensor) return;
  const int g = gradient_of_[static_cast<std::size_t>(tape_.root(tape_.input))];
  if (g >= 0) {
    const Storage& s = storages_[static_cast<std::size_t>(g)];
    EXPECTS(s.refs == 1, tape_.name + ": the gradient that is handed on is still read by its own weight gradients");
    out_->move(kInputGradientSlot, s.slot, s.frame);
  }
}

void TapeEmitter::backward_node(int n) {
  const Node& it = node(n);
  backward_position_ = n;
  if (!graph_.active(n)) return;
  const int region = graph_.region_of(n);
  if (region >= 0 && !region_done_[static_cast<std::size_t>(region)]) recompute_region(region);
  for (TensorId t : graph_.saved(n)) require(t);
  hook(n, Hook::backward_begins);
  in_backward_node_ = true;

  std::vector<int> output_gradients;
  for (TensorId t : it.outputs) {
    int& g = gradient_of_[static_cast<std::size_t>(tape_.gradient_root(t))];
    if (g >= 0) output_gradients.push_back(std::exchange(g, -1));
  }
  const bool reached = it.outputs.empty() || !output_gradients.empty();   // without outputs: the loss
  Left left{.node = &it};
  if (split()) keep_for_weights(n, reached && waits(it) ? output_gradients : std::vector<int>{}, left);
  if (reached) run_backward(it, output_gradients, split() ? &left : nullptr);
  hook(n, Hook::ends);
  release_saved(n);
  widen_gradients();
  in_backward_node_ = false;
  if (!left.items.empty() || !left.tensors.empty()) left_.push_back(std::move(left));
}

void TapeEmitter::run_backward(const Node& it, std::vector<int>& output_gradients, Left* left) {
  produced_ = false;
  made_.clear();
  const bool is_loss = it.outputs.empty();
  const std::size_t sharing = it.gradient_in_place ? it.inputs.size() : static_cast<std::size_t>(it.passed_inputs);
  const bool shares = sharing > 0;
  const bool explicit_produce = std::any_of(it.backward.begin(), it.backward.end(), [](const Item& i) { return i.kind == Item::Kind::produce_input_gradients; });
  if (sharing < it.inputs.size() && !explicit_produce && !it.gradients_over_saved) produce_input_gradients(it);
  const int shared = is_loss ? (shares ? take_over(it.inputs.front()) : -1) : output_gradients.front();
  if (it.gradients_over_saved)
    for (TensorId t : it.inputs) write_over(t);
  items(it.backward, &it, &output_gradients, left);
  for (std::size_t i = 0; i < sharing; ++i) {
    if (!graph_.wants_gradient(it.inputs[i])) continue;
    ++storages_[static_cast<std::size_t>(shared)].refs;
    give_gradient(it.inputs[i], shared);
  }
  if (shares && is_loss) unref(shared);
  // Autograd drops the incoming gradients before it sums what it made.
  release(output_gradients);
  for (const auto& [root, storage] : made_) give_gradient(root, storage);
}

/// The node's backward has run: what it read may go.
void TapeEmitter::release_saved(int n) {
  const Node& it = node(n);
  for (TensorId t : graph_.saved(n)) --tensor(t).saved;
  if (graph_.discards_output(n) && graph_.region_of(n) < 0)
    for (TensorId t : it.inputs)
      if (!graph_.discarded(t)) --tensor(tape_.kept_form(t)).saved;
  for (TensorId t : graph_.saved(n)) release_if_unused(t);
  for (TensorId t : it.inputs) release_if_unused(tape_.kept_form(t));
  for (TensorId t : it.outputs) release_if_unused(t);
  for (TensorId t : std::exchange(pending_release_, {})) release_if_unused(t);
}

/// Runs a region's forward again, now keeping what its backward needs.
void TapeEmitter::recompute_region(int region) {
  for (const auto& [owner, t] : graph_.region_inputs())
    if (owner == region && graph_.discarded(t)) require(t);
  region_done_[static_cast<std::size_t>(region)] = true;
  std::vector<int> members;
  for (int n = 0; n < node_count(); ++n)
    if (graph_.region_of(n) == region) members.push_back(n);
  for (int n : members)
    if (graph_.active(n)) {
      for (TensorId t : graph_.saved(n)) ++tensor(t).saved;
      hold_attributes(n);
    }
  hold_kept_graph(region);
  if (reentrant()) {  // variables of CheckpointFunction.backward
    for (const TensorId t : {tape_.input, tape_.output}) ++tensor(t).saved;
    reentered_ = true;
  }
  const std::vector<int> again = recomputed(members);
  for (int n : again)
    for (const auto* list : {&node(n).inputs, &node(n).holds})
      for (TensorId t : *list) ++tensor(t).uses;
  const bool was = std::exchange(in_backward_node_, false);
  if (options_.checkpoint) out_->host(issued(profile_.layer_host * tape_.parts / 2 + (keeps_first_graph() ? profile_.recompute_host : profile_.reentrant_host)));
  else out_->host(issued(profile_.region_host));
  for (int n : again) forward_node(n, true);
  if (options_.gather_again) out_->collective(*options_.gather_again, plan::Stream::data_shard, plan::kComputeWaits, profile_.collective_host);
  in_backward_node_ = was;
  for (const auto& [owner, t] : graph_.region_inputs())
    if (owner == region) {
      --tensor(t).saved;
      pending_release_.push_back(t);
    }
  if (keeps_first_graph()) drop_attributes();   // backward runs through the first pass's nodes
}

/// Nodes of a region that run again, in order. A checkpoint that is compiled with its layer is part of one graph, of which nothing is run
/// that nobody reads (tests/oracles/torch_compiled_layer.py, compiled_checkpoints). Exchanges of tokens between experts break that graph.
std::vector<int> TapeEmitter::recomputed(const std::vector<int>& members) const {
  const int last = last_recomputed(members);
  std::vector<int> again;
  for (int n : members)
    if (n <= last && !graph_.kept_in_region(n)) again.push_back(n);
  const bool experts = std::any_of(tape_.weights.begin(), tape_.weights.end(), [](const Weight& w) { return w.expert; });
  if (!profile_.compiled || !profile_.early_stop_recompute || experts) return again;
  std::set<TensorId> read;
  for (int n : members)
    if (graph_.active(n))
      for (TensorId t : graph_.saved(n)) read.insert(tape_.root(t));
  std::vector<int> needed;
  for (auto n = again.rbegin(); n != again.rend(); ++n) {
    const Node& it = node(*n);
    const auto is_read = [&](TensorId t) { return read.contains(tape_.root(t)); };
    if (std::none_of(it.outputs.begin(), it.outputs.end(), is_read) && std::none_of(it.intermediates.begin(), it.intermediates.end(), is_read)) continue;
    needed.push_back(*n);
    for (TensorId t : it.inputs) read.insert(tape_.root(t));
    for (TensorId t : it.holds) read.insert(tape_.root(t));
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

/// Non-reentrant checkpoints stop after the last tensor that backward asked for; reentrant ones run to the end.
int TapeEmitter::last_recomputed(const std::vector<int>& members) const {
  if (!profile_.early_stop_recompute) return members.back();
  int last = -1;
  for (int n : members) {
    auto made_here = [&](TensorId t) { return graph_.producer(t) == n; };
    for (int user : members) {
      if (!graph_.active(user)) continue;
      for (TensorId t : graph_.saved(user))
        if (made_here(t)) last = std::max(last, n);
    }
  }
  return last;
}

/// Makes a discarded tensor again, and whatever that needs.
void TapeEmitter::require(TensorId t) {
  if (tensor(t).live) return;
  const int maker = graph_.producer(t);
  EXPECTS(maker >= 0, tape_.name + ": " + tape_.tensors[static_cast<std::size_t>(t)].name + " is needed by backward but was not kept");
  const Node& it = node(maker);
  std::vector<TensorId> inputs;
  for (TensorId input : it.inputs) inputs.push_back(tape_.kept_form(input));
  for (TensorId input : inputs) {
    require(input);
    ++tensor(input).saved;   // a discarded one is held until it has been read here
  }
  // What the node's own backward reads besides its outputs is made with them; an output in place of an input is there already.
  std::vector<TensorId> made;
  for (TensorId output : it.outputs)
    if (!tensor(output).live) made.push_back(output);
  for (TensorId i : it.intermediates)
    if (std::find(graph_.saved(maker).begin(), graph_.saved(maker).end(), i) != graph_.saved(maker).end() && !tensor(i).live) made.push_back(i);
  for (TensorId m : made) allocate(m, Category::temporary);
  const bool was = std::exchange(in_backward_node_, false);
  items(it.forward, &it, nullptr);
  in_backward_node_ = was;
  for (TensorId input : inputs) --tensor(input).saved;
  // It stays until the last backward node that reads it has run, and the last region whose forward does.
  for (TensorId m : made) {
    for (int n = 0; n <= backward_position_; ++n)
      if (graph_.active(n) && graph_.region_of(n) < 0)
        for (TensorId s : graph_.saved(n))
          if (tape_.root(s) == tape_.root(m)) ++tensor(m).saved;
    for (const auto& [region, read] : graph_.region_inputs())
      if (read == tape_.root(m) && !region_done_[static_cast<std::size_t>(region)]) ++tensor(m).saved;
  }
  for (TensorId m : made) release_if_unused(m);
  for (TensorId input : inputs) release_if_unused(input);
}

/// A weight gradient that is made later, where backward is split.
bool TapeEmitter::waits(const Item& item) const {
  if (!split() || item.kind != Item::Kind::weight_gradient) return false;
  const Weight& w = tape_.weights[static_cast<std::size_t>(item.weight)];
  return w.trainable && (w.matrix || options_.split == SplitBackward::retained_graph);
}

/// A node that leaves something to the weight gradients.
bool TapeEmitter::waits(const Node& n) const {
  return std::any_of(n.backward.begin(), n.backward.end(), [&](const Item& i) { return waits(i); });
}

/// Until the weight gradients are made, what they read stays: the node's input, or its form in fewer bits, and the gradient of its output. A
/// retained graph keeps everything saved.
void TapeEmitter::keep_for_weights(int n, const std::vector<int>& output_gradients, Left& left) {
  const Node& it = node(n);
  const bool retains = options_.split == SplitBackward::retained_graph;
  if (retains || (waits(it) && !it.copies_for_weights))
    for (TensorId t : graph_.saved(n))
      if (retains || t == it.weight_operand || std::find(it.inputs.begin(), it.inputs.end(), t) != it.inputs.end()) left.tensors.push_back(t);
  for (TensorId t : left.tensors) ++tensor(t).saved;
  const bool reads = std::any_of(it.backward.begin(), it.backward.end(), [&](const Item& i) { return waits(i) && !i.reads_gathered; }) && (retains || !it.copies_for_weights);
  if (!reads) return;
  left.gradients = output_gradients;
  for (int g : output_gradients) ++storages_[static_cast<std::size_t>(g)].refs;
}

void TapeEmitter::emit_weights() {
  out_->reserve_slots(2);
  in_backward_node_ = true;
  for (Left& left : left_) {
    for (const Item* i : left.items) item(*i, left.node, nullptr, left.temporaries);
    release(left.gradients);
    for (TensorId t : left.tensors) --tensor(t).saved;
    for (TensorId t : left.tensors) release_if_unused(t);
    widen_gradients();
  }
}

}  // namespace rehearse::strategies
