// Stretches that come again are counted instead of run, and that changes no number: full execution is the oracle.
#include <gtest/gtest.h>

#include <random>

#include "sim/executor/timing.h"
#include "tests/support/hand_costs.h"
#include "tests/support/hand_plan.h"

namespace rehearse::executor::rhythm_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

constexpr std::uint32_t kSlots = 16;

constexpr std::uint32_t kFrames = 4;

/// Programs of micro-batches of a few calls each, in one frame (0) or in turn in a few.
struct Job : test_support::HandPlan {
  explicit Job(std::size_t classes) : HandPlan(classes, (kFrames + 1) * kSlots, kSlots) {}
  void call(std::size_t rank_class, std::uint32_t block, int micro_batch, std::uint32_t frame = 0) {
    plan::Call c{.block = block, .micro_batch = micro_batch};
    c.frames = {frame * kSlots, kFrames * kSlots, kFrames * kSlots, kFrames * kSlots};
    builder.plan().classes[rank_class].program.step.push_back(c);
  }
};

/// Runs it with and without shortcuts, compares all that comes of it, and gives how many stretches were not run.
std::int64_t compare(const plan::Plan& plan, const CostTable& costs, int steps = 2) {
  const TimingResult quick = run_timing(plan, costs, {.steps = steps}), full = run_timing(plan, costs, {.steps = steps, .shortcuts = false});
  EXPECT_EQ(full.again, 0);
  EXPECT_EQ(quick.deadlock, full.deadlock);
  EXPECT_EQ(quick.step, full.step);
  EXPECT_EQ(quick.instructions, full.instructions);
  EXPECT_EQ(quick.classes.size(), full.classes.size());
  for (std::size_t r = 0; r < full.classes.size(); ++r) {
    EXPECT_EQ(quick.classes[r].time, full.classes[r].time);
    EXPECT_EQ(quick.classes[r].busy, full.classes[r].busy);
    EXPECT_EQ(quick.classes[r].call_host, full.classes[r].call_host);
  }
  return quick.again;
}

CostTable costs_of(const Job& job, const std::map<std::string, std::int64_t>& kernels, std::int64_t collective, std::int64_t message) {
  CostTable costs = test_support::hand_costs(const_cast<Job&>(job).builder.plan(), kernels);
  for (Priced& p : costs.kernels) p.load = {.sm = 1, .hbm = 0.7f};
  for (auto& row : costs.collectives)
    for (Priced& p : row) p = {collective, {.sm = 0.1f, .nic = 1}, true};
  for (auto& row : costs.messages)
    for (Priced& p : row) p = {message, {.nic = 0.5f}, true};
  return costs;
}

// Two stages, 60 micro-batches, the second twice as slow. Once it is the bottleneck, all micro-batches are alike.
TEST(Rhythm, APipelineThatHasSettledIsCounted) {
  Job job(2);
  const std::uint32_t send = job.builder.message({1, 0, Bytes{8}}), recv = job.builder.message({0, 0, Bytes{8}});
  const std::uint32_t first = job.block([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{1}), w.send(send, Stream::send_forward, plan::kAfterCompute | plan::kComputeWaits, Duration{1}); });
  const std::uint32_t second = job.block([&](BlockWriter& w) { w.recv(recv, Stream::recv_forward, plan::kAfterCompute | plan::kComputeWaits, Duration{1}), w.kernel(job.kernel("b"), Duration{1}); });
  for (int m = 0; m < 60; ++m) job.call(0, first, m), job.call(1, second, m);
  EXPECT_GT(compare(job.builder.plan(), costs_of(job, {{"a", 100}, {"b", 200}}, 0, 30)), 40);
}

// The host needs 10 for a kernel of 5: the device waits for it every time, and nothing says that it always will.
TEST(Rhythm, WhereTheHostSetsThePaceNothingIsCounted) {
  Job job(1);
  const std::uint32_t block = job.block([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{10}); });
  for (int m = 0; m < 60; ++m) job.call(0, block, m);
  EXPECT_EQ(compare(job.builder.plan(), costs_of(job, {{"a", 5}}, 0, 0)), 0);
}

