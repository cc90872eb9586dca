// Frames of one rank's program that several actions need: each is given back when the last of them is written.
// Leaves out what lies in a frame (layer/tape_emitter.h).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/contract.h"
#include "sim/plan/builder.h"

namespace rehearse::strategies {

/// By micro-batch and place (a unit or a chunk of the rank). Few micro-batches are in flight at a time, and every call
/// asks for several frames: each micro-batch in flight has a row with an entry per place.
class SharedFrames {
 public:
  explicit SharedFrames(plan::FrameAllocator& frames) : frames_(frames) {}

  /// The frame of a place; a new one of `slots()` with `users()` users, if there is none.
  template <typename Slots, typename Users>
  std::uint32_t of(int micro_batch, std::size_t place, Slots slots, Users users) {
    Row& row = row_of(micro_batch);
    if (row.uses.size() <= place) row.uses.resize(place + 1);
    Use& use = row.uses[place];
    if (use.users == 0) {
      const int shared_by = users();
      const std::uint32_t size = slots();
      use = {frames_.acquire(size), size, shared_by};
      ++row.live;
    }
    return use.base;
  }
  bool has(int micro_batch, std::size_t place) const {
    const std::uint32_t r = find(micro_batch);
    return r != kNone && place < rows_[r].uses.size() && rows_[r].uses[place].users > 0;
  }
  std::uint32_t at(int micro_batch, std::size_t place) const {
    EXPECTS(has(micro_batch, place), "no such frame");
    return rows_[find(micro_batch)].uses[place].base;
  }
  /// One of its users is done with it.
  void drop(int micro_batch, std::size_t place) {
    EXPECTS(has(micro_batch, place), "a frame is given back twice");
    const std::uint32_t r = find(micro_batch);
    Use& use = rows_[r].uses[place];
    if (--use.users > 0) return;
    frames_.release(use.base, use.slots);
    if (--rows_[r].live > 0) return;
    row_of_[static_cast<std::size_t>(micro_batch)] = kNone;
    unused_.push_back(r);
  }
  bool empty() const { return unused_.size() == rows_.size(); }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  struct Use {
    std::uint32_t base = 0, slots = 0;
    int users = 0;
  };
  struct Row {
    std::vector<Use> uses;   // by place
    int live = 0;
  };

  std::uint32_t find(int micro_batch) const {
    const auto m = static_cast<std::size_t>(micro_batch);
    return m < row_of_.size() ? row_of_[m] : kNone;
  }
  Row& row_of(int micro_batch) {
    const auto m = static_cast<std::size_t>(micro_batch);
    if (row_of_.size() <= m) row_of_.resize(m + 1, kNone);
    if (row_of_[m] == kNone) {
      if (unused_.empty()) {
        unused_.push_back(static_cast<std::uint32_t>(rows_.size()));
        rows_.emplace_back();
      }
      row_of_[m] = unused_.back();
      unused_.pop_back();
    }
    return rows_[row_of_[m]];
  }

  plan::FrameAllocator& frames_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> unused_;   // rows
  std::vector<std::uint32_t> row_of_;   // by micro-batch
};

/// The shared frames of one rank: of its units, and of the boundaries where its chunks receive and send.
struct StageFrames {
  explicit StageFrames(plan::FrameAllocator& frames) : units(frames), below(frames), above(frames) {}

  static constexpr std::uint32_t kBoundarySlots = 4;   // activation, gradient, events of either
  static constexpr std::uint32_t kForwardEvent = 2, kBackwardEvent = 3;

  /// The lower boundary is needed by backward and by the gradient's message, the upper one by backward.
  std::uint32_t lower_boundary(int chunk, int micro_batch) {
    return below.of(micro_batch, static_cast<std::size_t>(chunk), [] { return kBoundarySlots; }, [] { return 2; });
  }
  std::uint32_t upper_boundary(int chunk, int micro_batch) {
    return above.of(micro_batch, static_cast<std::size_t>(chunk), [] { return kBoundarySlots; }, [] { return 1; });
  }
  bool empty() const { return units.empty() && below.empty() && above.empty(); }

  SharedFrames units, below, above;
};

}  // namespace rehearse::strategies
