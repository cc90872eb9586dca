// Textbook times, exact to the picosecond.
#include "hwmodels/collective/closed_forms.h"

#include <gtest/gtest.h>

namespace rehearse::hwmodels::closed_forms_test {
namespace {

constexpr Duration kAlpha{1'000'000};  // 1 us
constexpr BytesPerSecond kLink{100e9};

// n = 8, 800 MB at 100 GB/s: a step moves 100 MB in 1 ms; 14 steps of 1 ms + 1 us.
TEST(ClosedForms, RingAllReduceTakesTwoNMinusOneSteps) {
  EXPECT_EQ(ring_all_reduce_time(Bytes{800'000'000}, 8, kAlpha, kLink), microseconds(14 * 1001));
}

TEST(ClosedForms, AllReduceIsReduceScatterThenAllGather) {
  for (int n : {2, 3, 8, 72}) {
    Bytes payload{n * 1'000'000};
    EXPECT_EQ(ring_all_reduce_time(payload, n, kAlpha, kLink),
              2 * ring_all_gather_time(payload, n, kAlpha, kLink))
        << n;
  }
}

TEST(ClosedForms, OneRankCostsNothing) {
  Bytes payload{1 << 30};
  for (auto time : {ring_all_reduce_time, ring_all_gather_time, double_binary_tree_all_reduce_time,
                    switch_all_reduce_time, pairwise_all_to_all_time, pipelined_broadcast_time})
    EXPECT_EQ(time(payload, 1, kAlpha, kLink), Duration{0});
}

// Without latency a ring's bus bandwidth is the link: busbw = S/t * 2(n-1)/n = bandwidth.
TEST(ClosedForms, BusBandwidthOfAnIdealRingIsItsLink) {
  for (int n : {2, 8, 512}) {
    Bytes payload{std::int64_t{n} << 24};
    double t = to_seconds(ring_all_reduce_time(payload, n, Duration{0}, kLink));
    EXPECT_NEAR(static_cast<double>(payload.value) / t * all_reduce_bus_factor(n), kLink.value,
                1e-6 * kLink.value)
        << n;
    double g = to_seconds(ring_all_gather_time(payload, n, Duration{0}, kLink));
    EXPECT_NEAR(static_cast<double>(payload.value) / g * shard_bus_factor(n), kLink.value, 1e-6 * kLink.value)
        << n;
  }
}

// 8 ranks: 2 x 3 hops and 2 x 100 MB / 100 GB/s.
TEST(ClosedForms, TreeLatencyGrowsWithTheLogarithm) {
  EXPECT_EQ(double_binary_tree_all_reduce_time(Bytes{100'000'000}, 8, kAlpha, kLink), microseconds(6 + 2000));
}

// In-switch reduction of 8 ranks carries 9/8 of the payload where a ring carries 14/8.
TEST(ClosedForms, SwitchReductionCarriesLess) {
  EXPECT_EQ(switch_all_reduce_time(Bytes{800'000'000}, 8, Duration{0}, kLink), microseconds(9000));
}

}  // namespace
}  // namespace rehearse::hwmodels::closed_forms_test
