#include "strategies/layer/tape_emitter.h"

#include <algorithm>
#include <set>

#include "sim/core/contract.h"
#include "strategies/layer/emitter.h"

namespace rehearse::strategies {

using plan::BlockWriter;
using plan::Category;
using plan::Frame;

TapeEmitter::TapeEmitter(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder)
    : tape_(tape), options_(options), profile_(profile), builder_(builder), graph_(tape, options), tensors_(tape.tensors.size()), gradient_of_(tape.tensors.size(), -1),
      region_done_(static_cast<std::size_t>(tape.regions) + 1) {
  if (options_.hooks_above >= 0) modules_ = module_starts(tape_, !profile_.grouped_experts, options_.modules_around);
  if (tape_.input != kNoTensor) tensor(tape_.input) = {.live = true, .frame = Frame::below, .slot = kOutputSlot};
  if (tape_.output != kNoTensor) tensor(tape_.output).slot = kOutputSlot;
  for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].saved = graph_.reasons_to_keep(static_cast<TensorId>(t));
  for (int n = 0; n < node_count(); ++n)
    if ((graph_.region_of(n) < 0 || keeps_first_graph()) && graph_.active(n)) hold_attributes(n);
  if (options_.retains_ends || options_.keeps_input) ++tensor(tape_.input).saved;
}

TapeBlocks TapeEmitter::run() {
  TapeBlocks blocks;
  BlockWriter forward(tape_.name + " forward");
  out_ = &forward;
  hooks_ = &blocks.forward_hooks;
  out_->reserve_slots(2);
  out_->host(issued(profile_.layer_host * tape_.parts / 2) + (keeps_first_graph() ? issued(profile_.checkpoint_host) : Duration{}));
  emit_forward();
  plan::Block forward_block = forward.take();

  in_cuda_graph_ = false;
  BlockWriter backward(tape_.name + (split() ? " input gradients" : " backward"));
  out_ = &backward;
  hooks_ = &blocks.backward_hooks;
  backward_ = true;
  if (graph_.any_active()) out_->host(issued(profile_.layer_backward_host * tape_.parts / 2) + profile_.gradient_host * options_.hooked_gradients);
  emit_backward();
  if (!gradients_.empty()) hooks_->push_back({.at = out_->position(), .gradients = std::exchange(gradients_, {})});
  plan::Block backward_block = backward.take();

  BlockWriter weights(tape_.name + " weight gradients");
  if (split()) {
    out_ = &weights;
    emit_weights();
  }
  plan::Block weights_block = weights.take();

  BlockWriter drop(tape_.name + " graph dropped"), last(tape_.name + " graph of before"), keep(tape_.name + " graph kept");
  outliving(drop, last, keep);
  const bool outlives = !drop.empty();
  plan::Block drop_block = drop.take(), last_block = last.take(), keep_block = keep.take();

  blocks.offloaded = std::move(offloaded_);
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (tape_.tensors[t].stays && tensors_[t].slot != kUnassigned) blocks.staying.push_back(tensors_[t].slot);
  blocks.forward_offloads = std::move(forward_offloads_), blocks.backward_offloads = std::move(backward_offloads_);
  blocks.slots = next_slot_;
  for (plan::Block* b : {&forward_block, &backward_block, &weights_block, &drop_block, &last_block, &keep_block}) {
    b->slots = next_slot_;
    b->slot_names = names_;
  }
  blocks.forward = builder_.add_block(std::move(forward_block));
  blocks.backward = builder_.add_block(std::move(backward_block));
  if (split()) blocks.weights = builder_.add_block(std::move(weights_block));
  if (outlives) blocks.drop_graph = builder_.add_block(std::move(drop_block));
  if (outlives) blocks.last_graph = builder_.add_block(std::move(last_block));
  if (outlives) blocks.keep_graph = builder_.add_block(std::move(keep_block));
  return blocks;
}

void TapeEmitter::emit_forward() {
  for (int n = 0; n < node_count(); ++n)
    for (const auto* list : {&node(n).inputs, &node(n).holds})
      for (TensorId t : *list) ++tensor(t).uses;
  find_offloaded();
  for (int n = 0; n < node_count(); ++n) {
    forward_node(n, graph_.region_of(n) < 0 || graph_.kept_in_region(n));
    offload_behind(n);
  }
  modules_begin(modules_.behind_forward, true, {});
  if (keeps_first_graph()) set_attributes_aside();
  find_kept_graph();
}

