// Buffers of gradients in the backward of a tape: made, shared, summed, handed on, and what becomes of a weight's.
// Leaves out when a node makes them (tape_backward.cpp).
#include <algorithm>
#include <utility>

#include "sim/core/contract.h"
#include "strategies/layer/emitter.h"

namespace rehearse::strategies {

using plan::Category;
using plan::Frame;

int TapeEmitter::new_gradient(const std::string& name, std::int64_t bytes) {
  Storage s{Frame::own, new_slot(name), 1};
  out_->alloc(s.slot, bytes, Category::temporary);
  storages_.push_back(s);
  return static_cast<int>(storages_.size()) - 1;
}

void TapeEmitter::unref(int storage) {
  Storage& s = storages_[static_cast<std::size_t>(storage)];
  if (--s.refs == 0) out_->free(s.slot, s.frame);
}

std::int64_t TapeEmitter::gradient_bytes(TensorId t) const {
  const TapeTensor& info = tape_.tensors[static_cast<std::size_t>(tape_.gradient_root(t))];
  return info.gradient_bytes >= 0 ? info.gradient_bytes : info.bytes;
}

/// The loss writes its gradient over the tensor it kept.
int TapeEmitter::take_over(TensorId t) {
  Tensor& state = tensor(t);
  EXPECTS(state.live, "a gradient in place needs the tensor");
  state.live = false;
  storages_.push_back({state.frame, state.slot, 1});
  return static_cast<int>(storages_.size()) - 1;
}

/// The gradient of a saved input takes the place of that input, unless somebody else still reads it.
void TapeEmitter::write_over(TensorId t) {
  if (!graph_.wants_gradient(t)) return;
  const Tensor& state = tensor(t);
  const TensorId root = tape_.gradient_root(t);
  const bool owned = state.live && state.uses == 0 && state.saved == 1 && (tape_.input == kNoTensor || tape_.root(t) != tape_.root(tape_.input));
  const bool whole = gradient_bytes(t) == tape_.tensors[static_cast<std::size_t>(tape_.root(t))].bytes;
  made_.emplace_back(root, owned && whole ? take_over(t) : new_gradient(tape_.tensors[static_cast<std::size_t>(root)].name + " gradient", gradient_bytes(t)));
}

/// TorchInductor makes the sum inside the kernel that needs it, mostly a norm's backward, which then reads one gradient more
/// (tests/oracles/torch_compiled_layer.py: the sums of all projections' gradients lie in the norms' kernels). So do kernels that add and
/// normalise in one (Operators::norm).
void TapeEmitter::add_kernel(std::int64_t bytes) {
  const bool inside = profile_.residual == Fusion::compiled || profile_.wide_residual;
  kernel(builder_.kernel({.kind = model::KernelKind::elementwise, .bytes_read = inside ? bytes : 2 * bytes, .bytes_written = inside ? 0 : bytes, .name = inside ? "gradient sum" : "gradient add"}));
}

/// A second gradient for the same tensor is summed, in place when nobody else holds the first.
void TapeEmitter::give_gradient(TensorId t, int storage) {
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

void TapeEmitter::produce_input_gradients(const Node& it) {
  if (produced_) return;
  produced_ = true;
  for (std::size_t i = static_cast<std::size_t>(it.passed_inputs); i < it.inputs.size(); ++i) {
    const TensorId t = it.inputs[i];
    if (!graph_.wants_gradient(t)) continue;
    // Views of one storage share one gradient buffer: made once per node.
    const TensorId root = tape_.gradient_root(t);
    if (std::any_of(made_.begin(), made_.end(), [&](const auto& m) { return m.first == root; })) continue;
    made_.emplace_back(root, new_gradient(tape_.tensors[static_cast<std::size_t>(root)].name + " gradient", gradient_bytes(t)));
  }
}

void TapeEmitter::release(std::vector<int>& gradients) {
  for (int g : gradients) unref(g);
  gradients.clear();
}

/// The product that makes a weight's gradient; `place` makes the tensor that it goes into, `after` is what is done with that. Under autocast the
/// product is the gradient of a 16-bit copy, which ToCopyBackward widens when this node has let go of what it read: its sequence number is then the
/// highest that is ready.
void TapeEmitter::gradient_product(const Item& item, std::int64_t bytes, std::function<void()> place, std::function<void()> after) {
  const Weight& w = tape_.weights[static_cast<std::size_t>(item.weight)];
  const std::int64_t narrow = 2 * w.elements;
  if (!w.gradient_widened || bytes <= narrow) {
    place();
    kernel(item.spec, plan::Stream::compute, item.launches);
    return after();
  }
  const std::uint32_t copy = new_slot(w.name + " 16-bit gradient");
  out_->alloc(copy, narrow, Category::temporary);
  kernel(item.spec, plan::Stream::compute, item.launches);
  const model::KernelKind kind = profile_.compiled ? model::KernelKind::elementwise : conversion(profile_, narrow, bytes);
  widenings_.push_back([this, kind, narrow, bytes, copy, place = std::move(place), after = std::move(after)] {
    place();
    kernel(builder_.kernel({.kind = kind, .bytes_read = narrow, .bytes_written = bytes, .elements = narrow, .name = "cast gradient"}));
    out_->free(copy);
    after();
  });
}

void TapeEmitter::widen_gradients() {
  for (const std::function<void()>& widen : std::exchange(widenings_, {})) widen();
}

void TapeEmitter::weight_gradient(const Item& item) {
  const Weight& w = tape_.weights[static_cast<std::size_t>(item.weight)];
  if (!w.trainable) return;
  if (options_.hooks_above >= 0) gradients_.push_back(item.weight);
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
      const std::int64_t main = w.elements * width(options_.main_gradient_element_bytes);
      const model::KernelKind kind = bytes == main ? model::KernelKind::elementwise : model::KernelKind::converting;
      gradient_product(item, bytes, [this, temporary, bytes] { out_->alloc(temporary, bytes, Category::temporary); }, [this, temporary, bytes, main, kind, elements = w.elements] {
        kernel(builder_.kernel({.kind = kind, .bytes_read = bytes + main, .bytes_written = main, .elements = 3 * elements, .name = "gradient accumulate"}));
        out_->free(temporary);
      });
      return;
    }
    case WeightGradient::first: return gradient_product(item, bytes, [this, slot, bytes] { out_->alloc(slot, bytes, Category::gradient, Frame::unit); }, [] {});
  }
}

}  // namespace rehearse::strategies
