// Starting, ending and timing of activities; sharing_solve.cpp finds their rates.
#include "sim/engine/sharing.h"

#include <bit>
#include <cmath>
#include <limits>

#include "sim/core/contract.h"

namespace rehearse::engine {

std::int64_t weight_of(double share) {
  EXPECTS(share >= 0 && share < 0x1p22);
  return std::llround(share * static_cast<double>(kWholeResource));
}

Work Work::picoseconds(double ps) {
  EXPECTS(ps >= 0 && ps < 0x1p53);
  Work out;
  out.steps_ = static_cast<unsigned __int128>(std::llround(ps * 1024)) << (std::countr_zero(kFullRate) - 10);
  return out;
}

ResourceId SharingSystem::add_resource() {
  resources_.emplace_back();
  resources_.back().block = 2;
  resources_.back().first = members_.take(2);
  level_.push_back(kUnlimited);
  return ResourceId{static_cast<std::uint32_t>(resources_.size() - 1)};
}

template <typename Item>
std::uint32_t SharingSystem::Pool<Item>::take(std::uint8_t block) {
  if (block >= free.size()) free.resize(block + 1U);
  if (free[block].empty()) {
    EXPECTS(items.size() + (std::size_t{1} << block) < (std::size_t{1} << 32));
    free[block].push_back(static_cast<std::uint32_t>(items.size()));
    items.resize(items.size() + (std::size_t{1} << block));
  }
  const std::uint32_t first = free[block].back();
  free[block].pop_back();
  return first;
}

std::uint32_t SharingSystem::take_slot(std::size_t uses) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(activities_.size()));
    activities_.emplace_back();
    tags_.push_back(0);
    EXPECTS(activities_.size() < (1U << FinishHeap::kSlotBits));
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  Activity& activity = activities_[slot];
  activity.block = static_cast<std::uint8_t>(uses <= 8 ? 3 : std::bit_width(uses - 1));
  activity.first_use = uses_.take(activity.block);
  return slot;
}

void SharingSystem::join(std::uint32_t r, std::uint64_t weight, std::uint32_t a) {
  EXPECTS(r < resources_.size());
  Resource& resource = resources_[r];
  if (resource.count == 1U << resource.block) {
    const std::uint32_t larger = members_.take(static_cast<std::uint8_t>(resource.block + 1));
    for (std::uint32_t i = 0; i < resource.count; ++i) {
      members_[larger + i] = members_[resource.first + i];
      uses_[members_[larger + i].use].member = larger + i;
    }
    members_.give(resource.first, resource.block++);
    resource.first = larger;
  }
  Activity& activity = activities_[a];
  const std::uint32_t use = activity.first_use + activity.uses++, member = resource.first + resource.count++;
  members_[member] = {0, weight, a, use};
  uses_[use] = {r, member};
  resource.weight += weight;
  EXPECTS(resource.weight < (std::uint64_t{1} << 63));
}

ActivityId SharingSystem::start(std::span<const Use> uses, Work work, TimePoint now, std::uint64_t tag,
                                std::uint64_t cap) {
  EXPECTS(work.steps() >> 125 == 0);  // a negative duration shows here
  EXPECTS(cap >= 1 && cap <= kFullRate);
  move_to(now);
  if (work.steps() == 0) uses = {};
  const std::uint32_t slot = take_slot(uses.size());
  Activity& activity = activities_[slot];
  activity.remaining = work.steps();
  activity.since = now;
  activity.cap = cap;
  activity.uses = 0;
  activity.late = false;
  tags_[slot] = tag;

  std::uint64_t rate = cap;
  for (const Use& use : uses) {
    EXPECTS(use.weight >= 0);
    if (use.weight == 0) continue;
    const auto r = static_cast<std::uint32_t>(use.resource);
    join(r, static_cast<std::uint64_t>(use.weight), slot);
    if (level_[r] < rate) rate = level_[r];
    if (resources_[r].weight > static_cast<std::uint64_t>(kWholeResource)) mark(r);
  }
  // The rate that the present levels allow; where that is too much, the marked resources will say so.
  activity.rate = activity.settled = rate;
  for (std::uint32_t i = activity.first_use; i < activity.first_use + activity.uses; ++i) {
    Resource& resource = resources_[uses_[i].resource];
    observe(resource);
    Member& member = members_[uses_[i].member];
    member.rate = rate;
    resource.load += static_cast<Wide>(member.weight) * rate;
  }
  ++running_;
  finishes_.insert(end_of(activity), sequence_++, slot);
  return ActivityId{slot};
}

