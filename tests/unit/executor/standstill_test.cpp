// Blocks whose host thread waits for its device: what lies between two standstills is measured once, then counted. By hand,
// and against full execution. Times in picoseconds.
#include <gtest/gtest.h>

#include <functional>

#include "sim/executor/timing.h"
#include "tests/support/hand_costs.h"
#include "tests/support/hand_plan.h"

namespace rehearse::executor::standstill_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;
constexpr std::uint32_t kSlots = 8;
using Write = std::function<void(BlockWriter&)>;

struct Job {
  test_support::HandPlan hand{1, kSlots, kSlots};
  const std::uint32_t copy = hand.builder.copy({plan::CopySpec::Direction::host_to_device, true, Bytes{1}});
  const std::uint32_t gather = hand.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});

  void kernel(BlockWriter& w, const char* name, Duration host = {}) { w.kernel(hand.kernel(name), host); }
  /// The host thread waits for the compute stream, as torch.cuda.synchronize() after it has waited for the others.
  static void sync(BlockWriter& w, std::uint32_t slot) {
    w.record(Stream::compute, slot);
    w.host_wait(slot);
  }
  void call(std::uint32_t block, int times = 1) {
    plan::Call c{.block = block};
    c.frames = {0, 0, 0, 0};
    hand.builder.plan().classes[0].program.step.insert(hand.builder.plan().classes[0].program.step.end(), static_cast<std::size_t>(times), c);
  }
  /// Two steps, with and without shortcuts: the same.
  TimingResult run() {
    auto& step = hand.builder.plan().classes[0].program.step;
    step.insert(step.begin() + static_cast<std::ptrdiff_t>(step.size() / 2), plan::Call{.block = hand.block([](BlockWriter&) {})});   // comes once: no rhythm to look for
    CostTable costs = test_support::hand_costs(hand.builder.plan(), {{"a", 10}, {"b", 20}, {"long", 100}});
    costs.host_works.assign(hand.builder.plan().host_works.size(), 7);
    for (Priced& p : costs.copies) p.duration = 30;
    for (Priced& p : costs.collectives[0]) p.duration = 45;
    const TimingResult quick = run_timing(hand.builder.plan(), costs, {.steps = 2}), full = run_timing(hand.builder.plan(), costs, {.steps = 2, .shortcuts = false});
    EXPECT_EQ(quick.deadlock, "");
    EXPECT_EQ(quick.step, full.step);
    EXPECT_EQ(quick.instructions, full.instructions);
    EXPECT_EQ(full.replayed, 0);
    EXPECT_EQ(quick.classes[0].time, full.classes[0].time);
    EXPECT_EQ(quick.classes[0].busy, full.classes[0].busy);
    EXPECT_EQ(quick.classes[0].call_host, full.classes[0].call_host);
    return quick;
  }
};
std::int64_t of(const TimingResult& r, Cause c) { return r.classes[0].time[static_cast<std::size_t>(c)]; }

// a 0-10, the host goes on at 10; the copy 10-40 and b, which waits for it, 40-60: the host goes on at 60. Then a again, without a
// wait: 70. Four such calls to a step.
std::uint32_t two_waits(Job& job) {
  return job.hand.block([&](BlockWriter& w) {
    job.kernel(w, "a");
    Job::sync(w, 0);
    w.copy(job.copy, Stream::to_device, kBoth, Duration{});
    job.kernel(w, "b");
    Job::sync(w, 1);
    job.kernel(w, "a");
  });
}

// Of the eight calls the first begins with nothing before it, the others find an `a` still running: their first wait ends as the
// first call's did, with the stream just through. Measured once in each step, for a step that is not reported has no accounts:
// six of eight times five instructions (copy, b, record, wait of the host) are counted.
TEST(Standstill, WhatLiesBetweenTwoIsMeasuredOnce) {
  Job job;
  job.call(two_waits(job), 4);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 4 * 70);
  EXPECT_EQ(of(r, Cause::copy), 4 * 30);
  EXPECT_EQ(r.replayed, 6 * 4);
}

