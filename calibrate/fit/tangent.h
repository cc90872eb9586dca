// The linear problem at an answer, and how sure one can be of parameters by it.
// Leaves out finding the answer (least_squares.h).
#pragma once

#include <Eigen/Core>
#include <vector>

namespace rehearse::calibrate {

/// The linear problem at an answer: what the spread of any choice of parameters follows from.
struct Tangent {
  Eigen::MatrixXd jacobian;
  double variance = 0;
};

/// (J^T J)^-1 over some parameters, in the coordinates of the steps. A direction that the residuals do not tell has a huge
/// variance, not none: its singular value is held at a billionth of the largest.
Eigen::MatrixXd inverse_normal(const Eigen::MatrixXd& jacobian, const std::vector<Eigen::Index>& columns);

/// Standard errors in the coordinates of the steps of the chosen parameters, all at once.
Eigen::VectorXd spread_of(const Tangent& tangent, const std::vector<Eigen::Index>& chosen);

}  // namespace rehearse::calibrate
