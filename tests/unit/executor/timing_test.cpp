// The executor on programs of a few instructions, each worked out by hand. Times in picoseconds.
#include "sim/executor/timing.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "sim/plan/builder.h"
#include "tests/support/hand_costs.h"

namespace rehearse::executor::timing_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

/// One class per program; each program is one block.
struct Job {
  plan::PlanBuilder builder;

  explicit Job(std::size_t classes) {
    builder.plan().classes.resize(classes);
    for (std::size_t c = 0; c < classes; ++c) builder.plan().classes[c].name = "stage " + std::to_string(c);
  }
  std::uint32_t kernel(const std::string& name) { return builder.kernel({.bytes_read = 1, .name = name}); }
  void program(std::size_t rank_class, const std::function<void(BlockWriter&)>& write) {
    BlockWriter w("program " + std::to_string(rank_class));
    w.reserve_slots(8);
    write(w);
    plan::Call call{.block = builder.add_block(w.take())};
    call.frames = {0, 0, 0, 0};
    plan::Program& p = builder.plan().classes[rank_class].program;
    p.step.push_back(call);
    p.slots = 8;
  }
  TimingResult run(const std::map<std::string, std::int64_t>& kernels, std::int64_t collective = 0, std::int64_t message = 0) {
    CostTable costs = test_support::hand_costs(builder.plan(), kernels);
    for (auto& row : costs.collectives)
      for (Priced& p : row) p.duration = collective;
    for (auto& row : costs.messages)
      for (Priced& p : row) p.duration = message;
    return run_timing(builder.plan(), costs, {.steps = 1});
  }
};

std::int64_t share(const TimingResult& r, Cause cause, std::size_t rank_class = 0) { return r.classes[rank_class].time[static_cast<std::size_t>(cause)]; }

void expect_whole(const TimingResult& r) {
  for (const ClassTiming& c : r.classes) {
    EXPECT_EQ(std::accumulate(c.time.begin(), c.time.end(), std::int64_t{0}), r.step);
    for (std::int64_t t : c.time) EXPECT_GE(t, 0);
  }
}

// Host takes 3 to issue each of two kernels of 10: the first starts at 3, the second behind it at 13.
TEST(Timing, KernelsOfAStreamRunInOrder) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{3});
    w.kernel(job.kernel("a"), Duration{3});
  });
  const TimingResult r = job.run({{"a", 10}});
  EXPECT_EQ(r.step, 23);
  EXPECT_EQ(share(r, Cause::memory_bound), 20);
  EXPECT_EQ(share(r, Cause::host), 3);
  expect_whole(r);
}

// Kernels of 10 that take the host 25 each: the device waits 25, works 10, waits 15, works 10.
TEST(Timing, ASlowHostIsTheReasonForGaps) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{25});
    w.kernel(job.kernel("a"), Duration{25});
  });
  const TimingResult r = job.run({{"a", 10}});
  EXPECT_EQ(r.step, 60);
  EXPECT_EQ(share(r, Cause::host), 40);
  expect_whole(r);
}

// all-reduce of 30 after kernel a (10), under kernel b (20), then c (5) waits for it: a 0-10, all-reduce 10-40, b 10-30,
// c 40-45. Of the all-reduce 10 are exposed.
TEST(Timing, CommunicationIsExposedWhereNothingHidesIt) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    const std::uint32_t reduce = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{8}, "reduce"});
    w.kernel(job.kernel("a"), Duration{});
    w.collective(reduce, Stream::data_reduce, plan::kAfterCompute, Duration{});
    w.kernel(job.kernel("b"), Duration{});
    w.record(Stream::data_reduce, 0);
    w.wait(Stream::compute, 0);
    w.kernel(job.kernel("c"), Duration{});
  });
  const TimingResult r = job.run({{"a", 10}, {"b", 20}, {"c", 5}}, 30);
  EXPECT_EQ(r.step, 45);
  EXPECT_EQ(share(r, Cause::data), 10);
  EXPECT_EQ(share(r, Cause::memory_bound), 35);
  expect_whole(r);
}

