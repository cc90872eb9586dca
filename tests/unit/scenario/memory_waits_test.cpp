// What a job at the limit of its memory waits for, written into its plan.
#include "sim/scenario/memory_waits.h"

#include <gtest/gtest.h>

#include "sim/plan/builder.h"

namespace rehearse::scenario {
namespace {

// Two calls of one block that allocates. The second takes 23 GB again after giving back: the host waits for the device, then 23 GB / 46 GB/s = 0.5 s.
// The first has the block as it was, and neither call's memory instructions change.
TEST(MemoryWaits, HostWaitsForTheDeviceAndForWhatIsTakenAgain) {
  plan::PlanBuilder builder;
  plan::BlockWriter block("layer");
  const std::uint32_t slot = block.new_slot("output");
  block.alloc(slot, 512, plan::Category::activation);
  block.host(Duration{7});
  const std::uint32_t id = builder.add_block(block.take());
  plan::Plan plan = builder.take();
  plan.classes.resize(1);
  plan.classes[0].program.step = {plan::Call{.block = id}, plan::Call{.block = id}};

  wait_for_memory(plan, 0, {{.call = 1, .bytes = Bytes{23'000'000'000}, .gave_back = true}}, BytesPerSecond{46e9});

  const auto& step = plan.classes[0].program.step;
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[0].block, id);
  ASSERT_NE(step[1].block, id);
  const plan::Block& waits = plan.blocks[step[1].block];
  EXPECT_EQ(waits.memory, plan.blocks[id].memory);
  ASSERT_EQ(waits.timing.size(), 3U);
  EXPECT_EQ(waits.timing[0].op, plan::Opcode::host_sync);
  EXPECT_EQ(waits.timing[1].op, plan::Opcode::host);
  EXPECT_EQ(waits.timing[1].value, 500'000'000'000);   // picoseconds
  EXPECT_EQ(waits.timing[2], plan.blocks[id].timing[0]);
}

// What is taken later, from a cache that was emptied before, waits for the driver but not for the device.
TEST(MemoryWaits, WithoutGivingBackTheDeviceGoesOn) {
  plan::PlanBuilder builder;
  const std::uint32_t id = builder.add_block(plan::BlockWriter("layer").take());
  plan::Plan plan = builder.take();
  plan.classes.resize(1);
  plan.classes[0].program.step = {plan::Call{.block = id}};
  wait_for_memory(plan, 0, {{.call = 0, .bytes = Bytes{46'000'000}, .gave_back = false}}, BytesPerSecond{46e9});
  const plan::Block& waits = plan.blocks[plan.classes[0].program.step[0].block];
  ASSERT_EQ(waits.timing.size(), 1U);
  EXPECT_EQ(waits.timing[0].op, plan::Opcode::host);
  EXPECT_EQ(waits.timing[0].value, 1'000'000'000);
}

}  // namespace
}  // namespace rehearse::scenario
