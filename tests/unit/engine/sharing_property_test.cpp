// Theorems about sharing on random systems: equal to the definition to the bit, fair, conserving, blind to
// folding and order.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "sim/engine/sharing.h"
#include "tests/unit/engine/reference_rates.h"

namespace rehearse::engine::sharing_property_test {
namespace {

using Random = std::mt19937_64;
struct Job {
  ReferenceActivity shape;
  Duration alone;
  TimePoint start;
};

// Few different weights and caps, so that ties and near ties are frequent; some odd ones, so that roundings
// differ.
Job random_job(Random& random, std::size_t resources) {
  Job job;
  for (std::size_t r = 0; r < resources; ++r)
    if (random() % resources < 3) {
      std::int64_t weight = kWholeResource >> (random() % 4);
      if (random() % 4 == 0) weight = static_cast<std::int64_t>(random() % (2 * kWholeResource));
      job.shape.uses.push_back({ResourceId{static_cast<std::uint32_t>(r)}, weight});
    }
  if (random() % 4 == 0) job.shape.cap = kFullRate / (1 + random() % 6);
  if (random() % 16 == 0) job.shape.cap = 1 + random() % kFullRate;
  job.alone = Duration{static_cast<std::int64_t>(random() % 1000)};
  job.start = TimePoint{Duration{static_cast<std::int64_t>(random() % 300)}};
  return job;
}

std::vector<Job> random_jobs(Random& random, std::size_t resources, std::size_t n) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < n; ++i) jobs.push_back(random_job(random, resources));
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.start < b.start; });
  return jobs;
}

void add_resources(SharingSystem& system, std::size_t n) {
  for (std::size_t r = 0; r < n; ++r) system.add_resource();
}

struct End {
  std::int64_t time;
  std::uint64_t tag;
  friend auto operator<=>(const End&, const End&) = default;
};

// Runs jobs (sorted by start) to the end; `look` sees the system after each instant at which something
// happened.
template <typename Look>
std::vector<End> run(SharingSystem& system, const std::vector<Job>& jobs, const Look& look) {
  std::vector<End> ends;
  std::map<std::uint64_t, ActivityId> running;
  std::size_t next = 0;
  for (;;) {
    const auto completion = system.next_completion();
    if (!completion && next == jobs.size()) return ends;
    const TimePoint now = completion && (next == jobs.size() || *completion <= jobs[next].start) ? *completion : jobs[next].start;
    while (const auto done = system.pop_completed(now)) {
      ends.push_back({now.time_since_epoch().count(), done->tag});
      running.erase(done->tag);
    }
    for (; next < jobs.size() && jobs[next].start == now; ++next)
      running[next] = system.start(jobs[next].shape.uses, jobs[next].alone, now, next, jobs[next].shape.cap);
    look(now, running);
  }
}
const auto nobody_looks = [](TimePoint, const std::map<std::uint64_t, ActivityId>&) {};

// The incremental solver against the definition, at every instant of random histories; and against real
// numbers.
TEST(SharingProperty, RatesAreThoseOfProgressiveFillingToTheBit) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const std::size_t resources = 1 + random() % 12;
    const std::vector<Job> jobs = random_jobs(random, resources, 5 + random() % 60);
    SharingSystem system;
    add_resources(system, resources);
    run(system, jobs, [&](TimePoint, const auto& running) {
      std::vector<ReferenceActivity> shapes;
      for (const auto& [tag, activity] : running) {
        shapes.push_back(jobs[tag].shape);
        if (jobs[tag].alone.count() == 0) shapes.back().uses.clear();
      }
      const auto expected = exact_rates(resources, shapes);
      const auto real = real_rates(resources, shapes);
      std::size_t i = 0;
      for (const auto& [tag, activity] : running) {
        ASSERT_EQ(system.rate_of(activity), expected[i]) << "round " << round << " activity " << tag;
        ASSERT_NEAR(rate_as_double(expected[i]), static_cast<double>(real[i]), 1e-9);
        ++i;
      }
    });
  }
}

// Max-min: every activity is at its cap, or crosses a full resource on which nobody is faster. And none is
// above capacity.
TEST(SharingProperty, EveryActivityIsAtItsCapOrHasABottleneck) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const std::size_t resources = 1 + random() % 12;
    const std::vector<Job> jobs = random_jobs(random, resources, 40);
    SharingSystem system;
    add_resources(system, resources);
    run(system, jobs, [&](TimePoint, const auto& running) {
      std::vector<unsigned __int128> load(resources, 0), weight(resources, 0);
      std::vector<std::uint64_t> fastest(resources, 0);
      for (const auto& [tag, activity] : running)
        for (const Use& use : jobs[tag].shape.uses) {
          if (use.weight == 0 || jobs[tag].alone.count() == 0) continue;
          const auto r = static_cast<std::size_t>(use.resource);
          load[r] += static_cast<unsigned __int128>(use.weight) * system.rate_of(activity);
          weight[r] += static_cast<unsigned __int128>(use.weight);
          fastest[r] = std::max(fastest[r], system.rate_of(activity));
        }
      const auto capacity = static_cast<unsigned __int128>(kWholeResource) * kFullRate;
      for (std::size_t r = 0; r < resources; ++r) ASSERT_TRUE(load[r] <= capacity);
      for (const auto& [tag, activity] : running) {
        const std::uint64_t rate = system.rate_of(activity);
        bool stopped = rate == jobs[tag].shape.cap;
        for (const Use& use : jobs[tag].shape.uses) {
          const auto r = static_cast<std::size_t>(use.resource);
          // Full: no room for one more step of all users. Fastest: up to the steps that rounding leaves to
          // others.
          const bool full = use.weight > 0 && load[r] + weight[r] > capacity;
          if (full && fastest[r] - rate <= static_cast<std::uint64_t>(kWholeResource)) stopped = true;
        }
        ASSERT_TRUE(stopped || jobs[tag].alone.count() == 0) << "round " << round << " activity " << tag;
      }
    });
  }
}