// The host is busy for 25 before it issues an all-gather of 30, and kernel b waits for that: a 0-10, all-gather 25-55, b 55-60.
// From 10 to 25 the host was what compute waited for, not the network; so too where the all-gather itself comes after compute.
TEST(Timing, CommunicationIssuedLateIsTheHosts) {
  for (const int flags : {+plan::kComputeWaits, plan::kAfterCompute | plan::kComputeWaits}) {
    Job job(1);
    job.program(0, [&](BlockWriter& w) {
      const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
      w.kernel(job.kernel("a"), Duration{});
      w.host(Duration{25});
      w.collective(gather, Stream::data_gather, flags, Duration{});
      w.kernel(job.kernel("b"), Duration{});
    });
    const TimingResult r = job.run({{"a", 10}, {"b", 5}}, 30);
    EXPECT_EQ(r.step, 60);
    EXPECT_EQ(share(r, Cause::host), 15);
    EXPECT_EQ(share(r, Cause::data), 30);
    expect_whole(r);
  }
}

// The optimizer runs on the CPU from 5 to 105, then the all-gather of 30 is issued: a 0-10, all-gather 105-135, b 135-140. Of
// what compute waited, 10-105 is the CPU's work; and of a wait that lies half before it, only what lies in it.
TEST(Timing, AnOptimizerOnTheCpuIsAccountedForAsSuch) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
    w.kernel(job.kernel("a"), Duration{});
    w.host(Duration{5});
    w.host_work(job.builder.host_work({"CPU optimizer", Bytes{1}, Bytes{0}, Bytes{0}, false}));
    w.collective(gather, Stream::data_gather, plan::kComputeWaits, Duration{});
    w.kernel(job.kernel("b"), Duration{});
    w.host(Duration{45});
    w.host_work(job.builder.host_work({"CPU optimizer", Bytes{1}, Bytes{0}, Bytes{0}, false}));
    w.kernel(job.kernel("b"), Duration{});
  });
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"a", 10}, {"b", 5}});
  costs.host_works = {100};
  costs.collectives[0][0].duration = 30;
  const TimingResult r = run_timing(job.builder.plan(), costs, {.steps = 1});
  // b ends at 140; the host comes to the second work at 150 and issues the last kernel at 250.
  EXPECT_EQ(r.step, 255);
  EXPECT_EQ(share(r, Cause::host_work), 95 + 100);
  EXPECT_EQ(share(r, Cause::host), 10);
  EXPECT_EQ(share(r, Cause::data), 30);
  ASSERT_EQ(r.classes[0].host_works.size(), 2u);
  EXPECT_EQ(r.classes[0].host_works[1].start, 150);
  EXPECT_EQ(r.classes[0].host_works[1].end, 250);
  expect_whole(r);
}

// Kernel a runs 0-10; then a tensor-parallel all-reduce that holds SMs and product b (20, tiles dealt out beforehand, those of
// held SMs take 10) begin together. All-reduce of 5: the late tiles run 15-25, under the others, which end at 30. Of 15: 25-35. Of 30: the
// others end first, late tiles 30-40. Of 15, but with room for all of b's tiles: 30.
TEST(Timing, TilesOfHeldSmsComeLater) {
  struct Case {
    std::int64_t reduce;
    float sm;
    std::int64_t end;
  };
  for (const Case c : {Case{5, 1, 30}, Case{15, 1, 35}, Case{30, 1, 40}, Case{15, 0.75f, 30}}) {
    Job job(1);
    job.program(0, [&](BlockWriter& w) {
      const std::uint32_t reduce = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{8}, "reduce"});
      w.kernel(job.kernel("a"), Duration{});
      w.collective(reduce, Stream::tensor, plan::kAfterCompute, Duration{});
      w.kernel(job.kernel("b"), Duration{});
    });
    CostTable costs = test_support::hand_costs(job.builder.plan(), {{"a", 10}, {"b", 20}});
    for (Priced& p : costs.kernels)
      if (p.duration == 20) p.load.sm = c.sm, p.late_tiles = 0.5f;
    costs.collectives[0][0] = {c.reduce, {.sm = 0.2f}, true};
    const TimingResult r = run_timing(job.builder.plan(), costs, {.steps = 1});
    EXPECT_EQ(share(r, Cause::memory_bound), c.end) << c.reduce;
    expect_whole(r);
  }
}

/// When the work that a stream was given began, in its order.
std::vector<std::int64_t> begins(const TimingResult& r, Stream stream) {
  std::vector<std::int64_t> at;
  for (const Slice& slice : r.trace)
    if (slice.stream == stream) at.push_back(slice.start);
  return at;
}

