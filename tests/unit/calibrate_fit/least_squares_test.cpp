// The fit itself: against SciPy, against known truth and noise, and with outliers.
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "calibrate/fit/least_squares.h"
#include "tests/support/source_dir.h"

namespace rehearse::calibrate::least_squares_test {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

const nlohmann::json& answers() {
  static const nlohmann::json all = [] {
    std::ifstream in(source_dir() / "tests/oracles/data/scipy_fits.json");
    return nlohmann::json::parse(in);
  }();
  return all;
}

VectorXd vector_of(const nlohmann::json& list) {
  VectorXd out(static_cast<Eigen::Index>(list.size()));
  for (std::size_t i = 0; i < list.size(); ++i) out[static_cast<Eigen::Index>(i)] = list[i].get<double>();
  return out;
}

MatrixXd matrix_of(const nlohmann::json& rows) {
  MatrixXd out(static_cast<Eigen::Index>(rows.size()), static_cast<Eigen::Index>(rows.at(0).size()));
  for (std::size_t i = 0; i < rows.size(); ++i) out.row(static_cast<Eigen::Index>(i)) = vector_of(rows[i]).transpose();
  return out;
}

VectorXd curve(const std::string& name, const VectorXd& x, const VectorXd& p) {
  if (name == "line") return (p[0] + p[1] * x.array()).matrix();
  if (name == "saturation") return (p[0] * x.array() / (p[1] + x.array())).matrix();
  return (p[0] * (-p[1] * x.array()).exp() + p[2]).matrix();
}

TEST(NonnegativeLeastSquares, AgreesWithScipy) {
  int cases = 0, zeros = 0;
  for (const auto& entry : answers().at("cases")) {
    if (entry.at("kind") != "nnls") continue;
    const auto& c = entry.at("case");
    const VectorXd x = nonnegative_least_squares(matrix_of(c.at("a")), vector_of(c.at("b"))), wanted = vector_of(c.at("x"));
    EXPECT_LT((x - wanted).cwiseAbs().maxCoeff(), 1e-9) << c.dump();
    EXPECT_GE(x.minCoeff(), 0);
    zeros += static_cast<int>((x.array() == 0).count());
    ++cases;
  }
  EXPECT_EQ(cases, 24);
  EXPECT_GT(zeros, 10);  // the bound matters in the cases
}

TEST(LeastSquares, AgreesWithScipyWithBoundsAndRobustLosses) {
  int cases = 0;
  for (const auto& entry : answers().at("cases")) {
    if (entry.at("kind") != "curve") continue;
    const auto& c = entry.at("case");
    const std::string name = c.at("curve"), loss = c.at("loss");
    const VectorXd x = vector_of(c.at("x")), y = vector_of(c.at("y")), wanted = vector_of(c.at("solution"));
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < c.at("start").size(); ++i) parameters.push_back({"p", c["start"][i], c["low"][i], c["high"][i], false});
    FitOptions options;
    options.loss = loss == "square" ? Loss::square : loss == "huber" ? Loss::huber : Loss::tukey;
    options.scale = c.at("scale");
    const Fit fit = least_squares([&](const VectorXd& p) -> VectorXd { return curve(name, x, p) - y; }, parameters, options);
    EXPECT_TRUE(fit.converged);
    EXPECT_LT((fit.x - wanted).cwiseAbs().maxCoeff(), 2e-5) << name << " " << loss << "\n" << fit.x << "\n" << wanted;
    if (loss == "tukey") {
      for (const Eigen::Index outlier : {3, 17, 30}) EXPECT_EQ(fit.weights[outlier], 0) << name << " " << outlier;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 18);
}

TEST(LeastSquares, CovarianceOfAPlainFitIsScipys) {
  int cases = 0;
  for (const auto& entry : answers().at("cases")) {
    const auto& c = entry.at("case");
    if (entry.at("kind") != "curve" || !c.contains("covariance")) continue;
    const VectorXd x = vector_of(c.at("x")), y = vector_of(c.at("y"));
    const MatrixXd wanted = matrix_of(c.at("covariance"));
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < c.at("start").size(); ++i) parameters.push_back({"p", c["start"][i], -10, 10, false});
    FitOptions options;
    options.loss = Loss::square;
    const Fit fit = least_squares([&](const VectorXd& p) -> VectorXd { return curve(c.at("curve"), x, p) - y; }, parameters, options);
    EXPECT_LT((fit.covariance - wanted).cwiseAbs().maxCoeff(), 1e-3 * wanted.cwiseAbs().maxCoeff()) << c.at("curve");
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

/// One experiment of the saturation curve in log space: how many true values lie within 2 standard errors.
struct Experiment {
  Fit fit;
  int inside = 0;
};
Experiment experiment(unsigned seed, double noise, double outliers, Loss loss) {
  const double truth[] = {3.0, 2.5};
  std::mt19937_64 draw(seed);
  std::normal_distribution<double> gauss(0, 1);
  std::uniform_real_distribution<double> uniform(0, 1);
  VectorXd x = VectorXd::LinSpaced(60, 0.2, 12), y(60);
  for (Eigen::Index i = 0; i < 60; ++i) {
    y[i] = std::log(truth[0] * x[i] / (truth[1] + x[i])) + noise * gauss(draw);
    if (uniform(draw) < outliers) y[i] += 0.5 + uniform(draw);
  }
  FitOptions options;
  options.loss = loss;
  Experiment out;
  out.fit = least_squares([&](const VectorXd& p) -> VectorXd { return (p[0] * x.array() / (p[1] + x.array())).log().matrix() - y; },
                          {{"a", 1, 0.01, 100, true}, {"b", 1, 0.01, 100, true}}, options);
  for (std::size_t i = 0; i < 2; ++i)
    out.inside += std::abs(out.fit.x[static_cast<Eigen::Index>(i)] - truth[i]) < 2 * out.fit.standard_error(i);
  return out;
}

// Two standard errors hold 95.4 % of Gaussian estimates: of 800 (two parameters, 400 experiments, not independent) at least
// 91 % and at most 98.5 %, which a covariance wrong by a factor of 1.3 would miss.
TEST(LeastSquares, TruthLiesWithinTwoStandardErrorsAsOftenAsItShould) {
  for (const Loss loss : {Loss::square, Loss::huber, Loss::tukey}) {
    int inside = 0;
    for (unsigned seed = 0; seed < 400; ++seed) inside += experiment(seed, 0.03, 0, loss).inside;
    EXPECT_GT(inside, 0.91 * 800) << static_cast<int>(loss);
    EXPECT_LT(inside, 0.985 * 800) << static_cast<int>(loss);
  }
}

TEST(LeastSquares, OutliersMoveTheSquareLossButNotTukeys) {
  double square = 0, tukey = 0;
  int inside = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    square += std::abs(experiment(seed, 0.03, 0.1, Loss::square).fit.x[0] / 3 - 1);
    const Experiment robust = experiment(seed, 0.03, 0.1, Loss::tukey);
    tukey += std::abs(robust.fit.x[0] / 3 - 1);
    inside += robust.inside;
  }
  EXPECT_GT(square / 100, 0.06);
  EXPECT_LT(tukey / 100, 0.015);
  EXPECT_GT(inside, 0.88 * 200);
}

TEST(LeastSquares, AParameterThatNoResidualDependsOnKeepsItsStart) {
  const VectorXd x = VectorXd::LinSpaced(10, 1, 10);
  const Fit fit = least_squares([&](const VectorXd& p) -> VectorXd { return (p[0] * x.array() - 2 * x.array()).matrix(); },
                                {{"slope", 1, 0, 10}, {"idle", 0.3, 0, 1}});
  EXPECT_NEAR(fit.x[0], 2, 1e-9);
  EXPECT_EQ(fit.x[1], 0.3);
  EXPECT_EQ(fit.standing[1], Standing::not_determined);
}

TEST(LeastSquares, OfTwoParametersThatDoTheSameOneKeepsItsStart) {
  const VectorXd x = VectorXd::LinSpaced(10, 1, 10);
  const Fit fit = least_squares([&](const VectorXd& p) -> VectorXd { return (p[0] * p[1] * x.array() - 6 * x.array()).matrix(); },
                                {{"a", 1, 0.1, 10, true}, {"b", 2, 0.1, 10, true}});
  EXPECT_NEAR(fit.x[0] * fit.x[1], 6, 1e-6);
  EXPECT_EQ(std::count(fit.standing.begin(), fit.standing.end(), Standing::not_determined), 1);
}

TEST(LeastSquares, AParameterKnownWorseThanItsBoundsKeepsItsStart) {
  // Ten points far beyond the knee: the plateau is clear, the knee is not.
  std::mt19937_64 draw(3);
  std::normal_distribution<double> gauss(0, 0.05);
  VectorXd x = VectorXd::LinSpaced(10, 1e5, 2e5), y(10);
  for (Eigen::Index i = 0; i < 10; ++i) y[i] = 3 * x[i] / (2.5 + x[i]) + gauss(draw);
  const auto residual = [&](const VectorXd& p) -> VectorXd { return (p[0] * x.array() / (p[1] + x.array())).matrix() - y; };
  const Fit fit = fit_what_is_determined(residual, {{"plateau", 1, 0.1, 10, true}, {"knee", 4, 0.1, 100, true}});
  EXPECT_NEAR(fit.x[0], 3, 0.1);
  EXPECT_EQ(fit.standing[1], Standing::not_determined);
  EXPECT_EQ(fit.x[1], 4);
}

// Two parameters that only their sum tells: neither may claim to be known.
TEST(LeastSquares, ADirectionThatNoResidualTellsHasAHugeVariance) {
  const VectorXd x = VectorXd::LinSpaced(20, 1, 10);
  const auto residual = [&](const VectorXd& p) -> VectorXd { return ((p[0] + p[1] * (1 + 1e-7 * x.array())) * x.array() - 3 * x.array()).matrix() + 0.01 * x.array().sin().matrix(); };
  const Fit fit = fit_what_is_determined(residual, {{"a", 1, 0, 10}, {"b", 1, 0, 10}});
  EXPECT_NEAR(fit.x[0] + fit.x[1], 3, 0.01);
  EXPECT_EQ(std::count(fit.standing.begin(), fit.standing.end(), Standing::fitted), 1);
}

TEST(LeastSquares, FourResidualsHoldOneParameter) {
  const VectorXd x = VectorXd::LinSpaced(4, 1, 4);
  const auto residual = [&](const VectorXd& p) -> VectorXd { return (p[0] + p[1] * x.array() + p[2] * x.array().square() - 5 * x.array()).matrix(); };
  const Fit fit = least_squares(residual, {{"a", 0, -10, 10}, {"b", 0, -10, 10}, {"c", 0, -10, 10}});
  EXPECT_EQ(std::count(fit.standing.begin(), fit.standing.end(), Standing::not_determined), 2);
}

TEST(Condition, GrowsWithoutLimitAsColumnsBecomeEqual) {
  MatrixXd j(3, 2);
  j << 1, 0, 0, 5, 0, 0;
  EXPECT_NEAR(condition_of(j), 1, 1e-12);  // lengths do not count
  j << 1, 2, 1, 2, 1, 2;
  EXPECT_GT(condition_of(j), 1e10);
}

}  // namespace
}  // namespace rehearse::calibrate::least_squares_test
