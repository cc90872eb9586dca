// Sequences in chunks with the rest in host memory (DeepSpeed's FPDT, sequence/fpdt_layer.py): bytes, blocks and copies counted from
// its code, and what it cannot do.
#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"
#include "tests/support/event_ledger.h"
#include "tests/support/same_result.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::sequence_chunks_test {
namespace {

namespace st = strategies;
using plan::CopySpec;
using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kSequence = 3072, kRanks = 2, kLayers = 2;

/// Three (1024) or another number of chunks of 3072 tokens over two ranks; 0: whole sequences.
st::Strategy job(std::int64_t chunk, st::Recompute recompute = st::Recompute::full) {
  st::Strategy s = small_job(1, 1, 1);
  s.training.sequence_length = kSequence;
  s.training.framework = "megatron-deepspeed";
  s.training.attention = "flash";
  s.parallelism.degrees.context = kRanks;
  s.parallelism.context_kind = st::ContextKind::ulysses;
  s.memory.recompute = recompute;
  s.memory.sequence_chunk = chunk;
  return s;
}
st::FrameworkProfile profile() { return st::with_precision(st::load_profile("megatron-deepspeed"), st::Precision::bf16); }
plan::Plan plan_of(const st::Strategy& s) { return st::write_plan(small_llama(kLayers), s, st::with_choices(profile(), s), kRanks); }

template <typename Visit>
void each_instruction(const plan::Plan& plan, Visit visit) {
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) visit(i);
}

TEST(SequenceChunks, EverythingIsLetGo) {
  for (const std::int64_t chunk : {1536, 1024, 768, 256})
    for (const st::Recompute recompute : {st::Recompute::none, st::Recompute::full}) {
      const StepBytes bytes = ByteLedger(plan_of(job(chunk, recompute)), 0, true).step();
      EXPECT_TRUE(bytes.mistakes.empty()) << chunk << ": " << bytes.mistakes.front();
      EXPECT_EQ(bytes.after_step, bytes.persistent);
    }
}

// n chunks of C tokens: n blocks under the diagonal of a causal mask and n(n-1)/2 whole ones are (nC)^2 / 2 scores, in forward, in its
// repetition and in backward.
TEST(SequenceChunks, BlocksOfScoresAreThoseOfTheWholeSequence) {
  for (const std::int64_t chunk : {1536, 1024, 256}) {
    double forward = 0, backward = 0;
    int blocks = 0;
    const plan::Plan plan = plan_of(job(chunk));
    each_instruction(plan, [&](const plan::Instruction& i) {
      if (i.op != plan::Opcode::kernel) return;
      const auto& k = plan.kernels[i.index];
      const double scores = static_cast<double>(k.query_length) * static_cast<double>(k.key_length) * (k.causal ? 0.5 : 1);
      if (k.kind == model::KernelKind::attention_forward) forward += scores, ++blocks;
      if (k.kind == model::KernelKind::attention_backward) backward += scores;
    });
    const std::int64_t n = kSequence / chunk;
    const double whole = 0.5 * static_cast<double>(kSequence * kSequence);
    EXPECT_EQ(blocks, 2 * kLayers * n * (n + 1) / 2);
    EXPECT_DOUBLE_EQ(forward, 2 * kLayers * whole);
    EXPECT_DOUBLE_EQ(backward, kLayers * whole);
  }
}

// Down go, per token and layer: the input, query, key, value, output (16 bit each) and the output's statistics (fp32 per head), twice,
// as the layer is made again; in backward the output's gradient, and the query's in fp32 once for each block; from the loss the hidden
// state, pageable. All but the last lies in pinned memory of one layer at a time.
TEST(SequenceChunks, WhatLeavesTheGpu) {
  const model::ModelDescription model = small_llama(kLayers);
  const std::int64_t tokens = kSequence / kRanks, q = model.heads * model.head_dim, kv = model.kv_heads * model.head_dim, n = 3;
  const plan::Plan plan = plan_of(job(kSequence / n));
  std::int64_t pinned = 0, pageable = 0;
  each_instruction(plan, [&](const plan::Instruction& i) {
    if (i.op != plan::Opcode::copy || plan.copies[i.index].direction != CopySpec::Direction::device_to_host) return;
    (plan.copies[i.index].pinned ? pinned : pageable) += plan.copies[i.index].bytes.value;
  });
  const std::int64_t kept = tokens * ((model.hidden + 2 * q + 2 * kv) * 2 + model.heads * 4);
  const std::int64_t made = tokens * q * 2 + tokens / n * q * 4 * (n * (n + 1) / 2);
  EXPECT_EQ(pinned, kLayers * (2 * kept + made));
  EXPECT_EQ(pageable, tokens * model.hidden * 2);
  EXPECT_EQ(plan.classes[0].host.pinned, kept + tokens * q * (2 + 4));
}

