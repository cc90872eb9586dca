// A tape: the operators of one layer in forward order, each with the kernels of its forward and backward and the tensors
// that backward keeps, as an autograd engine records them. Lifetimes follow from it (tape_emitter.h); nobody counts bytes
// by formula. Leaves out which operators a layer has (transformer_layer.cpp) and when gradients are reduced (data/).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace rehearse::strategies {

using TensorId = int;
constexpr TensorId kNoTensor = -1;

/// A tensor of the tape. Views share the storage of `alias_of` and own no bytes; parts of a split are views whose
/// gradients are tensors of their own, until the split's backward puts them together.
struct TapeTensor {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t gradient_bytes = -1;  // -1: as `bytes`; differs where the gradient has another format
  bool needs_gradient = true;        // false: ids, masks, statistics
  TensorId alias_of = kNoTensor;
  bool own_gradient = false;         // a view whose gradient does not share a buffer with its base's
  TensorId kept_as = kNoTensor;      // a tensor of fewer bits that waits for backward in place of this one
  bool stays = false;                // offloading of whole layers leaves it on the device
};

/// Weights by the ranks that share them: experts live on other ranks than the rest.
enum class Part : std::uint8_t { all, dense, experts };

/// A trainable or frozen parameter tensor of the layer, as one rank holds it (tensor-parallel shard).
struct Weight {
  std::string name;
  std::int64_t elements = 0;
  std::int64_t columns = 0;          // of a matrix or table; 0: a vector
  bool trainable = true;
  bool matrix = true;                // used by a GEMM (Transformer Engine's dummy gradients, Muon, fp8 copies)
  bool parameter_elsewhere = false;  // tied: another unit of this rank owns the parameter
  bool gradient_elsewhere = false;   // tied: another unit's gradient is added to
  bool adapter = false;              // low-rank: trained beside a frozen weight
  int wide_bytes = 0;                // bytes per element where they differ from what the profile stores; 0: they do not
  std::int64_t packed_bytes = -1;    // all bytes of a quantised weight; -1: not quantised
  std::int64_t packed_states = 0;    // of those, what bitsandbytes keeps beside the parameter: scales of its blocks, and theirs
  std::int64_t cast_bytes = 0;       // of the 8- or 4-bit copies that Transformer Engine's products read; 0: they read the weight
  std::int64_t travel_bytes = -1;    // of the weight as its ranks gather it; -1: as it is stored, or FSDP's parameters
  bool copied = false;               // the frozen original stays beside the trained copy
  bool one_of_several = false;       // experts of a layer that are trained, beside others that are not
  int node = 0;                      // of the tape that uses it first
  std::int64_t experts = 1;          // whose weights it stands for: a tensor each, where they are not grouped in one
  bool expert = false;               // sharded over the expert axes: its gradient is summed over the expert-data group
  bool replicated_over_tensor = false;  // every tensor rank holds all of it (norms): its gradient may need a reduction
  bool gradient_widened = false;     // autocast: the product writes 16 bits, which the cast's backward makes fp32
  bool in(Part part) const { return part == Part::all || (part == Part::experts) == expert; }
};

/// FSDP gathers it in 8 bits, from shards in the format of the optimizer.
inline bool gathered_narrow(const Weight& w) { return w.travel_bytes >= 0 && w.packed_bytes < 0 && !w.parameter_elsewhere; }

/// One thing a node's forward or backward does, in order.
struct Item {
  enum class Kind : std::uint8_t {
    kernel,           // spec, stream; beside compute: sync (kAfterCompute)
    collective,       // spec, stream, sync
    copy,             // between device and host: spec, stream, sync
    wait,             // compute waits for everything given to `stream`
    host_sync,        // the host waits for the compute stream (sizes that only the device knows)
    alloc,            // temporary number `temporary`, bytes, category
    free,             // temporary
    record_stream,    // temporary is also used on `stream`: it is free again once that has got there
    record_inputs,    // the same of the node's inputs
    record_outputs,   // the same of its outputs; in backward, of their gradients
    weight_gradient,  // kernels that make the gradient of weight `weight`: spec is the GEMM or reduction
    release_output_gradients,  // the gradients of the outputs are not needed from here on
    produce_input_gradients,   // the gradients of the inputs are allocated here (else: before the first item)
    produce_outputs,  // forward: the outputs are allocated here (else: before the first item)
  } kind = Kind::kernel;
  plan::Stream stream = plan::Stream::compute;
  int sync = 0;
  std::uint32_t spec = 0;
  int temporary = 0;
  int weight = -1;
  std::int64_t bytes = 0;
  int launches = 1;                  // of the host for one kernel of ours: members of a group that the library issues one by one
  plan::Category category = plan::Category::temporary;  // workspace: a kernel's own, gone when it returns
  bool for_input = false;            // backward: left out where no input wants a gradient
  // Where a schedule splits backward, weight gradients wait until long after the input gradients:
  bool for_weights = false;     // only weight gradients need it, so it goes with them
  bool reads_gathered = false;  // a weight gradient that reads a gathered copy of the output gradient (a temporary)
};

