#include "calibrate/fit/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "calibrate/fit/loss.h"
#include "calibrate/fit/tangent.h"
#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

/// The problem in the coordinates that steps are taken in: log(x) where the parameter says so.
class Problem {
 public:
  Problem(const Residuals& residuals, const std::vector<Parameter>& parameters, double difference)
      : residuals_(residuals), parameters_(parameters), difference_(difference) {
    const auto n = static_cast<Eigen::Index>(parameters.size());
    low_.resize(n), high_.resize(n);
    for (Eigen::Index i = 0; i < n; ++i) {
      const Parameter& p = at(i);
      EXPECTS(p.least <= p.start && p.start <= p.most, "bounds of " + p.name);
      EXPECTS(!p.logarithmic || p.least > 0, "a logarithmic parameter is positive: " + p.name);
      low_[i] = inside(i, p.least), high_[i] = inside(i, p.most);
    }
  }

  const Parameter& at(Eigen::Index i) const { return parameters_[static_cast<std::size_t>(i)]; }
  double inside(Eigen::Index i, double x) const { return at(i).logarithmic ? std::log(x) : x; }
  /// dx / du, to carry a covariance over.
  double stretch(Eigen::Index i, double x) const { return at(i).logarithmic ? x : 1; }
  const Eigen::VectorXd& low() const { return low_; }
  const Eigen::VectorXd& high() const { return high_; }
  Eigen::VectorXd start() const {
    Eigen::VectorXd u(low_.size());
    for (Eigen::Index i = 0; i < u.size(); ++i) u[i] = inside(i, at(i).start);
    return u;
  }
  Eigen::VectorXd outside(const Eigen::VectorXd& u) const {
    Eigen::VectorXd x(u.size());
    for (Eigen::Index i = 0; i < u.size(); ++i) x[i] = std::clamp(at(i).logarithmic ? std::exp(u[i]) : u[i], at(i).least, at(i).most);
    return x;
  }
  Eigen::VectorXd residuals(const Eigen::VectorXd& u) const { return residuals_(outside(u)); }

  Eigen::MatrixXd jacobian(const Eigen::VectorXd& u, const std::vector<bool>& free, Eigen::Index rows) const {
    Eigen::MatrixXd j = Eigen::MatrixXd::Zero(rows, u.size());
    for (Eigen::Index i = 0; i < u.size(); ++i) {
      if (!free[static_cast<std::size_t>(i)]) continue;
      const double width = high_[i] - low_[i];
      const double h = difference_ * std::max(std::abs(u[i]), std::isfinite(width) ? std::min(1.0, width) : 1.0);
      Eigen::VectorXd up = u, down = u;
      up[i] = std::min(u[i] + h, high_[i]), down[i] = std::max(u[i] - h, low_[i]);
      if (up[i] > down[i]) j.col(i) = (residuals(up) - residuals(down)) / (up[i] - down[i]);
    }
    return j;
  }

 private:
  const Residuals& residuals_;
  const std::vector<Parameter>& parameters_;
  double difference_;
  Eigen::VectorXd low_, high_;
};

/// In the coordinate of the steps; infinite without bounds.
double width_of(const Parameter& p) { return p.logarithmic ? std::log(p.most / p.least) : p.most - p.least; }

struct State {
  Eigen::VectorXd u, residuals;
  int iterations = 0;
  bool converged = false;
};

