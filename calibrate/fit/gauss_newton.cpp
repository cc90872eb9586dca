#include "calibrate/fit/gauss_newton.h"

#include <algorithm>
#include <cmath>

#include "calibrate/fit/loss.h"
#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kSettled = 2e-4;  // of any prediction

/// The model at one point, with secants.
struct Here {
  VectorXd x, log_seconds;
  MatrixXd slopes;
};

/// Secants over `step`, away from a bound that is nearer than that.
MatrixXd slopes_at(const TimeModel& m, const VectorXd& x, const VectorXd& log_seconds, const VectorXd& step) {
  MatrixXd j = MatrixXd::Zero(log_seconds.size(), x.size());
  for (Eigen::Index k = 0; k < x.size(); ++k) {
    const Parameter& p = m.parameters[static_cast<std::size_t>(k)];
    VectorXd other = x;
    other[k] = x[k] + step[k] <= p.most ? x[k] + step[k] : std::max(x[k] - step[k], p.least);
    if (other[k] != x[k]) j.col(k) = (m.log_seconds(other) - log_seconds) / (other[k] - x[k]);
  }
  return j;
}

TimeModel straightened(const TimeModel& m, const Here& at) {
  TimeModel out = m;
  out.linear_refits = false;
  out.log_seconds = [at](const VectorXd& x) -> VectorXd { return at.log_seconds + at.slopes * (x - at.x); };
  return out;
}

double cost_at(const TimeModel& m, const VectorXd& log_seconds, double scale) { return cost_of(log_seconds - m.log_measured, Loss::huber, std::max(scale, 1e-6)); }

}  // namespace

TimeFit fit_dear_times(const TimeModel& m, const VectorXd& usual, int most_rounds) {
  EXPECTS(static_cast<std::size_t>(usual.size()) == m.parameters.size() && (usual.array() > 0).all(), "a step for each parameter");
  Here here;
  here.x.resize(usual.size());
  for (Eigen::Index k = 0; k < usual.size(); ++k) here.x[k] = m.parameters[static_cast<std::size_t>(k)].start;
  here.log_seconds = m.log_seconds(here.x);
  const VectorXd before = here.log_seconds - m.log_measured;
  here.slopes = slopes_at(m, here.x, here.log_seconds, here.x.cwiseMax(usual));
  bool settled = false;
  for (int round = 0; round < most_rounds && !settled; ++round) {
    const TimeModel straight = straightened(m, here);
    const TimeFit fit = fit_times(straight, false);
    const double moves = (straight.log_seconds(fit.fit.x) - here.log_seconds).cwiseAbs().maxCoeff();
    settled = moves < kSettled;
    if (settled) break;
    Here next{fit.fit.x, m.log_seconds(fit.fit.x), {}};
    const double cost = cost_at(m, here.log_seconds, fit.fit.scale);
    for (int half = 0; half < 3 && !(cost_at(m, next.log_seconds, fit.fit.scale) < cost); ++half) {
      next.x = 0.5 * (here.x + next.x);
      next.log_seconds = m.log_seconds(next.x);
    }
    if (!(cost_at(m, next.log_seconds, fit.fit.scale) < cost)) break;
    next.slopes = slopes_at(m, next.x, next.log_seconds, (0.05 * next.x.cwiseAbs()).cwiseMax(0.02 * usual));
    here = std::move(next);
  }
  TimeFit out = fit_times(straightened(m, here));
  out.fit.x = here.x;
  out.fit.converged = settled;
  out.before = before;
  out.after = here.log_seconds - m.log_measured;
  return out;
}

}  // namespace rehearse::calibrate
