#include "strategies/memory/saved_offload.h"

#include <algorithm>

#include "strategies/layer/tape_emitter.h"

namespace rehearse::strategies {

using plan::Category;
using plan::CopySpec;
using plan::Frame;
using plan::Opcode;
using plan::Phase;
using plan::Stream;

namespace {
enum SavedExtra : std::uint32_t { kSavedGone, kSavedBack };
}  // namespace

SavedOffload::SavedOffload(Stage& stage)
    : stage_(stage),
      active_(stage.strategy.memory.offload.activations == MemoryTier::cpu && stage.strategy.memory.recompute != Recompute::full && !stage.evaluates()),
      pinned_(stage.strategy.memory.offload.pinned),
      most_(static_cast<std::size_t>(stage.strategy.memory.offload.activation_layers)) {}

std::size_t SavedOffload::offloaded(std::size_t layers) const { return most_ == 0 ? layers : std::min(most_, layers); }

std::size_t SavedOffload::gone_behind(std::size_t layer, std::size_t layers) const {
  const std::size_t away = offloaded(layers);
  return away == layers ? layer + 1 : layers - away + layer - 1;
}

std::size_t SavedOffload::fetched_before(std::size_t layer, std::size_t layers) const {
  const std::size_t away = offloaded(layers);
  return away == layers ? std::min(layer + 1, layers - 1) : layers - 1 - away + layer;
}

/// What the forward block allocates and does not free, and the input, if it leaves that as well.
const std::vector<SavedOffload::Saved>& SavedOffload::saved(const Layer& layer) {
  const auto [known, fresh] = saved_.try_emplace(layer.forward);
  if (!fresh) return known->second;
  std::map<std::uint32_t, std::int64_t> own;
  bool input = layer.call.frames[static_cast<std::size_t>(Frame::below)] != plan::kNoFrame;
  for (const plan::Instruction& i : stage_.builder.block(layer.forward).memory) {
    if (i.op == Opcode::alloc && i.frame == Frame::own && static_cast<Category>(i.flags) == Category::activation) own[i.index] = i.value;
    if (i.op == Opcode::free && i.frame == Frame::own) own.erase(i.index);
    if (i.op == Opcode::free && i.frame == Frame::below && i.index == kOutputSlot) input = false;
    if (i.op != Opcode::move) continue;
    const auto from = static_cast<std::uint32_t>(i.value);
    if (i.frame == Frame::below && from == kOutputSlot) own[i.index] = layer.input_bytes, input = false;
    if (i.frame != Frame::own || !own.contains(from)) continue;
    own[i.index] = own[from];
    own.erase(from);
  }
  own.erase(kOutputSlot);   // the next layer's input
  for (const std::uint32_t slot : *layer.staying) own.erase(slot);
  for (const auto& [slot, size] : own)
    if (size >= kLeast) known->second.push_back({Frame::own, slot, size});
  if (input && layer.input_bytes >= kLeast) known->second.push_back({Frame::below, kOutputSlot, layer.input_bytes});
  return known->second;
}

std::int64_t SavedOffload::bytes(const Layer& layer) {
  std::int64_t sum = 0;
  for (const Saved& s : saved(layer)) sum += s.bytes;
  return sum;
}

template <typename Write>
void SavedOffload::call(const Layer& layer, const char* what, Phase phase, Write write) {
  plan::Call c = layer.call;
  c.block = stage_.block(std::string(what) + " of block " + std::to_string(layer.forward), [&](plan::BlockWriter& w) {
    w.reserve_slots(layer.extra + kSlots);
    write(w);
  });
  c.phase = phase;
  stage_.append(c);
}

void SavedOffload::leave(const Layer& layer) {
  call(layer, "offload activations", Phase::forward, [&](plan::BlockWriter& w) {
    for (const Saved& s : saved(layer)) w.copy(stage_.builder.copy({CopySpec::Direction::device_to_host, pinned_, Bytes{s.bytes}}), Stream::to_host, plan::kAfterCompute, stage_.profile.kernel_host);
    w.record(Stream::to_host, layer.extra + kSavedGone);
    if (!pinned_) w.host_wait(layer.extra + kSavedGone);
  });
  live_ += bytes(layer);
  if (live_ <= peak_) return;
  (pinned_ ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += live_ - peak_;
  peak_ = live_;
}

void SavedOffload::let_go(const Layer& layer) {
  call(layer, "let go of activations", Phase::forward, [&](plan::BlockWriter& w) {
    w.wait(Stream::compute, layer.extra + kSavedGone);
    for (const Saved& s : saved(layer)) w.free(s.slot, s.frame);
  });
}

void SavedOffload::come_back(const Layer& layer) {
  call(layer, "fetch activations", Phase::backward, [&](plan::BlockWriter& w) {
    for (const Saved& s : saved(layer)) w.alloc(s.slot, s.bytes, Category::activation, s.frame);
    for (const Saved& s : saved(layer)) w.copy(stage_.builder.copy({CopySpec::Direction::host_to_device, pinned_, Bytes{s.bytes}}), Stream::to_device, plan::kAfterCompute, stage_.profile.kernel_host);
    w.record(Stream::to_device, layer.extra + kSavedBack);
    if (!pinned_) w.host_wait(layer.extra + kSavedBack);
  });
  live_ -= bytes(layer);
}

void SavedOffload::use(const Layer& layer) {
  call(layer, "use activations", Phase::backward, [&](plan::BlockWriter& w) { w.wait(Stream::compute, layer.extra + kSavedBack); });
}

}  // namespace rehearse::strategies
