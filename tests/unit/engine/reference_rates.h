// Max-min rates the slow and plain way, for comparison with the incremental solver; shares no code with it.
// Leaves out time: rates of one instant only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sim/engine/sharing.h"

namespace rehearse::engine {

struct ReferenceActivity {
  std::vector<Use> uses;
  std::uint64_t cap = kFullRate;
};

/// Progressive filling over the integers, straight from the definition in sharing.h: find the lowest level
/// at which a resource or a cap stops someone, stop all of those, go on. O(activities * resources * uses).
inline std::vector<std::uint64_t> exact_rates(std::size_t resources, const std::vector<ReferenceActivity>& activities) {
  using Wide = unsigned __int128;
  const Wide capacity = static_cast<Wide>(kWholeResource) * kFullRate;
  std::vector<std::uint64_t> rate(activities.size(), 0);
  std::vector<bool> stopped(activities.size(), false);
  for (;;) {
    std::vector<Wide> taken(resources, 0), rising(resources, 0);
    Wide level = static_cast<Wide>(kFullRate) + 1;
    for (std::size_t a = 0; a < activities.size(); ++a) {
      if (!stopped[a]) level = std::min<Wide>(level, activities[a].cap);
      for (const Use& use : activities[a].uses) {
        const auto r = static_cast<std::size_t>(use.resource);
        const auto weight = static_cast<Wide>(use.weight);
        if (stopped[a])
          taken[r] += weight * rate[a];
        else
          rising[r] += weight;
      }
    }
    if (level > kFullRate) return rate;
    for (std::size_t r = 0; r < resources; ++r)
      if (rising[r] > 0) level = std::min(level, (capacity - taken[r]) / rising[r]);
    for (std::size_t a = 0; a < activities.size(); ++a) {
      if (stopped[a]) continue;
      bool stop = activities[a].cap == level;
      for (const Use& use : activities[a].uses) {
        const auto r = static_cast<std::size_t>(use.resource);
        if (use.weight > 0 && (capacity - taken[r]) / rising[r] == level) stop = true;
      }
      if (!stop) continue;
      rate[a] = static_cast<std::uint64_t>(level);
      stopped[a] = true;
    }
  }
}

/// The same over real numbers, with no notion of a smallest step.
inline std::vector<long double> real_rates(std::size_t resources, const std::vector<ReferenceActivity>& activities) {
  std::vector<long double> rate(activities.size(), 0), room(resources, 1);
  std::vector<bool> stopped(activities.size(), false);
  for (long double level = 0;;) {
    std::vector<long double> rising(resources, 0);
    long double step = 2;
    for (std::size_t a = 0; a < activities.size(); ++a) {
      if (stopped[a]) continue;
      step = std::min(step, static_cast<long double>(activities[a].cap) / kFullRate - level);
      for (const Use& use : activities[a].uses)
        rising[static_cast<std::size_t>(use.resource)] += static_cast<long double>(use.weight) / kWholeResource;
    }
    if (step > 1) return rate;
    for (std::size_t r = 0; r < resources; ++r)
      if (rising[r] > 0) step = std::min(step, room[r] / rising[r]);
    level += step;
    for (std::size_t r = 0; r < resources; ++r) room[r] -= rising[r] * step;
    for (std::size_t a = 0; a < activities.size(); ++a) {
      if (stopped[a]) continue;
      rate[a] = level;
      stopped[a] = level >= static_cast<long double>(activities[a].cap) / kFullRate - 1e-15L;
      for (const Use& use : activities[a].uses)
        if (use.weight > 0 && room[static_cast<std::size_t>(use.resource)] < 1e-15L) stopped[a] = true;
    }
  }
}

}  // namespace rehearse::engine
