#include "strategies/layer/modules.h"

#include <algorithm>
#include <utility>

namespace rehearse::strategies {

namespace {

bool owns_module(const Weight& w) { return !w.name.ends_with(".bias"); }
bool is_adapter(const Weight& w) { return w.name.find(".lora_") != std::string::npos; }

/// Nodes with the layer's own linear layers, in runs between norms: those of attention, those of the MLP.
struct LinearRuns {
  std::vector<std::vector<int>> runs{{}};
  int first_node = 0;   // of any weight

  explicit LinearRuns(const Tape& tape) : first_node(static_cast<int>(tape.nodes.size())) {
    std::vector<std::pair<int, bool>> nodes;   // and whether a matrix is used there
    for (const Weight& w : tape.weights)
      if (owns_module(w) && !is_adapter(w)) nodes.emplace_back(w.node, w.matrix);
    std::sort(nodes.begin(), nodes.end());
    if (!nodes.empty()) first_node = nodes.front().first;
    for (const auto& [node, matrix] : nodes) {
      std::vector<int>& run = runs.back();
      if (matrix && (run.empty() || run.back() != node)) run.push_back(node);
      if (!matrix && !run.empty()) runs.emplace_back();
    }
    if (runs.size() > 1 && runs.back().empty()) runs.pop_back();
  }
};

/// A layer itself, attention, MLP and its activation: no weights of their own.
void add_containers(const Tape& tape, ModuleStarts& starts) {
  const LinearRuns linear(tape);
  const std::vector<int>&attention = linear.runs.front(), &mlp = linear.runs.back();
  if (attention.empty()) return;
  const auto begins = [](std::vector<int>& by_node, int node) { ++by_node[static_cast<std::size_t>(node)]; };
  begins(starts.forward, std::min(linear.first_node, attention.front()));
  begins(starts.forward, attention.front());
  begins(starts.forward, mlp.front());
  begins(starts.forward, mlp[std::min<std::size_t>(1, mlp.size() - 1)]);
  begins(starts.backward, mlp.back());
  begins(starts.backward, mlp.back());
  begins(starts.backward, mlp.front());   // of what is multiplied with the activation the later product is first
  begins(starts.backward, attention.back());
}

/// Around the model: they begin with the unit that nothing comes before, and in backward with the one that has the loss.
void add_model(const Tape& tape, int around, ModuleStarts& starts) {
  if (tape.nodes.empty() || around == 0) return;
  if (tape.input == kNoTensor) {
    starts.forward.front() += around;
    starts.behind_forward = tape.makes_angles ? 1 : 0;
  }
  if (tape.output != kNoTensor) return;
  int norm = 0;
  for (const Weight& w : tape.weights)
    if (owns_module(w) && !w.matrix) norm = std::max(norm, w.node);
  starts.backward.back() += around - 1;
  ++starts.backward[static_cast<std::size_t>(norm)];
}

}  // namespace

std::int64_t tensors_standing_for(const Weight& weight, bool loops) {
  if (!loops || weight.experts <= 1) return 1;
  return weight.experts * (weight.name.find("gate_up") != std::string::npos ? 2 : 1);
}

ModuleStarts module_starts(const Tape& tape, bool loops, int around) {
  ModuleStarts starts{std::vector<int>(tape.nodes.size()), std::vector<int>(tape.nodes.size())};
  int own = 0;
  bool experts_counted = false;
  for (const Weight& w : tape.weights) {
    if (!owns_module(w)) continue;
    std::int64_t modules = tensors_standing_for(w, loops) + (w.name.ends_with(".lora_A.weight") ? 2 : 0);
    if (modules > 1 && w.experts > 1 && !std::exchange(experts_counted, true)) modules += 2 * w.experts - 1;   // each expert and its activation; one of these is the layer's
    own += !is_adapter(w);
    for (std::vector<int>* by_node : {&starts.forward, &starts.backward}) (*by_node)[static_cast<std::size_t>(w.node)] += static_cast<int>(modules);
  }
  if (own > 2) add_containers(tape, starts);
  add_model(tape, around, starts);
  return starts;
}

}  // namespace rehearse::strategies
