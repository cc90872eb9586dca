// The bound of a step's time by hand, and against steps that were run (tests/property/combinations_test.cpp has thousands more).
#include <gtest/gtest.h>

#include "sim/executor/shortest_step.h"
#include "sim/executor/timing.h"
#include "tests/support/hand_costs.h"
#include "tests/support/hand_plan.h"

namespace rehearse::executor::shortest_step_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

constexpr std::uint32_t kSlots = 4;
constexpr auto kSerial = plan::kAfterCompute | plan::kComputeWaits;

struct Job : test_support::HandPlan {
  explicit Job(std::size_t classes) : HandPlan(classes, 2 * kSlots, kSlots) {}
  void call(std::size_t rank_class, std::uint32_t block, std::uint32_t frame = 0) {
    plan::Call c{.block = block};
    c.frames.fill(frame * kSlots);
    builder.plan().classes[rank_class].program.step.push_back(c);
  }
};

// Two stages, all forwards and then all backwards of two micro-batches: forward 100 and 200, backward 150 and 300, messages 30.
// From stage 0: 100 + 30 + 2 * 200 + 2 * 300 + 30 + 150 = 1310, which is the step. From stage 1, where the step before may
// have ended last: 2 * 200 + 2 * 300 + 30 + 150 = 1180.
TEST(ShortestStep, OfAPipelineIsTheChainOfTheClassThatHasTheShortest) {
  Job job(2);
  const std::uint32_t to_1 = job.builder.message({1, 0, Bytes{8}}), from_0 = job.builder.message({0, 0, Bytes{8}}), to_0 = job.builder.message({0, 1, Bytes{8}}), from_1 = job.builder.message({1, 1, Bytes{8}});
  const std::uint32_t forward_0 = job.block([&](BlockWriter& w) { w.kernel(job.kernel("f0"), Duration{0}), w.send(to_1, Stream::send_forward, plan::kAfterCompute, Duration{0}); });
  const std::uint32_t forward_1 = job.block([&](BlockWriter& w) { w.recv(from_0, Stream::recv_forward, plan::kComputeWaits, Duration{0}), w.kernel(job.kernel("f1"), Duration{0}); });
  const std::uint32_t backward_1 = job.block([&](BlockWriter& w) { w.kernel(job.kernel("b1"), Duration{0}), w.send(to_0, Stream::send_backward, plan::kAfterCompute, Duration{0}); });
  const std::uint32_t backward_0 = job.block([&](BlockWriter& w) { w.recv(from_1, Stream::recv_backward, plan::kComputeWaits, Duration{0}), w.kernel(job.kernel("b0"), Duration{0}); });
  for (const auto& [of_0, of_1] : {std::pair{forward_0, forward_1}, {backward_0, backward_1}})
    for (int m = 0; m < 2; ++m) job.call(0, of_0), job.call(1, of_1);
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"f0", 100}, {"f1", 200}, {"b1", 300}, {"b0", 150}});
  for (auto& row : costs.messages)
    for (Priced& p : row) p.duration = 30;
  EXPECT_EQ(shortest_step(job.builder.plan(), costs), 1180);
  EXPECT_EQ(run_timing(job.builder.plan(), costs).step, 1310);
}

// A block too large to be gone through each time: ten kernels of 10, a collective of 40 that compute waits for, and one of 500
// that begins after five kernels and is waited for at the end of the step. 5 * 10 + 40 + max(5 * 10, 500) = 590.
TEST(ShortestStep, LargeBlocksKeepTheirStreamsApart) {
  Job job(1);
  const std::uint32_t own = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{8}, "tensor"}), other = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{8}, "data"});
  const std::uint32_t layer = job.block([&](BlockWriter& w) {
    for (int k = 0; k < 5; ++k) w.kernel(job.kernel("k"), Duration{0});
    w.collective(own, Stream::tensor, kSerial, Duration{0});
    w.collective(other, Stream::data_reduce, plan::kAfterCompute, Duration{0});
    for (int k = 0; k < 5; ++k) w.kernel(job.kernel("k"), Duration{0});
  });
  const std::uint32_t end = job.block([&](BlockWriter& w) { w.record(Stream::data_reduce, 0), w.wait(Stream::compute, 0); });
  job.call(0, layer), job.call(0, end);
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"k", 10}});
  costs.collectives[0][own].duration = 40, costs.collectives[0][other].duration = 500;
  EXPECT_EQ(shortest_step(job.builder.plan(), costs), 590);
  EXPECT_EQ(run_timing(job.builder.plan(), costs).step, 590);
}

// An event that a later record in the same slot replaces is not waited for: the second wait is for the second record alone.
TEST(ShortestStep, ARecordBeginsItsEventAnew) {
  Job job(1);
  const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
  const std::uint32_t slow = job.block([&](BlockWriter& w) { w.collective(gather, Stream::data_gather, plan::kAfterCompute, Duration{0}), w.record(Stream::data_gather, 0); });
  const std::uint32_t again = job.block([&](BlockWriter& w) {
    for (int k = 0; k < 10; ++k) w.kernel(job.kernel("k"), Duration{0});
    w.record(Stream::compute, 0);
  });
  const std::uint32_t wait = job.block([&](BlockWriter& w) { w.wait(Stream::compute, 0), w.kernel(job.kernel("k"), Duration{0}); });
  job.call(0, slow), job.call(0, again), job.call(0, wait);
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"k", 10}});
  costs.collectives[0][gather].duration = 1000;
  EXPECT_EQ(shortest_step(job.builder.plan(), costs), 110);
}

// Who waits for a message that nobody sends never ends; there is no bound, and no endless search for one.
TEST(ShortestStep, OfAProgramThatStandsStillIsNothing) {
  Job job(2);
  const std::uint32_t to_1 = job.builder.message({1, 0, Bytes{8}});
  const std::uint32_t send = job.block([&](BlockWriter& w) { w.send(to_1, Stream::send_forward, kSerial, Duration{0}); });
  job.call(0, send);
  EXPECT_EQ(shortest_step(job.builder.plan(), test_support::hand_costs(job.builder.plan(), {})), 0);
}

}  // namespace
}  // namespace rehearse::executor::shortest_step_test