/// Minimises the loss at a fixed scale.
void descend(const Problem& problem, const std::vector<bool>& free, Loss loss, double scale, int most, State& s) {
  double damping = 1e-3, cost = cost_of(s.residuals, loss, scale);
  s.converged = false;
  for (int iteration = 0; iteration < most; ++iteration) {
    ++s.iterations;
    const Eigen::VectorXd w = weights_of(s.residuals, loss, scale);
    const Eigen::MatrixXd j = problem.jacobian(s.u, free, s.residuals.size());
    Eigen::VectorXd gradient = j.transpose() * w.asDiagonal() * s.residuals;
    // A parameter at its bound that wants to go beyond stays there for this step.
    std::vector<Eigen::Index> moving;
    for (Eigen::Index i = 0; i < s.u.size(); ++i) {
      const bool stuck = (s.u[i] <= problem.low()[i] && gradient[i] > 0) || (s.u[i] >= problem.high()[i] && gradient[i] < 0);
      if (free[static_cast<std::size_t>(i)] && !stuck && j.col(i).squaredNorm() > 0) moving.push_back(i);
    }
    if (moving.empty()) {
      s.converged = true;
      return;
    }
    const auto m = static_cast<Eigen::Index>(moving.size());
    Eigen::MatrixXd some(j.rows(), m);
    Eigen::VectorXd g(m);
    for (Eigen::Index k = 0; k < m; ++k) some.col(k) = j.col(moving[static_cast<std::size_t>(k)]), g[k] = gradient[moving[static_cast<std::size_t>(k)]];
    const Eigen::MatrixXd normal = some.transpose() * w.asDiagonal() * some;
    bool better = false;
    for (int attempt = 0; attempt < 30 && !better; ++attempt) {
      Eigen::MatrixXd damped = normal;
      damped.diagonal() += damping * normal.diagonal().cwiseMax(1e-12 * normal.diagonal().maxCoeff());
      const Eigen::VectorXd step = damped.ldlt().solve(-g);
      Eigen::VectorXd u = s.u;
      for (Eigen::Index k = 0; k < m; ++k) u[moving[static_cast<std::size_t>(k)]] += step[k];
      u = u.cwiseMax(problem.low()).cwiseMin(problem.high());
      const double moved = (u - s.u).norm();
      if (!(moved > 1e-12 * (1 + s.u.norm()))) break;
      Eigen::VectorXd r = problem.residuals(u);
      const double next = r.allFinite() ? cost_of(r, loss, scale) : std::numeric_limits<double>::infinity();
      if (next < cost) {
        const bool small = cost - next < 1e-12 * cost && moved < 1e-8 * (1 + s.u.norm());
        s.u = std::move(u), s.residuals = std::move(r), cost = next;
        damping = std::max(1e-12, damping / 5);
        better = true;
        if (small || cost == 0) {
          s.converged = true;
          return;
        }
      } else {
        damping *= 4;
      }
    }
    if (!better) {
      s.converged = true;  // no step of any length helps: a minimum as far as the derivatives can tell
      return;
    }
  }
}

/// Free parameters that the residuals tell apart at u: columns that a pivoted QR still finds new, those with the largest
/// effect over their range first, and at most one for three residuals.
std::vector<bool> told_apart(const Problem& problem, const Eigen::VectorXd& u, Eigen::Index rows, std::vector<bool> free) {
  Eigen::MatrixXd j = problem.jacobian(u, free, rows);
  std::vector<Eigen::Index> columns;
  for (Eigen::Index i = 0; i < u.size(); ++i) {
    // In units of the parameter's own width: a column that could not move any residual by 1e-6 says nothing.
    const double width = std::isfinite(problem.high()[i] - problem.low()[i]) ? problem.high()[i] - problem.low()[i] : std::max(1.0, std::abs(u[i]));
    if (free[static_cast<std::size_t>(i)] && (j.col(i) * width).cwiseAbs().maxCoeff() > 1e-6) columns.push_back(i);
    free[static_cast<std::size_t>(i)] = false;
  }
  if (columns.empty()) return free;
  Eigen::MatrixXd some(rows, static_cast<Eigen::Index>(columns.size()));
  for (std::size_t k = 0; k < columns.size(); ++k) {
    const double width = problem.high()[columns[k]] - problem.low()[columns[k]];
    some.col(static_cast<Eigen::Index>(k)) = j.col(columns[k]) * (std::isfinite(width) ? width : std::max(1.0, std::abs(u[columns[k]])));
  }
  Eigen::ColPivHouseholderQR<Eigen::MatrixXd> qr(some);
  qr.setThreshold(1e-6);
  const Eigen::Index rank = std::min(qr.rank(), std::max<Eigen::Index>(1, rows / 3));
  for (Eigen::Index k = 0; k < rank; ++k) free[static_cast<std::size_t>(columns[static_cast<std::size_t>(qr.colsPermutation().indices()[k])])] = true;
  return free;
}

