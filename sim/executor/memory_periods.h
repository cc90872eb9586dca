// Micro-batches that find memory as an earlier one found it: all from there to here would only come again, so it is
// counted and left out. Leaves out where the calls repeat (repeats.h) and running them (memory.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/executor/memory_slot.h"
#include "sim/executor/repeats.h"

namespace rehearse::executor {

class MemoryPeriods {
 public:
  MemoryPeriods(const plan::Plan& plan, const plan::Program& program);

  /// Comparing two moments costs about as much as a hundred operations.
  bool worth_looking() const { return operations_ >= 100; }

  void begin_step();
  /// Does a period begin at this call?
  bool begins_at(std::size_t call) const {
    const Repeat& r = repeats_.stretch();
    return r.any() && call + r.period >= r.first && call < r.end && (call + r.period - r.first) % r.period == 0;
  }

  struct LeftOut {
    std::size_t calls = 0;
    std::int64_t operations = 0;
  };
  /// A period begins at this call, after `operations` of the program. If one before it began in the same way: how much
  /// from here on would only come again, a whole number of times the stretch between them. The live tensors then have
  /// the names of the call behind it. Only where tensors came to lie as in an earlier period is all compared, that many
  /// periods later.
  LeftOut same_again(std::size_t call, std::int64_t operations, std::vector<MemorySlot>& slots,
                     const hwmodels::CachingAllocator& allocator);

  /// A call uses its frames. False when a frame that ought to be fresh still holds something: then names mean more than
  /// is known here, and no period may be left out any more.
  bool use_frames(const plan::Call& call, std::size_t index);

  // What happens to tensors, by the beginning of their frame.
  void allocated(std::uint32_t frame, std::uint64_t address) {
    ++live_in_frame_[frame];
    lies_at(address);
  }
  void lies_at(std::uint64_t address) { places_ = (places_ ^ address) * 0x9e3779b97f4a7c15ULL; }
  void freed(std::uint32_t frame) { --live_in_frame_[frame]; }
  void moved(std::uint32_t from, std::uint32_t to) {
    --live_in_frame_[from];
    ++live_in_frame_[to];
  }

 private:
  /// A live tensor when a period begins, named by what will be done with it: by its frame's name if that is fixed, else
  /// by when the frame was used last.
  struct LiveSlot {
    std::uint64_t address = 0;
    std::int64_t bytes = 0;
    std::uint32_t frame = 0;  // name, or calls since the last use
    std::uint32_t offset = 0;
    std::uint8_t place = 0;   // of the last use, or kFixed
    plan::Category category = plan::Category::temporary;
    friend bool operator==(const LiveSlot&, const LiveSlot&) = default;
  };
  static constexpr std::uint8_t kFixed = 4;

  /// All that decides what the rest of the step does with memory, when a period begins.
  struct Moment {
    std::size_t call = 0;
    std::int64_t operations = 0;
    hwmodels::AllocatorCondition allocator;
    std::vector<LiveSlot> live;
    bool sorted = false;

    bool equals(Moment& other);
    void sort();
  };
  Moment moment(std::size_t call, std::int64_t operations, const std::vector<MemorySlot>& slots,
                const hwmodels::CachingAllocator& allocator) const;
  void rename(std::size_t from, std::size_t to, std::vector<MemorySlot>& slots);

  const plan::Program& program_;
  Repeats repeats_;
  std::size_t operations_ = 0;              // of a period
  std::vector<FrameUse> last_use_;          // by beginning of the frame
  std::vector<std::int32_t> live_in_frame_;
  std::uint64_t places_ = 0;                // where this period's tensors came to lie, hashed
  std::unordered_map<std::uint64_t, std::size_t> periods_;  // of this step: places -> the call after it
  std::optional<Moment> candidate_;         // to be compared with the beginning of the period
  std::size_t candidate_due_ = 0;           // that begins with this call
};

}  // namespace rehearse::executor
