// Moments in which a device stands still and its host thread has seen it: what a block does between two of them, kept to count it
// where it comes again. Leaves out finding and measuring it (timing_standstill.cpp).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sim/executor/timing_state.h"

namespace rehearse::executor {

/// What a block does from one standstill to its last one, by the clock of the run in which it was measured.
struct Reprise {
  std::size_t rank_class = 0;
  std::uint32_t from = 0, to = 0;                   // instructions of the block
  std::int64_t unused = 0;                          // time since the compute stream was through
  Cause last = Cause::idle;                         // what that did then
  bool measured = false;                            // in a step that is accounted for
  bool known = false;                               // all that follows, beside what `survey` finds
  unsigned moved = 0, worked = 0;                   // bits of streams: that wait or work; that work
  std::int64_t began = 0, passed = 0;               // of the host thread: when, and how long it took
  struct Wait {
    plan::Frame frame;
    std::uint32_t slot = 0;
    bool of_compute = false;
  };
  std::vector<Wait> waits;                          // for what was recorded before
  struct Record {
    plan::Frame frame;
    std::uint32_t slot = 0;
    Event event = {};                               // the last one
  };
  std::vector<Record> records;
  struct End {
    std::int64_t ready = 0, last_issued = 0, last_met = 0;
    Cause last = Cause::idle;
    bool crossed = false;
  };
  std::array<End, plan::kStreams> ends{};
  std::array<std::int64_t, kCauses> time{};
  std::array<std::int64_t, plan::kStreams> busy{};

  bool begins_as(const Reprise& other) const {
    return rank_class == other.rank_class && from == other.from && unused == other.unused && last == other.last && measured == other.measured;
  }
};

struct BlockStandstills {
  std::optional<std::uint32_t> last;   // instruction behind the host thread's last wait, once it is asked for; 0: nothing comes again
  std::vector<Reprise> reprises;
};

}  // namespace rehearse::executor
