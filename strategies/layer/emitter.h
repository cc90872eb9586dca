// One tape while it is turned into blocks: slots and lifetimes of its tensors, the block being written (tape_emitter.cpp: forward
// and the items of a node, tape_backward.cpp: backward, tape_gradients.cpp: gradients).
// Leaves out what autograd records, which is known beforehand (autograd_graph.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strategies/layer/autograd_graph.h"
#include "strategies/layer/modules.h"

namespace rehearse::strategies {

class TapeEmitter {
 public:
  TapeEmitter(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder);
  TapeBlocks run();

 private:
  static constexpr std::uint32_t kUnassigned = 0xffffffff;
  struct Tensor {
    bool live = false;
    plan::Frame frame = plan::Frame::own;
    std::uint32_t slot = kUnassigned;
    int uses = 0;    // consumers still to come in the running forward
    int saved = 0;   // backward nodes that still need it
  };
  /// Where a gradient lies and who still needs it.
  struct Storage {
    plan::Frame frame = plan::Frame::own;
    std::uint32_t slot = 0;
    int refs = 0;
  };
  /// A tensor that a graph holds beyond backward: what a node of a checkpoint's first pass has as an attribute, or what the nodes of a
  /// recomputation have saved.
  struct Held {
    std::uint32_t slot = 0;
    std::int64_t bytes = 0;
  };
  /// What a node leaves to the weight-gradient block, and what is kept for it.
  struct Left {
    const Node* node = nullptr;
    std::vector<const Item*> items;
    std::map<int, std::uint32_t> temporaries;   // slots
    std::vector<int> gradients;                 // storages
    std::vector<TensorId> tensors;
  };

  int node_count() const { return static_cast<int>(tape_.nodes.size()); }
  const Node& node(int n) const { return tape_.nodes[static_cast<std::size_t>(n)]; }
  Tensor& tensor(TensorId t) { return tensors_[static_cast<std::size_t>(tape_.root(t))]; }
  std::uint32_t new_slot(const std::string& name) {
    names_.push_back(name);
    return next_slot_++;
  }

  // Forward, and what every node does (tape_emitter.cpp)
  void emit_forward();
  void forward_node(int n, bool keep_outputs);
  void items(const std::vector<Item>& list, const Node* of, std::vector<int>* output_gradients, Left* left = nullptr);
  void item(const Item& item, const Node* of, std::vector<int>* output_gradients, std::map<int, std::uint32_t>& temporaries);
  void allocate(TensorId t, plan::Category category);
  void release_if_unused(TensorId t);
  void hold_attributes(int n);
  void drop_attributes();
  void set_attributes_aside();
  void find_kept_graph();
  void hold_kept_graph(int region);
  void set_kept_graph_aside();
  void outliving(plan::BlockWriter& drop, plan::BlockWriter& last, plan::BlockWriter& keep);
  void kernel(std::uint32_t spec, plan::Stream stream = plan::Stream::compute, int launches = 1);
  void enter(const Node& node);
  enum class Hook : std::uint8_t { forward_begins, backward_begins, ends };
  void hook(int n, Hook what);
  void modules_begin_at(int n, bool forward);
  void modules_end_at(int n);
  void modules_begin(int modules, bool forward, std::vector<int> weights);
  std::vector<int> large(const std::vector<int>& weights) const;
  Duration issued(Duration whole) const;

  void find_offloaded();
  void offload_behind(int node);
  void release_offloaded(std::size_t group);

  // Backward (tape_backward.cpp)
  void emit_backward();
  void backward_node(int n);
  void run_backward(const Node& node, std::vector<int>& output_gradients, Left* left);
  void release_saved(int n);
  void recompute_region(int region);
  std::vector<int> recomputed(const std::vector<int>& members) const;
  int last_recomputed(const std::vector<int>& members) const;
  void require(TensorId t);
  /// torch/utils/checkpoint.py, CheckpointFunction: input, output and the output's gradient are its variables until its backward is over.
  bool reentrant() const { return profile_.reentrant_checkpoint && options_.checkpoint && tape_.input != kNoTensor && tape_.output != kNoTensor; }
  /// Other checkpoints have their graph from the first pass on. What it saves is made again (saved_tensors_hooks); what its nodes hold as attributes stays.
  bool keeps_first_graph() const { return options_.checkpoint && !profile_.reentrant_checkpoint; }
  bool split() const { return options_.split != SplitBackward::none; }
  bool waits(const Item& item) const;
  bool waits(const Node& node) const;
  void keep_for_weights(int n, const std::vector<int>& output_gradients, Left& left);
  void emit_weights();

  // Gradients (tape_gradients.cpp)
  int new_gradient(const std::string& name, std::int64_t bytes);
  void unref(int storage);
  void release(std::vector<int>& gradients);
  std::int64_t gradient_bytes(TensorId t) const;
  int take_over(TensorId t);
  void write_over(TensorId t);
  void add_kernel(std::int64_t bytes);
  void give_gradient(TensorId t, int storage);
  void produce_input_gradients(const Node& node);
  void gradient_product(const Item& item, std::int64_t bytes, std::function<void()> place, std::function<void()> after);
  void widen_gradients();
  void weight_gradient(const Item& item);

  const Tape& tape_;
  const EmitOptions& options_;
  const FrameworkProfile& profile_;
  plan::PlanBuilder& builder_;
  AutogradGraph graph_;
  plan::BlockWriter* out_ = nullptr;           // the block at hand
  std::vector<std::string> names_{"output", "input gradient"};
  std::uint32_t next_slot_ = 2;

  std::vector<Tensor> tensors_;                // by root tensor
  std::vector<int> gradient_of_;               // storage of each root's gradient, -1: none yet
  std::vector<Storage> storages_;
  std::vector<std::pair<TensorId, int>> made_; // root and storage: input gradients of the node at hand
  std::vector<bool> region_done_;              // run again
  std::vector<TensorId> pending_release_;      // what a region kept, until the node at hand is done
  std::vector<Left> left_;                     // in the order of backward
  std::vector<std::function<void()>> widenings_;  // casts of the node's weight gradients, for when it is over
  std::vector<TensorId> attributes_;           // held by recorded nodes
  std::vector<Held> held_;
  std::vector<std::pair<TensorId, std::uint32_t>> kept_graph_;   // tensors of a recomputation that Node::outputs_kept holds, and their slots
  int kept_region_ = -1;                       // where it runs
  std::vector<HookPoint>* hooks_ = nullptr;    // of the block at hand
  ModuleStarts modules_;                       // where hooks are
  std::vector<int> gradients_;                 // made since the last of them
  std::vector<OffloadedGroup> offloaded_;      // by group
  std::vector<OffloadPoint> forward_offloads_, backward_offloads_;
  std::map<TensorId, std::size_t> leaving_;    // roots that are still on the device, and the last group that saves them
  bool reentered_ = false;                     // a reentrant checkpoint's variables are held
  plan::Category output_category_ = plan::Category::temporary;
  int backward_position_ = 1 << 30;
  bool produced_ = false;                      // input gradients of the node at hand
  bool backward_ = false;
  bool has_workspace_ = false;                 // a matrix product of backward has come
  bool in_backward_node_ = false;
  bool in_cuda_graph_ = false;                 // the node at hand is replayed from a CUDA graph
};

}  // namespace rehearse::strategies
