// What autograd records of a tape: which nodes have a backward, what each of them reads, and so which tensors are kept from
// forward to backward. Leaves out when tensors are allocated and freed (emitter.h).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "strategies/layer/tape_emitter.h"

namespace rehearse::strategies {

class AutogradGraph {
 public:
  AutogradGraph(const Tape& tape, const EmitOptions& options);

  /// The node is recorded: its backward runs.
  bool active(int node) const { return active_[static_cast<std::size_t>(node)]; }
  bool any_active() const { return std::find(active_.begin(), active_.end(), true) != active_.end(); }
  /// What the node's backward reads.
  const std::vector<TensorId>& saved(int node) const { return saved_[static_cast<std::size_t>(node)]; }
  /// Somebody asks for the gradient of the storage behind `t`.
  bool wants(TensorId t) const { return wants_[static_cast<std::size_t>(tape_.root(t))]; }
  bool wants_gradient(TensorId t) const { return tape_.tensors[static_cast<std::size_t>(t)].needs_gradient && wants(t); }
  /// The node that makes the storage behind `t`; -1: it comes from outside.
  int producer(TensorId t) const { return producer_[static_cast<std::size_t>(tape_.root(t))]; }
  /// Checkpoint region; -1: none.
  int region_of(int node) const { return checkpoint_ ? 0 : tape_.nodes[static_cast<std::size_t>(node)].region; }
  /// The node is in a region, but its outputs are kept and it does not run again. A layer that is one checkpoint keeps its input
  /// only (torch.utils.checkpoint; Megatron's tensor_parallel/random.py, CheckpointFunction).
  bool kept_in_region(int node) const { return !checkpoint_ && tape_.nodes[static_cast<std::size_t>(node)].cached; }
  /// The node's outputs go after their use in forward and are made again in backward.
  bool discards_output(int node) const { return tape_.nodes[static_cast<std::size_t>(node)].discard_output && active(node); }
  /// Made by such a node.
  bool discarded(TensorId t) const;

  /// Reasons to keep a storage from forward to backward: nodes that read it, and regions that run again.
  int reasons_to_keep(TensorId root) const { return reasons_[static_cast<std::size_t>(root)]; }
  /// Region and root tensor: what regions read from outside. They keep it, unless it is discarded and made again for them.
  const std::vector<std::pair<int, TensorId>>& region_inputs() const { return region_inputs_; }

 private:
  int node_count() const { return static_cast<int>(tape_.nodes.size()); }
  void find_producers();
  void find_active(bool input_gradient);
  void count_reasons();

  const Tape& tape_;
  bool checkpoint_;                            // the whole tape is one region
  std::vector<bool> wants_;                    // by root tensor
  std::vector<int> producer_, reasons_;        // by root tensor
  std::vector<std::vector<TensorId>> saved_;   // by node
  std::vector<bool> active_;                   // by node
  std::vector<std::pair<int, TensorId>> region_inputs_;
};

}  // namespace rehearse::strategies
