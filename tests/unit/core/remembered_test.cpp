#include "sim/core/remembered.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace rehearse::remembered_test {
namespace {

TEST(Remembered, MakesEachValueOnceAndKeepsItsPlace) {
  Remembered<std::string, int> table;
  int made = 0;
  const int& first = table.get("a", [&] { return ++made; });
  for (int i = 0; i < 100; ++i) table.get(std::to_string(i), [&] { return ++made; });
  EXPECT_EQ(&table.get("a", [&] { return ++made; }), &first);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(made, 101);
}

TEST(Remembered, AFailureIsNotRemembered) {
  Remembered<int, int> table;
  EXPECT_THROW(table.get(1, []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(table.get(1, [] { return 7; }), 7);
}

TEST(Remembered, ThreadsShareOneValue) {
  Remembered<int, std::vector<int>> table;
  std::vector<const std::vector<int>*> seen(8);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < seen.size(); ++t)
      threads.emplace_back([&, t] {
        for (int key = 0; key < 200; ++key) seen[t] = &table.get(key, [&] { return std::vector<int>(3, key); });
      });
  }
  for (const auto* value : seen) EXPECT_EQ(value, seen[0]);
}

}  // namespace
}  // namespace rehearse::remembered_test
