#include <Eigen/QR>

#include "calibrate/fit/least_squares.h"

namespace rehearse::calibrate {

Eigen::VectorXd nonnegative_least_squares(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  const Eigen::Index n = a.cols();
  Eigen::VectorXd x = Eigen::VectorXd::Zero(n);
  std::vector<bool> passive(static_cast<std::size_t>(n), false);
  const double tolerance = 1e-12 * (a.transpose() * b).cwiseAbs().maxCoeff();

  // The unconstrained answer over the passive columns, zero elsewhere.
  const auto solve = [&] {
    std::vector<Eigen::Index> columns;
    for (Eigen::Index j = 0; j < n; ++j)
      if (passive[static_cast<std::size_t>(j)]) columns.push_back(j);
    Eigen::MatrixXd some(a.rows(), static_cast<Eigen::Index>(columns.size()));
    for (std::size_t j = 0; j < columns.size(); ++j) some.col(static_cast<Eigen::Index>(j)) = a.col(columns[j]);
    const Eigen::VectorXd part = some.colPivHouseholderQr().solve(b);
    Eigen::VectorXd full = Eigen::VectorXd::Zero(n);
    for (std::size_t j = 0; j < columns.size(); ++j) full[columns[j]] = part[static_cast<Eigen::Index>(j)];
    return full;
  };

  for (int round = 0; round < 3 * n + 10; ++round) {
    const Eigen::VectorXd gradient = a.transpose() * (b - a * x);
    Eigen::Index best = -1;
    for (Eigen::Index j = 0; j < n; ++j)
      if (!passive[static_cast<std::size_t>(j)] && gradient[j] > tolerance && (best < 0 || gradient[j] > gradient[best])) best = j;
    if (best < 0) return x;
    passive[static_cast<std::size_t>(best)] = true;
    for (;;) {
      const Eigen::VectorXd wanted = solve();
      double step = 1;  // as far towards `wanted` as no passive component turns negative
      for (Eigen::Index j = 0; j < n; ++j)
        if (passive[static_cast<std::size_t>(j)] && wanted[j] <= 0 && x[j] > wanted[j]) step = std::min(step, x[j] / (x[j] - wanted[j]));
        else if (passive[static_cast<std::size_t>(j)] && wanted[j] <= 0) step = 0;
      if (step >= 1) {
        x = wanted;
        break;
      }
      x += step * (wanted - x);
      for (Eigen::Index j = 0; j < n; ++j)
        if (passive[static_cast<std::size_t>(j)] && x[j] <= 1e-14 * (1 + x.cwiseAbs().maxCoeff())) {
          x[j] = 0;
          passive[static_cast<std::size_t>(j)] = false;
        }
    }
  }
  return x;
}

}  // namespace rehearse::calibrate