struct Node {
  std::string name;
  std::vector<TensorId> inputs, outputs;
  std::vector<TensorId> saved;        // what backward reads; inputs, outputs or intermediates of this node
  std::vector<TensorId> saved_for_input;  // the same, but not read where no input wants a gradient
  std::vector<TensorId> intermediates;  // made by forward besides the outputs, kept only if saved
  TensorId weight_operand = kNoTensor;   // of those, what weight gradients read in place of an input
  bool copies_for_weights = false;    // weight gradients read temporaries that backward makes of an input and of the output's gradient
  std::vector<TensorId> attributes;   // of the recorded node itself, not saved for backward: they live until the graph is dropped
  std::vector<TensorId> holds;        // not read here, but a variable of the caller keeps them alive until here
  std::vector<Item> forward, backward;
  int passed_inputs = 0;              // leading inputs whose gradient is the output's gradient itself (residual add)
  bool gradient_in_place = false;     // the input gradient is written over the output gradient or a saved buffer
  bool gradients_over_saved = false;  // the gradient of each input that nobody else reads any more is written over that input
  int region = -1;                    // checkpoint region; -1: none
  bool cached = false;                // inside a region: its output is kept, not recomputed (selective policies)
  bool discard_output = false;        // outputs are dropped after use and recomputed on demand in backward
  Duration forward_host{}, backward_host{};   // host time beyond its kernels
  bool outputs_kept = false;          // by an object outside of autograd, until the node runs in the next forward
  bool separate_views = false;        // several operators in one: an output that is a view of an input wants a gradient where that input does
  bool captured = false;              // replayed from a CUDA graph: no launches, no synchronisation of the host
};

/// Nodes whose saved tensors wait in host memory: they leave together behind node `commit`, and are back before its backward.
struct OffloadGroup {
  std::string module;
  std::vector<int> nodes;
  int commit = -1;
};

struct Tape {
  std::string name;
  std::vector<TapeTensor> tensors;
  std::vector<Weight> weights;
  std::vector<Node> nodes;
  TensorId input = kNoTensor, output = kNoTensor;   // the residual stream; input may be kNoTensor (embedding)
  int regions = 0;
  std::vector<OffloadGroup> offload_groups;   // in the order of their commits
  int parts = 2;               // of a layer: a mixer and an MLP; one alone takes the host half of layer_host (assumption)
  bool makes_angles = false;   // of rotary positions, in a module of its own behind the last node (transformers from 4.45, LlamaModel.rotary_emb)

  TensorId tensor(std::string tensor_name, std::int64_t bytes, bool needs_gradient = true) {
    tensors.push_back({std::move(tensor_name), bytes, -1, needs_gradient, kNoTensor});
    return static_cast<TensorId>(tensors.size()) - 1;
  }
  /// In place of `t`, of which nothing else is kept, `narrow` waits for backward; the node that made the one makes the other.
  void keep_as(TensorId t, TensorId narrow) {
    const auto made = [&](const Node& n) { return std::find(n.outputs.begin(), n.outputs.end(), t) != n.outputs.end(); };
    std::find_if(nodes.rbegin(), nodes.rend(), made)->intermediates.push_back(narrow);
    tensors[static_cast<std::size_t>(t)].kept_as = narrow;
  }
  /// What waits for backward of `t`.
  TensorId kept_form(TensorId t) const {
    const TensorId kept = tensors[static_cast<std::size_t>(t)].kept_as;
    return kept == kNoTensor ? t : kept;
  }
  TensorId view(std::string tensor_name, TensorId base) {
    tensors.push_back({std::move(tensor_name), 0, -1, tensors[base].needs_gradient, root(base)});
    return static_cast<TensorId>(tensors.size()) - 1;
  }
  /// One of the parts that a tensor is split into.
  TensorId part(std::string tensor_name, TensorId base, std::int64_t part_bytes) {
    const TensorId t = view(std::move(tensor_name), base);
    tensors[static_cast<std::size_t>(t)].own_gradient = true;
    tensors[static_cast<std::size_t>(t)].gradient_bytes = part_bytes;
    return t;
  }
  TensorId root(TensorId t) const { return tensors[t].alias_of == kNoTensor ? t : tensors[t].alias_of; }
  /// The tensor whose gradient buffer `t` shares.
  TensorId gradient_root(TensorId t) const { return tensors[t].own_gradient ? t : root(t); }
  /// Of the node that is added next.
  int weight(Weight w) {
    w.node = static_cast<int>(nodes.size());
    weights.push_back(std::move(w));
    return static_cast<int>(weights.size()) - 1;
  }
  /// Elements that this tape owns; tied weights count where they are stored.
  std::int64_t trainable_elements(Part part = Part::all) const;
  std::int64_t elements(Part part = Part::all) const;
  /// Bytes of the parameters as stored; `element`: of a weight that says nothing else.
  std::int64_t parameter_bytes(std::int64_t element, Part part = Part::all) const;
  /// What is kept beside quantised parameters and is no part of them, bytes.
  std::int64_t packed_states(Part part = Part::all) const;
  /// Of one of them, wherever it is stored.
  static std::int64_t parameter_bytes(const Weight& w, std::int64_t element);
  /// Trained weights as they are gathered after an update.
  std::int64_t travel_bytes(std::int64_t element, Part part = Part::all) const;
  /// Elements of weights that FSDP gathers in 8 bits.
  std::int64_t narrow_elements() const;
  /// Copies in fewer bits that are kept beside weights of 16.
  std::int64_t cast_bytes() const;
  /// The same of something that each trained weight has once (its gradient).
  std::int64_t trainable_bytes(std::int64_t element, Part part = Part::all) const;
};

}  // namespace rehearse::strategies
