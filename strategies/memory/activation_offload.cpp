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
}  // namespace

ActivationOffload::ActivationOffload(Stage& stage) : stage_(stage) {
  const Memory& m = stage.strategy.memory;
  to_host_ = m.offload.activations == MemoryTier::cpu;
  partitions_ = m.partition_activations && stage.sizes.tensor > 1;
  pinned_ = m.offload.pinned;
}

template <typename Write>
void ActivationOffload::call(const StoredInput& input, const std::string& name, Phase phase, Write write) {
  const std::uint32_t block = stage_.block(name + " " + std::to_string(input.bytes) + " " + std::to_string(input.extra), write);
  plan::Call c = input.call;
  c.block = block;
  c.phase = phase;
  stage_.append(c);
}

void ActivationOffload::store(const StoredInput& in) {
  const std::int64_t bytes = kept(in.bytes);
  const Duration host = stage_.profile.kernel_host;
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
    if (!pinned_) w.host_wait(in.extra + kGone);
  });
  if (!to_host_) return;
  settle();
  leaving_ = in;
  if (!pinned_) settle();
  live_ += bytes;
  if (live_ > peak_) {
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

void ActivationOffload::use(const StoredInput& in) {
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
