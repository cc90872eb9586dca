#include "calibrate/fit/tangent.h"

#include <Eigen/Dense>
#include <algorithm>
#include <limits>

#include "calibrate/fit/least_squares.h"

namespace rehearse::calibrate {

Eigen::MatrixXd inverse_normal(const Eigen::MatrixXd& jacobian, const std::vector<Eigen::Index>& columns) {
  const auto k = static_cast<Eigen::Index>(columns.size());
  Eigen::MatrixXd some(jacobian.rows(), k);
  Eigen::VectorXd lengths(k);
  for (Eigen::Index c = 0; c < k; ++c) {
    some.col(c) = jacobian.col(columns[static_cast<std::size_t>(c)]);
    lengths[c] = std::max(some.col(c).norm(), 1e-300);
    some.col(c) /= lengths[c];
  }
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(some, Eigen::ComputeThinV);
  const Eigen::VectorXd values = svd.singularValues().cwiseMax(1e-9 * svd.singularValues()[0]);
  const Eigen::MatrixXd half = lengths.cwiseInverse().asDiagonal() * svd.matrixV() * values.cwiseInverse().asDiagonal();
  return half * half.transpose();
}

Eigen::VectorXd spread_of(const Tangent& t, const std::vector<Eigen::Index>& chosen) {
  return (inverse_normal(t.jacobian, chosen).diagonal() * t.variance).cwiseMax(0.0).cwiseSqrt();
}

double condition_of(const Eigen::MatrixXd& jacobian) {
  Eigen::MatrixXd scaled = jacobian;
  for (Eigen::Index i = 0; i < scaled.cols(); ++i) {
    if (scaled.col(i).norm() == 0) return std::numeric_limits<double>::infinity();
    scaled.col(i).normalize();
  }
  const Eigen::VectorXd values = Eigen::JacobiSVD<Eigen::MatrixXd>(scaled).singularValues();
  if (values.size() < scaled.cols() || values[values.size() - 1] <= 0) return std::numeric_limits<double>::infinity();
  return values[0] / values[values.size() - 1];
}

}  // namespace rehearse::calibrate