// Kernels a (10), b (20) and c (10) fill the GPU, one after the other. A reduction of 5 whose channels need 0.2 of the SMs and that waits for
// a is ready when b is, which is there first: it begins with c. One issued while b runs waits for its end as well; one that finds room beside
// b does not, nor does one of a tensor-parallel group, which frameworks have begin first.
TEST(Timing, ReductionsWaitUntilAKernelLeavesThemSms) {
  struct Case {
    plan::GroupAxis axis;
    Stream stream;
    unsigned flags;
    std::int64_t issued;
    float sm;   // of b
    std::int64_t begins;
  };
  for (const Case c : {Case{plan::GroupAxis::data, Stream::data_reduce, plan::kAfterCompute, 0, 1, 30}, Case{plan::GroupAxis::data, Stream::data_reduce, 0, 17, 1, 30},
                       Case{plan::GroupAxis::data, Stream::data_reduce, 0, 17, 0.75f, 17}, Case{plan::GroupAxis::tensor, Stream::tensor, plan::kAfterCompute, 0, 1, 10}}) {
    Job job(1);
    job.program(0, [&](BlockWriter& w) {
      const std::uint32_t reduce = job.builder.collective({CollectiveKind::reduce_scatter, c.axis, Bytes{8}, "reduce"});
      w.kernel(job.kernel("a"), Duration{});
      if (c.flags) w.collective(reduce, c.stream, c.flags, Duration{});
      w.kernel(job.kernel("b"), Duration{});
      if (!c.flags) w.collective(reduce, c.stream, c.flags, Duration{c.issued});
      w.kernel(job.kernel("c"), Duration{});
    });
    CostTable costs = test_support::hand_costs(job.builder.plan(), {{"a", 10}, {"b", 20}, {"c", 10}});
    for (Priced& p : costs.kernels) p.load.sm = p.duration == 20 ? c.sm : 1;
    costs.collectives[0][0] = {5, {.sm = 0.2f}, true};
    const TimingResult r = run_timing(job.builder.plan(), costs, {.steps = 1, .trace = true});
    EXPECT_EQ(begins(r, c.stream), (std::vector<std::int64_t>{c.begins}));
    expect_whole(r);
  }
}

// A copy of 5 on the gathering stream, ready at 17 while b (20, from 10) fills the GPU, runs from 30 on, beside c (10): both at half speed.
TEST(Timing, CopiesOfBucketsWaitForSmsAsWell) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{});
    w.kernel(job.kernel("b"), Duration{});
    w.kernel(job.kernel("copy"), Duration{17}, Stream::data_gather);
    w.kernel(job.kernel("c"), Duration{});
  });
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"a", 10}, {"b", 20}, {"c", 10}, {"copy", 5}});
  for (Priced& p : costs.kernels) p.load.sm = 1;
  const TimingResult r = run_timing(job.builder.plan(), costs, {.steps = 1, .trace = true});
  EXPECT_EQ(begins(r, Stream::data_gather), (std::vector<std::int64_t>{30}));
  EXPECT_EQ(r.step, 45);
}

// Kernel b waits for a gather of 10; the next gather follows that one on its own stream and is there before b, which follows another stream.
TEST(Timing, GathersInARowLetNoKernelComeBetween) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
    w.collective(gather, Stream::data_gather, plan::kComputeWaits, Duration{});
    w.collective(gather, Stream::data_gather, 0, Duration{});
    w.kernel(job.kernel("b"), Duration{});
  });
  CostTable costs = test_support::hand_costs(job.builder.plan(), {{"b", 20}});
  for (Priced& p : costs.kernels) p.load.sm = 1;
  costs.collectives[0][0] = {10, {.sm = 0.2f}, true};
  EXPECT_EQ(begins(run_timing(job.builder.plan(), costs, {.steps = 1, .trace = true}), Stream::data_gather), (std::vector<std::int64_t>{0, 10}));
}