void TapeEmitter::forward_node(int n, bool keep_outputs) {
  const Node& it = node(n);
  const auto later = [](const Item& i) { return i.kind == Item::Kind::produce_outputs; };
  // What the layer hands on is kept by the layer above: a checkpoint's input, if nothing else.
  const bool hands_on = options_.recorded && !backward_ && tape_.output != kNoTensor && std::any_of(it.outputs.begin(), it.outputs.end(), [&](TensorId t) { return tape_.root(t) == tape_.root(tape_.output); });
  hook(n, Hook::forward_begins);
  const bool held = !backward_ && !attributes_.empty() && std::any_of(it.outputs.begin(), it.outputs.end(), [&](TensorId t) { return tensor(t).saved > 0; });
  output_category_ = keep_outputs || hands_on || held ? Category::activation : Category::temporary;
  if (std::none_of(it.forward.begin(), it.forward.end(), later))
    for (TensorId t : it.outputs) allocate(t, output_category_);
  for (TensorId t : it.intermediates) allocate(t, keep_outputs ? Category::activation : Category::temporary);
  items(it.forward, &it, nullptr);
  hook(n, Hook::ends);
  for (TensorId t : it.inputs) --tensor(t).uses;
  for (TensorId t : it.holds) --tensor(t).uses;
  for (TensorId t : it.intermediates) release_if_unused(t);
  for (TensorId t : it.inputs) release_if_unused(t);
  for (TensorId t : it.holds) release_if_unused(t);
  for (TensorId t : it.outputs) release_if_unused(t);  // nobody reads it (a statistic)
}

/// Tensors that only nodes of groups save, and the last group of each, which is the first that backward comes to. What others save too is copied
/// with it, and stays.
void TapeEmitter::find_offloaded() {
  if (tape_.offload_groups.empty() || !graph_.any_active()) return;
  offloaded_.resize(tape_.offload_groups.size());
  for (std::size_t g = 0; g < offloaded_.size(); ++g) offloaded_[g].module = tape_.offload_groups[g].module;
  std::map<TensorId, int> savers;
  std::map<TensorId, std::size_t> last;
  for (std::size_t g = 0; g < tape_.offload_groups.size(); ++g)
    for (const int n : tape_.offload_groups[g].nodes) {
      if (!graph_.active(n) || graph_.region_of(n) >= 0) continue;
      const auto saved = [&](TensorId t) {
        if (graph_.discarded(t)) return;
        ++savers[tape_.root(t)];
        last[tape_.root(t)] = g;
      };
      for (const TensorId t : graph_.saved(n)) saved(t);
      if (graph_.discards_output(n))
        for (const TensorId t : node(n).inputs) saved(tape_.kept_form(t));
    }
  for (const auto& [root, group] : last) {
    const std::int64_t bytes = tape_.tensors[static_cast<std::size_t>(root)].bytes;
    if (bytes < options_.least_offloaded) continue;
    offloaded_[group].copied.push_back({.slot = static_cast<std::uint32_t>(root), .bytes = bytes});   // its slot, once it has one
    if (savers[root] == graph_.reasons_to_keep(root)) leaving_[root] = group;
  }
}

/// A tensor that later nodes read goes with the first group behind them, or with the end of the layer.
void TapeEmitter::offload_behind(int n) {
  for (std::size_t g = 0; g < offloaded_.size(); ++g) {
    OffloadedGroup& group = offloaded_[g];
    if (g >= tape_.offload_groups.size() || tape_.offload_groups[g].commit != n || group.copied.empty()) continue;
    for (OffloadedTensor& t : group.copied) {
      const Tensor& state = tensor(static_cast<TensorId>(t.slot));
      t.frame = state.frame, t.slot = state.slot;
    }
    release_offloaded(g);
    forward_offloads_.push_back({OffloadPoint::Kind::leaves, out_->position(), g});
  }
  if (n + 1 < node_count() || leaving_.empty()) return;
  offloaded_.emplace_back();
  release_offloaded(offloaded_.size() - 1);
  forward_offloads_.push_back({OffloadPoint::Kind::leaves, out_->position(), offloaded_.size() - 1});
}

