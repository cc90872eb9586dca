#include "sim/core/parallel.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace rehearse