// Logits come in 32 pieces of each chunk, layers in chunks: the peak falls with the chunk, and below that of the whole sequence.
TEST(SequenceChunks, ThePeakFallsWithTheChunk) {
  const auto peak = [](std::int64_t chunk) { return ByteLedger(plan_of(job(chunk)), 0, true).step().step_peak; };
  EXPECT_LT(peak(1536), peak(0));
  EXPECT_LT(peak(768), peak(1536));
  EXPECT_LT(peak(256), peak(768));
}

// Under every way of sharding, with gradients of two micro-batches: whole steps as with shortcuts, each rank as its class, no wait for
// an event that nobody records, nothing that outlives the step.
TEST(SequenceChunks, UnderEveryKindOfDataParallelism) {
  for (const st::DataParallelKind kind : {st::DataParallelKind::ddp, st::DataParallelKind::zero1, st::DataParallelKind::zero2, st::DataParallelKind::zero3, st::DataParallelKind::fsdp2}) {
    Scenario s;
    s.model = small_llama(kLayers);
    s.strategy = job(1024);
    s.strategy.parallelism.degrees.data = 2;
    s.strategy.data_parallel.kind = kind;
    s.strategy.training.global_batch_size = 4;
    s.profile = st::with_choices(profile(), s.strategy);
    s.cluster = hwmodels::load_cluster("dgx-a100", 1, "rail-fat-tree", "a100-80gb-sxm");
    s.cluster.gpus_per_node = 2 * kRanks;
    ASSERT_TRUE(problems_of(s).empty());
    const Result r = simulate(s);
    EXPECT_EQ(r.deadlock, "");
    test_support::expect_same(r, simulate(s, {.shortcuts = false}));
    EXPECT_EQ(simulate(s, {.unfold = true}).step_time, r.step_time);
    ByteLedger ledger(r.plan, 0, true);
    const StepBytes first = ledger.step(), second = ledger.step();
    EXPECT_TRUE(second.mistakes.empty()) << second.mistakes.front();
    EXPECT_EQ(first.after_step, first.persistent);
    EXPECT_EQ(second.after_step, first.after_step);
    for (const std::int64_t bytes : ledger.live()) EXPECT_GE(bytes, 0);
    const auto idle = test_support::waits_for_nothing(r.plan, 0);
    EXPECT_TRUE(idle.empty()) << idle.front();
  }
}

TEST(SequenceChunks, WhatCannotBeCutIsRefused) {
  const model::ModelDescription model = small_llama(kLayers);
  const auto refused = [&](const st::Strategy& s) {
    const auto problems = st::problems_of(model, s, st::with_choices(profile(), s), static_cast<int>(kRanks));
    return problems.empty() ? std::string() : problems.front().key;
  };
  EXPECT_EQ(refused(job(1024)), "");
  for (const std::int64_t chunk : {1000, 3072, 96}) EXPECT_EQ(refused(job(chunk)), "memory.sequence_chunk") << chunk;
  st::Strategy ring = job(1024), alone = job(1024), scores = job(1024), parts = job(1024), tiled = job(1024);
  ring.parallelism.context_kind = st::ContextKind::ring;
  alone.parallelism.degrees.context = 1;
  parts.memory.recompute = st::Recompute::selective;
  for (const st::Strategy& s : {ring, alone, parts}) EXPECT_EQ(refused(s), "memory.sequence_chunk");
  tiled.memory.tiled_mlp = true;
  EXPECT_EQ(refused(tiled), "memory.tiled_mlp");
  // Adapters' problems are looked for in a layer, which must not be cut into no chunks at all.
  st::Strategy adapters = job(4 * kSequence);
  adapters.tuning.kind = st::TuningKind::lora;
  adapters.tuning.targets = {"q_proj"};
  EXPECT_FALSE(refused(adapters).empty());
  EXPECT_EQ(refused(job(1024)), "");
}

}  // namespace
}  // namespace rehearse::scenario::sequence_chunks_test
