// The incremental max-min solver: one resource at a time until every level agrees with its users' rates.
//
// Every resource r has a level, the rate at which it stops its users; an activity runs at the smallest of
// its cap and its resources' levels. A level is right when it is the water level of r given what r's users
// could take elsewhere (their cap and their other resources' levels). Levels that are all right give the
// rates of progressive filling, and only those: from the lowest level upwards, which activities stop there
// depends on lower levels alone. So any order of correcting wrong levels ends at the same integers, and only
// resources whose users changed need a look.
#include "sim/core/contract.h"
#include "sim/engine/sharing.h"

namespace rehearse::engine {

void SharingSystem::solve() {
  if (work_.empty()) return;
  ++effort_.solves;
  for (std::size_t i = 0; i < work_.size(); ++i) {
    if (i + 1 < work_.size()) __builtin_prefetch(&members_[resources_[work_[i + 1]].first]);
    resources_[work_[i]].dirty = false;
    reshare(work_[i]);
  }
  work_.clear();
  for (const std::uint32_t a : touched_) settle(a);
  touched_.clear();
}

std::uint64_t SharingSystem::demand_elsewhere(std::uint32_t a, std::uint32_t r) const {
  const Activity& activity = activities_[a];
  const UseSlot* use = &uses_[activity.first_use];
  std::uint64_t demand = activity.cap;
  for (std::uint32_t i = 0; i < activity.uses; ++i)
    if (use[i].resource != r && level_[use[i].resource] < demand) demand = level_[use[i].resource];
  return demand;
}

void SharingSystem::set_rate(std::uint32_t a, std::uint64_t rate, std::uint32_t cause) {
  Activity& activity = activities_[a];
  if (!activity.touched) {
    activity.touched = true;
    touched_.push_back(a);
  }
  // Rates stay below 2^62 and weights below 2^63, so the signed product is exact.
  const auto change = static_cast<std::int64_t>(rate - activity.rate);
  activity.rate = rate;
  const UseSlot* use = &uses_[activity.first_use];
  for (const UseSlot* const end = use + activity.uses; use != end; ++use) {
    Resource& resource = resources_[use->resource];
    observe(resource);
    Member& member = members_[use->member];
    member.rate = rate;
    const __int128 weight = static_cast<std::int64_t>(member.weight);
    resource.load += static_cast<Wide>(weight * change);
    // A resource that stops nobody, and has room for one more step of all its users, still stops nobody.
    const bool at_risk = (resource.level != kUnlimited) | (resource.load + resource.weight > kCapacity);
    if (at_risk && !resource.dirty && use->resource != cause) {
      resource.dirty = true;
      work_.push_back(use->resource);
    }
  }
}

void SharingSystem::reshare(std::uint32_t r) {
  ++effort_.examined;
  Resource& resource = resources_[r];
  const std::uint64_t old = resource.level;
  const std::uint64_t level = water_level(r);
  if (level == old) return;
  resource.level = level_[r] = level;
  for (std::uint32_t i = resource.first; i < resource.first + resource.count; ++i) {
    const Member& m = members_[i];
    if (level < old) {
      if (m.rate > level) set_rate(m.activity, level, r);
    } else if (m.rate == old) {
      std::uint64_t rate = demand_elsewhere(m.activity, r);
      if (level < rate) rate = level;
      if (rate != m.rate) set_rate(m.activity, rate, r);
    }
  }
}

// Solves sum of weight * min(demand, level) = capacity, rounded down; kUnlimited when all demands fit.
// A user whose rate is below the present level is stopped elsewhere: its demand is its rate. For the others,
// the guess is that they stay stopped here; where the new level contradicts the guess, it starts again from
// below.
std::uint64_t SharingSystem::water_level(std::uint32_t r) {
  const Resource& resource = resources_[r];
  if (resource.weight <= static_cast<std::uint64_t>(kWholeResource)) return kUnlimited;
  const std::uint64_t old = resource.level;
  const std::span<const Member> members{&members_[resource.first], resource.count};
  if (old == kUnlimited && resource.load + resource.weight <= kCapacity) return kUnlimited;
  Wide taken = 0;
  std::uint64_t here = 0, highest = 0;
  for (const Member& m : members) {
    if (m.rate < old) {
      taken += static_cast<Wide>(m.weight) * m.rate;
      if (m.rate > highest) highest = m.rate;
    } else {
      here += m.weight;
    }
  }
  // All are stopped elsewhere, and there is room: common after an end, and needs no division.
  if (here == 0 && resource.load + resource.weight <= kCapacity) return kUnlimited;
  if (here != 0 && taken <= kCapacity) {
    const Wide level = (kCapacity - taken) / here;
    // Far enough above all demands below it that rounding cannot hide a lower level (see
    // water_level_from_below).
    if (level > highest && (level - highest) * here >= resource.weight) {
      if (level <= old) return static_cast<std::uint64_t>(level);
      bool kept = true;  // do the users that were stopped here stay so at the higher level?
      for (const Member& m : members)
        if (m.rate == old && demand_elsewhere(m.activity, r) < level) kept = false;
      if (kept) return level >= kFullRate ? kUnlimited : static_cast<std::uint64_t>(level);
    }
  }
  demand_.clear();
  for (const Member& m : members)
    demand_.push_back(m.rate < old ? m.rate : demand_elsewhere(m.activity, r));
  return water_level_from_below(resource);
}

// The lowest level L with  sum(weight * demand, demand < L) + L * sum(weight, demand >= L) <= capacity  that
// fails at L + 1 for the same users: raises L while that stops fewer users. Ties at L count as stopped
// here, whatever else stops them, so that the result does not depend on which of two equal bottlenecks was
// looked at first.
std::uint64_t SharingSystem::water_level_from_below(const Resource& resource) const {
  const Member* member = &members_[resource.first];
  Wide level = kCapacity / resource.weight;
  for (;;) {
    Wide taken = 0;
    std::uint64_t here = 0;
    for (std::size_t i = 0; i < demand_.size(); ++i) {
      if (demand_[i] < level)
        taken += static_cast<Wide>(member[i].weight) * demand_[i];
      else
        here += member[i].weight;
    }
    if (here == 0) return kUnlimited;
    const Wide next = (kCapacity - taken) / here;
    if (next >= kFullRate) return kUnlimited;
    if (next == level) return static_cast<std::uint64_t>(level);
    level = next;
  }
}

}  // namespace rehearse::engine