// From 10 on a tensor-parallel all-reduce (15) holds SMs of product b (20), whose late tiles (10) run from 25, under the others, to 35. Most of
// its SMs are free at 30, when the others end: a reduction that is ready at 26 begins then, one that is ready at 32 at once.
TEST(Timing, LateTilesLeaveSmsToReductions) {
  for (const auto& [issued, begin] : {std::pair<std::int64_t, std::int64_t>{26, 30}, {32, 32}}) {
    Job job(1);
    job.program(0, [&](BlockWriter& w) {
      w.kernel(job.kernel("a"), Duration{});
      w.collective(job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{8}, "first"}), Stream::tensor, plan::kAfterCompute, Duration{});
      w.kernel(job.kernel("b"), Duration{});
      w.collective(job.builder.collective({CollectiveKind::reduce_scatter, plan::GroupAxis::data, Bytes{8}, "second"}), Stream::data_reduce, 0, Duration{issued});
    });
    CostTable costs = test_support::hand_costs(job.builder.plan(), {{"a", 10}, {"b", 20}});
    for (Priced& p : costs.kernels) p.load.sm = 1, p.late_tiles = 0.5f;
    costs.collectives[0][0] = {15, {.sm = 0.2f}, true};
    costs.collectives[0][1] = {2, {.sm = 0.2f}, true};
    EXPECT_EQ(begins(run_timing(job.builder.plan(), costs, {.steps = 1, .trace = true}), Stream::data_reduce), (std::vector<std::int64_t>{begin}));
  }
}

// The host waits for kernel a (10) and then needs 7 for b: b starts at 17.
TEST(Timing, ASynchronisationStopsTheHost) {
  Job job(1);
  job.program(0, [&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{});
    w.host_sync();
    w.kernel(job.kernel("b"), Duration{7});
  });
  const TimingResult r = job.run({{"a", 10}, {"b", 1}});
  EXPECT_EQ(r.step, 18);
  EXPECT_EQ(share(r, Cause::host), 7);
  expect_whole(r);
}

// Stage 0 works 10 and sends (4); stage 1 has waited since 0: 10 of bubble, 4 of message, then 3 of work.
TEST(Timing, AReceiverWaitsForItsSender) {
  Job job(2);
  job.program(0, [&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{});
    w.send(job.builder.message({1, 0, Bytes{8}}), Stream::send_forward, plan::kAfterCompute, Duration{});
  });
  job.program(1, [&](BlockWriter& w) {
    w.recv(job.builder.message({0, 0, Bytes{8}}), Stream::recv_forward, plan::kAfterCompute | plan::kComputeWaits, Duration{});
    w.kernel(job.kernel("b"), Duration{});
  });
  const TimingResult r = job.run({{"a", 10}, {"b", 3}}, 0, 4);
  EXPECT_EQ(r.step, 17);
  EXPECT_EQ(share(r, Cause::bubble, 1), 10);
  EXPECT_EQ(share(r, Cause::pipeline_message, 1), 4);
  EXPECT_EQ(share(r, Cause::idle, 0), 7);
  expect_whole(r);
}

TEST(Timing, AnUnansweredMessageIsADeadlockWithAName) {
  Job job(2);
  job.program(0, [&](BlockWriter& w) { w.recv(job.builder.message({1, 0, Bytes{8}}), Stream::recv_forward, plan::kComputeWaits, Duration{}); });
  job.program(1, [&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}); });
  const TimingResult r = job.run({{"a", 10}});
  EXPECT_NE(r.deadlock.find("stage 0 stands still"), std::string::npos) << r.deadlock;
  EXPECT_NE(r.deadlock.find("receives from stage 1, which never answers"), std::string::npos) << r.deadlock;
}

// The event lies behind a message that never comes: compute and host wait for ever. (An event that no instruction records
// does not block, as in CUDA.)
TEST(Timing, AnEventThatIsNeverReachedIsADeadlockWithAName) {
  Job job(2);
  job.program(0, [&](BlockWriter& w) {
    w.recv(job.builder.message({1, 0, Bytes{8}}), Stream::recv_forward, 0, Duration{});
    w.record(Stream::recv_forward, 0);
    w.wait(Stream::compute, 0);
    w.kernel(job.kernel("a"), Duration{});
  });
  job.program(1, [&](BlockWriter& w) { w.wait(Stream::compute, 5); });
  const TimingResult r = job.run({{"a", 10}});
  EXPECT_NE(r.deadlock.find("stream 'compute' waits for an event that is never recorded"), std::string::npos) << r.deadlock;
  EXPECT_EQ(r.deadlock.find("stage 1 stands still"), std::string::npos) << r.deadlock;
}

}  // namespace
}  // namespace rehearse::executor::timing_test
