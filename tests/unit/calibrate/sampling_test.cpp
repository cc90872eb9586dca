#include "calibrate/probe/sampling.h"

#include <gtest/gtest.h>

#include "tests/unit/calibrate/fake_machine.h"

namespace rehearse::calibrate::sampling_test {
namespace {

struct Sampling : testing::Test {
  FakeMachine machine;
  SamplingRule rule;
  std::unique_ptr<Team> team = single_process();
  bool stop = false;

  Series take() {
    const auto work = machine.prepare("host_adam", {{"elements", std::int64_t{1}}, {"threads", std::int64_t{1}}});
    return sample(work.get(), rule, machine, *team, machine.clock(), [this] { return stop; });
  }
};

TEST_F(Sampling, QuietOperationsStopAtTheLeastTime) {
  const Series s = take();
  EXPECT_TRUE(s.converged);
  EXPECT_NEAR(s.median_s, 1e-4, 1e-10);
  EXPECT_EQ(s.repeats, 5);  // 0.5 ms per sample
  // At least 0.1 s of 0.5 ms samples; the check comes every 10 %.
  EXPECT_GE(s.samples, 200);
  EXPECT_LE(s.samples, 221);
  EXPECT_EQ(s.sm_clock_mhz, 1700);
  EXPECT_TRUE(s.throttle.empty());
}

TEST_F(Sampling, NoisyOperationsStopAtTheCapAndSaySo) {
  machine.noise = 0.9;
  rule.target_relative_error = 1e-4;
  rule.cap_s = 0.3;
  const Series s = take();
  EXPECT_FALSE(s.converged);
  EXPECT_GT(*s.relative_error, 1e-4);
  EXPECT_NEAR(static_cast<double>(s.samples), 0.3 / 0.5e-3, 90);
}

/// Uniform noise of +-20 %: the error falls like 1/sqrt(n), so a tenth of the error needs many more samples.
TEST_F(Sampling, SamplesGoOnUntilTheErrorIsReached) {
  machine.noise = 0.2;
  rule.least_s = 0;
  rule.cap_s = 100;
  rule.target_relative_error = 0.05;
  const Series coarse = take();
  rule.target_relative_error = 0.01;
  const Series fine = take();
  EXPECT_TRUE(coarse.converged && fine.converged);
  EXPECT_LE(*coarse.relative_error, 0.05);
  EXPECT_LE(*fine.relative_error, 0.01);
  EXPECT_GT(fine.samples, 4 * coarse.samples);
}

TEST_F(Sampling, OneLongOperationIsTimedThreeTimesUnlessThatTakesTenCaps) {
  rule.cap_s = 0.5;
  machine.seconds = [](auto&, auto&) { return 1.0; };
  EXPECT_EQ(take().samples, 3);
  machine.seconds = [](auto&, auto&) { return 6.0; };
  EXPECT_EQ(take().samples, 1);
}

TEST_F(Sampling, FallingClocksShowAsDrift) {
  machine.slower_per_s = 0.5;
  rule.least_s = 1;
  const Series s = take();
  EXPECT_GT(*s.drift, 0.05);
  EXPECT_LT(*s.min_s, s.median_s);
}

TEST_F(Sampling, RepeatsRespectTheDevicesLimit) {
  machine.most_repeats = 3;
  machine.seconds = [](auto&, auto&) { return 1e-6; };
  EXPECT_EQ(take().repeats, 3);
}

TEST_F(Sampling, ReasonsForLowClocksAreKept) {
  machine.throttle = {"power cap"};
  EXPECT_EQ(take().throttle, std::vector<std::string>{"power cap"});
}

TEST_F(Sampling, InterruptionEndsIt) {
  machine.after_run = [this] { stop = machine.now > 0.02; };
  EXPECT_THROW(take(), Interrupted);
}

TEST_F(Sampling, AStandingClockIsNoMeasurement) {
  machine.seconds = [](auto&, auto&) { return 0.0; };
  EXPECT_THROW(take(), NotPossible);
}

}  // namespace
}  // namespace rehearse::calibrate::sampling_test