/// What groups up to this one save and no node is still to read.
void TapeEmitter::release_offloaded(std::size_t group) {
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    const Tensor& state = tensor(it->first);
    if (it->second > group || state.uses > 0 || !state.live) {
      ++it;
      continue;
    }
    const OffloadedTensor gone{state.frame, state.slot, tape_.tensors[static_cast<std::size_t>(it->first)].bytes};
    offloaded_[group].released.push_back(gone);
    offloaded_[it->second].fetched.push_back(gone);
    it = leaving_.erase(it);
  }
}

/// Runs a node's items; those that wait for the weight gradients go to `left`.
void TapeEmitter::items(const std::vector<Item>& list, const Node* of, std::vector<int>* output_gradients, Left* left) {
  enter(*of);
  std::map<int, std::uint32_t> temporaries;
  const bool defers = left != nullptr && waits(*of);
  const bool input_wanted = output_gradients == nullptr || std::any_of(of->inputs.begin(), of->inputs.end(), [&](TensorId t) { return graph_.wants_gradient(t); });
  for (const Item& i : list) {
    if (i.for_input && !input_wanted) continue;
    if (defers && (i.for_weights || waits(i))) left->items.push_back(&i);
    else item(i, of, output_gradients, temporaries);
  }
  if (left != nullptr) left->temporaries = std::move(temporaries);
}

void TapeEmitter::item(const Item& item, const Node* of, std::vector<int>* output_gradients, std::map<int, std::uint32_t>& temporaries) {
  switch (item.kind) {
    case Item::Kind::kernel:
      if ((item.sync & plan::kAfterCompute) != 0 && item.stream != plan::Stream::compute) {
        const std::uint32_t event = new_slot("");
        out_->record(plan::Stream::compute, event);
        out_->wait(item.stream, event);
      }
      kernel(item.spec, item.stream, item.launches);
      break;
    case Item::Kind::collective:
      out_->collective(item.spec, item.stream, item.sync, profile_.collective_host + options_.collective_wait);
      break;
    case Item::Kind::copy:
      out_->copy(item.spec, item.stream, item.sync, profile_.kernel_host);
      break;
    case Item::Kind::wait: {
      const std::uint32_t event = new_slot("");
      out_->record(item.stream, event);
      out_->wait(plan::Stream::compute, event);
      break;
    }
    case Item::Kind::host_sync: {
      if (in_cuda_graph_) break;
      const std::uint32_t event = new_slot("");
      out_->record(plan::Stream::compute, event);
      out_->host_wait(event);
      break;
    }
    case Item::Kind::alloc: {
      const std::uint32_t slot = temporaries.contains(item.temporary) ? temporaries[item.temporary] : new_slot(of->name + " temporary");
      temporaries[item.temporary] = slot;
      out_->alloc(slot, item.bytes, item.category);
      break;
    }
    case Item::Kind::free:
      out_->free(temporaries.at(item.temporary));
      break;
    case Item::Kind::record_stream:
      out_->record_stream(temporaries.at(item.temporary), item.stream);
      break;
    case Item::Kind::record_inputs:
      for (TensorId t : of->inputs)
        if (const Tensor& state = tensor(tape_.root(t)); state.live) out_->record_stream(state.slot, item.stream, state.frame);
      break;
    case Item::Kind::record_outputs:
      if (output_gradients == nullptr) {
        for (TensorId t : of->outputs) out_->record_stream(tensor(tape_.root(t)).slot, item.stream, tensor(tape_.root(t)).frame);
      } else {
        for (int g : *output_gradients) out_->record_stream(storages_[static_cast<std::size_t>(g)].slot, item.stream, storages_[static_cast<std::size_t>(g)].frame);
      }
      break;
    case Item::Kind::weight_gradient:
      weight_gradient(item);
      break;
    case Item::Kind::release_output_gradients:
      release(*output_gradients);
      break;
    case Item::Kind::produce_input_gradients:
      produce_input_gradients(*of);
      break;
    case Item::Kind::produce_outputs:
      for (TensorId t : of->outputs) allocate(t, output_category_);
      break;
  }
}

void TapeEmitter::allocate(TensorId t, Category category) {
  const TensorId root = tape_.root(t);
  Tensor& state = tensor(root);
  if (state.live) return;
  const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(root)];
  if (state.slot == kUnassigned) state.slot = new_slot(info.name);
  // Made again while somebody may still keep the first: the layer above, for its weight gradients or otherwise, or who sent it to the next stage.
  if (backward_ && (split() || options_.above_retains || profile_.keeps_sent_output) && state.slot == kOutputSlot) state.slot = new_slot(info.name + " again");
  state.frame = Frame::own;
  state.live = true;
  out_->alloc(state.slot, info.bytes, category);
}

