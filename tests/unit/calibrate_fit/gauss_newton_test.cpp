// Few evaluations, the same answer.
#include "calibrate/fit/gauss_newton.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace rehearse::calibrate::gauss_newton_test {
namespace {

/// A step is the longer of what the GPU and what the host takes, and something for each collective: kinks, as steps have them.
TimeModel steps(double kernel, double collective, double noise, int& evaluations) {
  TimeModel m;
  m.parameters = {{"kernel", 5, 0, 200, false}, {"collective", 40, 0, 5000, false}};
  struct Run {
    double gpu, kernels, collectives;
  };
  std::vector<Run> runs;
  for (const double gpu : {0.01, 0.1, 0.4})
    for (const double kernels : {1000.0, 5000.0, 20000.0})
      for (const double collectives : {0.0, 200.0, 3000.0}) runs.push_back({gpu, kernels, collectives});
  const auto log_seconds = [runs](const Eigen::VectorXd& x) {
    Eigen::VectorXd out(static_cast<Eigen::Index>(runs.size()));
    for (std::size_t i = 0; i < runs.size(); ++i)
      out[static_cast<Eigen::Index>(i)] = std::log(std::max(runs[i].gpu, 1e-6 * x[0] * runs[i].kernels) + 1e-6 * x[1] * runs[i].collectives);
    return out;
  };
  m.log_seconds = [log_seconds, &evaluations](const Eigen::VectorXd& x) { return ++evaluations, log_seconds(x); };
  Eigen::VectorXd truth(2);
  truth << kernel, collective;
  m.log_measured = log_seconds(truth);
  std::mt19937_64 draw(3);
  std::normal_distribution<double> gauss(0, 1);
  for (Eigen::Index i = 0; i < m.log_measured.size(); ++i) m.log_measured[i] += noise * gauss(draw), m.size.push_back(1);
  return m;
}

TEST(GaussNewton, FindsWhatTheFullSearchFindsWithAFifthOfTheEvaluations) {
  int few = 0, many = 0;
  const TimeFit quick = fit_dear_times(steps(14, 90, 0.02, few), Eigen::Vector2d(8, 40));
  const TimeFit full = fit_times(steps(14, 90, 0.02, many), false);
  EXPECT_LT(few, 25);
  EXPECT_GT(many, 5 * few);
  EXPECT_TRUE(quick.fit.converged);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto k = static_cast<Eigen::Index>(i);
    EXPECT_NEAR(quick.fit.x[k], full.fit.x[k], 0.5 * full.fit.standard_error(i)) << i;
    EXPECT_NEAR(quick.fit.standard_error(i), full.fit.standard_error(i), 0.3 * full.fit.standard_error(i)) << i;
  }
  EXPECT_NEAR(quick.fit.x[0], 14, 0.5);
  EXPECT_NEAR(quick.fit.x[1], 90, 4);
  EXPECT_LT(summary_of(quick.after).mean_absolute, 2.5);
  EXPECT_LT(summary_of(quick.leave_one_out).mean_absolute, 2.8);
}

// Where the measured runs are already as predicted, nothing is moved.
TEST(GaussNewton, StaysWhereItIsRight) {
  int few = 0;
  const TimeFit fit = fit_dear_times(steps(5, 40, 0, few), Eigen::Vector2d(8, 40));
  EXPECT_NEAR(fit.fit.x[0], 5, 1e-3);
  EXPECT_NEAR(fit.fit.x[1], 40, 1e-2);
  EXPECT_LE(few, 6);
}

}  // namespace
}  // namespace rehearse::calibrate::gauss_newton_test
