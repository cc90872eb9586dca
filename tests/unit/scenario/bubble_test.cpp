// The pipeline bubble against its formulas, exactly: nothing takes time but one kernel per layer and direction.
// p stages, m micro-batches, v chunks per rank; forward of a stage F, backward B.
#include <gtest/gtest.h>

#include <numeric>

#include "sim/executor/timing.h"
#include "tests/support/hand_costs.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::bubble_test {
namespace {

constexpr std::int64_t kForward = 1'000'000, kBackward = 2'000'000;   // per layer, picoseconds
constexpr std::int64_t kLayers = 16;

executor::TimingResult run(const std::string& schedule, int p, int m, int v) {
  strategies::Strategy s = small_job(1, p, m);
  s.pipeline.schedule = schedule;
  s.pipeline.virtual_stages = v;
  s.training.clip_gradients = false;
  const plan::Plan plan = strategies::write_plan(small_llama(kLayers), s, without_host_time(strategies::load_profile("plain")), 8);
  return executor::run_timing(plan, test_support::hand_costs(plan, {{"silu", kForward}, {"silu backward", kBackward}}));
}

std::int64_t share(const executor::ClassTiming& c, executor::Cause cause) { return c.time[static_cast<std::size_t>(cause)]; }

void expect_bubble(const std::string& schedule, int p, int m, int v) {
  const executor::TimingResult result = run(schedule, p, m, v);
  ASSERT_EQ(result.deadlock, "") << schedule;
  // One micro-batch through one rank takes T; the pipe fills and drains in (p - 1) chunks of T / v.
  const std::int64_t t = kLayers / p * (kForward + kBackward);
  EXPECT_EQ(result.step, m * t + (p - 1) * t / v) << schedule << " p=" << p << " m=" << m << " v=" << v;
  // Fraction of the step: (p - 1) / (v m + p - 1), for every stage.
  for (const executor::ClassTiming& c : result.classes) {
    EXPECT_EQ(share(c, executor::Cause::memory_bound), m * t);
    EXPECT_EQ(share(c, executor::Cause::bubble), (p - 1) * t / v) << schedule << " p=" << p << " m=" << m << " v=" << v;
    EXPECT_EQ(std::accumulate(c.time.begin(), c.time.end(), std::int64_t{0}), result.step);
  }
}

TEST(Bubble, GPipeAnd1F1B) {
  for (const char* schedule : {"gpipe", "1f1b"})
    for (int p : {2, 4, 8})
      for (int m : {p, 2 * p, 3 * p + 1}) expect_bubble(schedule, p, m, 1);
}

TEST(Bubble, InterleavingDividesItByTheChunks) {
  for (int p : {2, 4})
    for (int m : {p, 2 * p, 4 * p})
      for (int v : {2, 4}) expect_bubble("interleaved-1f1b", p, m, v);
}

// Naive: one stage works at a time, so each of p stages stands still for (p - 1) / p of the step.
TEST(Bubble, NaivePipelineIdlesAllButOneStage) {
  const executor::TimingResult result = run("naive", 2, 1, 1);
  const std::int64_t t = kLayers / 2 * (kForward + kBackward);
  EXPECT_EQ(result.step, 2 * t);
  for (const executor::ClassTiming& c : result.classes) EXPECT_EQ(share(c, executor::Cause::bubble), t);
}

}  // namespace
}  // namespace rehearse::scenario::bubble_test
