#include "sim/executor/memory_periods.h"

#include <algorithm>
#include <utility>

namespace rehearse::executor {

MemoryPeriods::MemoryPeriods(const plan::Plan& plan, const plan::Program& program)
    : program_(program), repeats_(program), last_use_(program.slots + 1), live_in_frame_(program.slots + 1) {
  const Repeat& r = repeats_.stretch();
  for (std::size_t i = r.first; i < r.first + r.period; ++i) operations_ += plan.blocks[program.step[i].block].memory.size();
}

void MemoryPeriods::begin_step() {
  candidate_.reset();
  periods_.clear();
}

MemoryPeriods::LeftOut MemoryPeriods::same_again(std::size_t call, std::int64_t operations, std::vector<MemorySlot>& slots,
                                                 const hwmodels::CachingAllocator& allocator) {
  const std::uint64_t places = std::exchange(places_, 0);
  if (candidate_ && call >= candidate_due_) {
    Moment now = moment(call, operations, slots, allocator);
    if (call == candidate_due_ && candidate_->equals(now)) {
      const std::size_t stretch = call - candidate_->call, times = (repeats_.stretch().end - call) / stretch;
      if (times > 0) rename(call, call + times * stretch, slots);
      const LeftOut out{times * stretch, static_cast<std::int64_t>(times) * (operations - candidate_->operations)};
      begin_step();
      return out;
    }
    candidate_.reset();
  }
  const auto [earlier, fresh] = periods_.try_emplace(places, call);
  if (!fresh) {
    const std::size_t stretch = call - std::exchange(earlier->second, call);
    if (!candidate_ && call + 2 * stretch <= repeats_.stretch().end) {
      candidate_ = moment(call, operations, slots, allocator);
      candidate_due_ = call + stretch;
    }
  }
  return {};
}

bool MemoryPeriods::use_frames(const plan::Call& call, std::size_t index) {
  for (std::size_t p = call.frames.size(); p-- > 0;) {
    const std::uint32_t frame = call.frames[p];
    if (frame == plan::kNoFrame) continue;
    if ((repeats_.fresh(index) >> p & 1u) && live_in_frame_[frame] != 0) return false;
    last_use_[frame] = {static_cast<std::uint32_t>(index), static_cast<std::uint8_t>(p)};
  }
  return true;
}

MemoryPeriods::Moment MemoryPeriods::moment(std::size_t call, std::int64_t operations, const std::vector<MemorySlot>& slots,
                                            const hwmodels::CachingAllocator& allocator) const {
  Moment now{.call = call, .operations = operations, .allocator = allocator.condition(), .live = {}};
  for (std::uint32_t s = 0; s < slots.size(); ++s) {
    const MemorySlot& slot = slots[s];
    if (slot.bytes == 0) continue;
    const FrameUse use = last_use_[slot.frame];
    const bool fixed = repeats_.fixed(slot.frame);
    now.live.push_back({allocator.address_of(slot.block), slot.bytes,
                        fixed ? slot.frame : static_cast<std::uint32_t>(call) - use.call, s - slot.frame,
                        fixed ? kFixed : use.place, slot.category});
  }
  return now;
}

bool MemoryPeriods::Moment::equals(Moment& other) {
  if (live.size() != other.live.size() || !allocator.equals(other.allocator)) return false;
  sort();
  other.sort();
  return live == other.live;
}

void MemoryPeriods::Moment::sort() {
  if (!sorted) std::sort(live.begin(), live.end(), [](const LiveSlot& a, const LiveSlot& b) { return a.address < b.address; });
  sorted = true;
}

/// What lives before call `from` lives on under the names that it has before call `to`, which does the same.
void MemoryPeriods::rename(std::size_t from, std::size_t to, std::vector<MemorySlot>& slots) {
  std::vector<std::pair<std::uint32_t, MemorySlot>> moved;
  std::vector<std::pair<std::uint32_t, FrameUse>> uses;
  for (std::uint32_t s = 0; s < slots.size(); ++s) {
    MemorySlot& slot = slots[s];
    if (slot.bytes == 0 || repeats_.fixed(slot.frame)) continue;
    const std::uint32_t old = slot.frame;
    const FrameUse use{static_cast<std::uint32_t>(to - (from - last_use_[old].call)), last_use_[old].place};
    const std::uint32_t frame = program_.step[use.call].frames[use.place];
    uses.emplace_back(frame, use);
    --live_in_frame_[old];
    moved.emplace_back(frame + (s - old), slot);
    moved.back().second.frame = frame;
    slot = MemorySlot{};
  }
  for (const auto& [s, slot] : moved) {
    slots[s] = slot;
    ++live_in_frame_[slot.frame];
  }
  for (const auto& [frame, use] : uses) last_use_[frame] = use;
}

}  // namespace rehearse::executor