// Changes of an instant are solved when time leaves it, so that all of them cost one solve.
void SharingSystem::move_to(TimePoint now) {
  EXPECTS(now >= now_);
  if (now == now_) return;
  solve();
  now_ = now;
}

std::int64_t SharingSystem::end_of(const Activity& activity) {
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  const Wide half_up = activity.remaining + activity.rate / 2;
  // The division is the dearest instruction here, and most activities of a quiet system run at full rate.
  const Wide steps =
      activity.rate == kFullRate ? half_up >> std::countr_zero(kFullRate) : half_up / activity.rate;
  const std::int64_t since = activity.since.time_since_epoch().count();
  return steps >= static_cast<Wide>(kNever - since) ? kNever : since + static_cast<std::int64_t>(steps);
}

// Accounts for the work done at the old rate. A later end is only noted: most activities change their rate
// many times before they come near the top of the heap, so its division and its moves are saved until then.
void SharingSystem::settle(std::uint32_t a) {
  Activity& activity = activities_[a];
  activity.touched = false;
  if (activity.rate == activity.settled) return;
  ++effort_.rates;
  const auto elapsed = static_cast<std::uint64_t>((now_ - activity.since).count());
  const Wide done = static_cast<Wide>(activity.settled) * elapsed;
  activity.remaining = done < activity.remaining ? activity.remaining - done : 0;
  activity.since = now_;
  const bool slower = activity.rate < activity.settled;
  activity.settled = activity.rate;
  if (slower) {
    activity.late = true;
    return;
  }
  const std::int64_t end = end_of(activity);
  const std::int64_t noted = finishes_.time_of(a);
  if (end < noted) finishes_.move_earlier(a, end);
  activity.late = end > noted;
}

void SharingSystem::refresh_top() {
  while (!finishes_.empty()) {
    Activity& activity = activities_[finishes_.top().slot()];
    if (!activity.late) return;
    activity.late = false;
    finishes_.move_top_later(end_of(activity));
  }
}

std::optional<TimePoint> SharingSystem::next_completion() {
  solve();
  refresh_top();
  if (finishes_.empty()) return std::nullopt;
  return TimePoint{Duration{finishes_.top().time}};
}

std::optional<SharingSystem::Completed> SharingSystem::pop_completed(TimePoint now) {
  move_to(now);
  refresh_top();
  if (finishes_.empty() || finishes_.top().time > now.time_since_epoch().count()) return std::nullopt;
  EXPECTS(finishes_.top().time == now.time_since_epoch().count());
  const std::uint32_t slot = finishes_.top().slot();
  finishes_.pop();
  finish(slot);
  return Completed{tags_[slot], ActivityId{slot}};
}

void SharingSystem::finish(std::uint32_t a) {
  const Activity& activity = activities_[a];
  for (std::uint32_t i = activity.first_use; i < activity.first_use + activity.uses; ++i) {
    const UseSlot use = uses_[i];
    Resource& resource = resources_[use.resource];
    observe(resource);
    Member& gone = members_[use.member];
    resource.load -= static_cast<Wide>(gone.weight) * gone.rate;
    resource.weight -= gone.weight;
    gone = members_[resource.first + --resource.count];
    uses_[gone.use].member = use.member;
    if (resource.level != kUnlimited) mark(use.resource);
  }
  uses_.give(activity.first_use, activity.block);
  free_.push_back(a);
  --running_;
}

std::uint64_t SharingSystem::rate_of(ActivityId activity) {
  solve();
  return activities_[static_cast<std::uint32_t>(activity)].rate;
}

double SharingSystem::load_of(ResourceId resource) {
  solve();
  const Wide load = resources_[static_cast<std::uint32_t>(resource)].load;
  return static_cast<double>(load) / static_cast<double>(kCapacity);
}

double SharingSystem::busy_time(ResourceId id, TimePoint now) {
  EXPECTS(observe_);
  move_to(now);
  Resource& resource = resources_[static_cast<std::uint32_t>(id)];
  observe(resource);
  return resource.busy * 1e-12;
}

}  // namespace rehearse::engine
