#include "strategies/memory/activation_offload.h"

#include <algorithm>
#include <utility>

#include "strategies/layer/tape_emitter.h"

namespace rehearse::strategies {

using plan::Category;
using plan::CopySpec;
using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {
enum Extra : std::uint32_t { kShard, kGone, kBack };
// From here on malloc always asks the operating system and free gives back (glibc malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MAX).
constexpr std::int64_t kMapped = std::int64_t{32} << 20;
}  // namespace

ActivationOffload::ActivationOffload(Stage& stage) : stage_(stage) {
  const Memory& m = stage.strategy.memory;
  to_host_ = m.offload.activations == MemoryTier::cpu && m.recompute == Recompute::full;
  partitions_ = m.partition_activations && stage.sizes.tensor > 1;
  contiguous_ = m.contiguous_checkpoints;
  pinned_ = m.offload.pinned && !contiguous_;   // DeepSpeed's buffers are plain tensors (checkpointing.py: new_empty(device='cpu'))
  synchronises_ = m.synchronize_checkpoints;
  if (!contiguous_) return;
  const std::int64_t recomputed = (stage.layers + m.recompute_every - 1) / m.recompute_every;
  number_ = m.number_checkpoints > 0 ? m.number_checkpoints : static_cast<int>(recomputed);
  buffers_ = stage.frames.acquire(static_cast<std::uint32_t>(number_));
}

template <typename Write>
void ActivationOffload::call(const StoredInput& input, const std::string& name, Phase phase, Write write) {
  const std::uint32_t block = stage_.block(name + " " + std::to_string(input.bytes) + " " + std::to_string(input.extra), write);
  plan::Call c = input.call;
  c.block = block;
  c.phase = phase;
  stage_.append(c);
}

/// torch.cuda.synchronize around a recomputed layer.
void ActivationOffload::synchronise(Phase phase) {
  if (synchronises_) stage_.call("synchronise at checkpoint", phase, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

/// All buffers at the first checkpoint of a forward pass, in host memory where checkpoints go there. Those that nobody fills
/// go with the first backward. Source: deepspeed runtime/activation_checkpointing/checkpointing.py, partition_activations.
void ActivationOffload::make_buffers(std::int64_t bytes) {
  if (to_host_) {
    stage_.rank_class.host.pageable += std::max<std::int64_t>(0, number_ * bytes - peak_);
    peak_ = std::max(peak_, number_ * bytes);
    return;
  }
  for (int k = 0; k < number_; ++k) {
    plan::Call c{.block = stage_.block("checkpoint buffer " + std::to_string(bytes), [&](plan::BlockWriter& w) { w.alloc(w.new_slot("checkpoint buffer"), bytes, Category::activation); }), .phase = Phase::forward};
    c.frames[static_cast<std::size_t>(Frame::own)] = buffers_ + static_cast<std::uint32_t>(k);
    stage_.append(c);
  }
}

void ActivationOffload::store(const StoredInput& in) {
  const std::int64_t bytes = kept(in.bytes);
  const Duration host = stage_.profile.kernel_host;
  synchronise(Phase::forward);
  if (contiguous_ && filled_ == 0) make_buffers(bytes);
  if (contiguous_ && !to_host_) {
    StoredInput into = in;
    into.call.frames[static_cast<std::size_t>(Frame::above)] = buffers_ + static_cast<std::uint32_t>(filled_++);
    call(into, "layer input into buffer", Phase::forward, [&](plan::BlockWriter& w) {
      w.reserve_slots(in.extra + kOffloadSlots);
      auto copy = [&](const char* name) { w.kernel(stage_.builder.kernel({.kind = model::KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = name}), host); };
      w.alloc(in.extra + kShard, bytes, Category::temporary);   // this rank's part, cloned before it is copied
      copy("partition layer input");
      copy("layer input into buffer");
      w.free(in.extra + kShard);
      w.free(kOutputSlot, Frame::below);
    });
    return;
  }
  if (contiguous_) ++filled_;
  if (!to_host_ && !partitions_) return;
  call(in, "store layer input", Phase::forward, [&](plan::BlockWriter& w) {
    w.reserve_slots(in.extra + kOffloadSlots);
    if (partitions_) {
      w.alloc(in.extra + kShard, bytes, Category::activation);
      w.kernel(stage_.builder.kernel({.kind = model::KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "partition layer input"}), host);
      w.free(kOutputSlot, Frame::below);
    }
    if (!to_host_) return;
    w.copy(stage_.builder.copy({CopySpec::Direction::device_to_host, pinned_, Bytes{bytes}}), Stream::to_host, plan::kAfterCompute | (pinned_ ? 0 : plan::kComputeWaits), host);
    w.record(Stream::to_host, in.extra + kGone);
    if (pinned_) return;
    w.host_wait(in.extra + kGone);
    // Plain tensors are made for each step and go with its backward. Large ones get new pages each time, which what fills them touches first.
    if (bytes >= kMapped) w.host_work(stage_.builder.host_work({.name = "pages for layer input", .threads = 1, .fresh = Bytes{bytes}}));
  });
  if (!to_host_) return;
  settle();
  leaving_ = in;
  if (!pinned_) settle();
  live_ += bytes;
  if (live_ > peak_) {  // with buffers in host memory never: they have been counted
    (pinned_ ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += live_ - peak_;
    peak_ = live_;
  }
}

/// The buffer is free for others once it has been copied; the next layer's forward hides that.
void ActivationOffload::settle() {
  if (!leaving_) return;
  const StoredInput in = *std::exchange(leaving_, std::nullopt);
  call(in, "let go of layer input", Phase::forward, [&](plan::BlockWriter& w) {
    w.reserve_slots(in.extra + kOffloadSlots);
    w.wait(Stream::compute, in.extra + kGone);
    w.free(partitions_ ? in.extra + kShard : kOutputSlot, partitions_ ? Frame::own : Frame::below);
  });
}

void ActivationOffload::fetch(const StoredInput& in) {
  if (!to_host_) return;
  const std::int64_t bytes = kept(in.bytes);
  call(in, "fetch layer input", Phase::backward, [&](plan::BlockWriter& w) {
    w.reserve_slots(in.extra + kOffloadSlots);
    const std::uint32_t slot = partitions_ ? in.extra + kShard : kOutputSlot;
    w.alloc(slot, bytes, Category::activation, partitions_ ? Frame::own : Frame::below);
    w.wait(Stream::to_device, in.extra + kGone);
    w.copy(stage_.builder.copy({CopySpec::Direction::host_to_device, pinned_, Bytes{bytes}}), Stream::to_device, plan::kAfterCompute, stage_.profile.kernel_host);
    w.record(Stream::to_device, in.extra + kBack);
    if (!pinned_) w.host_wait(in.extra + kBack);
  });
  live_ -= bytes;
}

void ActivationOffload::done() {
  synchronise(Phase::backward);
}

void ActivationOffload::use(const StoredInput& in) {
  synchronise(Phase::backward);
  const bool first = contiguous_ && !to_host_ && filled_ > 0 && !taking_;
  if (contiguous_) --filled_, taking_ = filled_ > 0;
  if (first)
    for (int k = filled_ + 1; k < number_; ++k) {
      plan::Call c{.block = stage_.block("free checkpoint buffer", [](plan::BlockWriter& w) { w.free(0); }), .phase = Phase::backward};
      c.frames[static_cast<std::size_t>(Frame::own)] = buffers_ + static_cast<std::uint32_t>(k);
      stage_.append(c);
    }
  if (contiguous_ && !to_host_) {
    StoredInput from = in;   // the block's own frame is the one below the unit: its output is what has been kept
    from.call.frames[static_cast<std::size_t>(Frame::own)] = in.call.frames[static_cast<std::size_t>(Frame::below)];
    from.call.frames[static_cast<std::size_t>(Frame::above)] = buffers_ + static_cast<std::uint32_t>(filled_);
    call(from, "layer input from buffer", Phase::backward, [&](plan::BlockWriter& w) {
      if (stage_.sizes.tensor == 1) return w.move(kOutputSlot, 0, Frame::above);
      w.alloc(kOutputSlot, in.bytes, Category::activation);
      w.collective(stage_.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::tensor, Bytes{in.bytes}, "gather layer input"}), Stream::tensor, plan::kAfterCompute | plan::kComputeWaits,
                   stage_.profile.collective_host);
      w.free(0, Frame::above);
    });
    return;
  }
  if (!to_host_ && !partitions_) return;
  call(in, "use layer input", Phase::backward, [&](plan::BlockWriter& w) {
    w.reserve_slots(in.extra + kOffloadSlots);
    if (to_host_) w.wait(Stream::compute, in.extra + kBack);
    if (!partitions_) return;
    w.alloc(kOutputSlot, in.bytes, Category::activation, Frame::below);
    w.collective(stage_.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::tensor, Bytes{in.bytes}, "gather layer input"}), Stream::tensor, plan::kAfterCompute | plan::kComputeWaits,
                 stage_.profile.collective_host);
    w.free(in.extra + kShard);
  });
}

}  // namespace rehearse::strategies
