// Memory that another stream uses is free again when that stream has got there, as the host sees it. Times in picoseconds.
#include "sim/executor/device_progress.h"

#include <gtest/gtest.h>

#include "sim/executor/memory.h"
#include "sim/plan/builder.h"
#include "tests/support/hand_costs.h"

namespace rehearse::executor::device_progress_test {
namespace {

using plan::BlockWriter;
using plan::Stream;

constexpr std::int64_t kTensor = 32 << 20;

/// A kernel makes a tensor, a collective of 1000 reads it, the host frees it; then, `between` kernels of 10 later that take
/// the host `issue` each, and `python` of the host on its own, it wants another of the same size.
Bytes reserved(int between, std::int64_t issue, bool with_times = true, std::int64_t python = 0) {
  plan::PlanBuilder builder;
  builder.plan().classes.resize(1);
  plan::Program& program = builder.plan().classes[0].program;
  auto call = [&](BlockWriter& w) {
    plan::Call c{.block = builder.add_block(w.take())};
    c.frames = {0, 0, 0, 0};
    program.step.push_back(c);
  };
  const std::uint32_t kernel = builder.kernel({.bytes_read = 1, .name = "a"});
  const std::uint32_t reduce = builder.collective({CollectiveKind::reduce_scatter, plan::GroupAxis::tensor, Bytes{8}, "reduce"});
  BlockWriter first("first"), middle("middle"), last("last");
  for (BlockWriter* w : {&first, &middle, &last}) w->reserve_slots(2);
  first.alloc(0, kTensor, plan::Category::temporary);
  first.kernel(kernel, Duration{});
  first.collective(reduce, Stream::tensor, plan::kAfterCompute, Duration{});
  first.record_stream(0, Stream::tensor);
  first.free(0);
  for (int i = 0; i < between; ++i) middle.kernel(kernel, Duration{issue});
  if (python > 0) middle.host(Duration{python});
  last.alloc(1, kTensor, plan::Category::temporary);
  last.kernel(kernel, Duration{});
  last.free(1);
  for (BlockWriter* w : {&first, &middle, &last}) call(*w);
  if (python > 0) {
    BlockWriter end("end");
    end.kernel(kernel, Duration{});
    call(end);
  }
  program.slots = 2;
  CostTable costs = test_support::hand_costs(builder.plan(), {{"a", 10}});
  for (auto& row : costs.collectives)
    for (Priced& p : row) p.duration = 1000;
  const TimingResult timing = run_timing(builder.plan(), costs, {.progress = true});
  const DeviceProgress progress(builder.plan(), program, timing.classes[0]);
  MemoryOptions options;
  options.allocator.limit = 1_GiB;
  if (with_times) options.progress = &progress;
  return run_memory(builder.plan(), 0, options).peak_reserved;
}

// The host is through with both steps before the first collective is: each of the two steps' first tensors still waits
// when the second step's last one is wanted, which takes the third block.
TEST(DeviceProgress, AHostFarAheadFindsTheBufferInUse) { EXPECT_EQ(reserved(1, 0), Bytes{3 * kTensor}); }

// 10 kernels of 200: the collective, over at 1010, is done when the host comes to the second tensor at 2000.
TEST(DeviceProgress, AHostBehindTheDeviceFindsItFree) { EXPECT_EQ(reserved(10, 200), Bytes{kTensor}); }

// 2000 launches cost the host nothing, but only 1024 of them may wait: at the second tensor the device has begun with the
// 976th, at 9760 or later.
TEST(DeviceProgress, TheLaunchQueueHoldsTheHost) { EXPECT_EQ(reserved(2000, 0), Bytes{kTensor}); }

// A group moves at the pace of its slowest Python; this rank is not the slowest, and asks for the second tensor before 1010. The
// next step begins at 20000 or later, when both are free.
TEST(DeviceProgress, PythonHoldsUpTheSlowestRankAlone) { EXPECT_EQ(reserved(1, 0, true, 20000), Bytes{2 * kTensor}); }

// Without times a buffer is free at once.
TEST(DeviceProgress, WithoutTimesNothingWaits) { EXPECT_EQ(reserved(1, 0, false), Bytes{kTensor}); }

// Two messages to the next stage, then a collective of 30 and a launch that takes the host 5000, then the host waits. In later steps the
// collective is over long before that; in the first, whose second message waits for the next stage's first pass, it is not.
TEST(DeviceProgress, TheFirstStepWaitsForTheNextStagesFirstPass) {
  plan::PlanBuilder builder;
  builder.plan().classes.resize(2);
  auto call = [&](std::size_t rank_class, auto write) {
    BlockWriter w("call");
    w.reserve_slots(2);
    write(w);
    plan::Call c{.block = builder.add_block(w.take())};
    c.frames = {0, 0, 0, 0};
    builder.plan().classes[rank_class].program.step.push_back(c);
    builder.plan().classes[rank_class].program.slots = 2;
  };
  const std::uint32_t kernel = builder.kernel({.bytes_read = 1, .name = "a"});
  const std::uint32_t reduce = builder.collective({CollectiveKind::reduce_scatter, plan::GroupAxis::tensor, Bytes{8}, "reduce"});
  const std::uint32_t to = builder.message({1, 0, Bytes{8}}), from = builder.message({0, 0, Bytes{8}});
  for (int i = 0; i < 2; ++i) {
    call(0, [&](BlockWriter& w) { w.send(to, Stream::send_forward, 0, Duration{}); });
    call(1, [&](BlockWriter& w) { w.recv(from, Stream::recv_forward, 0, Duration{}); });
  }
  call(0, [&](BlockWriter& w) {
    w.kernel(kernel, Duration{});
    w.collective(reduce, Stream::tensor, plan::kAfterCompute, Duration{});
    w.kernel(kernel, Duration{5000});
  });
  call(0, [&](BlockWriter& w) { w.host_sync(); });
  call(1, [&](BlockWriter& w) { w.kernel(kernel, Duration{}); });
  CostTable costs = test_support::hand_costs(builder.plan(), {{"a", 10}});
  for (auto& row : costs.collectives)
    for (Priced& p : row) p.duration = 30;
  const TimingResult timing = run_timing(builder.plan(), costs, {.progress = true});
  ASSERT_TRUE(timing.deadlock.empty()) << timing.deadlock;
  const DeviceProgress progress(builder.plan(), builder.plan().classes[0].program, timing.classes[0]);
  EXPECT_LT(progress.done(2, Stream::tensor, 1), progress.host(3, 0));
  EXPECT_EQ(progress.done_at_first(2, Stream::tensor, 1), progress.host(3, 0));
  EXPECT_EQ(progress.done_at_first(3, Stream::tensor, 0), progress.done(3, Stream::tensor, 0));
}

}  // namespace
}  // namespace rehearse::executor::device_progress_test
