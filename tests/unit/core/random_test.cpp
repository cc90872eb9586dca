// Random numbers against published values, the C library and the moments of their distributions.
#include "sim/core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rehearse::random_test {
namespace {

// Source: the first outputs for seed 1234567 of the reference code, as Rosetta Code ("Pseudo-random numbers/Splitmix64") lists them.
TEST(Random, IntegersAreThePublishedOnes) {
  Random random(1234567);
  for (const std::uint64_t expected : {6457827717110365317ULL, 3203168211198807973ULL, 9817491932198370423ULL, 4593380528125082431ULL, 16408922859458223821ULL}) EXPECT_EQ(random.next(), expected);
}

TEST(Random, LogarithmAndExponentialAreExactToTheLastDigits) {
  for (double x = 1e-12; x < 1e12; x *= 1.37) EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 2e-16) << x;
  for (double x = -700; x < 700; x += 1.93) EXPECT_NEAR(portable_exp(x) / std::exp(x), 1, 2e-15) << x;
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_EQ(portable_exp(0), 1);
  EXPECT_EQ(portable_exp(-1e9), 0);
}

TEST(Random, EveryValueBelowComesEquallyOften) {
  Random random(3);
  std::vector<int> count(7);
  for (int i = 0; i < 70000; ++i) ++count[random.below(7)];
  for (const int n : count) EXPECT_NEAR(n, 10000, 400);   // four standard deviations
}

// Gamma(k): mean k, variance k. Standard error of a mean of n: sqrt(k / n).
TEST(Random, GammaHasItsMoments) {
  for (const double shape : {0.05, 0.5, 1.0, 3.0, 100.0}) {
    Random random(11);
    const int n = 40000;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
      const double x = random.gamma(shape);
      EXPECT_GE(x, 0);
      sum += x, squares += x * x;
    }
    const double mean = sum / n, variance = squares / n - mean * mean;
    EXPECT_NEAR(mean, shape, 5 * std::sqrt(shape / n)) << shape;
    EXPECT_NEAR(variance / shape, 1, 5 * std::sqrt((2 + 6 / shape) / n)) << shape;   // its kurtosis: 6 / k
  }
}

}  // namespace
}  // namespace rehearse::random_test
