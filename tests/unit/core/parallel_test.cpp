#include "sim/core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace rehearse {
namespace {

TEST(Parallel, EachIndexOnceOnAnyNumberOfThreads) {
  for (const int threads : {0, 1, 2, 7, 64})
    for (const std::size_t count : {0u, 1u, 5u, 1000u}) {
      std::vector<std::atomic<int>> times(count);
      for_each_index(count, threads, [&](std::size_t i) { ++times[i]; });
      for (const auto& t : times) EXPECT_EQ(t, 1);
    }
}

// Without a way out of its thread an exception would end the program.
TEST(Parallel, WhatIsThrownOnAnyThreadComesOutAndEndsTheWork) {
  for (const int threads : {1, 4}) {
    std::atomic<int> begun{0};
    const auto work = [&](std::size_t i) {
      ++begun;
      if (i >= 10) throw std::runtime_error("at ten");
    };
    EXPECT_THROW(for_each_index(100'000, threads, work), std::runtime_error);
    EXPECT_GE(begun, 11);
    EXPECT_LE(begun, 10 + threads);   // each thread begins at most one that throws
  }
}

// The second index throws at once, the first only when the second has: it is the first's mistake that is told.
TEST(Parallel, OfSeveralMistakesTheLowestIndexsIsTold) {
  for (const int threads : {1, 2}) {
    std::atomic<bool> second{threads == 1};
    const auto work = [&](std::size_t i) {
      if (i == 1) second = true;
      while (!second) std::this_thread::yield();
      if (i == 0 && threads > 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      throw std::runtime_error(std::to_string(i));
    };
    try {
      for_each_index(2, threads, work);
      FAIL();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "0");
    }
  }
}

}  // namespace
}  // namespace rehearse