void fill_covariance(const Problem& problem, const State& s, Loss loss, Fit& fit, Tangent& tangent) {
  const Eigen::Index n = s.residuals.size(), p = s.u.size();
  std::vector<Eigen::Index> inner, moved;  // fitted; fitted or at a bound
  std::vector<bool> free(fit.standing.size());
  for (std::size_t i = 0; i < free.size(); ++i) {
    free[i] = fit.standing[i] != Standing::not_determined;
    if (free[i]) moved.push_back(static_cast<Eigen::Index>(i));
    if (fit.standing[i] == Standing::fitted) inner.push_back(static_cast<Eigen::Index>(i));
  }
  fit.covariance = Eigen::MatrixXd::Zero(p, p);
  fit.spread = Eigen::VectorXd::Zero(p);
  const auto k = static_cast<Eigen::Index>(inner.size());
  if (moved.empty() || n <= static_cast<Eigen::Index>(moved.size())) return;
  const Eigen::MatrixXd j = problem.jacobian(s.u, free, n);
  double squares = 0, slope = 0, slope_squares = 0;
  for (Eigen::Index i = 0; i < n; ++i) {
    const Influence f = influence(loss, s.residuals[i] / fit.scale);
    const double psi = f.weight * s.residuals[i] / fit.scale;
    squares += psi * psi, slope += f.slope, slope_squares += f.slope * f.slope;
  }
  slope /= static_cast<double>(n), slope_squares /= static_cast<double>(n);
  if (slope <= 0) return;
  const double correction = 1 + static_cast<double>(k) / static_cast<double>(n) * (slope_squares - slope * slope) / (slope * slope);
  const double variance = fit.scale * fit.scale * correction * correction * squares / static_cast<double>(n - k) / (slope * slope);
  tangent = {j, variance};
  const Eigen::VectorXd wide = spread_of(tangent, moved);
  for (std::size_t c = 0; c < moved.size(); ++c) fit.spread[moved[c]] = wide[static_cast<Eigen::Index>(c)];
  if (k == 0) return;
  const Eigen::MatrixXd narrow = inverse_normal(j, inner) * variance;
  Eigen::MatrixXd some(n, k);
  for (Eigen::Index a = 0; a < k; ++a) some.col(a) = j.col(inner[static_cast<std::size_t>(a)]);
  fit.condition = condition_of(some);
  for (Eigen::Index a = 0; a < k; ++a)
    for (Eigen::Index b = 0; b < k; ++b) {
      const Eigen::Index ia = inner[static_cast<std::size_t>(a)], ib = inner[static_cast<std::size_t>(b)];
      fit.covariance(ia, ib) = narrow(a, b) * problem.stretch(ia, fit.x[ia]) * problem.stretch(ib, fit.x[ib]);
    }
}

