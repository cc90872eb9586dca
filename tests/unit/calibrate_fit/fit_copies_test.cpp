// Copies and launches: a latency and a rate, recovered within what the fit claims.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calibrate/fit/fit_copies.h"

namespace rehearse::calibrate::fit_copies_test {
namespace {

struct Line {
  std::vector<double> amounts, seconds;
};
Line line(double latency, double rate, double noise, double outliers, unsigned seed) {
  std::mt19937_64 draw(seed);
  std::normal_distribution<double> gauss(0, 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  Line out;
  for (double bytes = 4096; bytes < 2e9; bytes *= 1.7) {
    out.amounts.push_back(bytes);
    out.seconds.push_back((latency + bytes / rate) * (1 + noise * gauss(draw)) * (uniform(draw) < outliers ? 1.8 : 1));
  }
  return out;
}

TEST(FitLine, LatencyAndRateLieWithinTheirErrors) {
  int inside = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Line l = line(9e-6, 26e9, 0.02, 0, seed);
    const LinearFit fit = fit_line("copy", l.amounts, l.seconds);
    inside += std::abs(fit.latency_s - 9e-6) < 2 * fit.latency_error_s;
    inside += std::abs(fit.per_unit_s - 1 / 26e9) < 2 * fit.per_unit_error_s;
  }
  EXPECT_GT(inside, 0.90 * 400);
  EXPECT_LT(inside, 0.99 * 400);
}

TEST(FitLine, OutliersHardlyMoveIt) {
  double worst = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    const Line l = line(9e-6, 26e9, 0.01, 0.08, seed);
    worst = std::max(worst, std::abs(fit_line("copy", l.amounts, l.seconds).rate() / 26e9 - 1));
  }
  EXPECT_LT(worst, 0.03);
}

TEST(FitLine, NeitherIsEverNegative) {
  // Faster than proportional: an unbounded line would have a negative latency.
  const LinearFit fit = fit_line("odd", {1e6, 2e6, 4e6, 8e6}, {1e-5, 2.2e-5, 4.8e-5, 10.5e-5});
  EXPECT_EQ(fit.latency_s, 0);
  EXPECT_GT(fit.per_unit_s, 0);
}

TEST(FitLine, ErrorsOnRowsLeftOutNeedThreeSizes) {
  EXPECT_EQ(fit_line("two", {1e6, 2e6}, {1e-5, 2e-5}).leave_one_out.rows, 0);
  EXPECT_EQ(fit_line("four", {1e6, 2e6, 4e6, 8e6}, {1e-5, 2e-5, 4e-5, 8e-5}).leave_one_out.rows, 4);
}

TEST(FitCopies, PinnedAndPageableAndDirectionsAreApart) {
  Observations o;
  for (const double bytes : {1e6, 1e7, 1e8}) {
    o.copies.push_back({"host_to_device pinned", bytes, 5e-6 + bytes / 25e9, 0});
    o.copies.push_back({"host_to_device pageable", bytes, 9e-6 + bytes / 8e9, 0});
  }
  const auto fits = fit_copies(o);
  ASSERT_EQ(fits.size(), 2u);
  EXPECT_NEAR(fits[0].rate(), 8e9, 1e5);
  EXPECT_NEAR(fits[1].rate(), 25e9, 1e5);
  EXPECT_NEAR(fits[1].latency_s, 5e-6, 1e-9);
}

}  // namespace
}  // namespace rehearse::calibrate::fit_copies_test
