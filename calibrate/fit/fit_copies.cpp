#include "calibrate/fit/fit_copies.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

struct Line {
  Eigen::Vector2d x = Eigen::Vector2d::Zero();
  Eigen::Matrix2d covariance = Eigen::Matrix2d::Zero();
};

/// Rows are divided by their own time, so that residuals are relative; weights are Huber's at the robust scale.
Line robust_line(const std::vector<double>& amounts, const std::vector<double>& seconds, std::size_t left_out) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < amounts.size(); ++i)
    if (i != left_out) rows.push_back(i);
  const auto n = static_cast<Eigen::Index>(rows.size());
  const double unit = *std::max_element(amounts.begin(), amounts.end()) > 0 ? *std::max_element(amounts.begin(), amounts.end()) : 1;
  MatrixXd a(n, 2);
  for (Eigen::Index i = 0; i < n; ++i) {
    const std::size_t r = rows[static_cast<std::size_t>(i)];
    a(i, 0) = 1 / seconds[r], a(i, 1) = amounts[r] / unit / seconds[r];
  }
  const VectorXd ones = VectorXd::Ones(n);
  VectorXd weights = ones;
  Line out;
  double scale = 0;
  for (int round = 0; round < 30; ++round) {
    const VectorXd root = weights.cwiseSqrt();
    const Eigen::Vector2d x = nonnegative_least_squares(root.asDiagonal() * a, root);
    const bool settled = (x - out.x).norm() <= 1e-10 * x.norm();
    out.x = x;
    if (settled) break;
    const VectorXd r = a * x - ones;
    scale = robust_scale(r, 2);
    for (Eigen::Index i = 0; i < n; ++i) weights[i] = std::min(1.0, 1.345 * scale / std::max(std::abs(r[i]), 1e-300));
  }
  std::vector<Eigen::Index> free;
  for (Eigen::Index j = 0; j < 2; ++j)
    if (out.x[j] > 0) free.push_back(j);
  const auto k = static_cast<Eigen::Index>(free.size());
  if (n > k && k > 0) {
    MatrixXd some(n, k);
    for (Eigen::Index j = 0; j < k; ++j) some.col(j) = a.col(free[static_cast<std::size_t>(j)]);
    const VectorXd r = a * out.x - ones;
    // Huber's asymptotic variance; a share of residuals is cut.
    double squares = 0, inside = 0;
    for (Eigen::Index i = 0; i < n; ++i) squares += std::pow(weights[i] * r[i], 2), inside += std::abs(r[i]) <= 1.345 * scale ? 1 : 0;
    const double share = std::max(inside / static_cast<double>(n), 0.1);
    const MatrixXd covariance = (some.transpose() * some).inverse() * squares / static_cast<double>(n - k) / (share * share);
    for (Eigen::Index i = 0; i < k; ++i)
      for (Eigen::Index j = 0; j < k; ++j) out.covariance(free[static_cast<std::size_t>(i)], free[static_cast<std::size_t>(j)]) = covariance(i, j);
  }
  out.x[1] /= unit;
  out.covariance.col(1) /= unit, out.covariance.row(1) /= unit;
  return out;
}

}  // namespace

LinearFit fit_line(const std::string& operation, const std::vector<double>& amounts, const std::vector<double>& seconds) {
  EXPECTS(amounts.size() == seconds.size() && !amounts.empty(), "points to fit a line to");
  LinearFit out;
  out.operation = operation, out.rows = static_cast<int>(amounts.size());
  const Line line = robust_line(amounts, seconds, amounts.size());
  out.latency_s = line.x[0], out.per_unit_s = line.x[1];
  out.latency_error_s = std::sqrt(line.covariance(0, 0)), out.per_unit_error_s = std::sqrt(line.covariance(1, 1));
  VectorXd after(static_cast<Eigen::Index>(amounts.size())), unseen = VectorXd::Constant(after.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < amounts.size(); ++i) {
    const auto k = static_cast<Eigen::Index>(i);
    after[k] = std::log((line.x[0] + line.x[1] * amounts[i]) / seconds[i]);
    if (std::set<double>(amounts.begin(), amounts.end()).size() < 3) continue;
    const Line other = robust_line(amounts, seconds, i);
    unseen[k] = std::log((other.x[0] + other.x[1] * amounts[i]) / seconds[i]);
  }
  out.after = summary_of(after), out.leave_one_out = summary_of(unseen);
  return out;
}

std::vector<LinearFit> fit_copies(const Observations& observations) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (const CopyObservation& c : observations.copies) {
    auto& [amounts, seconds] = groups[c.operation];
    amounts.push_back(c.bytes), seconds.push_back(c.seconds);
  }
  std::vector<LinearFit> out;
  for (const auto& [operation, points] : groups) out.push_back(fit_line(operation, points.first, points.second));
  return out;
}

std::vector<LinearFit> fit_launches(const Observations& observations) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (const LaunchObservation& l : observations.launches) {
    auto& [amounts, seconds] = groups[l.operation];
    amounts.push_back(l.nodes), seconds.push_back(l.seconds);
  }
  std::vector<LinearFit> out;
  for (auto& [operation, points] : groups) {
    auto& [amounts, seconds] = points;
    if (*std::max_element(amounts.begin(), amounts.end()) > 0) {
      out.push_back(fit_line(operation, amounts, seconds));
    } else {
      std::sort(seconds.begin(), seconds.end());
      LinearFit one;
      one.operation = operation, one.rows = static_cast<int>(seconds.size()), one.latency_s = seconds[seconds.size() / 2];
      out.push_back(one);
    }
  }
  return out;
}

}  // namespace rehearse::calibrate
