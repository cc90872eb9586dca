// bitsandbytes' paged optimizers: states of large tensors lie in CUDA's unified memory. While they fit beside everything else
// they stay on the GPU. Where they do not, the step's walk over all of them finds none in place: the driver evicts what was used
// longest ago, which is what is needed next. Each tensor's states are prefetched in turn, and as much leaves for them.
// Sources: bitsandbytes optim/optimizer.py (get_state_buffer, prefetch_state, step); Allen and Ge 2021, In-depth analyses of
// unified virtual memory system for GPU accelerated computing (eviction of the least recently used).
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

std::int64_t DataParallelWriter::paged_bytes(const Weight& w) const {
  if (!stage_.strategy.memory.paged_optimizer || !w.trainable || w.parameter_elsewhere || w.elements < kSmallestPaged) return 0;
  return strategies::state_bytes(w, stage_.strategy.training.optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8);
}

std::int64_t DataParallelWriter::paged_bytes() const {
  std::int64_t sum = 0;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights) sum += paged_bytes(w);
  return sum;
}

/// `gradient`: bytes of a gradient's element.
void DataParallelWriter::update_paged(std::int64_t gradient) {
  const std::vector<bool>& evicted = stage_.strategy.memory.states_are_evicted;
  const auto index = static_cast<std::size_t>(&stage_.rank_class - builder().plan().classes.data());
  const bool moves = index < evicted.size() && evicted[index];
  for (const Unit& u : stage_.units) {
    std::string key = "paged optimizer step";
    for (const Weight& w : u.tape->weights) key += " " + std::to_string(w.trainable && !w.parameter_elsewhere ? w.elements : 0) + (w.wide_bytes > 0 ? "w" : "");
    stage_.call(key, Phase::optimizer, &u, [&](plan::BlockWriter& block) {
      for (const Weight& w : u.tape->weights) {
        if (!w.trainable || w.parameter_elsewhere) continue;
        const int both = plan::kAfterCompute | plan::kComputeWaits;   // the prefetch is work of the compute stream
        if (const std::int64_t paged = paged_bytes(w); moves && paged > 0) {
          block.copy(builder().copy({CopySpec::Direction::device_to_host, true, Bytes{paged}}), Stream::to_host, both, host());
          block.copy(builder().copy({CopySpec::Direction::host_to_device, true, Bytes{paged}}), Stream::to_device, both, host());
        }
        const std::int64_t stored = w.elements * (w.wide_bytes > 0 ? w.wide_bytes : stored_bytes()), gradients = w.elements * (w.wide_bytes > 0 ? 4 : gradient);
        const std::int64_t copy = w.wide_bytes == 0 && profile().master_parameters ? 4 * w.elements : 0;
        const std::int64_t states = copy + strategies::state_bytes(w, stage_.strategy.training.optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8);
        block.kernel(builder().kernel({.kind = KernelKind::optimizer, .dtype = DType::fp32, .bytes_read = gradients + states + (copy > 0 ? 0 : stored), .bytes_written = states + stored,
                                       .flops = 12.0 * static_cast<double>(w.elements), .name = "optimizer step"}),
                     host());
      }
    });
  }
  stage_.call("paged optimizer ends", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

}  // namespace rehearse::strategies
