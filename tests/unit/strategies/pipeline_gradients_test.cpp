// When data-parallel ranks reduce gradients and gather parameters under a pipeline: order and bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::pipeline_gradients_test {
namespace {

constexpr int kMicroBatches = 4;

Strategy pipelined(DataParallelKind kind, const std::string& schedule, int chunks) {
  Strategy s;
  s.training.sequence_length = 128;
  s.training.global_batch_size = 4 * kMicroBatches;
  s.parallelism.degrees.data = 4;
  s.parallelism.degrees.pipeline = 2;
  s.pipeline.schedule = schedule;
  s.pipeline.virtual_stages = chunks;
  s.data_parallel.kind = kind;
  return s;
}

plan::Plan plan_of(const Strategy& s, const char* framework) {
  const model::ModelDescription model = llama_like(8, 256, 8, 4, 512, 1000);
  const FrameworkProfile profile = load_profile(framework);
  EXPECT_TRUE(problems_of(model, s, profile, 8).empty());
  return write_plan(model, s, profile, 8);
}

/// One collective of a class's step: when it comes, in calls, and its bytes.
struct Issued {
  std::size_t call;
  std::int64_t bytes;
};
std::vector<Issued> collectives(const plan::Plan& plan, std::size_t c, CollectiveKind kind) {
  std::vector<Issued> out;
  const auto& step = plan.classes[c].program.step;
  for (std::size_t k = 0; k < step.size(); ++k)
    for (const plan::Instruction& i : plan.blocks[step[k].block].timing)
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == kind && plan.collectives[i.index].axis == plan::GroupAxis::data) out.push_back({k, plan.collectives[i.index].bytes.value});
  return out;
}
std::int64_t sum(const std::vector<Issued>& all) {
  return std::accumulate(all.begin(), all.end(), std::int64_t{0}, [](std::int64_t n, const Issued& i) { return n + i.bytes; });
}

/// A pass computes: gathering, accumulating and resharding are calls of their own.
bool is_pass(const plan::Plan& plan, const plan::Call& call, plan::Phase phase) {
  const std::string& name = plan.blocks[call.block].name;
  return call.phase == phase && call.layer >= 0 && name.starts_with("layer ");
}
/// The first or last call of a pass over layers [from, to).
std::size_t last_pass(const plan::Plan& plan, std::size_t c, plan::Phase phase, int from, int to) {
  std::size_t found = 0;
  const auto& step = plan.classes[c].program.step;
  for (std::size_t k = 0; k < step.size(); ++k)
    if (is_pass(plan, step[k], phase) && step[k].layer >= from && step[k].layer < to) found = k;
  return found;
}
std::size_t first_pass(const plan::Plan& plan, std::size_t c, plan::Phase phase) {
  const auto& step = plan.classes[c].program.step;
  std::size_t k = 0;
  while (!is_pass(plan, step[k], phase)) ++k;
  return k;
}

// Each unit is gathered once, before or with the first forward, and reduced once, in fp32, after the last backward.
TEST(ShardedUnderPipeline, ParametersAreGatheredAndGradientsReducedOncePerStep) {
  for (const char* schedule : {"1f1b", "pytorch-1f1b", "gpipe", "zb-h1"}) {
    const Strategy s = pipelined(DataParallelKind::fsdp2, schedule, 1);
    const plan::Plan plan = plan_of(s, "torchtitan");
    const auto parameters = parameters_per_stage(llama_like(8, 256, 8, 4, 512, 1000), s, load_profile("torchtitan"));
    for (std::size_t c = 0; c < 2; ++c) {
      const auto gathers = collectives(plan, c, CollectiveKind::all_gather), reductions = collectives(plan, c, CollectiveKind::reduce_scatter);
      EXPECT_EQ(gathers.size(), 5u) << schedule;       // four layers, and embedding or head
      EXPECT_EQ(reductions.size(), 5u) << schedule;
      EXPECT_EQ(sum(gathers), parameters[c] * 2) << schedule;
      EXPECT_EQ(sum(reductions), parameters[c] * 4) << schedule;
      const bool in_two = std::string(schedule) == "zb-h1" && c > 0;
      EXPECT_GT(reductions.front().call, last_pass(plan, c, in_two ? plan::Phase::weight_gradient : plan::Phase::backward, 0, 8)) << schedule;
      EXPECT_LT(gathers.back().call, first_pass(plan, c, plan::Phase::backward)) << schedule;
    }
  }
}

