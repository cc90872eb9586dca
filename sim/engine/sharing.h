// Activities on shared resources: weighted max-min fair rates and exact ends in integer picoseconds.
// Leaves out what an activity is (sim/executor) and what a resource stands for (hwmodels).
//
// All arithmetic that decides a result is in integers, so results depend neither on the order of insertion
// nor on whether equal activities are kept apart or folded into one with their summed weights:
//   rate       64-bit fixed point; kFullRate = rate 1
//   weight     64-bit; kWholeResource = all of a resource at rate 1
//   load       128-bit sum of weight * rate, exact
//   remaining  128-bit work, (picoseconds at rate 1) * kFullRate, exact
// The only roundings are one division per resource (its level, downwards: no resource is ever above its
// capacity) and one per end (to the nearest picosecond, like every Duration).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/units.h"
#include "sim/engine/finish_heap.h"

namespace rehearse::engine {

enum class ResourceId : std::uint32_t {};
enum class ActivityId : std::uint32_t {};  // valid until the activity is popped, then reused

inline constexpr std::int64_t kWholeResource = std::int64_t{1} << 40;
inline constexpr std::uint64_t kFullRate = std::uint64_t{1} << 62;

/// `weight`: the share of the resource that the activity uses at rate 1, in units of 1/kWholeResource; may
/// exceed the whole when the resource alone holds the activity below rate 1. Sum over users of one
/// resource: below 2^63.
struct Use {
  ResourceId resource;
  std::int64_t weight;
};

/// How much there is to do, as time at rate 1: a Duration, or finer where a rate below 1 would magnify the
/// rounding.
class Work {
 public:
  /// Precondition: alone >= 0.
  Work(Duration alone)  // NOLINT: a duration at rate 1 is an amount of work
      : steps_(static_cast<unsigned __int128>(alone.count()) * kFullRate) {}
  /// Rounded to the nearest 1/1024 ps, so that decimal sizes over decimal speeds come out whole.
  /// Precondition: 0 <= ps < 2^53.
  static Work picoseconds(double ps);
  unsigned __int128 steps() const { return steps_; }  // in ps / kFullRate

 private:
  Work() = default;
  unsigned __int128 steps_ = 0;
};

/// Share of a resource, 0 or more, as a weight; rounded to the nearest unit.
std::int64_t weight_of(double share);

/// Rates are those of progressive filling: all rates rise together from 0; one stops at its cap, or when a
/// resource that it uses is full (could not carry all its still rising users one step of 1/kFullRate
/// further). This defines every rate uniquely, so the incremental solver and a full solve agree to the bit
/// (tests hold us to it).
class SharingSystem {
 public:
  struct Completed {
    std::uint64_t tag;
    ActivityId activity;
    friend bool operator==(const Completed&, const Completed&) = default;
  };

  /// The observer of `busy_time`; switch it on before the first start.
  void observe_utilisation() { observe_ = true; }

  ResourceId add_resource();

  /// Starts an activity at `now`; rates are shared anew lazily, once for all starts and ends of the same
  /// instant.
  ///   uses    its resources, each at most once; empty is legal (runs at its cap), and so is weight 0
  ///   work    its duration at rate 1, >= 0; zero ends at `now` and takes nothing
  ///   now     not before any earlier call
  ///   cap     the rate that it never exceeds, 1..kFullRate
  /// O(uses) when all its resources have room. Precondition: fewer than 2^24 run at once, 2^40 are started
  /// in all.
  ActivityId start(std::span<const Use> uses, Work work, TimePoint now, std::uint64_t tag,
                   std::uint64_t cap = kFullRate);

  /// When the next activity ends, if any runs.
  std::optional<TimePoint> next_completion();

  /// The next activity that ends at or before `now`, in order of (time, start), and takes it out; none:
  /// nullopt.
  /// Precondition: `now` is not past an end that has not been popped by its own time (step to
  /// next_completion()).
  std::optional<Completed> pop_completed(TimePoint now);

  /// Present rate, in 1/kFullRate; rate_as_double(rate_of(a)) is the fraction of full speed.
  std::uint64_t rate_of(ActivityId activity);

  /// Present load of a resource as a fraction of its capacity.
  double load_of(ResourceId resource);

  /// Time integral of the load up to `now`, in seconds of the whole resource. Needs observe_utilisation().
  double busy_time(ResourceId resource, TimePoint now);

  std::size_t running() const { return running_; }

