// Where a program's list of calls repeats itself: micro-batches that do the same with other frames.
// Leaves out whether what the calls meet is the same as well (memory_periods.h).
//
// Frames are handed out and taken back, so the same work appears under changing names. A frame that every micro-batch
// uses (weights, buffers) is fixed: its name counts. Any other belongs to one micro-batch at a time; it is known by how
// many calls ago it was last used, or as fresh when its last user was another micro-batch.
#pragma once

#include <vector>

#include "sim/plan/plan.h"

namespace rehearse::executor {

/// The last use of a frame: by which call, in which place of that call.
struct FrameUse {
  std::uint32_t call = UINT32_MAX;
  std::uint8_t place = 0;
};

/// Calls in [first, end) do what those `period` before them did, names of frames aside.
struct Repeat {
  std::size_t first = 0, end = 0, period = 0;
  bool any() const { return period > 0; }
};

class Repeats {
 public:
  explicit Repeats(const plan::Program& program);

  /// The longest stretch around the middle of the step; nothing when it has fewer than three periods.
  const Repeat& stretch() const { return stretch_; }
  /// Does the frame that begins at this slot keep its name?
  bool fixed(std::uint32_t frame) const { return fixed_[frame]; }
  /// Places (bits) of a call whose frames must be empty, because another micro-batch had them before.
  std::uint8_t fresh(std::size_t call) const { return fresh_[call]; }

 private:
  std::vector<bool> fixed_;
  std::vector<std::uint8_t> fresh_;
  Repeat stretch_;
};

}  // namespace rehearse::executor
