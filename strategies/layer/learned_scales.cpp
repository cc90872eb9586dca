// Learned factors on branches, on the stream and on queries (model::LearnedScales), in kernels of their own or as TorchInductor makes them.
// What that keeps for backward was asked of PyTorch: tests/oracles/torch_learned_scales.py.
#include <string>
#include <utility>

#include "strategies/layer/blocks.h"

namespace rehearse::strategies {
namespace {

using model::KernelKind;

/// Factors are summed over tokens, TorchInductor's in one pass over both operands; PyTorch's writes their product first.
Item factor_gradient(const LowerContext& c, Operators& op, int weight, const std::string& name, std::int64_t operands, std::int64_t product, std::int64_t factors) {
  const std::int64_t read = c.profile.compiled ? operands : operands + product;
  return op.weight_gradient(weight, op.kernel(name + " gradient", read, (c.profile.compiled ? 0 : product) + factors * 4, KernelKind::reduction));
}

int factors_of(Operators& op, Tape& tape, const std::string& name, std::int64_t elements, bool& trained) {
  Weight factors = op.weight(name, elements);
  factors.matrix = false;
  factors.replicated_over_tensor = true;
  trained = factors.trainable;
  return tape.weight(std::move(factors));
}

}  // namespace

/// Compiled, the kernel that adds the branch multiplies it, so the product is no tensor; the branch is kept for the vector's gradient. The kernel
/// that has made the stream's gradient writes the branch's as well.
TensorId scaled_branch(const LowerContext& c, Operators& op, Tape& tape, TensorId branch, const std::string& name) {
  const std::int64_t bytes = c.stream_tokens() * c.model.hidden * c.element();
  bool trained = false;
  const int w = factors_of(op, tape, name + ".weight", c.model.hidden, trained);
  const TensorId y = c.profile.compiled ? tape.part(name, branch, bytes) : tape.tensor(name, bytes);
  Node n{.name = name, .inputs = {branch}, .outputs = {y}};
  if (!c.profile.compiled) n.forward = {op.kernel(name, bytes, bytes)};
  n.backward = {op.kernel(name + " backward", c.profile.compiled ? 0 : bytes, bytes)};
  if (trained) {
    n.saved = {branch};
    n.backward.push_back(factor_gradient(c, op, w, name, 2 * bytes, bytes, c.model.hidden));
  }
  tape.nodes.push_back(std::move(n));
  return y;
}

/// Compiled: one kernel reads the embedding's output beside the stream, which the norm's read stands for, and writes the mix. Backward writes the
/// stream's gradient, adds to the embedding's, and sums over tokens what the mix's gradient and each of the two give.
TensorId mixed_with_embedding(const LowerContext& c, Operators& op, Tape& tape, TensorId x) {
  const std::string name = "embedding mix";
  const std::int64_t bytes = c.stream_tokens() * c.model.hidden * c.stream_element();
  bool trained = false;
  const int w = factors_of(op, tape, name + ".weight", 2 * c.model.hidden, trained);
  const TensorId y = tape.tensor(name, bytes);
  Node n{.name = name, .inputs = {x}, .outputs = {y}};
  const bool compiled = c.profile.compiled;
  n.forward = {op.kernel(name, (compiled ? 1 : 4) * bytes, (compiled ? 1 : 3) * bytes)};
  n.backward = {op.kernel(name + " backward", (compiled ? 1 : 4) * bytes, (compiled ? 2 : 3) * bytes)};
  if (trained) {
    n.saved = {x};
    n.backward.push_back(factor_gradient(c, op, w, name, (compiled ? 3 : 4) * bytes, 2 * bytes, 2 * c.model.hidden));
  }
  tape.nodes.push_back(std::move(n));
  return y;
}

/// Compiled: the kernel that rotates writes the product as well, the one that rotates back multiplies its gradient.
TensorId scaled_queries(const LowerContext& c, Operators& op, Tape& tape, TensorId q, std::int64_t width) {
  const std::string name = "query scale";
  const std::int64_t bytes = c.tokens * width * c.element();
  bool trained = false;
  const int w = factors_of(op, tape, name + ".weight", c.model.heads / c.tensor, trained);
  tape.weights.back().replicated_over_tensor = false;
  const TensorId y = tape.tensor(name, bytes);
  Node n{.name = name, .inputs = {q}, .outputs = {y}, .forward = {op.kernel(name, c.profile.compiled ? 0 : bytes, bytes)}};
  if (c.profile.compiled) n.gradient_in_place = true;
  else n.backward = {op.kernel(name + " backward", bytes, bytes)};
  if (trained) {
    n.saved = {q};
    n.backward.insert(n.backward.begin(), factor_gradient(c, op, w, name, 2 * bytes, bytes, c.model.heads / c.tensor));
  }
  tape.nodes.push_back(std::move(n));
  return y;
}

}  // namespace rehearse::strategies
