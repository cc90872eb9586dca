// Tensors that other streams use as well (record_stream), and how their blocks come back after they are freed: when
// those streams are through with them. Leaves out when that is (device_progress.h).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/plan/plan.h"

namespace rehearse::executor {

class StreamUses {
 public:
  static constexpr std::int64_t kAtOnce = INT64_MIN;  // nobody asks for time: other streams are never late

  /// The tensor in `slot` is used by `stream`, which is through with it at `done` (ps on the step's clock).
  void use(std::uint32_t slot, plan::Stream stream, std::int64_t done);

  /// The tensor of one slot moves to another.
  void move(std::uint32_t from, std::uint32_t to);

  /// The tensor in `slot` is freed; the allocator waits for its `token` on every stream that uses it.
  void free(std::uint32_t slot, hwmodels::EventToken token, hwmodels::CachingAllocator& allocator);

  bool any_waiting() const { return any_waiting_; }

  /// The host's clock is at `now`: the allocator is told of all that other streams are through with.
  void see(std::int64_t now, hwmodels::CachingAllocator& allocator);

  /// The next step's clock begins, `step` (ps) after that of the last one.
  void next_step(std::int64_t step);

 private:
  struct Waiting {
    std::int64_t done = 0;
    hwmodels::EventToken token;
  };
  std::map<std::uint32_t, std::vector<std::pair<plan::Stream, std::int64_t>>> uses_;  // by slot
  std::array<std::deque<Waiting>, plan::kStreams> waiting_;                           // freed tensors, by stream
  bool any_waiting_ = false;
};

}  // namespace rehearse::executor
