#include "strategies/layer/autograd_graph.h"

#include <map>

namespace rehearse::strategies {

AutogradGraph::AutogradGraph(const Tape& tape, const EmitOptions& options)
    : tape_(tape), checkpoint_(options.checkpoint), wants_(tape.tensors.size()), producer_(tape.tensors.size(), -1), reasons_(tape.tensors.size()), saved_(tape.nodes.size()), active_(tape.nodes.size()) {
  find_producers();
  if (options.recorded) find_active(options.input_gradient);
  count_reasons();
}

void AutogradGraph::find_producers() {
  for (int n = 0; n < node_count(); ++n) {
    for (TensorId t : tape_.nodes[n].outputs) producer_[t] = n;
    for (TensorId t : tape_.nodes[n].intermediates) producer_[t] = n;
  }
}

/// Autograd records a node if one of its inputs or weights wants a gradient; its outputs then want one too.
void AutogradGraph::find_active(bool input_gradient) {
  if (tape_.input != kNoTensor) wants_[static_cast<std::size_t>(tape_.root(tape_.input))] = input_gradient;
  for (int n = 0; n < node_count(); ++n) {
    const Node& node = tape_.nodes[n];
    bool active = false;
    for (TensorId t : node.inputs) active = active || wants_gradient(t);
    std::vector<TensorId>& saved = saved_[static_cast<std::size_t>(n)];
    saved = node.saved;
    if (active) saved.insert(saved.end(), node.saved_for_input.begin(), node.saved_for_input.end());
    for (const Item& i : node.backward)
      active = active || (i.kind == Item::Kind::weight_gradient && tape_.weights[static_cast<std::size_t>(i.weight)].trainable);
    active_[static_cast<std::size_t>(n)] = active;
    if (!active) continue;
    for (TensorId t : node.outputs)
      if (tape_.tensors[static_cast<std::size_t>(t)].needs_gradient && !(node.separate_views && tape_.root(t) != t)) wants_[static_cast<std::size_t>(tape_.root(t))] = true;
  }
}

void AutogradGraph::count_reasons() {
  auto reasons = [&](TensorId t) -> int& { return reasons_[static_cast<std::size_t>(tape_.root(t))]; };
  std::map<std::pair<int, TensorId>, bool> held_by_region;
  std::map<int, bool> region_active;
  for (int n = 0; n < node_count(); ++n) region_active[region_of(n)] |= active(n);
  for (int n = 0; n < node_count(); ++n) {
    const Node& node = tape_.nodes[n];
    const int region = region_of(n);
    if (!region_active[region] || (region < 0 && !active(n))) continue;
    if (region < 0) {
      for (TensorId t : saved(n))
        if (!discarded(t)) ++reasons(t);
      if (discards_output(n))
        for (TensorId t : node.inputs)
          if (!discarded(t)) ++reasons(tape_.kept_form(t));  // to make the output again
      continue;
    }
    // A region keeps what enters it, and what its cached nodes made.
    for (TensorId t : node.inputs) {
      const TensorId root = tape_.root(t);
      const int maker = producer(root);
      const bool outside = maker < 0 || region_of(maker) != region || kept_in_region(maker);
      if (outside && !std::exchange(held_by_region[{region, root}], true) && !discarded(root)) ++reasons(root);
    }
    if (!kept_in_region(n) || !active(n)) continue;
    for (TensorId t : saved(n)) {
      const TensorId root = tape_.root(t);
      if (producer(root) == n && !std::exchange(held_by_region[{region, root}], true)) ++reasons(root);
    }
  }
  for (const auto& [key, held] : held_by_region) region_inputs_.push_back(key);
}

bool AutogradGraph::discarded(TensorId t) const {
  const int maker = producer(t);
  return maker >= 0 && region_of(maker) < 0 && discards_output(maker);
}

}  // namespace rehearse::strategies