// reshard_after_forward: true, given: each forward gathers again, and so does each backward until the chunk is through.
TEST(ShardedUnderPipeline, ReshardingAfterForwardGathersAgain) {
  Strategy s = pipelined(DataParallelKind::fsdp2, "gpipe", 1);
  s.data_parallel.reshard_after_forward = true;
  const plan::Plan plan = plan_of(s, "torchtitan");
  const std::size_t kept = 1;   // the last unit stays for backward
  EXPECT_EQ(collectives(plan, 1, CollectiveKind::all_gather).size(), (5 - kept) * kMicroBatches + kept + (5 - kept));
  EXPECT_EQ(collectives(plan, 1, CollectiveKind::reduce_scatter).size(), 5u);
}

// Until then whole gradients add up in fp32: 4 bytes for each parameter of the rank, where one micro-batch's are 2.
TEST(ShardedUnderPipeline, WholeGradientsAccumulateInTheFormatOfTheReduction) {
  const Strategy s = pipelined(DataParallelKind::fsdp2, "1f1b", 1);
  const plan::Plan plan = plan_of(s, "torchtitan");
  const auto parameters = parameters_per_stage(llama_like(8, 256, 8, 4, 512, 1000), s, load_profile("torchtitan"));
  for (std::size_t c = 0; c < 2; ++c) {
    const plan::Program& program = plan.classes[c].program;
    const std::size_t reduced = collectives(plan, c, CollectiveKind::reduce_scatter).front().call;
    std::vector<std::int64_t> slots(program.slots, 0);
    std::int64_t gradients = 0;
    for (std::size_t k = 0; k < reduced; ++k)
      for (const plan::Instruction& i : plan.blocks[program.step[k].block].memory) {
        std::int64_t& slot = slots[program.step[k].frames[static_cast<std::size_t>(i.frame)] + i.index];
        if (i.op == plan::Opcode::alloc && static_cast<plan::Category>(i.flags) == plan::Category::gradient) gradients += slot = i.value;
        if (i.op == plan::Opcode::free) gradients -= std::exchange(slot, 0);
      }
    EXPECT_EQ(gradients, parameters[c] * 4);
  }
}

// Schedules of many chunks: a chunk's gradients go as soon as its last backward is over, while the other chunk still computes.
TEST(ShardedUnderPipeline, AChunkReducesWhenItsLastBackwardIsOver) {
  const plan::Plan plan = plan_of(pipelined(DataParallelKind::fsdp2, "pytorch-interleaved-1f1b", 2), "torchtitan");
  // Rank 1 holds layers 2, 3 and 6, 7 with the head; the later chunk is through first.
  const auto reductions = collectives(plan, 1, CollectiveKind::reduce_scatter);
  ASSERT_EQ(reductions.size(), 5u);
  EXPECT_GT(reductions[0].call, last_pass(plan, 1, plan::Phase::backward, 6, 8));
  EXPECT_LT(reductions[2].call, last_pass(plan, 1, plan::Phase::backward, 2, 4));
  EXPECT_GT(reductions[3].call, last_pass(plan, 1, plan::Phase::backward, 2, 4));
}

// Megatron: the first stage's first chunk has buckets, every other chunk is one, and each chunk is launched by itself.
TEST(DistributedOptimizerUnderPipeline, EachChunkIsReducedByItself) {
  Strategy s = pipelined(DataParallelKind::distributed_optimizer, "interleaved-1f1b", 2);
  s.data_parallel.overlap_gradient_reduce = true;
  s.data_parallel.bucket = Bytes{1 << 20};
  const plan::Plan plan = plan_of(s, "megatron-core");
  const auto last = collectives(plan, 1, CollectiveKind::reduce_scatter);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_LT(last[0].call, last_pass(plan, 1, plan::Phase::backward, 2, 4));
  EXPECT_GT(last[1].call, last_pass(plan, 1, plan::Phase::backward, 2, 4));
  EXPECT_GT(collectives(plan, 0, CollectiveKind::reduce_scatter).size(), 3u);
}

// Megatron waits for the device after batches of messages; messages that travel under the passes are no batches.
TEST(PipelineMessages, OnlyBatchesAreWaitedForByTheHost) {
  const auto syncs = [](const char* schedule, int chunks, bool overlap) {
    Strategy s = pipelined(DataParallelKind::distributed_optimizer, schedule, chunks);
    s.parallelism.degrees.pipeline = 4;
    s.pipeline.overlap_messages = overlap;
    const model::ModelDescription model = llama_like(8, 256, 8, 4, 512, 1000);
    const plan::Plan plan = write_plan(model, s, load_profile("megatron-bridge"), 8);
    int n = 0;
    for (const plan::Call& call : plan.classes[1].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) n += i.op == plan::Opcode::host_sync;
    return n;
  };
  EXPECT_EQ(syncs("interleaved-1f1b", 2, true), 1);   // the gradient norm
  EXPECT_GT(syncs("interleaved-1f1b", 2, false), kMicroBatches);
  EXPECT_GT(syncs("1f1b", 1, true), kMicroBatches);
}

