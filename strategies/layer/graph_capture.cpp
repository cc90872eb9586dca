#include "strategies/layer/graph_capture.h"

#include <set>
#include <string>
#include <utility>

namespace rehearse::strategies {

namespace {

void mark_captured(const LowerContext& c, const model::Layer& layer, Tape& tape) {
  const Training& t = c.strategy.training;
  const std::set<std::string> modules(t.cuda_graph_modules.begin(), t.cuda_graph_modules.end());
  const bool all = t.cuda_graph.value_or(false);
  enum class Part : std::uint8_t { attention, state_space, router, experts, mlp } part = layer.mixer == model::Mixer::state_space ? Part::state_space : Part::attention;   // a delta rule is Megatron's self_attention
  bool residual_passed = false;
  for (Node& n : tape.nodes) {
    if ((part == Part::attention || part == Part::state_space) && (n.name == "mlp norm" || std::exchange(residual_passed, n.name == kMixerResidual))) part = Part::mlp;
    if (part == Part::mlp && n.name.starts_with("router")) part = Part::router;
    if (part == Part::router && !n.name.starts_with("router") && n.name != "latent_down") part = Part::experts;
    const bool routed = modules.contains("moe_router") && (part == Part::router || (n.name == "mlp norm" && c.model.experts.experts > 0));
    n.captured = all || (part == Part::attention && modules.contains("attn")) || (part == Part::state_space && modules.contains("mamba")) || (part == Part::mlp && modules.contains("mlp")) || routed ||
                 (part == Part::experts && modules.contains("moe"));
  }
}

/// Roots of what nodes [from, to) read, or make.
std::set<TensorId> roots(const Tape& tape, std::size_t from, std::size_t to, std::vector<TensorId> Node::*which) {
  std::set<TensorId> all;
  for (std::size_t i = from; i < to; ++i)
    for (const TensorId t : tape.nodes[i].*which) all.insert(tape.root(t));
  return all;
}

/// Around the graph of nodes [from, to).
void copy_around(const Operators& op, Tape& tape, std::size_t from, std::size_t to) {
  const std::set<TensorId> made = roots(tape, from, to, &Node::outputs);
  std::set<TensorId> wanted = roots(tape, to, tape.nodes.size(), &Node::inputs);
  wanted.insert(tape.root(tape.output));
  std::int64_t in = 0, out = 0;
  for (const TensorId t : roots(tape, from, to, &Node::inputs))
    if (!made.contains(t)) in += tape.tensors[static_cast<std::size_t>(t)].bytes;
  for (const TensorId t : made)
    if (wanted.contains(t) && tape.tensors[static_cast<std::size_t>(t)].needs_gradient) out += tape.tensors[static_cast<std::size_t>(t)].bytes;
  std::vector<Item>&forward = tape.nodes[from].forward, &backward = tape.nodes[to - 1].backward;
  if (in > 0) forward.insert(forward.begin(), op.kernel("graph inputs", in, in));
  if (out > 0) backward.insert(backward.begin(), op.kernel("graph output gradients", out, out));
}

}  // namespace

void capture_graphs(const LowerContext& c, const Operators& op, const model::Layer& layer, Tape& tape) {
  mark_captured(c, layer, tape);
  if (c.strategy.training.cuda_graph.value_or(false)) return;   // from end to end there is one graph
  for (std::size_t from = 0; from < tape.nodes.size();) {
    std::size_t to = from;
    while (to < tape.nodes.size() && tape.nodes[to].captured) ++to;
    if (to > from) copy_around(op, tape, from, to);
    from = to + 1;
  }
}

}  // namespace rehearse::strategies