TEST(SharingProperty, WorkDoneIsWorkGiven) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    const std::size_t resources = 1 + random() % 8;
    const std::vector<Job> jobs = random_jobs(random, resources, 30);
    SharingSystem system;
    system.observe_utilisation();
    add_resources(system, resources);
    const std::vector<End> ends = run(system, jobs, nobody_looks);
    ASSERT_EQ(ends.size(), jobs.size());
    const TimePoint last{Duration{ends.back().time}};
    std::vector<double> given(resources, 0), slack(resources, 1e-3);
    for (const Job& job : jobs)
      for (const Use& use : job.shape.uses) {
        const double share = static_cast<double>(use.weight) / static_cast<double>(kWholeResource);
        given[static_cast<std::size_t>(use.resource)] += share * static_cast<double>(job.alone.count());
        slack[static_cast<std::size_t>(use.resource)] += share;  // each end is rounded by at most half a picosecond
      }
    for (std::uint32_t r = 0; r < resources; ++r)
      EXPECT_NEAR(system.busy_time(ResourceId{r}, last) * 1e12, given[r], slack[r]);
  }
}

// k equal activities, or one with k times the weights: same rates, same ends, to the bit, also for all the
// others.
TEST(SharingProperty, FoldedAndUnfoldedAreIdentical) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    const std::size_t resources = 1 + random() % 10;
    const std::vector<Job> folded_jobs = random_jobs(random, resources, 25);
    std::vector<Job> folded, unfolded;
    std::vector<std::size_t> origin;
    for (std::size_t i = 0; i < folded_jobs.size(); ++i) {
      const std::size_t k = 1 + random() % 9;
      for (std::size_t copy = 0; copy < k; ++copy) {
        unfolded.push_back(folded_jobs[i]);
        origin.push_back(i);
      }
      folded.push_back(folded_jobs[i]);
      for (Use& use : folded.back().shape.uses) use.weight *= static_cast<std::int64_t>(k);
    }
    SharingSystem one, many;
    add_resources(one, resources);
    add_resources(many, resources);
    const std::vector<End> expected = run(one, folded, nobody_looks);
    std::vector<std::int64_t> end_of(folded.size());
    for (const End& end : expected) end_of[end.tag] = end.time;
    const std::vector<End> ends = run(many, unfolded, nobody_looks);
    ASSERT_EQ(ends.size(), unfolded.size());
    for (const End& end : ends) ASSERT_EQ(end.time, end_of[origin[end.tag]]) << "round " << round;
  }
}

// Which of the activities of one instant starts first changes no end.
TEST(SharingProperty, OrderOfStartingAtOneInstantChangesNothing) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const std::size_t resources = 1 + random() % 10;
    std::vector<Job> jobs = random_jobs(random, resources, 30);
    for (Job& job : jobs) job.start -= job.start.time_since_epoch() % Duration{100};
    std::vector<std::size_t> order(jobs.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return jobs[a].start < jobs[b].start; });
    std::vector<Job> shuffled;
    for (const std::size_t i : order) shuffled.push_back(jobs[i]);
    SharingSystem straight, permuted;
    add_resources(straight, resources);
    add_resources(permuted, resources);
    std::vector<End> a = run(straight, jobs, nobody_looks), b = run(permuted, shuffled, nobody_looks);
    for (End& end : b) end.tag = order[end.tag];
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    ASSERT_EQ(a, b) << "round " << round;
  }
}

TEST(SharingProperty, TheSameTwiceIsTheSame) {
  Random random(6);
  const std::vector<Job> jobs = random_jobs(random, 20, 300);
  SharingSystem first, second;
  add_resources(first, 20);
  add_resources(second, 20);
  second.observe_utilisation();  // looking changes nothing either
  EXPECT_EQ(run(first, jobs, nobody_looks), run(second, jobs, [&](TimePoint now, const auto&) {
              second.load_of(ResourceId{0});
              second.busy_time(ResourceId{0}, now);
            }));
}

}  // namespace
}  // namespace rehearse::engine::sharing_property_test
