// nanotron's stages by cost: head and loss alone on the last stage.
#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/model/shapes.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::loss_stage_test {
namespace {

Scenario eight_stages() {
  Scenario s;
  model::Shapes shapes{.name = "llama", .layers = 16, .hidden = 2048, .heads = 32, .vocab = 131072};
  shapes.ffn_hidden = 8192;
  shapes.tied = true;
  s.model = model::make_from_shapes(shapes);
  s.strategy = small_job(1, 8, 16);
  s.strategy.training.framework = "nanotron";
  s.profile = strategies::load_profile("nanotron");
  s.cluster = hwmodels::load_cluster("p5", 1, "rail-fat-tree", "");
  return s;
}

// Messages between stages are hidden states: tokens x hidden in 16 bit; logits would be tokens x vocabulary.
TEST(LossStage, KeepsTheLogits) {
  const Result r = simulate(eight_stages());
  ASSERT_TRUE(r.deadlock.empty()) << r.deadlock;
  std::int64_t largest = 0;
  for (const plan::MessageSpec& m : r.plan.messages) largest = std::max(largest, m.bytes.value);
  EXPECT_EQ(largest, 256 * 2048 * 2);
  EXPECT_EQ(r.classes[7].parameters, 131072 * 2048 + 2048);  // the head and its norm
  EXPECT_EQ(r.classes[6].parameters, 4 * 2048 * 2048 + 3 * 2048 * 8192 + 2 * 2048);
}

// The same matrix products run however the layers are dealt out.
TEST(LossStage, MovesNoWorkBetweenKernels) {
  Scenario by_cost = eight_stages(), by_count = eight_stages();
  by_count.profile.pipeline_by_cost = false;
  EXPECT_EQ(simulate(by_cost, {.memory = false}).flops.hardware, simulate(by_count, {.memory = false}).flops.hardware);
}

TEST(MessageSync, ExposesTheHostOnceAMessage) {
  Scenario s = eight_stages();
  s.profile.pipeline_by_cost = false;
  s.profile.message_sync = false;
  const double free = simulate(s, {.memory = false}).step_time;
  s.profile.message_sync = true;
  EXPECT_GT(simulate(s, {.memory = false}).step_time, free);
}

// Each tensor is announced by two messages, and an activation travels with its mask: looks of 100 ms, the first half of one late. With two
// stages a micro-batch takes (4 - 1/2) looks on its way up and (2 - 1/2) on its way down, and no other travels meanwhile.
TEST(MessagePoll, AnnouncesEachTensorInTwoLooks) {
  const auto step = [](Duration poll, int micro_batches) {
    Scenario s = eight_stages();
    s.strategy.parallelism.degrees.data = s.gpus() / 2;
    s.strategy.parallelism.degrees.pipeline = 2;
    s.strategy.training.global_batch_size = micro_batches * s.strategy.training.micro_batch_size * s.strategy.parallelism.degrees.data;
    s.profile.message_sync = true;
    s.profile.message_poll = poll;
    return simulate(s, {.memory = false}).step_time;
  };
  const auto late = [&](int micro_batches) { return step(std::chrono::milliseconds(100), micro_batches) - step(Duration{}, micro_batches); };
  EXPECT_NEAR((late(16) - late(8)) / 8, 0.5, 0.05);
}

// Of one layer's two column-parallel products, the whole input instead of its eighth is kept: tokens x hidden x 2 B x 7/8 each. Long enough that
// activations make the peak.
TEST(GatheredInput, IsKeptWhole) {
  Scenario s;
  s.model = small_llama(8);
  s.strategy = small_job(1);
  s.strategy.training.sequence_length = 2048;
  s.strategy.parallelism.degrees.tensor = 8;
  s.strategy.parallelism.sequence_parallel = true;
  s.profile = strategies::load_profile("nanotron");
  s.cluster = hwmodels::load_cluster("p5", 1, "rail-fat-tree", "");
  auto peak = [&] { return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value; };
  s.profile.keeps_gathered_input = false;
  const std::int64_t shards = peak();
  s.profile.keeps_gathered_input = true;
  const std::int64_t more = 8 * 2 * (2048 * 512 * 2) * 7 / 8;
  EXPECT_NEAR(static_cast<double>(peak() - shards), static_cast<double>(more), 0.15 * static_cast<double>(more));
}

}  // namespace
}  // namespace rehearse::scenario::loss_stage_test