void TapeEmitter::release_if_unused(TensorId t) {
  Tensor& state = tensor(t);
  const bool is_output = !backward_ && tape_.output != kNoTensor && tape_.root(t) == tape_.root(tape_.output);
  if (!state.live || state.uses > 0 || state.saved > 0 || is_output) return;
  out_->free(state.slot, state.frame);
  state.live = false;
}

/// What a recorded node holds as attributes, until the graph is dropped.
void TapeEmitter::hold_attributes(int n) {
  for (TensorId t : node(n).attributes) {
    if (tape_.input != kNoTensor && tape_.root(t) == tape_.root(tape_.input)) continue;   // the layer below made it
    ++tensor(t).saved;
    attributes_.push_back(t);
  }
}

void TapeEmitter::drop_attributes() {
  for (TensorId t : attributes_) --tensor(t).saved;
  for (TensorId t : attributes_) release_if_unused(t);
  attributes_.clear();
}

/// Recomputation makes tensors of the same names beside them.
void TapeEmitter::set_attributes_aside() {
  for (TensorId t : std::exchange(attributes_, {})) {
    Tensor& state = tensor(t);
    --state.saved;
    if (!std::exchange(state.live, false)) continue;
    const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(tape_.root(t))];
    held_.push_back({.slot = new_slot(info.name + " of the first pass"), .bytes = info.bytes});
    out_->move(held_.back().slot, state.slot, state.frame);
  }
}

/// Backward of a checkpoint runs through the nodes of its first pass, which read what the recomputation has saved; nodes of the recomputation
/// never run and so release nothing (torch/utils/checkpoint.py, _recomputation_hook). They go with the last tensor that was made by them, which
/// somebody may keep. A backward in two halves is left out.
void TapeEmitter::find_kept_graph() {
  if (profile_.reentrant_checkpoint || split() || !options_.recorded) return;
  std::vector<int> open;
  for (int n = 0; n < node_count(); ++n)
    if (node(n).outputs_kept && graph_.active(n) && graph_.region_of(n) >= 0) open.push_back(n);
  if (open.empty()) return;
  kept_region_ = graph_.region_of(open.front());
  std::set<int> made_by(open.begin(), open.end());
  std::set<TensorId> saved;
  while (!open.empty()) {
    const int n = open.back();
    open.pop_back();
    for (TensorId t : graph_.saved(n)) saved.insert(tape_.root(t));
    for (TensorId t : node(n).inputs)
      if (const int maker = graph_.producer(t); maker >= 0 && graph_.active(maker) && graph_.region_of(maker) == kept_region_ && made_by.insert(maker).second) open.push_back(maker);
  }
  for (TensorId t : saved) {
    const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(t)];
    kept_graph_.emplace_back(t, new_slot(info.name + " of a kept graph"));
    held_.push_back({.slot = kept_graph_.back().second, .bytes = info.bytes});
  }
}

void TapeEmitter::hold_kept_graph(int region) {
  if (region == kept_region_)
    for (const auto& [t, slot] : kept_graph_) ++tensor(t).saved;
}

void TapeEmitter::set_kept_graph_aside() {
  for (const auto& [t, slot] : kept_graph_) {
    Tensor& state = tensor(t);
    --state.saved;
    EXPECTS(std::exchange(state.live, false), tape_.name + ": a graph is kept of which something is gone");
    out_->move(slot, state.slot, state.frame);
  }
}

/// What stays behind when all blocks of the tape have run: what lets go of it, makes it, takes it over.
void TapeEmitter::outliving(BlockWriter& drop, BlockWriter& last, BlockWriter& keep) {
  for (BlockWriter* w : {&drop, &last, &keep}) w->reserve_slots(2);
  for (const Held& held : held_) {
    drop.free(held.slot);
    last.alloc(held.slot, held.bytes, Category::activation);
    keep.move(held.slot, held.slot, Frame::below);
  }
  for (TensorId t : std::exchange(attributes_, {})) {
    Tensor& state = tensor(t);
    if (!std::exchange(state.live, false)) continue;
    drop.free(state.slot, state.frame);
    last.alloc(state.slot, tape_.tensors[static_cast<std::size_t>(tape_.root(t))].bytes, Category::activation, state.frame);
    keep.move(state.slot, state.slot, Frame::below);
  }
  if (!options_.retains_ends) return;
  drop.free(kOutputSlot, Frame::below);
  drop.free(kInputGradientSlot);
}

