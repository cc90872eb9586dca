// How many sets of operands an operation takes in turn, so that none is found in the L2 cache. Leaves out the sets.
#pragma once

#include <algorithm>
#include <cstdint>

namespace rehearse::calibrate {

/// Sets of `bytes` each, so that three L2 caches' worth of the others is touched before a set's turn comes again: one is not
/// enough, the cache does not evict strictly the oldest. Fewer where `room_bytes` does not hold them, but at least one.
constexpr std::int64_t rotating_sets(std::int64_t bytes, std::int64_t l2_bytes, std::int64_t room_bytes) {
  const std::int64_t one = std::max<std::int64_t>(bytes, 1), wanted = 1 + (3 * l2_bytes + one - 1) / one;
  return std::clamp<std::int64_t>(room_bytes / one, 1, wanted);
}

}  // namespace rehearse::calibrate
