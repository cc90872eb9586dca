// The weight gradients of the output layer, left until all backward passes are over (Megatron's --defer-embedding-wgrad-compute).
#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::deferred_head_test {
namespace {

namespace st = strategies;

constexpr int kMicroBatches = 6;

Scenario job(std::optional<std::int64_t> deferred) {
  Scenario s;
  s.model = small_llama(4);
  s.model.vocab = 32768;
  s.strategy = small_job(1, 2, kMicroBatches);
  s.strategy.pipeline.deferred_head_gradients = deferred;
  s.profile = st::load_profile("megatron-core");
  s.cluster = hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "h100-sxm");
  s.cluster.gpus_per_node = 2;
  return s;
}

/// Calls of the last stage up to its last backward that make the output layer's weight gradient, and after it.
std::pair<int, int> gradients_made(const Scenario& s) {
  const plan::Plan plan = st::write_plan(s.model, s.strategy, s.profile, 2);
  const auto& step = plan.classes.back().program.step;
  std::size_t last = 0;
  for (std::size_t c = 0; c < step.size(); ++c)
    if (step[c].phase == plan::Phase::backward) last = c;
  std::pair<int, int> made;
  for (std::size_t c = 0; c < step.size(); ++c)
    for (const plan::Instruction& i : plan.blocks[step[c].block].timing)
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "lm_head weight gradient") ++(c <= last ? made.first : made.second);
  return made;
}

TEST(DeferredHeadGradients, AreMadeAfterAllBackwardPasses) {
  EXPECT_EQ(gradients_made(job(std::nullopt)), std::pair(kMicroBatches, 0));
  EXPECT_EQ(gradients_made(job(2)), std::pair(kMicroBatches - 2, 2));
  EXPECT_EQ(gradients_made(job(0)), std::pair(0, kMicroBatches));
}

// Each one that waits holds the gradient of its logits and the output layer's input, in 16 bit.
TEST(DeferredHeadGradients, HoldWhatTheyWillRead) {
  const auto peak = [](const Scenario& s) { return simulate(s, {}).classes.back().memory.peak_allocated.value; };
  const Scenario s = job(2);
  const std::int64_t each = s.strategy.tokens() * (s.model.vocab + s.model.hidden) * 2;
  EXPECT_EQ(peak(job(2)) - peak(job(1)), each);
  EXPECT_EQ(peak(job(3)) - peak(job(2)), each);
}

TEST(DeferredHeadGradients, NeedStagesAndFusedAccumulation) {
  Scenario s = job(2);
  EXPECT_TRUE(st::problems_of(s.model, s.strategy, s.profile, 2).empty());
  s.profile.fused_gradient_accumulation = false;
  EXPECT_FALSE(st::problems_of(s.model, s.strategy, s.profile, 2).empty());
  s = job(2);
  s.strategy.pipeline.schedule = "zb-h1";
  EXPECT_FALSE(st::problems_of(s.model, s.strategy, s.profile, 2).empty());
  s = job(2);
  s.strategy.parallelism.degrees.pipeline = 1;
  EXPECT_FALSE(st::problems_of(s.model, s.strategy, s.profile, 1).empty());
}

}  // namespace
}  // namespace rehearse::scenario::deferred_head_test
