#include "calibrate/fit/time_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

using Eigen::VectorXd;

constexpr double kModelError = 0.05;
constexpr std::size_t kMostParts = 120;  // beyond it, rows are left out a few at a time: hundreds of refits tell no more

VectorXd weights_of(const TimeModel& m) {
  VectorXd w(m.log_measured.size());
  for (Eigen::Index i = 0; i < w.size(); ++i) {
    const double e = m.noise.size() > 0 ? m.noise[i] / kModelError : 0;
    w[i] = 1 / std::sqrt(1 + e * e);
  }
  return w;
}

/// The answer without some rows: starts at the full fit, moves only what that one could tell.
VectorXd refit(const TimeModel& m, const Fit& full, const VectorXd& weights, const std::vector<bool>& left_out) {
  std::vector<Parameter> moving;
  std::vector<Eigen::Index> where;
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    if (full.standing[i] == Standing::not_determined) continue;
    moving.push_back(m.parameters[i]);
    moving.back().start = full.x[static_cast<Eigen::Index>(i)];
    where.push_back(static_cast<Eigen::Index>(i));
  }
  if (moving.empty()) return full.x;
  std::vector<Eigen::Index> kept;
  for (std::size_t i = 0; i < left_out.size(); ++i)
    if (!left_out[i]) kept.push_back(static_cast<Eigen::Index>(i));
  if (kept.size() <= moving.size()) return full.x;
  const auto whole = [&](const VectorXd& part) {
    VectorXd x = full.x;
    for (std::size_t i = 0; i < where.size(); ++i) x[where[i]] = part[static_cast<Eigen::Index>(i)];
    return x;
  };
  FitOptions options;
  options.scale = std::max(full.scale, 1e-9);
  options.most_iterations = 6;
  const Fit fit = least_squares(
      [&](const VectorXd& part) {
        const VectorXd all = m.log_seconds(whole(part));
        VectorXd r(static_cast<Eigen::Index>(kept.size()));
        for (std::size_t i = 0; i < kept.size(); ++i) r[static_cast<Eigen::Index>(i)] = weights[kept[i]] * (all[kept[i]] - m.log_measured[kept[i]]);
        return r;
      },
      moving, options);
  return whole(fit.x);
}

/// The model's tangent at the answer, over the parameters that were fitted.
std::function<VectorXd(const VectorXd&)> linearised(const TimeModel& m, const Fit& fit) {
  const VectorXd here = m.log_seconds(fit.x);
  Eigen::MatrixXd j = Eigen::MatrixXd::Zero(here.size(), fit.x.size());
  for (Eigen::Index k = 0; k < fit.x.size(); ++k) {
    const Parameter& p = m.parameters[static_cast<std::size_t>(k)];
    if (fit.standing[static_cast<std::size_t>(k)] == Standing::not_determined) continue;
    const double step = 1e-3 * std::max(std::abs(fit.x[k]), 1e-3 * (p.most - p.least));
    VectorXd up = fit.x, down = fit.x;
    up[k] = std::min(fit.x[k] + step, p.most), down[k] = std::max(fit.x[k] - step, p.least);
    if (up[k] > down[k]) j.col(k) = (m.log_seconds(up) - m.log_seconds(down)) / (up[k] - down[k]);
  }
  return [here, j, x0 = fit.x](const VectorXd& x) -> VectorXd { return here + j * (x - x0); };
}

}  // namespace

TimeFit fit_times(const TimeModel& m, bool held_out) {
  const Eigen::Index n = m.log_measured.size();
  EXPECTS(n > 0 && static_cast<std::size_t>(n) == m.size.size(), "a time model has rows");
  TimeFit out;
  const VectorXd weights = weights_of(m);
  VectorXd start(static_cast<Eigen::Index>(m.parameters.size()));
  for (std::size_t i = 0; i < m.parameters.size(); ++i) start[static_cast<Eigen::Index>(i)] = m.parameters[i].start;
  out.before = m.log_seconds(start) - m.log_measured;
  out.fit = fit_what_is_determined([&](const VectorXd& x) -> VectorXd { return weights.cwiseProduct(m.log_seconds(x) - m.log_measured); }, m.parameters, {}, m.worst_spread);
  out.after = m.log_seconds(out.fit.x) - m.log_measured;

  const auto rows = static_cast<std::size_t>(n);
  std::vector<bool> left_out(rows, false);
  out.leave_one_out = out.fivefold = out.largest_fifth = VectorXd::Constant(n, std::numeric_limits<double>::quiet_NaN());
  out.without = out.fit.x.replicate(1, n);
  if (!held_out) return out;
  TimeModel linear = m;
  if (m.linear_refits) linear.log_seconds = linearised(m, out.fit);
  const std::size_t parts = std::min(rows, kMostParts);
  for (std::size_t part = 0; part < parts; ++part) {
    for (std::size_t i = 0; i < rows; ++i) left_out[i] = i % parts == part;
    const VectorXd x = refit(linear, out.fit, weights, left_out);
    const VectorXd errors = linear.log_seconds(x) - m.log_measured;
    for (std::size_t i = part; i < rows; i += parts) {
      const auto k = static_cast<Eigen::Index>(i);
      out.without.col(k) = x, out.leave_one_out[k] = errors[k];
    }
  }
  for (std::size_t fold = 0; fold < 5; ++fold) {
    for (std::size_t i = 0; i < rows; ++i) left_out[i] = i % 5 == fold;
    const VectorXd errors = linear.log_seconds(refit(linear, out.fit, weights, left_out)) - m.log_measured;
    for (std::size_t i = fold; i < rows; i += 5) out.fivefold[static_cast<Eigen::Index>(i)] = errors[static_cast<Eigen::Index>(i)];
  }
  std::vector<std::size_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return m.size[a] < m.size[b]; });
  std::fill(left_out.begin(), left_out.end(), false);
  for (std::size_t i = rows - rows / 5; i < rows; ++i) left_out[order[i]] = true;
  const VectorXd errors = m.log_seconds(refit(m, out.fit, weights, left_out)) - m.log_measured;
  for (std::size_t i = 0; i < rows; ++i)
    if (left_out[i]) out.largest_fifth[static_cast<Eigen::Index>(i)] = errors[static_cast<Eigen::Index>(i)];
  return out;
}

ErrorSummary summary_of(const VectorXd& log_errors) {
  std::vector<std::size_t> all(static_cast<std::size_t>(log_errors.size()));
  std::iota(all.begin(), all.end(), 0u);
  return summary_of(log_errors, all);
}

ErrorSummary summary_of(const VectorXd& log_errors, std::span<const std::size_t> rows) {
  ErrorSummary out;
  std::vector<double> sizes;
  for (const std::size_t i : rows) {
    const double log_error = log_errors[static_cast<Eigen::Index>(i)];
    if (!std::isfinite(log_error)) continue;
    const double e = 100 * std::expm1(log_error);
    sizes.push_back(std::abs(e));
    out.bias += e;
  }
  out.rows = static_cast<int>(sizes.size());
  if (sizes.empty()) return out;
  std::sort(sizes.begin(), sizes.end());
  out.mean_absolute = std::accumulate(sizes.begin(), sizes.end(), 0.0) / static_cast<double>(sizes.size());
  out.bias /= static_cast<double>(sizes.size());
  out.median_absolute = sizes[sizes.size() / 2];
  out.worst = sizes.back();
  return out;
}

}  // namespace rehearse::calibrate