// A tensor group of two holds 128 x 256 activations twice: half of them travel to the next stage's rank, which gathers them.
TEST(PipelineMessages, TravelInSharesWhereMegatronSplitThem) {
  Strategy s = pipelined(DataParallelKind::ddp, "1f1b", 1);
  s.parallelism.degrees.tensor = 2;
  constexpr std::int64_t kWhole = 128 * 256 * 2;
  const auto sent = [&](const char* framework) {
    std::vector<std::int64_t> bytes;
    for (const plan::MessageSpec& m : plan_of(s, framework).messages) bytes.push_back(m.bytes.value);
    return bytes;
  };
  const auto gathers = [&](const char* framework) {
    const plan::Plan plan = plan_of(s, framework);
    std::vector<std::int64_t> bytes;
    for (const plan::Call& call : plan.classes[1].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == CollectiveKind::all_gather) bytes.push_back(plan.collectives[i.index].bytes.value);
    return bytes;
  };
  for (const std::int64_t bytes : sent("megatron-2021")) EXPECT_EQ(bytes, kWhole / 2);
  EXPECT_EQ(gathers("megatron-2021"), std::vector<std::int64_t>(kMicroBatches, kWhole));
  for (const std::int64_t bytes : sent("megatron-core")) EXPECT_EQ(bytes, kWhole);
  EXPECT_TRUE(gathers("megatron-core").empty());
  for (const std::int64_t bytes : sent("megatron-2020")) EXPECT_EQ(bytes, kWhole);   // NVIDIA/Megatron-LM 8aa4619f2b, training.py
  EXPECT_TRUE(gathers("megatron-2020").empty());
  s.parallelism.sequence_parallel = true;   // what travels is a share already
  for (const std::int64_t bytes : sent("megatron-2021")) EXPECT_EQ(bytes, kWhole / 2);
}

// DeepSpeed's BF16_Optimizer: after a micro-batch's backward each weight's gradient is copied to fp32 and the copy added, one
// weight at a time. fp16 adds up in fp16 as backward goes.
TEST(DeepSpeedUnderPipeline, WideCopiesOfGradientsComeAndGo) {
  Strategy s = pipelined(DataParallelKind::zero1, "1f1b", 1);
  const model::ModelDescription model = llama_like(8, 256, 8, 4, 512, 1000);
  const auto profile = [&] { return with_choices(with_precision(load_profile("megatron-deepspeed"), s.training.precision), s); };
  const auto widened = [&] {
    const plan::Plan plan = write_plan(model, s, profile(), 8);
    std::int64_t elements = 0, live = 0;
    for (const plan::Call& call : plan.classes[0].program.step) {
      const plan::Block& block = plan.blocks[call.block];
      for (const plan::Instruction& i : block.timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "widen gradient") {
          EXPECT_EQ(plan.kernels[i.index].bytes_written, 2 * plan.kernels[i.index].bytes_read);
          elements += plan.kernels[i.index].bytes_read / 2;
        }
      if (!block.name.starts_with("accumulate gradients")) continue;
      for (const plan::Instruction& i : block.memory) {
        if (i.op == plan::Opcode::alloc) {
          live += i.value;
          EXPECT_EQ(live, i.value);
        }
        if (i.op == plan::Opcode::free) live = 0;
      }
    }
    return elements;
  };
  EXPECT_EQ(widened(), kMicroBatches * parameters_per_stage(model, s, profile())[0]);
  s.training.precision = Precision::fp16;
  EXPECT_EQ(widened(), 0);
}

// They stay until the next ones are made, whatever the schedule: where backward is split, those that come with the weight gradients.
TEST(DeepSpeedUnderPipeline, HeldGradientsGoBeforeTheNextOnes) {
  const model::ModelDescription model = llama_like(8, 256, 8, 4, 512, 1000);
  for (const std::string schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2", "dualpipe"})
    for (const bool zeroed : {false, true}) {
      const Strategy s = pipelined(DataParallelKind::zero1, schedule, 1);
      FrameworkProfile profile = with_choices(with_precision(load_profile("megatron-deepspeed"), s.training.precision), s);
      profile.zeroes_narrow_gradients = zeroed;
      const test_support::StepBytes step = test_support::ByteLedger(write_plan(model, s, profile, 8), 0).step();
      EXPECT_TRUE(step.mistakes.empty()) << schedule << ": " << step.mistakes.front();
      EXPECT_EQ(step.after_step, step.persistent) << schedule;
    }
}

}  // namespace
}  // namespace rehearse::strategies::pipeline_gradients_test
