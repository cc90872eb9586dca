#include "sim/scenario/stage_paces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::stage_paces_test {
namespace {

using hwmodels::expected_largest;

/// A stage whose kernels all follow the clock, `seconds` long at the mean speed, of GPUs with a standard
/// deviation of 1 %.
StageSeconds stage(double seconds, int gpus_per_stage, int gpus) {
  return {seconds * (1 + 0.01 * expected_largest(gpus_per_stage)),
          seconds * (1 + 0.01 * expected_largest(gpus))};
}

// Eight equal stages of two GPUs are sixteen GPUs, the slowest of which holds up all; where one stage has a
// tenth more work, its two GPUs do, and that the others are ten deviations away does not matter.
TEST(PaceOfBusiest, EqualStagesWaitForAllAndOneOfMoreWorkForItsOwn) {
  std::vector<StageSeconds> stages(8, stage(1, 2, 16));
  EXPECT_NEAR(pace_of_busiest(stages, 2).deviations, expected_largest(16), 1e-6);
  stages.back() = stage(1.1, 2, 16);
  EXPECT_NEAR(pace_of_busiest(stages, 2).deviations, expected_largest(2), 0.05);
}

// The mean of the longest stage, drawn 40,000 times: an oracle of its own. One stage has one deviation more
// work than three others.
TEST(PaceOfBusiest, IsTheMeanOfWhatIsWaitedFor) {
  const int gpus_per_stage = 4, gpus = 16;
  const std::vector<double> work{1, 1.01, 1, 1};
  std::vector<StageSeconds> stages;
  for (const double w : work) stages.push_back(stage(w, gpus_per_stage, gpus));
  std::mt19937 random(1);
  std::normal_distribution<double> deviations;
  double sum = 0;
  constexpr int kJobs = 40'000;
  for (int job = 0; job < kJobs; ++job) {
    double longest = 0;
    for (const double w : work)
      for (int g = 0; g < gpus_per_stage; ++g)
        longest = std::max(longest, w * (1 + 0.01 * deviations(random)));
    sum += longest;
  }
  const double predicted = 1.01 * (1 + 0.01 * pace_of_busiest(stages, gpus_per_stage).deviations);
  EXPECT_NEAR(predicted, sum / kJobs, 0.0005);  // a twentieth of a deviation
}

// Work that does not follow the clock, and is less, holds nobody up.
TEST(PaceOfBusiest, StagesThatTheClockDoesNotSlow) {
  EXPECT_NEAR(pace_of_busiest({{1, 1.01}, {0.5, 0.5}}, 1).deviations, expected_largest(1), 0.15);
}

Scenario gpt(int stages) {
  const std::string text =
      "model: gpt-3-175b\ncluster: {node: dgx-a100, nodes: 8}\ntraining: {sequence_length: 2048, "
      "global_batch_size: 64, micro_batch_size: 1, framework: megatron-core}\n"
      "parallelism: {tensor: 8, pipeline: " +
      std::to_string(stages) + "}\nmemory: {recompute: full}\n";
  return read_scenario(config::parse_document(text, "gpt.yaml").root, "gpt.yaml");
}

// The last stage has the output layer too, so that the job waits for its eight GPUs and not for the slowest
// of 64. Folded or not.
TEST(StagePaces, TheStageOfTheOutputLayerIsWaitedFor) {
  const Scenario s = gpt(8);
  SimulateOptions unfolded;
  unfolded.memory = false, unfolded.unfold = true;
  SimulateOptions folded = unfolded;
  folded.unfold = false;
  const Result one = simulate(s, folded), every = simulate(s, unfolded);
  const hwmodels::KernelModel slowest(gpu_of(s), hwmodels::ClockState::sustained,
                                      hwmodels::pace_of_slowest(64));
  const std::vector<hwmodels::Pace> paces = paces_of(s, one.plan, slowest);
  ASSERT_EQ(paces.size(), 8u);
  EXPECT_NEAR(paces.back().deviations, expected_largest(8), 0.2);
  EXPECT_EQ(paces.front(), hwmodels::pace_of_slowest(8));
  EXPECT_EQ(one.step_time, every.step_time);
}

TEST(StagePaces, WithoutStagesAllGpusHaveOnePace) {
  const Scenario s = gpt(1);
  SimulateOptions options;
  options.memory = false;
  EXPECT_TRUE(paces_of(s, simulate(s, options).plan, hwmodels::KernelModel(gpu_of(s))).empty());
}

}  // namespace
}  // namespace rehearse::scenario::stage_paces_test
