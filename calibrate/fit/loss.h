// What a residual counts under a loss, and how large good residuals are.
// Leaves out the search for the answer (least_squares.h).
#pragma once

#include "calibrate/fit/least_squares.h"

namespace rehearse::calibrate {

/// Loss, its derivative over r (the weight) and psi' at a residual in units of the scale.
struct Influence {
  double rho, weight, slope;
};

/// At a residual in units of the scale.
Influence influence(Loss loss, double z);

/// Sum of the losses, and each residual's weight in a reweighted square problem.
double cost_of(const Eigen::VectorXd& residuals, Loss loss, double scale);
Eigen::VectorXd weights_of(const Eigen::VectorXd& residuals, Loss loss, double scale);

}  // namespace rehearse::calibrate