// What comes after the micro-batches waits for an event of the last of them, on a stream that did nothing before.
TEST(Rhythm, EventsOfStretchesThatWereNotRunHaveTheirTimes) {
  Job job(1);
  const std::uint32_t gradients = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{8}, "gradients"});
  // Runs beside the next micro-batch, so that blocks cannot be replayed one by one.
  const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
  const std::uint32_t work = job.block([&](BlockWriter& w) {
    w.kernel(job.kernel("a"), Duration{1});
    w.record(Stream::compute, 3);
    w.collective(gather, Stream::data_gather, plan::kAfterCompute, Duration{1});
  });
  const std::uint32_t reduce = job.block([&](BlockWriter& w) {
    w.wait(Stream::data_reduce, 3);
    w.collective(gradients, Stream::data_reduce, plan::kComputeWaits, Duration{1});
    w.kernel(job.kernel("c"), Duration{1});
  });
  for (int m = 0; m < 60; ++m) job.call(0, work, m);
  job.call(0, reduce, -1);
  CostTable costs = costs_of(job, {{"a", 100}, {"c", 7}}, 50, 0);
  costs.collectives[0][gather].load = {};
  EXPECT_GT(compare(job.builder.plan(), costs), 40);
  EXPECT_EQ(run_timing(job.builder.plan(), costs).step, 60 * 100 + 50 + 7);
}

/// Random work of a micro-batch: kernels, collectives beside them, events of this micro-batch or the one before, messages
/// from the first class to the second. Cut into blocks at random.
void write_random(Job& job, std::mt19937& random, int micro_batches, bool rare_waits, std::uint32_t frames = 1, bool synchronises = false) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::uint32_t gather = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "gather"});
  const std::uint32_t sum = job.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{8}, "sum"});
  const int messages = below(3);
  const bool irregular = synchronises && below(2);   // frames are in turn for half of the step only
  std::vector<std::vector<std::uint32_t>> blocks(2);
  for (std::size_t c = 0; c < 2; ++c) {
    const std::uint32_t spec = job.builder.message({static_cast<std::uint16_t>(1 - c), 0, Bytes{8}});
    int left = messages;
    for (int b = 0, n = 1 + below(3); b < n; ++b)
      blocks[c].push_back(job.block([&](BlockWriter& w) {
        const auto frame = [&] { return frames > 1 && below(3) == 0 ? plan::Frame::unit : plan::Frame::own; };
        for (int i = 0, k = 1 + below(5); i < k; ++i) switch (below(synchronises ? 9 : 7)) {
            case 0: w.collective(gather, Stream::data_gather, below(4), Duration{below(3)}); break;
            case 1: w.collective(sum, Stream::tensor, plan::kAfterCompute | below(4), Duration{below(3)}); break;
            case 2: w.record(below(2) ? Stream::compute : Stream::data_gather, static_cast<std::uint32_t>(below(4)), frame()); break;
            case 3:
              if (!rare_waits) w.wait(below(2) ? Stream::compute : Stream::tensor, static_cast<std::uint32_t>(below(4)), frame());
              break;
            case 7: w.host_wait(static_cast<std::uint32_t>(below(4)), frame()); break;
            case 8: w.host_sync(); break;
            default: w.kernel(job.kernel(std::string(1, static_cast<char>('a' + below(4)))), Duration{below(4)});
          }
        for (; left > 0 && (b + 1 == n || below(2)); --left) {
          if (c == 0) w.send(spec, Stream::send_forward, plan::kAfterCompute, Duration{1});
          else w.recv(spec, Stream::recv_forward, below(2) ? plan::kComputeWaits : plan::kComputeWaits | plan::kAfterCompute, Duration{1});
        }
      }));
    const std::uint32_t begin = job.block([&](BlockWriter& w) { w.kernel(job.kernel("begin"), Duration{1}); });
    const std::uint32_t end = job.block([&](BlockWriter& w) {
      for (std::uint32_t slot = 0; slot < 4; ++slot)
        if (below(2)) w.wait(Stream::data_reduce, slot);
      w.collective(gather, Stream::data_reduce, plan::kComputeWaits, Duration{1});
      if (below(2)) w.host_sync();
      w.kernel(job.kernel("a"), Duration{1});
    });
    job.call(c, begin, -1);
    for (int m = 0; m < micro_batches; ++m)
      for (const std::uint32_t id : blocks[c]) job.call(c, id, m, irregular && m > micro_batches / 2 ? static_cast<std::uint32_t>(below(static_cast<int>(frames))) : static_cast<std::uint32_t>(m) % frames);
    for (std::uint32_t frame = 0; frame < frames; ++frame) job.call(c, end, frames > 1 ? micro_batches + static_cast<int>(frame) : -1, frame);
  }
}

