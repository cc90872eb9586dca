#include "sim/executor/memory_cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "sim/plan/builder.h"

namespace rehearse::executor::memory_cache_test {
namespace {

/// A step that keeps a tensor of `bytes` over two temporaries; frames as given.
plan::Plan plan_of(std::int64_t bytes, std::uint32_t frame = 0, plan::Category category = plan::Category::activation) {
  plan::PlanBuilder builder;
  plan::BlockWriter w("work");
  const std::uint32_t kept = w.new_slot("kept"), temporary = w.new_slot("temporary");
  w.alloc(kept, bytes, category);
  w.alloc(temporary, 3 << 20, plan::Category::temporary);
  w.free(temporary);
  w.free(kept);
  plan::Call call{.block = builder.add_block(w.take())};
  call.frames[0] = frame;
  plan::RankClass c;
  c.program.step = {call, call};
  c.program.slots = frame + 2;
  builder.plan().classes.push_back(c);
  return builder.take();
}

MemoryOptions options(Bytes limit = 8_GiB) {
  MemoryOptions o;
  o.allocator.limit = limit;
  return o;
}

TEST(MemoryCache, TheSameContentIsRunOnce) {
  MemoryCache cache;
  const plan::Plan a = plan_of(64 << 20), b = plan_of(64 << 20);
  const ClassMemory first = cache.run(a, 0, options()), again = cache.run(b, 0, options()), alone = run_memory(a, 0, options());
  EXPECT_EQ(cache.hits(), 1u);
  EXPECT_EQ(cache.size(), 1u);
  for (const ClassMemory& m : {first, again}) {
    EXPECT_EQ(m.peak_allocated, alone.peak_allocated);
    EXPECT_EQ(m.peak_reserved, alone.peak_reserved);
    EXPECT_EQ(m.at_peak, alone.at_peak);
    EXPECT_EQ(m.peak_call, alone.peak_call);
  }
}

// A call for the first step only is run there and never again: what it allocates is there from then on.
TEST(Memory, SomeCallsAreMadeInTheFirstStepOnly) {
  plan::Plan plan = plan_of(64 << 20);
  plan::BlockWriter w("make states");
  w.alloc(w.new_slot("state"), 16 << 20, plan::Category::optimizer);
  plan.blocks.push_back(w.take());
  plan::Call once{.block = static_cast<std::uint32_t>(plan.blocks.size() - 1), .first_step_only = true};
  once.frames[0] = plan.classes[0].program.slots++;
  plan.classes[0].program.step.push_back(once);
  for (const int steps : {1, 2, 3}) {
    MemoryOptions o = options();
    o.steps = steps;
    const ClassMemory got = run_memory(plan, 0, o);
    EXPECT_EQ(got.end_allocated, 16_MiB);
    EXPECT_EQ(got.peak_allocated, steps == 1 ? 67_MiB : 84_MiB);   // 64 + 3; then the states, which leave the 3 a block of 4 in their segment of 20
    o.shortcuts = false;
    EXPECT_EQ(run_memory(plan, 0, o).peak_reserved, got.peak_reserved);
  }
}

// Whatever decides an answer makes another content: bytes, category, frames, allocator, steps, shortcuts.
TEST(MemoryCache, DifferentContentIsNotConfused) {
  MemoryCache cache;
  std::size_t runs = 0;
  const auto new_to_it = [&](const plan::Plan& plan, const MemoryOptions& o) {
    const ClassMemory got = cache.run(plan, 0, o), alone = run_memory(plan, 0, o);
    EXPECT_EQ(got.peak_allocated, alone.peak_allocated);
    EXPECT_EQ(got.peak_reserved, alone.peak_reserved);
    EXPECT_EQ(got.out_of_memory.has_value(), alone.out_of_memory.has_value());
    return cache.size() == ++runs && cache.hits() == 0;
  };
  const plan::Plan plan = plan_of(64 << 20);
  EXPECT_TRUE(new_to_it(plan, options()));
  EXPECT_TRUE(new_to_it(plan_of(65 << 20), options()));
  EXPECT_TRUE(new_to_it(plan_of(64 << 20, 1), options()));
  EXPECT_TRUE(new_to_it(plan_of(64 << 20, 0, plan::Category::gradient), options()));
  EXPECT_TRUE(new_to_it(plan, options(65_MiB)));   // fails
  MemoryOptions o = options();
  o.allocator.expandable_segments = true;
  EXPECT_TRUE(new_to_it(plan, o));
  o = options();
  o.allocator.max_split_size = 20_MiB;
  EXPECT_TRUE(new_to_it(plan, o));
  plan::Plan first_only = plan;
  first_only.classes[0].program.step[1].first_step_only = true;
  EXPECT_TRUE(new_to_it(first_only, options()));
  o = options();
  o.steps = 3;
  EXPECT_TRUE(new_to_it(plan, o));
  o = options();
  o.shortcuts = false;
  EXPECT_TRUE(new_to_it(plan, o));
}

TEST(MemoryCache, IsFullAtItsLimitAndStillAnswers) {
  MemoryCache cache(1);
  cache.run(plan_of(1 << 20), 0, options());
  EXPECT_EQ(cache.run(plan_of(64 << 20), 0, options()).peak_allocated, Bytes{67 << 20});
  EXPECT_EQ(cache.size(), 1u);
}

TEST(MemoryCache, ATimelineIsAlwaysRun) {
  MemoryCache cache;
  MemoryOptions o = options();
  o.timeline = true;
  const plan::Plan plan = plan_of(64 << 20);
  EXPECT_FALSE(cache.run(plan, 0, o).timeline.empty());
  EXPECT_FALSE(cache.run(plan, 0, o).timeline.empty());
  EXPECT_EQ(cache.size(), 0u);
}

TEST(MemoryCache, ThreadsShareIt) {
  MemoryCache cache;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::int64_t mib = 2; mib <= 80; mib += 2) EXPECT_EQ(cache.run(plan_of(mib << 20), 0, options()).peak_allocated.value, (mib + 3) << 20);
    });
  threads.clear();
  EXPECT_EQ(cache.size(), 40u);
}

}  // namespace
}  // namespace rehearse::executor::memory_cache_test