Fit fit_free(const Residuals& residuals, const std::vector<Parameter>& parameters, const FitOptions& options, std::vector<bool> free, Tangent& tangent) {
  const Problem problem(residuals, parameters, options.difference);
  State s;
  s.u = problem.start();
  s.residuals = problem.residuals(s.u);
  EXPECTS(s.residuals.allFinite(), "residuals are finite at the start");
  free = told_apart(problem, s.u, s.residuals.size(), std::move(free));
  const auto count = static_cast<std::size_t>(std::count(free.begin(), free.end(), true));
  Fit fit;
  if (count > 0) {
    // Outliers are only known as such near the answer, so Tukey starts where Huber ends.
    const std::vector<Loss> stages = options.loss == Loss::tukey ? std::vector{Loss::huber, Loss::tukey} : std::vector{options.loss};
    for (const Loss loss : stages) {
      double scale = options.scale > 0 ? options.scale : robust_scale(s.residuals, 0);
      const int rounds = options.scale > 0 || loss == Loss::square ? 1 : 20;
      for (int round = 0; round < rounds; ++round) {
        descend(problem, free, loss, scale, options.most_iterations, s);
        if (options.scale > 0) break;
        const double next = robust_scale(s.residuals, count);
        const bool settled = std::abs(next - scale) < 1e-6 * scale;
        scale = next;
        if (settled) break;
      }
    }
  } else {
    s.converged = true;
  }
  fit.x = problem.outside(s.u);
  fit.residuals = s.residuals;
  fit.iterations = s.iterations, fit.converged = s.converged;
  fit.scale = options.scale > 0 ? options.scale : robust_scale(s.residuals, count);
  if (options.loss == Loss::square && options.scale <= 0 && static_cast<std::size_t>(s.residuals.size()) > count)
    fit.scale = std::sqrt(s.residuals.squaredNorm() / static_cast<double>(static_cast<std::size_t>(s.residuals.size()) - count));
  if (fit.scale <= 0) fit.scale = 1e-12;
  fit.weights = weights_of(s.residuals, options.loss, fit.scale);
  for (std::size_t i = 0; i < free.size(); ++i) {
    const auto k = static_cast<Eigen::Index>(i);
    const double room = 1e-9 * (1 + std::abs(s.u[k]));
    const bool bound = s.u[k] <= problem.low()[k] + room || s.u[k] >= problem.high()[k] - room;
    fit.standing.push_back(!free[i] ? Standing::not_determined : bound ? Standing::at_bound : Standing::fitted);
  }
  fill_covariance(problem, s, options.loss, fit, tangent);
  return fit;
}

}  // namespace

double Fit::standard_error(std::size_t i) const {
  const auto k = static_cast<Eigen::Index>(i);
  return std::sqrt(std::max(0.0, covariance(k, k)));
}

Fit least_squares(const Residuals& residuals, const std::vector<Parameter>& parameters, const FitOptions& options) {
  Tangent unused;
  return fit_free(residuals, parameters, options, std::vector<bool>(parameters.size(), true), unused);
}

Fit fit_what_is_determined(const Residuals& residuals, const std::vector<Parameter>& parameters, const FitOptions& options, double worst) {
  std::vector<bool> free(parameters.size(), true);
  std::vector<Parameter> now = parameters;  // each round starts where the last one ended, but for those that it froze
  for (;;) {
    Tangent tangent;
    Fit fit = fit_free(residuals, now, options, free, tangent);
    // Of two that only their sum tells, one must go and the other is known well: one at a time, by the tangent alone.
    std::vector<Eigen::Index> kept;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (fit.standing[i] != Standing::not_determined) kept.push_back(static_cast<Eigen::Index>(i));
    bool dropped = false;
    while (!kept.empty() && tangent.variance > 0) {
      const Eigen::VectorXd spread = spread_of(tangent, kept);
      std::size_t loosest = kept.size();
      double most = worst;
      for (std::size_t c = 0; c < kept.size(); ++c) {
        const double error = spread[static_cast<Eigen::Index>(c)] / width_of(parameters[static_cast<std::size_t>(kept[c])]);
        if (error > most) most = error, loosest = c;
      }
      if (loosest == kept.size()) break;
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(loosest));
      dropped = true;
    }
    if (!dropped) return fit;
    free.assign(parameters.size(), false);
    for (const Eigen::Index i : kept) free[static_cast<std::size_t>(i)] = true;
    for (std::size_t i = 0; i < parameters.size(); ++i) now[i].start = free[i] ? fit.x[static_cast<Eigen::Index>(i)] : parameters[i].start;
  }
}

}  // namespace rehearse::calibrate