// Megatron's host threads wait for the device after every message: they are never ahead, and come again all the same.
TEST(Rhythm, HostsThatSynchroniseWithEveryMessageAreCounted) {
  Job job(2);
  const std::uint32_t send = job.builder.message({1, 0, Bytes{8}}), recv = job.builder.message({0, 0, Bytes{8}});
  const std::uint32_t first = job.block([&](BlockWriter& w) { w.kernel(job.kernel("a"), Duration{40}), w.send(send, Stream::send_forward, plan::kAfterCompute, Duration{1}), w.host_sync(); });
  const std::uint32_t second = job.block([&](BlockWriter& w) { w.recv(recv, Stream::recv_forward, plan::kComputeWaits, Duration{1}), w.host_sync(), w.kernel(job.kernel("b"), Duration{1}); });
  for (int m = 0; m < 60; ++m) job.call(0, first, m), job.call(1, second, m);
  EXPECT_GT(compare(job.builder.plan(), costs_of(job, {{"a", 100}, {"b", 200}}, 0, 30)), 40);
}

// The side stream falls back until a micro-batch has to wait for what was issued four micro-batches ago, in the frame that
// it takes over; and so have calls at the end. Their events are of stretches that were not run.
TEST(Rhythm, EventsOfFramesInTurnHaveTheirTimesWhereHostsKeepStep) {
  for (std::uint32_t micro_batches = 70; micro_batches < 78; ++micro_batches) {
    const bool irregular = micro_batches % 2 == 0;
    Job job(1);
    const std::uint32_t beside = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "beside"});
    const std::uint32_t work = job.block([&](BlockWriter& w) {
      w.wait(Stream::compute, 3);
      w.kernel(job.kernel("a"), Duration{1});
      w.record(Stream::compute, 2);
      w.collective(beside, Stream::data_gather, 0, Duration{1});
      w.record(Stream::data_gather, 3);
      w.host_wait(2);
    });
    const std::uint32_t after = job.block([&](BlockWriter& w) { w.wait(Stream::compute, 3), w.kernel(job.kernel("c"), Duration{1}); });
    // The same calls in other frames are no longer the same.
    for (std::uint32_t m = 0; m < micro_batches; ++m) job.call(0, work, static_cast<int>(m), irregular && m > 50 ? m / 2 % kFrames : m % kFrames);
    for (std::uint32_t frame = 0; frame < kFrames; ++frame) job.call(0, after, static_cast<int>(micro_batches + frame), frame);
    CostTable costs = costs_of(job, {{"a", 100}, {"c", 7}}, 120, 0);
    costs.collectives[0][beside].load = {};
    EXPECT_GT(compare(job.builder.plan(), costs), irregular ? 5 : 15);   // stretches of some micro-batches each
  }
}