  /// Work of the solver so far: resources examined, rates changed. For benchmarks.
  struct Effort {
    std::uint64_t solves = 0, examined = 0, rates = 0;
  };
  const Effort& effort() const { return effort_; }

 private:
  using Wide = unsigned __int128;
  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};
  static constexpr Wide kCapacity = static_cast<Wide>(kWholeResource) * kFullRate;

  // Laid out for the solver's inner loop: one cache line per resource and per activity, uses and members in
  // two pools that point at each other, so that the lines of a change can be fetched side by side.
  struct Member {  // one use, seen from the resource
    std::uint64_t rate;
    std::uint64_t weight;
    std::uint32_t activity;
    std::uint32_t use;  // index into uses_
  };
  struct UseSlot {  // one use, seen from the activity
    std::uint32_t resource;
    std::uint32_t member;  // index into members_
  };
  struct alignas(64) Resource {
    Wide load = 0;                     // sum of weight * rate
    std::uint64_t weight = 0;          // sum of weights
    std::uint64_t level = kUnlimited;  // the rate at which it stops its users, if it stops any
    std::uint32_t first = 0, count = 0;  // its members
    std::uint8_t block = 0;              // size class of their place in the pool
    bool dirty = false;                  // is in work_
    double busy = 0;                     // picoseconds of the whole resource up to `since`
    TimePoint since{};
  };
  struct alignas(64) Activity {
    Wide remaining = 0;  // at `since`
    TimePoint since{};
    std::uint64_t rate = 0;     // present
    std::uint64_t settled = 0;  // since `since`; differs from `rate` only while solving
    std::uint64_t cap = 0;
    std::uint32_t first_use = 0, uses = 0;
    std::uint8_t block = 0;  // size class of its place in the pool of uses
    bool touched = false;    // is in touched_
    bool late = false;       // ends later than the heap says
  };
  static_assert(sizeof(Resource) == 64 && sizeof(Activity) == 64);

  // A vector of blocks of 2^class items, handed out and taken back: starting an activity allocates nothing.
  template <typename Item>
  struct Pool {
    std::vector<Item> items;
    std::vector<std::vector<std::uint32_t>> free;  // by class
    Item& operator[](std::size_t i) { return items[i]; }
    const Item& operator[](std::size_t i) const { return items[i]; }
    std::uint32_t take(std::uint8_t block);
    void give(std::uint32_t first, std::uint8_t block) { free[block].push_back(first); }
  };

  std::uint32_t take_slot(std::size_t uses);
  void join(std::uint32_t r, std::uint64_t weight, std::uint32_t a);
  void move_to(TimePoint now);
  void solve();
  void reshare(std::uint32_t r);
  std::uint64_t water_level(std::uint32_t r);
  std::uint64_t water_level_from_below(const Resource& resource) const;
  std::uint64_t demand_elsewhere(std::uint32_t a, std::uint32_t r) const;
  void set_rate(std::uint32_t a, std::uint64_t rate, std::uint32_t cause);
  void mark(std::uint32_t r) {
    if (resources_[r].dirty) return;
    resources_[r].dirty = true;
    work_.push_back(r);
  }
  void settle(std::uint32_t a);
  static std::int64_t end_of(const Activity& activity);
  void finish(std::uint32_t a);
  void observe(Resource& resource) {
    if (!observe_) [[likely]]
      return;
    const double load = static_cast<double>(resource.load) / static_cast<double>(kCapacity);
    resource.busy += load * static_cast<double>((now_ - resource.since).count());
    resource.since = now_;
  }
  void refresh_top();

  std::vector<Resource> resources_;
  std::vector<std::uint64_t> level_;  // copies of Resource::level, dense for demand_elsewhere
  std::vector<std::uint32_t> work_;   // resources to examine, first in first out
  std::vector<Activity> activities_;
  std::vector<std::uint64_t> tags_;  // by activity
  std::vector<std::uint32_t> free_;  // activities
  Pool<UseSlot> uses_;
  Pool<Member> members_;
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint64_t> demand_;  // scratch of water_level
  FinishHeap finishes_;
  TimePoint now_{};
  std::uint64_t sequence_ = 0;
  std::size_t running_ = 0;
  bool observe_ = false;
  Effort effort_;
};

constexpr double rate_as_double(std::uint64_t rate) {
  return static_cast<double>(rate) / static_cast<double>(kFullRate);
}

}  // namespace rehearse::engine