void TapeEmitter::kernel(std::uint32_t spec, plan::Stream stream, int launches) {
  const Duration one = in_backward_node_ ? profile_.backward_kernel_host : profile_.kernel_host;
  if (backward_ && options_.backward_workspace > 0 && !has_workspace_ && builder_.plan().kernels[spec].kind == model::KernelKind::gemm) {
    out_->alloc_once(options_.backward_workspace_slot, options_.backward_workspace, Category::workspace);
    has_workspace_ = true;
  }
  out_->kernel(spec, in_cuda_graph_ ? Duration{} : one * launches, stream);
}

/// Neighbouring nodes that were captured are one graph, launched as one.
void TapeEmitter::enter(const Node& node) {
  if (node.captured && !in_cuda_graph_) out_->host(profile_.kernel_host);
  in_cuda_graph_ = node.captured;
  if (!in_cuda_graph_) out_->host(in_backward_node_ ? node.backward_host : node.forward_host);
}

/// Modules begin before a node, and those of its weights end behind it. DeepSpeed hears of the end of a backward from the gradient of the
/// module's input (parameter_offload.py, PostBackwardFunctionModule); without one, as that of an embedding, of none.
void TapeEmitter::hook(int n, Hook what) {
  if (options_.hooks_above < 0) return;
  if (what != Hook::ends) modules_begin_at(n, what == Hook::forward_begins);
  else modules_end_at(n);
}

/// A wrapper begins before the layer in it; in backward, where it ends.
void TapeEmitter::modules_begin_at(int n, bool forward) {
  const int modules = (forward ? modules_.forward : modules_.backward)[static_cast<std::size_t>(n)];
  if (modules > 1) modules_begin(modules - 1, forward, {});
  for (const Wrapper& w : modules_.wrappers)
    if ((forward ? w.first : w.last) == n) modules_begin(1, forward, large({w.weight}));
  if (modules > 0) modules_begin(1, forward, large(modules_.own[static_cast<std::size_t>(n)]));
}

void TapeEmitter::modules_end_at(int n) {
  std::vector<int> weights = large(modules_.own[static_cast<std::size_t>(n)]);
  for (const Wrapper& w : modules_.wrappers)
    if ((in_backward_node_ ? w.first : w.last) == n)
      for (const int weight : large({w.weight})) weights.push_back(weight);
  if (weights.empty()) return;
  const bool recorded = !in_backward_node_ && graph_.active(n) && (backward_ || graph_.region_of(n) < 0);
  const bool releases = !in_backward_node_ || std::any_of(node(n).inputs.begin(), node(n).inputs.end(), [&](TensorId t) { return graph_.wants_gradient(t); });
  hooks_->push_back({.at = out_->position(), .recorded = recorded, .releases = releases, .weights = std::move(weights), .gradients = std::exchange(gradients_, {})});
}

/// Each takes host time; the last has the weights.
void TapeEmitter::modules_begin(int modules, bool forward, std::vector<int> weights) {
  for (int i = 0; i < modules; ++i) {
    out_->host(forward ? profile_.submodule_host : profile_.submodule_backward_host);
    hooks_->push_back({.at = out_->position(), .begins = true, .weights = i + 1 == modules ? std::move(weights) : std::vector<int>{}});
  }
}

/// Those of the weights that are not on every rank at all times.
std::vector<int> TapeEmitter::large(const std::vector<int>& weights) const {
  std::vector<int> out;
  for (const int w : weights)
    if (tape_.weights[static_cast<std::size_t>(w)].elements > options_.hooks_above) out.push_back(w);
  return out;
}

/// Share of the layer whose host code runs: captured parts are replayed without it.
Duration TapeEmitter::issued(Duration whole) const {
  const auto captured = std::count_if(tape_.nodes.begin(), tape_.nodes.end(), [](const Node& n) { return n.captured; });
  return whole * (node_count() - captured) / std::max(1, node_count());
}

TapeBlocks emit(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder) {
  return TapeEmitter(tape, options, profile, builder).run();
}

}  // namespace rehearse::strategies
