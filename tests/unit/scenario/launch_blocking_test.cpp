// CUDA_LAUNCH_BLOCKING=1: the host thread waits for each kernel, so kernels and host time add up.
#include "strategies/launch_blocking.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/executor/timing.h"
#include "sim/plan/builder.h"
#include "sim/scenario/simulate.h"
#include "strategies/plan_writer.h"
#include "tests/support/hand_costs.h"
#include "tests/support/same_result.h"

namespace rehearse::scenario::launch_blocking_test {
namespace {

using plan::Opcode;
using plan::Stream;

/// A program of one block for each class.
void add_program(plan::PlanBuilder& builder, std::size_t rank_class, plan::BlockWriter& w) {
  plan::Call call{.block = builder.add_block(w.take())};
  call.frames = {0, 0, 0, 0};
  plan::Program& p = builder.plan().classes[rank_class].program;
  p.step.push_back(call);
  p.slots = 8;
}

// Host 3, a 10, host 2, all-reduce 5, host 4, b 20: 44 in all. The copy (100) of before is no kernel, and nobody waits for it.
TEST(LaunchBlocking, KernelsAndHostTimeAddUp) {
  plan::PlanBuilder builder;
  builder.plan().classes.resize(1);
  plan::BlockWriter w("program");
  w.copy(builder.copy({plan::CopySpec::Direction::host_to_device, true, Bytes{1}}), Stream::to_device, 0, Duration{});
  w.kernel(builder.kernel({.bytes_read = 1, .name = "a"}), Duration{3});
  w.collective(builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{1}, "gradients"}), Stream::data_reduce, plan::kAfterCompute, Duration{2});
  w.kernel(builder.kernel({.bytes_read = 1, .name = "b"}), Duration{4});
  add_program(builder, 0, w);
  plan::Plan plan = builder.take();
  const auto step = [&] {
    executor::CostTable costs = test_support::hand_costs(plan, {{"a", 10}, {"b", 20}});
    costs.collectives[0][0].duration = 5;
    costs.copies[0].duration = 100;
    return executor::run_timing(plan, costs, {.steps = 1});
  };
  EXPECT_EQ(step().step, 3 + 10 + 20);   // all is issued under a, and the all-reduce runs beside b
  strategies::block_launches(plan);
  const executor::TimingResult blocking = step();
  EXPECT_EQ(blocking.deadlock, "");
  EXPECT_EQ(blocking.step, 3 + 10 + 2 + 5 + 4 + 20);
}

// Both stages send before they receive: one group of NCCL calls on either side, launched as one kernel. Each message takes 6
// after host 1 + 1, then host 2 and a kernel of 10. Were each call a kernel of its own, nobody would answer.
TEST(LaunchBlocking, MessagesInARowAreOneKernel) {
  plan::PlanBuilder builder;
  builder.plan().classes.resize(2);
  for (std::uint16_t c : {std::uint16_t{0}, std::uint16_t{1}}) {
    const auto other = static_cast<std::uint16_t>(1 - c);
    for (const Opcode op : {Opcode::send, Opcode::recv}) {   // a block each, as stages write them
      plan::BlockWriter w(op == Opcode::send ? "send" : "receive");
      if (op == Opcode::send) w.send(builder.message({other, 0, Bytes{8}}), Stream::send_forward, plan::kAfterCompute, Duration{1});
      else w.recv(builder.message({other, 0, Bytes{8}}), Stream::recv_forward, plan::kAfterCompute, Duration{1});
      add_program(builder, c, w);
    }
    plan::BlockWriter w("compute");
    w.kernel(builder.kernel({.bytes_read = 1, .name = "a"}), Duration{2});
    add_program(builder, c, w);
  }
  plan::Plan plan = builder.take();
  strategies::block_launches(plan);
  executor::CostTable costs = test_support::hand_costs(plan, {{"a", 10}});
  for (auto& row : costs.messages)
    for (executor::Priced& m : row) m.duration = 6;
  const executor::TimingResult r = executor::run_timing(plan, costs, {.steps = 1});
  EXPECT_EQ(r.deadlock, "");
  EXPECT_EQ(r.step, 2 + 6 + 2 + 10);   // the receiver of one is ready at 2, the other's sender at 1
}

Scenario job(const std::vector<std::string>& changes) {
  const char* text =
      "model: {layers: 8, hidden: 1024, heads: 16, ffn_hidden: 4096, vocab: 32000}\n"
      "cluster: {node: dgx-a100}\n"
      "training: {sequence_length: 1024, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: plain, launch_blocking: true}\n"
      "parallelism: {tensor: 2, pipeline: 2}\n"
      "data_parallel: {kind: ddp}\n";
  return read_scenario(config::apply_overrides(config::parse_document(text, "job.yaml").root, changes), "job.yaml");
}

// One GPU: the step is the sum of all kernels and of all host time.
TEST(LaunchBlocking, OneGpusStepIsASum) {
  const Scenario s = job({"cluster.gpus_per_node=1", "parallelism.tensor=1", "parallelism.pipeline=1", "data_parallel.kind=none"});
  const Result r = simulate(s);
  const auto network = hwmodels::make_network(s.cluster, s.communication);
  const executor::CostTable costs = executor::price(r.plan, {hwmodels::KernelModel(s.cluster.gpu), *network});
  std::int64_t sum = 0;
  for (const plan::Call& call : r.plan.classes[0].program.step)
    for (const plan::Instruction& i : r.plan.blocks[call.block].timing) {
      if (i.op == Opcode::kernel || i.op == Opcode::host) sum += i.value;
      if (i.op == Opcode::kernel) sum += costs.kernels[i.index].duration;
      EXPECT_NE(i.op, Opcode::collective);
    }
  EXPECT_EQ(r.classes[0].timing.step, sum);
}

// Beside one another: nothing. What streams carry and what the host takes to launch it never overlap, and the step is longer
// than without. Shortcuts change no bit of it.
TEST(LaunchBlocking, NothingOverlaps) {
  for (const std::vector<std::string>& changes :
       {std::vector<std::string>{}, {"parallelism.tensor=1"}, {"pipeline.schedule=gpipe"}, {"pipeline.schedule=interleaved-1f1b", "pipeline.virtual_stages=2"}, {"training.framework=megatron-deepspeed", "data_parallel.kind=zero1"},
        {"parallelism.pipeline=1", "data_parallel.kind=fsdp2"}, {"parallelism.pipeline=1", "training.framework=deepspeed", "data_parallel.kind=zero3"}}) {
    const Scenario s = job(changes);
    const Result blocking = simulate(s);
    ASSERT_EQ(blocking.deadlock, "") << (changes.empty() ? "" : changes.back());
    Scenario free = s;
    free.strategy.training.launch_blocking = false;
    EXPECT_LT(simulate(free).step_time, blocking.step_time);
    for (const ClassResult& c : blocking.classes) {
      std::int64_t busy = 0;
      for (int k = 0; k < plan::kStreams; ++k)
        if (static_cast<Stream>(k) < Stream::send_forward) busy += c.timing.busy[static_cast<std::size_t>(k)];   // messages of a group run side by side
      EXPECT_LE(busy, c.timing.step);
    }
    test_support::expect_same(simulate(s, {.shortcuts = false}), blocking);
  }
}

TEST(LaunchBlocking, GraphsAreRefused) { EXPECT_THROW(job({"training.cuda_graph=true"}), ConfigError); }

}  // namespace
}  // namespace rehearse::scenario::launch_blocking_test
