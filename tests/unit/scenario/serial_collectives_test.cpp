// One device queue and events that carry times: compute waits for the collectives that were issued before it.
#include "strategies/serial_collectives.h"

#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/executor/timing.h"
#include "sim/plan/builder.h"
#include "sim/scenario/simulate.h"
#include "tests/support/hand_costs.h"
#include "tests/support/same_result.h"

namespace rehearse::scenario::serial_collectives_test {
namespace {

using plan::Stream;

// The all-reduce (5) runs beside b (20), or before it.
TEST(SerialCollectives, HoldWhatIsIssuedAfterThem) {
  plan::PlanBuilder builder;
  builder.plan().classes.resize(1);
  plan::BlockWriter w("program");
  w.kernel(builder.kernel({.bytes_read = 1, .name = "a"}), Duration{3});
  w.collective(builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{1}, "gradients"}), Stream::data_reduce, plan::kAfterCompute, Duration{2});
  w.kernel(builder.kernel({.bytes_read = 1, .name = "b"}), Duration{4});
  plan::Call call{.block = builder.add_block(w.take())};
  call.frames = {0, 0, 0, 0};
  builder.plan().classes[0].program.step.push_back(call);
  builder.plan().classes[0].program.slots = 8;
  plan::Plan plan = builder.take();
  const auto step = [&] {
    executor::CostTable costs = test_support::hand_costs(plan, {{"a", 10}, {"b", 20}});
    costs.collectives[0][0].duration = 5;
    return executor::run_timing(plan, costs, {.steps = 1}).step;
  };
  EXPECT_EQ(step(), 3 + 10 + 20);
  strategies::serialise_collectives(plan);
  EXPECT_EQ(step(), 3 + 10 + 5 + 20);
}

Scenario job(const std::vector<std::string>& changes) {
  const char* text =
      "model: {layers: 8, hidden: 4096, heads: 32, ffn_hidden: 16384, vocab: 32000}\n"
      "cluster: {node: pcie-8}\n"
      "training: {sequence_length: 2048, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: megatron-core, serial_collectives: true}\n"
      "parallelism: {tensor: 2, sequence_parallel: true}\n"
      "data_parallel: {kind: distributed-optimizer}\n";
  return read_scenario(config::apply_overrides(config::parse_document(text, "job.yaml").root, changes), "job.yaml");
}

// Kernels and collectives of a rank add up, a step is longer than with overlap, and shortcuts change no bit of it.
TEST(SerialCollectives, NothingRunsBesideProducts) {
  for (const std::vector<std::string>& changes : {std::vector<std::string>{}, {"parallelism.tensor=4"}, {"parallelism.pipeline=2", "parallelism.data=auto"}, {"data_parallel.overlap_gradient_reduce=true"}}) {
    const Scenario s = job(changes);
    const Result serial = simulate(s);
    ASSERT_EQ(serial.deadlock, "");
    Scenario free = s;
    free.strategy.training.serial_collectives = false;
    EXPECT_LT(simulate(free).step_time, serial.step_time) << (changes.empty() ? "" : changes.back());
    for (const ClassResult& c : serial.classes) {
      std::int64_t busy = 0;
      for (int k = 0; k < plan::kStreams; ++k)
        if (static_cast<Stream>(k) < Stream::send_forward) busy += c.timing.busy[static_cast<std::size_t>(k)];
      EXPECT_LE(busy, c.timing.step);
    }
    test_support::expect_same(simulate(s, {.shortcuts = false}), serial);
  }
}

}  // namespace
}  // namespace rehearse::scenario::serial_collectives_test
