#include "calibrate/probe/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace rehearse::calibrate::statistics_test {
namespace {

TEST(Statistics, OfFiveByHand) {
  const Summary s = summarise({3, 1, 2, 10, 4});
  EXPECT_EQ(s.samples, 5u);
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.mean, 4);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 10);
  EXPECT_DOUBLE_EQ(s.stddev, std::sqrt((1 + 9 + 4 + 36 + 0) / 4.0));
  EXPECT_DOUBLE_EQ(s.relative_error, 0.5 * 9 / 3);  // fewer than six: the whole range
  EXPECT_DOUBLE_EQ(s.drift, 4.0 / 2.0 - 1);         // {2, 10, 4} after {3, 1}
}

TEST(Statistics, OfOneSample) {
  const Summary s = summarise({2});
  EXPECT_EQ(s.median, 2);
  EXPECT_EQ(s.stddev, 0);
  EXPECT_EQ(s.relative_error, 0);
}

/// Ranks as printed in tables of the sign test (Conover, table A3; two-sided 95 %).
TEST(Statistics, MedianIntervalsAreThoseOfTheSignTest) {
  using Ranks = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(median_interval(1), (Ranks{1, 1}));
  EXPECT_EQ(median_interval(5), (Ranks{1, 5}));
  EXPECT_EQ(median_interval(6), (Ranks{1, 6}));
  EXPECT_EQ(median_interval(9), (Ranks{2, 8}));
  EXPECT_EQ(median_interval(10), (Ranks{2, 9}));
  EXPECT_EQ(median_interval(20), (Ranks{6, 15}));
  EXPECT_EQ(median_interval(30), (Ranks{10, 21}));
  EXPECT_EQ(median_interval(50), (Ranks{18, 33}));
}

/// At n = 2000 the normal approximation n/2 - 1.96 sqrt(n)/2 = 956.2 is good to a rank.
TEST(Statistics, LargeNumbersOfSamplesDoNotUnderflow) {
  const auto [low, high] = median_interval(2000);
  EXPECT_NEAR(static_cast<double>(low), 956.2, 1.01);
  EXPECT_EQ(high, 2001 - low);
}

/// The promise of 95 %, tried 2000 times on a skewed distribution whose median is known.
TEST(Statistics, TheIntervalHoldsTheTrueMedianAsOftenAsItSays) {
  std::mt19937 random(7);
  std::lognormal_distribution<double> times(0, 1);  // median 1
  int inside = 0;
  constexpr int kTrials = 2000;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> v(25);
    for (double& x : v) x = times(random);
    std::sort(v.begin(), v.end());
    const auto [low, high] = median_interval(v.size());
    inside += v[low - 1] <= 1 && 1 <= v[high - 1];
  }
  EXPECT_GE(inside, static_cast<int>(0.94 * kTrials));
}

}  // namespace
}  // namespace rehearse::calibrate::statistics_test
