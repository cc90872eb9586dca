#include "sim/engine/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rehearse::engine::event_queue_test {
namespace {

TimePoint at(std::int64_t ps) { return TimePoint{Duration{ps}}; }

TEST(EventQueue, EqualTimesFireByPhaseThenInsertion) {
  EventQueue queue;
  queue.push(at(5), Phase::host, 0);
  queue.push(at(5), Phase::stream, 1);
  queue.push(at(5), Phase::completion, 2);
  queue.push(at(5), Phase::arrival, 3);
  queue.push(at(5), Phase::completion, 4);
  queue.push(at(4), Phase::host, 5);
  std::vector<std::uint64_t> order;
  while (!queue.empty()) order.push_back(queue.pop().payload);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{5, 2, 4, 3, 1, 0}));
}

TEST(EventQueue, AgreesWithAStableSortUnderMixedPushesAndPops) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    EventQueue queue;
    std::vector<std::tuple<std::int64_t, int, std::uint64_t>> waiting;
    for (std::uint64_t i = 0; i < 400; ++i) {
      const auto time = static_cast<std::int64_t>(random() % 20) - 5;  // negative times are legal
      const int phase = static_cast<int>(random() % 4);
      queue.push(at(time), static_cast<Phase>(phase), i);
      waiting.emplace_back(time, phase, i);
      if (random() % 3 != 0) continue;
      const auto first = std::min_element(waiting.begin(), waiting.end());
      const EventQueue::Event event = queue.pop();
      EXPECT_EQ(event.payload, std::get<2>(*first));
      EXPECT_EQ(event.time, at(std::get<0>(*first)));
      waiting.erase(first);
    }
    EXPECT_EQ(queue.size(), waiting.size());
  }
}

TEST(EventQueue, PoppingNothingIsABug) {
  EventQueue queue;
  EXPECT_THROW(queue.pop(), ContractViolation);
}

}  // namespace
}  // namespace rehearse::engine::event_queue_test
