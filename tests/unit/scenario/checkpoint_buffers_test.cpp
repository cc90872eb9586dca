// DeepSpeed's contiguous checkpoints: buffers for all layers are there from the first one on.
#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::checkpoint_buffers_test {
namespace {

namespace st = strategies;

st::Strategy contiguous(int number = 0, bool on_host = false) {
  st::Strategy s = small_job(2);
  s.memory.recompute = st::Recompute::full;
  s.memory.partition_activations = s.memory.contiguous_checkpoints = true;
  s.memory.number_checkpoints = number;
  if (on_host) s.memory.offload.activations = st::MemoryTier::cpu;
  return s;
}

test_support::StepBytes bytes_of(const st::Strategy& s) {
  const plan::Plan plan = st::write_plan(small_llama(8), s, st::load_profile("plain"), 2);
  const test_support::StepBytes bytes = test_support::ByteLedger(plan, 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.after_step, bytes.persistent);
  return bytes;
}

// One input: 256 tokens x 512 x 16 bit. Eight of them, in buffers or not, are what forward leaves; four buffers more are four
// inputs more, until backward begins.
TEST(CheckpointBuffers, HoldWhatTheInputsWouldHave) {
  st::Strategy plain = contiguous();
  plain.memory.partition_activations = plain.memory.contiguous_checkpoints = false;
  constexpr std::int64_t kInput = 256 * 512 * 2;
  EXPECT_EQ(bytes_of(contiguous()).after_forward, bytes_of(plain).after_forward);
  EXPECT_EQ(bytes_of(contiguous(12)).after_forward, bytes_of(plain).after_forward + 4 * kInput);
  // They are there from the first layer on.
  EXPECT_GE(bytes_of(contiguous()).forward_peak, bytes_of(plain).forward_peak);
}

// Two passes over an input more for each layer: cloned, then copied.
TEST(CheckpointBuffers, CostTwoCopiesALayer) {
  const plan::Plan plan = st::write_plan(small_llama(8), contiguous(), st::load_profile("plain"), 2);
  int copies = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel && (plan.kernels[i.index].name == "partition layer input" || plan.kernels[i.index].name == "layer input into buffer")) ++copies;
  EXPECT_EQ(copies, 2 * 8);
}

TEST(CheckpointBuffers, OnTheHostAreCountedWhole) {
  const plan::Plan plan = st::write_plan(small_llama(8), contiguous(12, true), st::load_profile("plain"), 2);
  EXPECT_EQ(plan.classes[0].host.pageable, 12 * 256 * 512 * 2);
  for (const plan::CopySpec& copy : plan.copies) EXPECT_FALSE(copy.pinned);
  EXPECT_EQ(bytes_of(contiguous(12, true)).after_forward, bytes_of(contiguous(8, true)).after_forward);
}

TEST(CheckpointBuffers, TensorRanksKeepTheirPart) {
  st::Strategy s = contiguous();
  s.parallelism.degrees = {.tensor = 2};
  s.training.global_batch_size = 1;
  s.data_parallel.kind = st::DataParallelKind::none;
  st::Strategy whole = s;
  whole.memory.partition_activations = whole.memory.contiguous_checkpoints = false;
  EXPECT_EQ(bytes_of(whole).after_forward - bytes_of(s).after_forward, 8 * 256 * 512 * 2 / 2);
}

TEST(CheckpointBuffers, WhatDeepSpeedAssertsIsRefused) {
  auto refused = [](st::Strategy s) {
    std::string text;
    for (const Diagnostic& d : st::problems_of(small_llama(8), s, st::load_profile("plain"), 8)) text += d.key + ": " + d.problem + "\n";
    return text;
  };
  EXPECT_EQ(refused(contiguous(8)), "");
  EXPECT_NE(refused(contiguous(7)).find("7 buffers for 8 recomputed layers"), std::string::npos);
  st::Strategy s = contiguous();
  s.memory.partition_activations = false;
  EXPECT_NE(refused(s).find("only partitioned activations"), std::string::npos);
  s = contiguous();
  s.memory.recompute = st::Recompute::none;
  EXPECT_NE(refused(s).find("memory.contiguous_checkpoints"), std::string::npos);
}

// synchronize_checkpoint_boundary: with a host that takes time, launches no longer run ahead.
TEST(CheckpointBuffers, SynchronisingAtBoundariesTakesTime) {
  Scenario s;
  s.cluster = hwmodels::load_cluster("dgx-a100", 1);
  s.cluster.gpus_per_node = 2;
  s.model = small_llama(8);
  s.strategy = contiguous();
  s.strategy.training.micro_batch_size = 8;
  s.strategy.training.global_batch_size = 16;
  s.profile = st::load_profile("plain");
  const Result free = simulate(s);
  s.strategy.memory.synchronize_checkpoints = true;
  const Result held = simulate(s);
  EXPECT_EQ(held.deadlock, "");
  EXPECT_GT(held.step_time, free.step_time);
}

}  // namespace
}  // namespace rehearse::scenario::checkpoint_buffers_test
