// Where the calls of a program repeat, names of frames aside.
#include "sim/executor/repeats.h"

#include <gtest/gtest.h>

namespace rehearse::executor::repeats_test {
namespace {

/// Micro-batches of two calls, "forward" (block 0) and "backward" (block 1), `flying` of them at once; frame 0 is fixed, and
/// micro-batch m has frame 10 * (1 + m mod names).
plan::Program pipeline(int micro_batches, int flying, int names) {
  plan::Program p;
  p.slots = 10 * (names + 2);
  const auto call = [&](std::uint32_t block, int m) {
    plan::Call c{.block = block, .micro_batch = m};
    c.frames[static_cast<std::size_t>(plan::Frame::own)] = static_cast<std::uint32_t>(10 * (1 + m % names));
    c.frames[static_cast<std::size_t>(plan::Frame::unit)] = 0;
    p.step.push_back(c);
  };
  for (int m = 0; m < micro_batches + flying - 1; ++m) {
    if (m < micro_batches) call(0, m);
    if (m >= flying - 1) call(1, m - flying + 1);
  }
  return p;
}

// Two warm-up calls, then pairs: the pair is the period whatever the frames are called.
TEST(Repeats, NamesOfFramesDoNotMatter) {
  for (int names : {3, 4, 7}) {
    const Repeats repeats(pipeline(40, 3, names));
    EXPECT_EQ(repeats.stretch().period, 2U) << names;
    EXPECT_LE(repeats.stretch().first, 8U);
    EXPECT_GE(repeats.stretch().end, 76U);
    EXPECT_TRUE(repeats.fixed(0));
    EXPECT_FALSE(repeats.fixed(10));
  }
}

// A forward finds a frame that another micro-batch had, its backward the one that it knows.
TEST(Repeats, AFrameIsFreshForItsNextMicroBatch) {
  const Repeats repeats(pipeline(10, 1, 2));
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(repeats.fresh(i), i % 2 == 0 ? 1 : 0) << i;
}

// Blocks 0 1 0 2 1 2 3 ... never come again: nothing repeats.
TEST(Repeats, WhatDiffersDoesNotRepeat) {
  plan::Program p = pipeline(20, 2, 3);
  for (std::size_t i = 0; i < p.step.size(); ++i) p.step[i].block = static_cast<std::uint32_t>(i * i % 101);
  EXPECT_FALSE(Repeats(p).stretch().any());
  EXPECT_FALSE(Repeats(plan::Program{}).stretch().any());
}

// The same blocks, but every fifth backward looks at the frame of the micro-batch before: the period is five pairs.
TEST(Repeats, WhichFrameIsMeantMatters) {
  plan::Program p = pipeline(60, 2, 3);
  for (std::size_t i = 0; i + 2 < p.step.size(); ++i)
    if (p.step[i].block == 1 && p.step[i].micro_batch % 5 == 4) p.step[i].frames[1] = p.step[i].frames[0];
  EXPECT_EQ(Repeats(p).stretch().period, 10U);
}

}  // namespace
}  // namespace rehearse::executor::repeats_test