// The third call finds a kernel of 100 before its own: the first standstill comes later, what follows is the same.
TEST(Standstill, ItComesWheneverAllIsThrough) {
  Job job;
  const std::uint32_t block = two_waits(job), before = job.hand.block([&](BlockWriter& w) { job.kernel(w, "long"); });
  job.call(block, 2);
  job.call(before);
  job.call(block);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 3 * 70 + 100);
  EXPECT_GE(r.replayed, 4 * 4);   // the block with the kernel of 100 may be replayed as a whole
}

// A gather of 45 that began with the call is under way at the first wait (10) and through at the second (60): the two do not
// frame anything that comes again.
TEST(Standstill, AStreamThatIsBusyIsNone) {
  Job job;
  const std::uint32_t block = two_waits(job), before = job.hand.block([&](BlockWriter& w) { w.collective(job.gather, Stream::data_gather, plan::kAfterCompute, Duration{}); });
  for (int i = 0; i < 4; ++i) job.call(before), job.call(block);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 4 * 70);
  EXPECT_EQ(r.replayed, 0);
}

// The host thread waits for the gather (10-55), the compute stream for nothing until b of the next block asks for the same event: it has
// to be there, with its time and cause, where the gather was only counted.
TEST(Standstill, EventsOfWhatIsCountedAreFound) {
  Job job;
  const std::uint32_t block = job.hand.block([&](BlockWriter& w) {
    job.kernel(w, "a");
    Job::sync(w, 0);
    w.collective(job.gather, Stream::data_gather, plan::kAfterCompute, Duration{});
    w.record(Stream::data_gather, 2);
    w.host_wait(2);
  });
  const std::uint32_t after = job.hand.block([&](BlockWriter& w) { w.wait(Stream::compute, 2), job.kernel(w, "b"); });
  for (int i = 0; i < 4; ++i) job.call(block), job.call(after);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 4 * (10 + 45 + 20));
  EXPECT_EQ(of(r, Cause::data), 4 * 45);
  EXPECT_GT(r.replayed, 0);
}

// What the host thread takes longer for than the device: the compute stream has had nothing to do for 5 at each standstill.
TEST(Standstill, ALateHostIsAccountedFor) {
  Job job;
  const std::uint32_t block = job.hand.block([&](BlockWriter& w) {
    job.kernel(w, "a");
    w.host(Duration{15});
    Job::sync(w, 0);
    job.kernel(w, "b");
    Job::sync(w, 1);
  });
  job.call(block, 6);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 6 * 35);
  EXPECT_EQ(of(r, Cause::host), 6 * 5);
  EXPECT_GT(r.replayed, 0);
}

// a 0-10, a gather of an earlier block 0-45, the host thread is there at 60: all is through, but b's wait for the gather is still to be
// accounted for (10-45, then the host until 60). Calls that find the gather long past wait for the host alone and are counted.
TEST(Standstill, WaitsForEarlierEventsHaveToBePast) {
  Job job;
  const std::uint32_t block = job.hand.block([&](BlockWriter& w) {
    job.kernel(w, "a");
    w.host(Duration{60});
    Job::sync(w, 0);
    w.wait(Stream::compute, 5);
    job.kernel(w, "b");
    Job::sync(w, 1);
  });
  const std::uint32_t gather = job.hand.block([&](BlockWriter& w) {
    w.collective(job.gather, Stream::data_gather, 0, Duration{});
    w.record(Stream::data_gather, 5);
  });
  for (int i = 0; i < 4; ++i) {
    job.call(block, 3);
    job.call(gather);
  }
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 12 * 80);
  EXPECT_EQ(of(r, Cause::data), 4 * 35);
  EXPECT_EQ(of(r, Cause::host), 12 * 50 - 4 * 35);
  EXPECT_GT(r.replayed, 0);
}

// Work of the host thread between standstills has slices of its own: it is run each time.
TEST(Standstill, HostWorkIsRun) {
  Job job;
  job.hand.builder.plan().host_works.push_back({.name = "work"});
  const std::uint32_t block = job.hand.block([&](BlockWriter& w) {
    job.kernel(w, "a");
    Job::sync(w, 0);
    w.host_work(0);
    job.kernel(w, "b");
    Job::sync(w, 1);
  });
  job.call(block, 4);
  const TimingResult r = job.run();
  EXPECT_EQ(r.step, 4 * 37);
  EXPECT_EQ(r.replayed, 0);
}

}  // namespace
}  // namespace rehearse::executor::standstill_test