/// Micro-batches of one collective each, whose host waits for the one of two before: three are always to come. The compute
/// stream does nothing until the last call, which finds the events of the last collective (frame `below`) and of the last but
/// three (its own frame): the youngest that is past, recorded in a stretch that was not run.
template <typename Write>
Job collectives_to_come(std::uint32_t micro_batches, Write last) {
  Job job(1);
  const std::uint32_t beside = job.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::data, Bytes{8}, "beside"});
  const std::uint32_t work = job.block([&](BlockWriter& w) {
    w.collective(beside, Stream::data_gather, 0, Duration{1});
    w.record(Stream::data_gather, 3);
    w.host_wait(3, plan::Frame::below);
  });
  const std::uint32_t end = job.block([&](BlockWriter& w) { last(w, job.kernel("c")); });
  for (std::uint32_t m = 0; m <= micro_batches; ++m) {
    job.call(0, m < micro_batches ? work : end, static_cast<int>(m), m % kFrames);
    const std::uint32_t before = m < micro_batches ? 2 : 1;
    job.builder.plan().classes[0].program.step.back().frames[static_cast<std::size_t>(plan::Frame::below)] = (m + kFrames - before) % kFrames * kSlots;
  }
  return job;
}

// Until the last collective but three the compute stream waits for a collective, then, until the host goes on, for the host.
TEST(Rhythm, AnEventThatWasToComeHasItsOwnTimeOnceItIsPast) {
  for (std::uint32_t micro_batches = 70; micro_batches < 78; ++micro_batches) {
    Job job = collectives_to_come(micro_batches, [](BlockWriter& w, std::uint32_t kernel) { w.wait(Stream::compute, 3), w.kernel(kernel, Duration{1}); });
    CostTable costs = costs_of(job, {{"c", 7}}, 120, 0);
    for (Priced& p : costs.collectives[0]) p.load = {};
    EXPECT_GT(compare(job.builder.plan(), costs), 100);   // of two steps
  }
}

// The last call's first kernel takes memory bandwidth from the last collectives, so they come later than their rhythm says:
// a kernel that waits for the last of them finds that event still to come, with no time of its own yet.
TEST(Rhythm, AnEventStillToComeMayComeLaterThanTheRhythmSays) {
  for (std::uint32_t micro_batches = 70; micro_batches < 78; ++micro_batches) {
    Job job = collectives_to_come(micro_batches, [](BlockWriter& w, std::uint32_t kernel) {
      w.kernel(kernel, Duration{1});
      w.wait(Stream::compute, 3, plan::Frame::below);
      w.kernel(kernel, Duration{1});
    });
    CostTable costs = costs_of(job, {{"c", 50}}, 120, 0);
    for (Priced& p : costs.collectives[0]) p.load = {.hbm = 0.7f};
    EXPECT_GT(compare(job.builder.plan(), costs), 100);
    EXPECT_GT(run_timing(job.builder.plan(), costs).step, 120 * micro_batches);
  }
}

TEST(Rhythm, RandomProgramsWhoseHostsSynchroniseAreTheSameToThePicosecond) {
  int with_rhythm = 0;
  for (unsigned seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Job job(2);
    write_random(job, random, 40 + static_cast<int>(seed % 7), false, 1 + seed % kFrames, /*synchronises=*/true);
    const auto time = [&](int n) { return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    const CostTable costs = costs_of(job, {{"begin", seed % 5 == 0 ? 20 : 5000}, {"a", time(40)}, {"b", time(100)}, {"c", time(10)}, {"d", time(1000)}}, time(200), time(100));
    with_rhythm += compare(job.builder.plan(), costs) > 0;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(with_rhythm, 60);
}

TEST(Rhythm, RandomProgramsAreTheSameToThePicosecond) {
  int with_rhythm = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Job job(2);
    write_random(job, random, 30 + static_cast<int>(seed % 7), seed % 3 == 0);
    const auto time = [&](int n) { return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    // The host is far ahead after "begin"; in some it falls back later.
    const CostTable costs = costs_of(job, {{"begin", seed % 5 == 0 ? 20 : 5000}, {"a", time(40)}, {"b", time(100)}, {"c", time(10)}, {"d", time(1000)}}, time(200), time(100));
    with_rhythm += compare(job.builder.plan(), costs) > 0;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(with_rhythm, 60);
}

}  // namespace
}  // namespace rehearse::executor::rhythm_test
