// Replayed blocks on programs of a few instructions: by hand, and against full execution. Times in picoseconds.
#include "sim/executor/block_replay.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "sim/plan/builder.h"
#include "tests/support/hand_costs.h"

namespace rehearse::executor::block_replay_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

/// One class; each call is a block of its own. Kernel "z" of 50 goes first, so that the host is ahead of what follows.
struct Job {
  plan::PlanBuilder builder;
  const std::uint32_t t = builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{8}, "t"});

  Job() {
    builder.plan().classes.resize(1);
    builder.plan().classes[0].program.slots = 8;
    call([&](BlockWriter& w) { w.kernel(kernel("z"), Duration{}); });
  }
  std::uint32_t kernel(const std::string& name) { return builder.kernel({.bytes_read = 1, .name = name}); }
  void call(const std::function<void(BlockWriter&)>& write) {
    BlockWriter w("block");
    w.reserve_slots(8);
    write(w);
    plan::Call c{.block = builder.add_block(w.take())};
    c.frames = {0, 0, 0, 0};
    builder.plan().classes[0].program.step.push_back(c);
  }
  /// Kernels as named, collectives of 30 that need all of HBM as every kernel does; the same with and without replays.
  TimingResult run(const std::map<std::string, std::int64_t>& kernels) {
    CostTable costs = test_support::hand_costs(builder.plan(), kernels);
    for (Priced& p : costs.kernels) p.load.hbm = 1;
    for (Priced& p : costs.collectives[0]) p.duration = 30, p.load.hbm = 1;
    const auto run_with = [&](bool progress, bool shortcuts) { return run_timing(builder.plan(), costs, {.steps = 1, .progress = progress, .shortcuts = shortcuts}); };
    const TimingResult quick = run_with(false, true), full = run_with(false, false);
    EXPECT_EQ(quick.deadlock, full.deadlock);
    EXPECT_EQ(quick.step, full.step);
    EXPECT_EQ(quick.instructions, full.instructions);
    EXPECT_EQ(full.replayed, 0);
    EXPECT_EQ(quick.classes[0].time, full.classes[0].time);
    EXPECT_EQ(quick.classes[0].busy, full.classes[0].busy);
    const TimingResult followed = run_with(true, true), in_full = run_with(true, false);
    EXPECT_EQ(followed.classes[0].call_device, in_full.classes[0].call_device);
    EXPECT_EQ(followed.classes[0].done, in_full.classes[0].done);
    return quick;
  }
};
constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;

// z 0-50, then twice a 10, t 30, b 20: 170. Both blocks are replayed: 3 instructions each.
TEST(BlockReplay, ABlockByItselfIsReplayed) {
  Job job;
  for (int i = 0; i < 2; ++i)
    job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}), w.collective(job.t, Stream::tensor, kBoth, Duration{}), w.kernel(job.kernel("b"), Duration{}); });
  const TimingResult r = job.run({{"z", 50}, {"a", 10}, {"b", 20}});
  EXPECT_EQ(r.step, 170);
  EXPECT_EQ(r.replayed, 6);
}

// a 50-60, t 60-90, for which the compute stream waits: it is through with the block at 90 (Job::run: replayed or not).
TEST(BlockReplay, ABlockThatEndsWithAWaitIsThroughAfterIt) {
  Job job;
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}), w.collective(job.t, Stream::tensor, kBoth, Duration{}); });
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("b"), Duration{}); });
  const TimingResult r = job.run({{"z", 50}, {"a", 10}, {"b", 5}});
  EXPECT_EQ(r.step, 95);
  EXPECT_EQ(r.replayed, 3);
}

// The host needs 60 for the second block and is through at 60 when the device has been waiting since 50.
TEST(BlockReplay, ALateHostIsNotForgotten) {
  Job job;
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{60}); });
  const TimingResult r = job.run({{"z", 50}, {"a", 10}});
  EXPECT_EQ(r.step, 70);
  EXPECT_EQ(r.replayed, 0);
  EXPECT_EQ(r.classes[0].time[static_cast<std::size_t>(Cause::host)], 10);
}

// After a, t and b comes a second t on the tensor stream, which waits for nothing: a 50-60, t 60-90, then b (10) and t share
// until b ends at 110, t alone until 130, c 130-135.
TEST(BlockReplay, WhatFollowsOnASideStreamGoesOn) {
  Job job;
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}), w.collective(job.t, Stream::tensor, kBoth, Duration{}), w.kernel(job.kernel("b"), Duration{}); });
  job.call([&](BlockWriter& w) { w.collective(job.t, Stream::tensor, 0, Duration{}), w.record(Stream::tensor, 0), w.wait(Stream::compute, 0); });
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("c"), Duration{}); });
  const TimingResult r = job.run({{"z", 50}, {"a", 10}, {"b", 10}, {"c", 5}});
  EXPECT_EQ(r.deadlock, "");
  EXPECT_EQ(r.step, 135);
  EXPECT_EQ(r.classes[0].busy[static_cast<std::size_t>(Stream::tensor)], 70);
}

// a 50-60, t 60-90; then b (100) and another t, which waits for nothing, begin at the same instant and share HBM: t 90-150,
// b has done 30 by then and ends at 220; c 220-225.
TEST(BlockReplay, WorkThatBeginsAtOneInstantIsShared) {
  Job job;
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}), w.collective(job.t, Stream::tensor, kBoth, Duration{}), w.kernel(job.kernel("b"), Duration{}); });
  job.call([&](BlockWriter& w) { w.collective(job.t, Stream::tensor, 0, Duration{}), w.record(Stream::tensor, 0), w.wait(Stream::compute, 0); });
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("c"), Duration{}); });
  EXPECT_EQ(job.run({{"z", 50}, {"a", 10}, {"b", 100}, {"c", 5}}).step, 225);
}

// The block records an event after a (60), for which a reduction waits: it runs beside b. t 60-120, b 60-190, c 190-195.
TEST(BlockReplay, WhoWaitsForItsEventsMayStartMeanwhile) {
  Job job;
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}), w.record(Stream::compute, 0), w.kernel(job.kernel("b"), Duration{}); });
  job.call([&](BlockWriter& w) { w.wait(Stream::data_reduce, 0), w.collective(job.t, Stream::data_reduce, 0, Duration{}); });
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("c"), Duration{}); });
  EXPECT_EQ(job.run({{"z", 50}, {"a", 10}, {"b", 100}, {"c", 5}}).step, 195);
}

// A reduction that runs when the block begins disturbs it: t 50-110 beside a (50-110: 30 of 40 done), then a alone to 120.
TEST(BlockReplay, ABlockBesideOtherWorkIsExecuted) {
  Job job;
  job.call([&](BlockWriter& w) { w.collective(job.t, Stream::data_reduce, plan::kAfterCompute, Duration{}); });
  job.call([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{}); });
  const TimingResult r = job.run({{"z", 50}, {"a", 40}});
  EXPECT_EQ(r.step, 120);
  EXPECT_EQ(r.replayed, 0);
}

}  // namespace
}  // namespace rehearse::executor::block_replay_test
