// Weights that are updated one by one: bitsandbytes' paged optimizers, and updates that do not wait for the end of backward
// (a hook on each weight's gradient, torchtune training/memory.py).
// bitsandbytes' paged optimizers: states of large tensors lie in CUDA's unified memory. While they fit beside everything else
// they stay on the GPU. Where they do not, the step's walk over all of them finds none in place: the driver evicts what was used
// longest ago, which is what is needed next. Each tensor's states are prefetched in turn, and as much leaves for them. Under FSDP the
// tensors are this rank's shards.
// Sources: bitsandbytes optim/optimizer.py (get_state_buffer, prefetch_state, step); Allen and Ge 2021, In-depth analyses of
// unified virtual memory system for GPU accelerated computing (eviction of the least recently used).
#include <algorithm>

#include "strategies/data/data_parallel.h"
#include "strategies/optimizer/optimizer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::CopySpec;
using plan::Phase;
using plan::Stream;

namespace {
constexpr std::int64_t kSmallestPaged = 100'000;   // elements: smaller tensors have states of the usual kind
}  // namespace

/// What this rank updates of a weight: all of it, or its shard.
Weight DataParallelWriter::own_part(const Weight& w) const {
  Weight mine = w;
  const DataParallelKind kind = stage_.strategy.data_parallel.kind;
  if (kind != DataParallelKind::fsdp1 && kind != DataParallelKind::fsdp2) return mine;
  const std::int64_t ranks = stage_.sizes.sharing(w.in(Part::experts) ? Part::experts : Part::dense);
  mine.elements = (w.elements + ranks - 1) / ranks;
  return mine;
}

std::int64_t DataParallelWriter::paged_bytes(const Weight& whole) const {
  if (!stage_.strategy.memory.paged_optimizer || !whole.trainable || whole.parameter_elsewhere) return 0;
  const Weight w = own_part(whole);
  if (w.elements < kSmallestPaged) return 0;
  return strategies::state_bytes(w, stage_.strategy.training.optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8);
}

std::int64_t DataParallelWriter::paged_bytes() const {
  std::int64_t sum = 0;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights) sum += paged_bytes(w);
  return sum;
}

/// Names the weights that a block updates.
std::string DataParallelWriter::updated_weights(const Unit& u) {
  std::string key;
  for (const Weight& w : u.tape->weights) key += " " + std::to_string(w.trainable && !w.parameter_elsewhere ? w.elements : 0) + (w.wide_bytes > 0 ? "w" : "");
  return key;
}

void DataParallelWriter::update_weights(const Unit& u, std::int64_t gradient, plan::BlockWriter& block) {
  const std::vector<bool>& evicted = stage_.strategy.memory.states_are_evicted;
  const auto index = static_cast<std::size_t>(&stage_.rank_class - builder().plan().classes.data());
  const bool moves = index < evicted.size() && evicted[index];
  const Optimizer optimizer = stage_.strategy.training.optimizer;
  // torch.optim's foreach kernels on one weight (data_parallel.cpp, update); bitsandbytes has a kernel of its own.
  const double passes = profile().fused_optimizer || stage_.strategy.memory.paged_optimizer ? 1.0 : foreach_passes(optimizer);
  const auto traffic = [&](std::int64_t bytes) { return static_cast<std::int64_t>(static_cast<double>(bytes) * passes); };
  for (const Weight& whole : u.tape->weights) {
    if (!whole.trainable || whole.parameter_elsewhere) continue;
    const Weight w = own_part(whole);
    const int both = plan::kAfterCompute | plan::kComputeWaits;   // the prefetch is work of the compute stream
    if (const std::int64_t paged = paged_bytes(whole); moves && paged > 0) {
      block.copy(builder().copy({CopySpec::Direction::device_to_host, true, Bytes{paged}}), Stream::to_host, both, host());
      block.copy(builder().copy({CopySpec::Direction::host_to_device, true, Bytes{paged}}), Stream::to_device, both, host());
    }
    const std::int64_t stored = w.elements * (w.wide_bytes > 0 ? w.wide_bytes : stored_bytes()), gradients = w.elements * (w.wide_bytes > 0 ? 4 : gradient);
    const std::int64_t copy = w.wide_bytes == 0 ? profile().master_bytes() * w.elements : 0;
    const std::int64_t states = copy + strategies::state_bytes(w, optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8);
    block.kernel(builder().kernel({.kind = KernelKind::optimizer, .dtype = DType::fp32, .bytes_read = traffic(gradients + states + (copy > 0 && profile().updates_master() ? 0 : stored)), .bytes_written = traffic(states + stored),
                                   .elements = optimizer == Optimizer::adamw && passes == 1.0 ? w.elements : 0, .flops = 12.0 * static_cast<double>(w.elements), .name = "optimizer step"}),
                 host());
  }
}

/// `gradient`: bytes of a gradient's element.
void DataParallelWriter::update_paged(std::int64_t gradient) {
  for (const Unit& u : stage_.units)
    stage_.call("paged optimizer step" + updated_weights(u), Phase::optimizer, &u, [&](plan::BlockWriter& block) { update_weights(u, gradient, block); });
  stage_.call("paged optimizer ends", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

/// A tied table gets its gradient from the head first and from the embedding last: it waits for both.
void DataParallelWriter::update_in_backward(const Unit& u, std::int64_t gradient) {
  if (std::none_of(u.tape->weights.begin(), u.tape->weights.end(), [](const Weight& w) { return w.trainable; })) return;
  make_states(u);
  stage_.call("update in backward" + updated_weights(u) + " " + pattern_of(u), Phase::optimizer, &u, [&](plan::BlockWriter& block) {
    update_weights(u, gradient, block);
    for (std::size_t i = 0; i < u.tape->weights.size(); ++i)
      if (const Weight& w = u.tape->weights[i]; w.trainable && !w.gradient_elsewhere && !w.parameter_elsewhere) block.free(static_cast<std::uint32_t>(i), plan::Frame::unit);
  });
}

void DataParallelWriter::free_tied_gradients() {
  for (const Unit& u : stage_.units) {
    const auto& weights = u.tape->weights;
    if (std::none_of(weights.begin(), weights.end(), [](const Weight& w) { return w.trainable && w.parameter_elsewhere && !w.gradient_elsewhere; })) continue;
    stage_.call("free tied gradients", Phase::optimizer, &u, [&](plan::BlockWriter& block) {
      for (std::size_t i = 0; i < weights.size(); ++i)
        if (weights[i].trainable && weights[i].parameter_elsewhere && !weights[i].gradient_elsewhere) block.free(static_cast<std::uint32_t>(i), plan::Frame::unit);
    });
  }
}

}  // namespace rehearse::strategies
