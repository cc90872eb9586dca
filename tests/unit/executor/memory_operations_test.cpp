// Passages that free all that they allocate: where they are found, and what they ask of the allocator at the worst.
#include "sim/executor/memory_operations.h"

#include <gtest/gtest.h>

#include "sim/executor/memory.h"

namespace rehearse::executor::memory_operations_test {
namespace {

using plan::Frame;
using plan::Instruction;
using plan::Opcode;

constexpr std::int64_t kMebibyte = 1 << 20;

Instruction alloc(std::uint32_t slot, std::int64_t bytes, Frame frame = Frame::own) {
  return {.op = Opcode::alloc, .frame = frame, .flags = static_cast<std::uint8_t>(plan::Category::temporary), .index = slot, .value = bytes};
}
Instruction release(std::uint32_t slot, Frame frame = Frame::own) { return {.op = Opcode::free, .frame = frame, .index = slot}; }

Instruction once(std::uint32_t slot, std::int64_t bytes) { return {.op = Opcode::alloc_once, .flags = static_cast<std::uint8_t>(plan::Category::workspace), .index = slot, .value = bytes}; }

/// Passages by where they begin: "first..behind the last" each.
std::string passages_of(const std::vector<Instruction>& list) {
  hwmodels::CachingAllocator allocator({.limit = 80_GiB});
  plan::Block block;
  block.memory = list;
  const MemoryOperations operations(block, allocator);
  std::string out;
  for (std::size_t i = 0; i < operations.all.size(); ++i)
    if (const std::uint32_t p = operations.all[i].passage; p != kNoPassage) out += std::to_string(i) + ".." + std::to_string(i + operations.passages[p].operations) + " ";
  return out;
}

TEST(Passages, FreeWhatTheyAllocateAndNothingElse) {
  EXPECT_EQ(passages_of({alloc(0, 512), release(0)}), "0..2 ");
  EXPECT_EQ(passages_of({alloc(0, 512)}), "");                                                      // stays
  EXPECT_EQ(passages_of({release(0), alloc(0, 512)}), "");                                          // was there
  EXPECT_EQ(passages_of({alloc(0, 512), release(1), release(0)}), "");                              // frees another's
  EXPECT_EQ(passages_of({alloc(0, 512), release(0, Frame::unit)}), "");                             // the same slot of another frame
  EXPECT_EQ(passages_of({alloc(0, 512), alloc(1, 512), release(0), release(1)}), "0..4 ");          // crossing
  EXPECT_EQ(passages_of({alloc(0, 512), alloc(1, 512), release(1), release(0)}), "0..4 1..3 ");     // one within
  EXPECT_EQ(passages_of({alloc(0, 512), alloc(1, 512), release(1)}), "1..3 ");
  EXPECT_EQ(passages_of({alloc(0, 512), release(0), alloc(0, 512), release(0)}), "0..4 2..4 ");     // one after the other
  EXPECT_EQ(passages_of({alloc(0, 512), once(9, 512), release(0)}), "0..3 ");                       // what is made once is there by then
  EXPECT_EQ(passages_of({once(9, 512), alloc(0, 512), release(0)}), "1..3 ");
  EXPECT_EQ(passages_of({alloc(0, 0), release(0)}), "");                                            // may free what was there before
  EXPECT_EQ(passages_of({alloc(0, 512), {.op = Opcode::record_stream, .stream = plan::Stream::tensor, .index = 0}, release(0)}), "");
  EXPECT_EQ(passages_of({alloc(0, 512), {.op = Opcode::move, .index = 1, .value = 0}, release(1)}), "");
}

TEST(Passages, AreNotLookedForWithoutEnd) {
  std::vector<Instruction> list(2000, once(9, 512));
  list.front() = alloc(0, 512);
  list.back() = release(0);
  EXPECT_EQ(passages_of(list), "");
}

// Large tensors of 4, 6 and 8 MiB, and a small one. [0 [1] [2] 3 ...]: of 1 and 2 only the larger counts beside the others.
TEST(Passages, AskForTheWorst) {
  hwmodels::CachingAllocator allocator({.limit = 80_GiB});
  plan::Block block;
  block.memory = {alloc(0, 4 * kMebibyte), alloc(1, 6 * kMebibyte), release(1), alloc(2, 8 * kMebibyte), release(2), alloc(3, 700), release(3), release(0)};
  const MemoryOperations operations(block, allocator);
  ASSERT_EQ(operations.all[0].passage, operations.passages.size() - 1);
  const Passage& p = operations.passages.back();
  EXPECT_EQ(p.operations, 8U);
  // A large block is lent whole when at most a MiB would be left of it.
  EXPECT_EQ(p.rise, (4 + 1 + 8 + 1) * kMebibyte);
  ASSERT_EQ(p.rooms.size(), 2U);
  EXPECT_EQ(p.rooms[0].bytes, (4 + 8) * kMebibyte);
  EXPECT_EQ(p.rooms[1].bytes, 1024);   // 700 B in granules of 512
  // Crossing: nothing is given back in between for certain.
  block.memory = {alloc(0, 4 * kMebibyte), alloc(1, 6 * kMebibyte), release(0), alloc(2, 8 * kMebibyte), release(1), release(2)};
  const MemoryOperations crossing(block, allocator);
  EXPECT_EQ(crossing.passages.back().rooms[0].bytes, (4 + 6 + 8) * kMebibyte);
  EXPECT_EQ(crossing.passages.back().rise, (6 + 1 + 8 + 1) * kMebibyte);
}

/// A step that calls one block of these instructions some times, under a limit.
ClassMemory run(const std::vector<Instruction>& list, bool shortcuts, bool expandable, Bytes limit = 80_GiB) {
  plan::Plan plan;
  plan.blocks.push_back({.name = "block", .memory = list, .slots = 64});
  plan::RankClass rank_class;
  rank_class.program.slots = 64;
  rank_class.program.step.assign(5, plan::Call{.block = 0, .frames = {0, 0, 0, 0}});
  plan.classes.push_back(rank_class);
  MemoryOptions options{.allocator = {.limit = limit, .expandable_segments = expandable}, .shortcuts = shortcuts};
  return run_memory(plan, 0, options);
}

TEST(AllocOnce, MakesATensorWhereItIsFirstNeededAndOnce) {
  for (const bool shortcuts : {false, true}) {
    const ClassMemory m = run({alloc(0, 100 * kMebibyte), release(0), once(9, 32 * kMebibyte)}, shortcuts, false);
    EXPECT_EQ(m.end_allocated, 32_MiB);
    EXPECT_EQ(m.peak_allocated, 132_MiB);
    // It splits the segment of 100 that had just been freed, so that the next call needs another.
    EXPECT_EQ(m.peak_reserved, 200_MiB);
  }
}

// Two segments of 40 MiB are given back for one of 50.
TEST(EndReserved, IsWhatGivingBackLeft) {
  plan::Plan plan;
  plan.blocks.push_back({.name = "block", .memory = {alloc(0, 40 * kMebibyte), alloc(1, 40 * kMebibyte), release(0), release(1), alloc(2, 50 * kMebibyte), release(2)}, .slots = 3});
  plan::RankClass rank_class;
  rank_class.program.slots = 3;
  rank_class.program.step.assign(1, plan::Call{.block = 0, .frames = {0, 0, 0, 0}});
  plan.classes.push_back(rank_class);
  const ClassMemory m = run_memory(plan, 0, {.allocator = {.limit = 90_MiB}, .steps = 1});
  EXPECT_EQ(m.peak_reserved, 80_MiB);
  EXPECT_EQ(m.end_reserved, 50_MiB);
}

// Random programs, most of whose tensors come and go: what is stepped over changes no answer, in and out of memory.
TEST(Passages, SteppedOverChangeNothing) {
  std::uint64_t state = 1;
  const auto below = [&](std::int64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(n));
  };
  int out_of_memory = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Instruction> list;
    std::vector<std::uint32_t> live, unused;
    for (std::uint32_t s = 0; s < 63; ++s) unused.push_back(s);
    const auto made_once_at = below(60);
    const std::int64_t sizes[] = {700, 4096, 300'000, 3 * kMebibyte, 4 * kMebibyte, 11 * kMebibyte, 30 * kMebibyte};
    const auto drop = [&](std::size_t k) {
      list.push_back(release(live[k]));
      unused.push_back(live[k]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
    };
    for (int i = 0; i < 60; ++i) {
      if (i == made_once_at) list.push_back(once(63, 5 * kMebibyte));
      if (!live.empty() && below(2) == 0) {
        drop(below(3) > 0 ? live.size() - 1 : static_cast<std::size_t>(below(static_cast<std::int64_t>(live.size()))));
      } else {
        live.push_back(unused.back());
        unused.pop_back();
        list.push_back(alloc(live.back(), sizes[below(7)] + 512 * below(3)));
      }
    }
    while (!live.empty()) drop(0);
    for (const bool expandable : {false, true})
      for (const Bytes limit : {80_GiB, 100_MiB}) {
        const ClassMemory quick = run(list, true, expandable, limit), full = run(list, false, expandable, limit);
        ASSERT_EQ(quick.peak_allocated, full.peak_allocated) << "round " << round;
        ASSERT_EQ(quick.peak_reserved, full.peak_reserved) << "round " << round;
        ASSERT_EQ(quick.end_allocated, full.end_allocated) << "round " << round;
        ASSERT_EQ(quick.end_reserved, full.end_reserved) << "round " << round;
        ASSERT_EQ(quick.at_peak, full.at_peak) << "round " << round;
        ASSERT_EQ(quick.peak_call, full.peak_call) << "round " << round;
        ASSERT_EQ(quick.peak_step, full.peak_step) << "round " << round;
        ASSERT_EQ(quick.failed_call, full.failed_call) << "round " << round;
        ASSERT_EQ(quick.out_of_memory.has_value(), full.out_of_memory.has_value()) << "round " << round;
        ASSERT_EQ(quick.operations, full.operations) << "round " << round;
        out_of_memory += full.out_of_memory.has_value() ? 1 : 0;
      }
  }
  EXPECT_GT(out_of_memory, 20);
}

}  // namespace
}  // namespace rehearse::executor::memory_operations_test
