#include "strategies/layer/tape_emitter.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/core/contract.h"

namespace rehearse::strategies {

std::int64_t Tape::trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && w.trainable && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

std::int64_t Tape::elements(Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

std::int64_t Tape::parameter_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) {
    if (w.parameter_elsewhere || !w.in(part)) continue;
    const std::int64_t bytes = w.packed_bytes >= 0 ? w.packed_bytes : w.elements * (w.wide_bytes > 0 ? w.wide_bytes : element);
    n += w.copied ? 2 * bytes : bytes;
  }
  return n;
}

std::int64_t Tape::trainable_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Weight& w : weights) n += w.in(part) && w.trainable && !w.parameter_elsewhere ? w.elements * (w.wide_bytes > 0 ? w.wide_bytes : element) : 0;
  return n;
}

namespace {

using plan::BlockWriter;
using plan::Category;
using plan::Frame;

/// Where a tensor's storage is and who still needs it.
struct Storage {
  Frame frame = Frame::own;
  std::uint32_t slot = 0;
  int refs = 0;
};

class Emitter {
 public:
  Emitter(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder)
      : tape_(tape), options_(options), profile_(profile), builder_(builder), tensors_(tape.tensors.size()), gradient_of_(tape.tensors.size(), -1) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].slot = kUnassigned;
    producer_.assign(tape.tensors.size(), -1);
    for (int n = 0; n < node_count(); ++n) {
      for (TensorId t : tape_.nodes[n].outputs) producer_[t] = n;
      for (TensorId t : tape_.nodes[n].intermediates) producer_[t] = n;
    }
    if (tape_.input != kNoTensor) tensors_[tape_.root(tape_.input)] = {true, Frame::below, kOutputSlot, 0, 0};
    if (tape_.output != kNoTensor) tensors_[tape_.root(tape_.output)].slot = kOutputSlot;
    find_active();
    region_done_.assign(static_cast<std::size_t>(tape_.regions) + 1, false);
    next_slot_ = 2;
    names_ = {"output", "input gradient"};
  }

  TapeBlocks run() {
    TapeBlocks blocks;
    count_saved();
    BlockWriter forward(tape_.name + " forward");
    out_ = &forward;
    out_->reserve_slots(2);
    out_->host(issued(profile_.layer_host) + profile_.submodule_host * options_.hooked_submodules);
    emit_forward();
    plan::Block forward_block = forward.take();

    in_graph_ = false;
    BlockWriter backward(tape_.name + (split() ? " input gradients" : " backward"));
    out_ = &backward;
    backward_ = true;
    if (std::find(active_.begin(), active_.end(), true) != active_.end()) out_->host(issued(profile_.layer_backward_host) + profile_.submodule_backward_host * options_.hooked_submodules);
    emit_backward();
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

 private:
  static constexpr std::uint32_t kUnassigned = 0xffffffff;
  struct Tensor {
    bool live = false;
    Frame frame = Frame::own;
    std::uint32_t slot = kUnassigned;
    int uses = 0;    // consumers still to come in the running forward
    int saved = 0;   // backward nodes that still need it
  };

  int node_count() const { return static_cast<int>(tape_.nodes.size()); }
  const Node& node(int n) const { return tape_.nodes[static_cast<std::size_t>(n)]; }
  Tensor& tensor(TensorId t) { return tensors_[static_cast<std::size_t>(tape_.root(t))]; }
  int region_of(int n) const { return options_.checkpoint ? 0 : node(n).region; }
  std::uint32_t new_slot(const std::string& name) {
    names_.push_back(name);
    return next_slot_++;
  }

  /// Autograd records a node if one of its inputs or weights wants a gradient; its outputs then want one too.
  void find_active() {
    wants_.assign(tape_.tensors.size(), false);
    saved_.assign(tape_.nodes.size(), {});
    active_.assign(tape_.nodes.size(), false);
    if (!options_.recorded) return;
    auto wants = [&](TensorId t) -> std::vector<bool>::reference { return wants_[static_cast<std::size_t>(tape_.root(t))]; };
    if (tape_.input != kNoTensor) wants(tape_.input) = options_.input_gradient;
    for (int n = 0; n < node_count(); ++n) {
      bool active = false;
      for (TensorId t : node(n).inputs) active = active || wants_gradient(t);
      std::vector<TensorId>& saved = saved_[static_cast<std::size_t>(n)];
      saved = node(n).saved;
      if (active) saved.insert(saved.end(), node(n).saved_for_input.begin(), node(n).saved_for_input.end());
      for (const Item& i : node(n).backward)
        active = active || (i.kind == Item::Kind::weight_gradient && tape_.weights[static_cast<std::size_t>(i.weight)].trainable);
      active_[static_cast<std::size_t>(n)] = active;
      if (!active) continue;
      for (TensorId t : node(n).outputs)
        if (tape_.tensors[static_cast<std::size_t>(t)].needs_gradient) wants(t) = true;
    }
  }
  bool active(int n) const { return active_[static_cast<std::size_t>(n)]; }
  const std::vector<TensorId>& saved(int n) const { return saved_[static_cast<std::size_t>(n)]; }
  bool discards_output(int n) const { return node(n).discard_output && active(n); }

  /// Reasons to keep tensors from forward to backward.
  void count_saved() {
    std::map<std::pair<int, TensorId>, bool> held_by_region;
    std::map<int, bool> region_active;
    for (int n = 0; n < node_count(); ++n) region_active[region_of(n)] |= active(n);
    for (int n = 0; n < node_count(); ++n) {
      const int region = region_of(n);
      if (!region_active[region] || (region < 0 && !active(n))) continue;
      if (region < 0) {
        for (TensorId t : saved(n))
          if (!discarded(t)) ++tensor(t).saved;
        hold_attributes(n);
        if (discards_output(n))
          for (TensorId t : node(n).inputs) ++tensor(t).saved;  // to make the output again
        continue;
      }
      // A region keeps what enters it, and what its cached nodes made.
      for (TensorId t : node(n).inputs) {
        const TensorId root = tape_.root(t);
        const int maker = producer_[static_cast<std::size_t>(root)];
        const bool outside = maker < 0 || region_of(maker) != region || node(maker).cached;
        if (outside && !std::exchange(held_by_region[{region, root}], true)) ++tensor(root).saved;
      }
      if (!node(n).cached || !active(n)) continue;
      for (TensorId t : saved(n)) {
        const TensorId root = tape_.root(t);
        if (producer_[static_cast<std::size_t>(root)] == n && !std::exchange(held_by_region[{region, root}], true)) ++tensor(root).saved;
      }
    }
    for (const auto& [key, held] : held_by_region) region_inputs_.push_back(key);
    if (options_.retains_ends) ++tensor(tape_.input).saved;
  }

  /// What a recorded node holds as attributes, until the graph is dropped.
  void hold_attributes(int n) {
    for (TensorId t : node(n).attributes) {
      if (tape_.input != kNoTensor && tape_.root(t) == tape_.root(tape_.input)) continue;   // the layer below made it
      ++tensor(t).saved;
      attributes_.push_back(t);
    }
  }
  void drop_attributes() {
    for (TensorId t : attributes_) --tensor(t).saved;
    for (TensorId t : attributes_) release_if_unused(t);
    attributes_.clear();
  }

  /// What stays behind when all blocks of the tape have run: what lets go of it, makes it, takes it over.
  void outliving(BlockWriter& drop, BlockWriter& last, BlockWriter& keep) {
    for (BlockWriter* w : {&drop, &last, &keep}) w->reserve_slots(2);
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

  bool discarded(TensorId t) const {
    const int maker = producer_[static_cast<std::size_t>(tape_.root(t))];
    return maker >= 0 && region_of(maker) < 0 && discards_output(maker);
  }

  void allocate(TensorId t, Category category) {
    const TensorId root = tape_.root(t);
    Tensor& state = tensor(root);
    if (state.live) return;
    const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(root)];
    if (state.slot == kUnassigned) state.slot = new_slot(info.name);
    // Made again while the layer above may still keep the first, for its weight gradients or otherwise.
    if (backward_ && (split() || options_.above_retains) && state.slot == kOutputSlot) state.slot = new_slot(info.name + " again");
    state.frame = Frame::own;
    state.live = true;
    out_->alloc(state.slot, info.bytes, category);
  }

  void release_if_unused(TensorId t) {
    Tensor& state = tensor(t);
    const bool is_output = !backward_ && tape_.output != kNoTensor && tape_.root(t) == tape_.root(tape_.output);
    if (!state.live || state.uses > 0 || state.saved > 0 || is_output) return;
    out_->free(state.slot, state.frame);
    state.live = false;
  }

  void kernel(std::uint32_t spec, plan::Stream stream = plan::Stream::compute, int launches = 1) {
    const Duration one = in_backward_node_ ? profile_.backward_kernel_host : profile_.kernel_host;
    out_->kernel(spec, in_graph_ ? Duration{} : one * launches, stream);
  }

  /// Neighbouring nodes that were captured are one graph, launched as one.
  void enter(const Node& node) {
    if (node.captured && !in_graph_) out_->host(profile_.kernel_host);
    in_graph_ = node.captured;
    if (!in_graph_) out_->host(in_backward_node_ ? node.backward_host : node.forward_host);
  }

  /// Share of the layer whose host code runs: captured parts are replayed without it.
  Duration issued(Duration whole) const {
    const auto captured = std::count_if(tape_.nodes.begin(), tape_.nodes.end(), [](const Node& n) { return n.captured; });
    return whole * (node_count() - captured) / std::max(1, node_count());
  }

  /// What a node leaves to the weight-gradient block, and what is kept for it.
  struct Left {
    const Node* node = nullptr;
    std::vector<const Item*> items;
    std::map<int, std::uint32_t> temporaries;   // slots
    std::vector<int> gradients;                 // storages
    std::vector<TensorId> tensors;
  };

  bool split() const { return options_.split != SplitBackward::none; }
  bool waits(const Item& item) const {
    if (!split() || item.kind != Item::Kind::weight_gradient) return false;
    const Weight& w = tape_.weights[static_cast<std::size_t>(item.weight)];
    return w.trainable && (w.matrix || options_.split == SplitBackward::retained_graph);
  }
  bool waits(const Node& n) const {
    return std::any_of(n.backward.begin(), n.backward.end(), [&](const Item& i) { return waits(i); });
  }

  /// Runs a node's items; those that wait for the weight gradients go to `left`.
  void items(const std::vector<Item>& list, const Node* of, std::vector<int>* output_gradients, Left* left = nullptr) {
    enter(*of);
    std::map<int, std::uint32_t> temporaries;
    const bool defers = left != nullptr && waits(*of);
    const bool input_wanted = output_gradients == nullptr || std::any_of(of->inputs.begin(), of->inputs.end(), [&](TensorId t) { return wants_gradient(t); });
    for (const Item& i : list) {
      if (i.for_input && !input_wanted) continue;
      if (defers && (i.for_weights || waits(i))) left->items.push_back(&i);
      else item(i, of, output_gradients, temporaries);
    }
    if (left != nullptr) left->temporaries = std::move(temporaries);
  }

  void item(const Item& item, const Node* of, std::vector<int>* output_gradients, std::map<int, std::uint32_t>& temporaries) {
    switch (item.kind) {
      case Item::Kind::kernel:
        kernel(item.spec, item.stream, item.launches);
        break;
      case Item::Kind::collective:
        out_->collective(item.spec, item.stream, item.sync, profile_.collective_host + options_.collective_wait);
        break;
      case Item::Kind::wait: {
        const std::uint32_t event = new_slot("");
        out_->record(item.stream, event);
        out_->wait(plan::Stream::compute, event);
        break;
      }
      case Item::Kind::host_sync: {
        if (in_graph_) break;
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

  void forward_node(int n, bool keep_outputs) {
    const Node& it = node(n);
    const auto later = [](const Item& i) { return i.kind == Item::Kind::produce_outputs; };
    output_category_ = keep_outputs ? Category::activation : Category::temporary;
    if (std::none_of(it.forward.begin(), it.forward.end(), later))
      for (TensorId t : it.outputs) allocate(t, output_category_);
    for (TensorId t : it.intermediates) allocate(t, keep_outputs ? Category::activation : Category::temporary);
    items(it.forward, &it, nullptr);
    for (TensorId t : it.inputs) --tensor(t).uses;
    for (TensorId t : it.holds) --tensor(t).uses;
    for (TensorId t : it.intermediates) release_if_unused(t);
    for (TensorId t : it.inputs) release_if_unused(t);
    for (TensorId t : it.holds) release_if_unused(t);
    for (TensorId t : it.outputs) release_if_unused(t);  // nobody reads it (a statistic)
  }

  void emit_forward() {
    for (int n = 0; n < node_count(); ++n)
      for (const auto* list : {&node(n).inputs, &node(n).holds})
        for (TensorId t : *list) ++tensor(t).uses;
    for (int n = 0; n < node_count(); ++n) forward_node(n, region_of(n) < 0 || node(n).cached);
  }

  /// Runs a region's forward again, now keeping what its backward needs.
  void recompute_region(int region) {
    region_done_[static_cast<std::size_t>(region)] = true;
    std::vector<int> members;
    for (int n = 0; n < node_count(); ++n)
      if (region_of(n) == region) members.push_back(n);
    for (int n : members)
      if (active(n)) {
        for (TensorId t : saved(n)) ++tensor(t).saved;
        hold_attributes(n);
      }
    if (reentrant()) {  // variables of CheckpointFunction.backward
      for (const TensorId t : {tape_.input, tape_.output}) ++tensor(t).saved;
      reentered_ = true;
    }
    const int last_needed = last_recomputed(members);
    for (int n : members)
      if (n <= last_needed && !node(n).cached)
        for (const auto* list : {&node(n).inputs, &node(n).holds})
          for (TensorId t : *list) ++tensor(t).uses;
    const bool was = std::exchange(in_backward_node_, false);
    if (options_.checkpoint) out_->host(issued(profile_.layer_host) + profile_.submodule_host * options_.hooked_submodules);
    for (int n : members) {
      if (n > last_needed || node(n).cached) continue;
      forward_node(n, true);
    }
    in_backward_node_ = was;
    for (const auto& [owner, t] : region_inputs_)
      if (owner == region) {
        --tensor(t).saved;
        pending_release_.push_back(t);
      }
  }

  /// Non-reentrant checkpoints stop after the last tensor that backward asked for; reentrant ones run to the end.
  int last_recomputed(const std::vector<int>& members) const {
    if (!profile_.early_stop_recompute) return members.back();
    int last = -1;
    for (int n : members) {
      if (node(n).recomputed_last) last = std::max(last, n);
      auto made_here = [&](TensorId t) { return producer_[static_cast<std::size_t>(tape_.root(t))] == n; };
      for (int user : members) {
        if (!active(user)) continue;
        for (TensorId t : saved(user))
          if (made_here(t)) last = std::max(last, n);
      }
    }
    return last;
  }

  /// Makes a discarded tensor again, and whatever that needs.
  void require(TensorId t) {
    if (tensor(t).live) return;
    const int maker = producer_[static_cast<std::size_t>(tape_.root(t))];
    EXPECTS(maker >= 0, tape_.name + ": " + tape_.tensors[static_cast<std::size_t>(t)].name + " is needed by backward but was not kept");
    for (TensorId input : node(maker).inputs) require(input);
    for (TensorId output : node(maker).outputs) allocate(output, Category::temporary);
    const bool was = std::exchange(in_backward_node_, false);
    items(node(maker).forward, &node(maker), nullptr);
    in_backward_node_ = was;
    // It stays until the last backward node that reads it has run.
    for (TensorId output : node(maker).outputs)
      for (int n = 0; n < node_count(); ++n)
        if (!node_done(n) && active(n))
          for (TensorId s : saved(n))
            if (tape_.root(s) == tape_.root(output)) ++tensor(output).saved;
    for (TensorId output : node(maker).outputs) release_if_unused(output);
  }

  /// torch/utils/checkpoint.py, CheckpointFunction: input, output and the output's gradient are its variables until its backward is over.
  bool reentrant() const { return profile_.reentrant_checkpoint && options_.checkpoint && tape_.input != kNoTensor && tape_.output != kNoTensor; }
  bool node_done(int n) const { return n > backward_position_; }

  // Gradients -------------------------------------------------------------------------------------------------------
  int new_gradient(const std::string& name, std::int64_t bytes) {
    Storage s{Frame::own, new_slot(name), 1};
    out_->alloc(s.slot, bytes, Category::temporary);
    storages_.push_back(s);
    return static_cast<int>(storages_.size()) - 1;
  }
  void unref(int storage) {
    Storage& s = storages_[static_cast<std::size_t>(storage)];
    if (--s.refs == 0) out_->free(s.slot, s.frame);
  }
  std::int64_t gradient_bytes(TensorId t) const {
    const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(tape_.gradient_root(t))];
    return info.gradient_bytes >= 0 ? info.gradient_bytes : info.bytes;
  }
  bool wants_gradient(TensorId t) const {
    return tape_.tensors[static_cast<std::size_t>(t)].needs_gradient && wants_[static_cast<std::size_t>(tape_.root(t))];
  }

  /// The loss writes its gradient over the tensor it kept.
  int take_over(TensorId t) {
    Tensor& state = tensor(t);
    EXPECTS(state.live, "a gradient in place needs the tensor");
    state.live = false;
    storages_.push_back({state.frame, state.slot, 1});
    return static_cast<int>(storages_.size()) - 1;
  }

  void add_kernel(std::int64_t bytes) {
    kernel(builder_.kernel({.kind = model::KernelKind::elementwise, .bytes_read = 2 * bytes, .bytes_written = bytes, .name = "gradient add"}));
  }

  /// A second gradient for the same tensor is summed, in place when nobody else holds the first.
  void give_gradient(TensorId t, int storage) {
    int& slot = gradient_of_[static_cast<std::size_t>(tape_.gradient_root(t))];
    if (slot < 0) {
      slot = storage;
      return;
    }
    const std::int64_t bytes = gradient_bytes(t);
    if (storages_[static_cast<std::size_t>(slot)].refs == 1) {
      add_kernel(bytes);
      unref(storage);
      return;
    }
    const int sum = new_gradient("gradient sum", bytes);
    add_kernel(bytes);
    unref(slot);
    unref(storage);
    slot = sum;
  }

  void produce_input_gradients(const Node& it) {
    if (produced_) return;
    produced_ = true;
    for (std::size_t i = static_cast<std::size_t>(it.passed_inputs); i < it.inputs.size(); ++i) {
      const TensorId t = it.inputs[i];
      if (!wants_gradient(t)) continue;
      // Views of one storage share one gradient buffer: made once per node.
      const TensorId root = tape_.gradient_root(t);
      if (std::any_of(made_.begin(), made_.end(), [&](const auto& m) { return m.first == root; })) continue;
      made_.emplace_back(root, new_gradient(tape_.tensors[static_cast<std::size_t>(root)].name + " gradient", gradient_bytes(t)));
    }
  }

  void release(std::vector<int>& gradients) {
    for (int g : gradients) unref(g);
    gradients.clear();
  }

  void weight_gradient(const Item& item) {
    const Weight& w = tape_.weights[static_cast<std::size_t>(item.weight)];
    if (!w.trainable) return;
    const auto width = [&](std::int64_t usual) { return w.wide_bytes > 0 ? std::int64_t{w.wide_bytes} : usual; };
    const std::int64_t bytes = w.elements * width(options_.gradient_element_bytes);
    const auto slot = static_cast<std::uint32_t>(item.weight);
    // Blocks of a split backward that differ in what becomes of gradients must agree in every slot: the input gradients of
    // one micro-batch may be the first of the step and its weight gradients not.
    const std::uint32_t reserved = split() ? new_slot(w.name + " gradient") : 0;
    WeightGradient mode = options_.gradient;
    if (w.gradient_elsewhere && mode == WeightGradient::first) mode = WeightGradient::accumulate;
    switch (mode) {
      case WeightGradient::fused_main:
        if (w.matrix) {
          kernel(item.spec, plan::Stream::compute, item.launches);
          return;
        }
        [[fallthrough]];  // vectors have no GEMM to fuse into
      case WeightGradient::added_main:
      case WeightGradient::accumulate: {
        const std::uint32_t temporary = split() ? reserved : new_slot(w.name + " gradient");
        out_->alloc(temporary, bytes, Category::temporary);
        kernel(item.spec, plan::Stream::compute, item.launches);
        const std::int64_t main = w.elements * width(options_.main_gradient_element_bytes);
        kernel(builder_.kernel({.kind = model::KernelKind::elementwise, .bytes_read = bytes + main, .bytes_written = main, .name = "gradient accumulate"}));
        out_->free(temporary);
        return;
      }
      case WeightGradient::first:
        out_->alloc(slot, bytes, Category::gradient, Frame::unit);
        kernel(item.spec, plan::Stream::compute, item.launches);
        return;
    }
  }

  void backward_node(int n) {
    const Node& it = node(n);
    backward_position_ = n;
    if (!active(n)) return;
    const int region = region_of(n);
    if (region >= 0 && !region_done_[static_cast<std::size_t>(region)]) recompute_region(region);
    for (TensorId t : saved(n)) require(t);
    in_backward_node_ = true;

    std::vector<int> output_gradients;
    for (TensorId t : it.outputs) {
      int& g = gradient_of_[static_cast<std::size_t>(tape_.gradient_root(t))];
      if (g >= 0) output_gradients.push_back(std::exchange(g, -1));
    }
    const bool is_loss = it.outputs.empty();
    const bool reached = is_loss || !output_gradients.empty();
    Left left{.node = &it};
    if (split()) keep_for_weights(n, reached && waits(it) ? output_gradients : std::vector<int>{}, left);
    if (reached) {
      produced_ = false;
      made_.clear();
      const std::size_t sharing = it.gradient_in_place ? it.inputs.size() : static_cast<std::size_t>(it.passed_inputs);
      const bool shares = sharing > 0;
      const bool explicit_produce = std::any_of(it.backward.begin(), it.backward.end(), [](const Item& i) { return i.kind == Item::Kind::produce_input_gradients; });
      if (sharing < it.inputs.size() && !explicit_produce) produce_input_gradients(it);
      const int shared = is_loss ? (shares ? take_over(it.inputs.front()) : -1) : output_gradients.front();
      items(it.backward, &it, &output_gradients, split() ? &left : nullptr);
      if (shares) {
        for (std::size_t i = 0; i < sharing; ++i)
          if (wants_gradient(it.inputs[i])) {
            ++storages_[static_cast<std::size_t>(shared)].refs;
            give_gradient(it.inputs[i], shared);
          }
        if (is_loss) unref(shared);
      }
      // Autograd drops the incoming gradients before it sums what it made.
      release(output_gradients);
      for (const auto& [root, storage] : made_) give_gradient(root, storage);
    }
    for (TensorId t : saved(n)) --tensor(t).saved;
    if (discards_output(n) && region < 0)
      for (TensorId t : it.inputs) --tensor(t).saved;
    for (TensorId t : saved(n)) release_if_unused(t);
    for (TensorId t : it.inputs) release_if_unused(t);
    for (TensorId t : it.outputs) release_if_unused(t);
    for (TensorId t : std::exchange(pending_release_, {})) release_if_unused(t);
    in_backward_node_ = false;
    if (!left.items.empty() || !left.tensors.empty()) left_.push_back(std::move(left));
  }

  /// Until the weight gradients are made, what they read stays: the node's input and the gradient of its output. A
  /// retained graph keeps everything saved.
  void keep_for_weights(int n, const std::vector<int>& output_gradients, Left& left) {
    const Node& it = node(n);
    const bool retains = options_.split == SplitBackward::retained_graph;
    if (retains || waits(it))
      for (TensorId t : saved(n))
        if (retains || std::find(it.inputs.begin(), it.inputs.end(), t) != it.inputs.end()) left.tensors.push_back(t);
    for (TensorId t : left.tensors) ++tensor(t).saved;
    const bool reads = std::any_of(it.backward.begin(), it.backward.end(), [&](const Item& i) { return waits(i) && !i.reads_gathered; });
    if (!reads) return;
    left.gradients = output_gradients;
    for (int g : output_gradients) ++storages_[static_cast<std::size_t>(g)].refs;
  }

  void emit_weights() {
    out_->reserve_slots(2);
    in_backward_node_ = true;
    for (Left& left : left_) {
      for (const Item* i : left.items) item(*i, left.node, nullptr, left.temporaries);
      release(left.gradients);
      for (TensorId t : left.tensors) --tensor(t).saved;
      for (TensorId t : left.tensors) release_if_unused(t);
    }
  }

  void emit_backward() {
    out_->reserve_slots(2);
    const bool held = options_.above_retains || reentrant();   // not this layer's alone
    if (tape_.output != kNoTensor && !wants_[static_cast<std::size_t>(tape_.root(tape_.output))]) {
      if (!options_.above_retains) out_->free(kInputGradientSlot, Frame::above);  // a gradient that ends here
    } else if (tape_.output != kNoTensor) {
      storages_.push_back({Frame::above, kInputGradientSlot, held ? 2 : 1});
      gradient_of_[static_cast<std::size_t>(tape_.root(tape_.output))] = 0;
    }
    for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].uses = 0;
    // The layer's output belongs to the layer above, which has freed it.
    if (tape_.output != kNoTensor && tensor(tape_.output).saved == 0) tensor(tape_.output).live = false;
    for (int n = node_count() - 1; n >= 0; --n) backward_node(n);
    if (held && !options_.above_retains && !storages_.empty()) unref(0);
    if (reentered_)
      for (const TensorId t : {tape_.input, tape_.output}) {
        --tensor(t).saved;
        release_if_unused(t);
      }
    if (options_.checkpoint || split()) drop_attributes();   // the graph of a recomputation goes with it
    if (tape_.input == kNoTensor) return;
    const int g = gradient_of_[static_cast<std::size_t>(tape_.root(tape_.input))];
    if (g >= 0) {
      const Storage& s = storages_[static_cast<std::size_t>(g)];
      EXPECTS(s.refs == 1, tape_.name + ": the gradient that is handed on is still read by its own weight gradients");
      out_->move(kInputGradientSlot, s.slot, s.frame);
    }
  }

  const Tape& tape_;
  const EmitOptions& options_;
  const FrameworkProfile& profile_;
  plan::PlanBuilder& builder_;
  BlockWriter* out_ = nullptr;
  std::vector<Tensor> tensors_;
  std::vector<int> gradient_of_;   // storage of each root's gradient, -1: none yet
  std::vector<int> producer_;
  std::vector<Storage> storages_;
  std::vector<std::pair<TensorId, int>> made_;
  std::vector<std::pair<int, TensorId>> region_inputs_;
  std::vector<TensorId> pending_release_;
  std::vector<TensorId> attributes_;   // held by recorded nodes
  bool reentered_ = false;
  std::vector<bool> region_done_;
  std::vector<bool> wants_;    // by root tensor: somebody asks for its gradient
  std::vector<std::vector<TensorId>> saved_;   // by node: what its backward reads
  std::vector<bool> active_;   // by node: autograd records it
  std::vector<Left> left_;           // in the order of backward
  std::vector<std::string> names_;
  std::uint32_t next_slot_ = 0;
  plan::Category output_category_ = plan::Category::temporary;
  int backward_position_ = 1 << 30;
  bool produced_ = false;
  bool backward_ = false;
  bool in_backward_node_ = false;
  bool in_graph_ = false;   // the node at hand is replayed from a CUDA graph
};

}  // namespace

TapeBlocks emit(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder) {
  return Emitter(tape, options, profile, builder).run();
}

}  // namespace rehearse::strategies
