#include "strategies/layer/modules.h"

#include <algorithm>
#include <optional>
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
  // Of an adapted layer backward begins with its adapter's.
  const auto last_of = [&](int node) {
    const auto wrapper = std::find_if(starts.wrappers.begin(), starts.wrappers.end(), [&](const Wrapper& w) { return w.first == node; });
    return wrapper == starts.wrappers.end() ? node : wrapper->last;
  };
  begins(starts.backward, last_of(mlp.back()));
  begins(starts.backward, last_of(mlp.back()));
  begins(starts.backward, last_of(mlp.front()));   // of what is multiplied with the activation the later product is first
  begins(starts.backward, last_of(attention.back()));
}

/// The wrapper that has an adapter's first weight, if it adapts a layer of this tape.
std::optional<Wrapper> wrapper_of(const Tape& tape, int weight) {
  const Weight& down = tape.weights[static_cast<std::size_t>(weight)];
  const std::size_t adapter = down.name.find(".lora_A.weight");
  if (adapter == std::string::npos) return std::nullopt;
  const auto node_of = [&](const std::string& end) {
    const auto w = std::find_if(tape.weights.begin(), tape.weights.end(), [&](const Weight& other) { return other.name == down.name.substr(0, adapter) + end; });
    return w == tape.weights.end() ? -1 : w->node;
  };
  const Wrapper wrapper{.weight = weight, .first = node_of(".weight"), .last = node_of(".lora_B.weight")};
  if (wrapper.first < 0 || wrapper.last < wrapper.first) return std::nullopt;
  return wrapper;
}

/// Of an adapter: its dropout, and the wrapper, which has its first weight. In backward the dropout is the last but the layer itself.
void add_adapter(const Tape& tape, int weight, ModuleStarts& starts) {
  const int down = tape.weights[static_cast<std::size_t>(weight)].node;
  const std::optional<Wrapper> wrapper = wrapper_of(tape, weight);
  ++starts.forward[static_cast<std::size_t>(down)];
  ++starts.backward[static_cast<std::size_t>(wrapper ? wrapper->first : down)];
  if (!wrapper) return;
  starts.wrappers.push_back(*wrapper);
  std::erase(starts.own[static_cast<std::size_t>(down)], weight);
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
  const std::size_t nodes = tape.nodes.size();
  ModuleStarts starts{.forward = std::vector<int>(nodes), .backward = std::vector<int>(nodes), .own = std::vector<std::vector<int>>(nodes)};
  int own = 0;
  bool experts_counted = false;
  for (std::size_t i = 0; i < tape.weights.size(); ++i) {
    const Weight& w = tape.weights[i];
    starts.own[static_cast<std::size_t>(w.node)].push_back(static_cast<int>(i));
    if (!owns_module(w)) continue;
    std::int64_t modules = tensors_standing_for(w, loops);
    if (modules > 1 && w.experts > 1 && !std::exchange(experts_counted, true)) modules += 2 * w.experts - 1;   // each expert and its activation; one of these is the layer's
    own += !is_adapter(w);
    for (std::vector<int>* by_node : {&starts.forward, &starts.backward}) (*by_node)[static_cast<std::size_t>(w.node)] += static_cast<int>(modules);
    if (w.name.ends_with(".lora_A.weight")) add_adapter(tape, static_cast<int>(i), starts);
  }
  if (own > 2) add_containers(tape, starts);
  add_model(tape, around, starts);
  return starts;
}

}  // namespace rehearse::strategies
