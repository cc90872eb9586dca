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

/// Two tensor-parallel ranks with sequence parallelism, as torchtitan trains them.
Scenario two_ranks(std::int64_t samples) {
  Scenario s;
  s.model = small_llama(1);
  s.strategy = small_job(1);
  s.strategy.training.micro_batch_size = s.strategy.training.global_batch_size = samples;
  s.strategy.parallelism.degrees.tensor = 2;
  s.strategy.parallelism.sequence_parallel = true;
  s.profile = strategies::load_profile("torchtitan-compile");
  s.profile.fused_qkv = s.profile.copies_fused_qkv = false;
  s.cluster = hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "");
  s.cluster.gpus_per_node = 2;
  return s;
}

/// How often the step has a kernel or a collective of such a name.
int count(const Scenario& s, const std::string& words) {
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  int n = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      const bool kernel = i.op == plan::Opcode::kernel;
      if (!kernel && i.op != plan::Opcode::collective) continue;
      n += (kernel ? plan.kernels[i.index].name : plan.collectives[i.index].name).find(words) != std::string::npos;
    }
  return n;
}

// torchtitan gathers what attention and the MLP read once each, and scatters its gradient once; the output layer does by itself. Of the
// output gradients of both row-parallel products each is gathered.
TEST(GatheredInput, IsGatheredOnceForAllProductsOfABlock) {
  Scenario s = two_ranks(1);
  EXPECT_EQ(count(s, "attention gather input"), 1);
  EXPECT_EQ(count(s, "mlp gather input"), 1);
  EXPECT_EQ(count(s, "q_proj gather input") + count(s, "k_proj gather input") + count(s, "up_proj gather input"), 0);
  EXPECT_EQ(count(s, "scatter input gradient"), 2);
  EXPECT_EQ(count(s, "q_proj scatter gradient"), 0);
  s.profile.fused_qkv = true;
  EXPECT_EQ(count(s, "attention gather input"), 1);
  EXPECT_EQ(count(s, "qkv gather input"), 0);
  s.profile.fused_qkv = false;
  s.profile.gathers_by_block = false;
  EXPECT_EQ(count(s, "attention gather input"), 0);
  EXPECT_EQ(count(s, "q_proj gather input"), 2);   // again for the weight's gradient
}

// Compiled DTensor products gather what they share once; each scatters its own gradient.
TEST(GatheredInput, IsSharedByCompiledProducts) {
  Scenario s = two_ranks(1);
  s.profile.gathers_by_block = false;
  s.profile.shares_gathered = true;
  EXPECT_EQ(count(s, "q_proj gather input"), 1);
  EXPECT_EQ(count(s, "k_proj gather input") + count(s, "v_proj gather input") + count(s, "up_proj gather input"), 0);
  EXPECT_EQ(count(s, "gate_proj gather input"), 1);
  for (const char* product : {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}) EXPECT_EQ(count(s, std::string(product) + " scatter gradient"), 1) << product;
}

// Pieces of [batch, sequence, hidden] that are gathered along the sequence lie in order where there is one sample; to be scattered they are
// always copied.
TEST(GatheredInput, IsCopiedIntoOrderWhereSamplesAreSeveral) {
  const Scenario one = two_ranks(1), two = two_ranks(2);
  EXPECT_EQ(count(one, "attention order input"), 1);   // the gradient's
  EXPECT_EQ(count(two, "attention order input"), 2);
  EXPECT_EQ(count(one, "o_proj order output"), 1);
  EXPECT_EQ(count(one, "o_proj order gradient"), 0);
  EXPECT_EQ(count(two, "o_proj order gradient"), 1);
}

// The whole table on every rank: what it has more than its half, and nothing to sum in forward.
TEST(WholeEmbedding, IsOnEveryTensorRank) {
  Scenario s = two_ranks(1);
  const auto parameters = [&] { return strategies::parameters_per_stage(s.model, s.strategy, s.profile)[0]; };
  const std::int64_t half = parameters();
  EXPECT_EQ(count(s, "embedding reduce"), 1);
  s.profile.whole_embedding = true;
  EXPECT_EQ(parameters() - half, s.model.vocab * s.model.hidden / 2);
  EXPECT_EQ(count(s, "embedding reduce"), 0);
  EXPECT_EQ(count(s, "embedding gather gradient"), 1);
}

// Without sequence parallelism the head is whole, too: all logits from one product, nothing to gather or to sum.
TEST(WholeHead, IsOnEveryTensorRankWithoutSequenceParallelism) {
  Scenario s = two_ranks(1);
  s.profile.gathers_logits = s.profile.whole_head_without_sequence = true;
  const auto parameters = [&] { return strategies::parameters_per_stage(s.model, s.strategy, s.profile)[0]; };
  const std::int64_t half = parameters();
  EXPECT_EQ(count(s, "gather logits"), 1);
  s.strategy.parallelism.sequence_parallel = false;
  EXPECT_EQ(parameters() - half, s.model.vocab * s.model.hidden / 2);
  EXPECT_EQ(count(s, "gather logits"), 0);
  EXPECT_EQ(count(s, "lm_head reduce input gradient"), 0);
}

}  // namespace
}  // namespace rehearse::scenario::loss_stage_test
