// Fits a model of times to measured times and tells how good it is on times that it has not seen.
// Leaves out what the model is (fit_kernels.h, fit_collectives.h) and the numerics (least_squares.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "calibrate/fit/least_squares.h"

namespace rehearse::calibrate {

/// Predicts the logarithm of each time: errors are relative, whatever the size.
struct TimeModel {
  std::vector<Parameter> parameters;
  std::function<Eigen::VectorXd(const Eigen::VectorXd& x)> log_seconds;  // of every row
  Eigen::VectorXd log_measured;
  Eigen::VectorXd noise;              // relative error of each measurement itself; 0 = not told
  std::vector<double> size;           // for the extrapolation check: the largest fifth is held out
  bool linear_refits = false;         // leave_one_out and fivefold by the tangent at the answer: where a prediction is dear
  double worst_spread = 0.25;         // as of fit_what_is_determined
};

struct TimeFit {
  Fit fit;
  // log(predicted / measured) of every row.
  Eigen::VectorXd before;         // with the starting parameters
  Eigen::VectorXd after;
  Eigen::VectorXd leave_one_out;  // fitted without the row itself (beyond 120 rows: without every 120th)
  Eigen::VectorXd fivefold;       // fitted without the row's fifth (every fifth row)
  Eigen::VectorXd largest_fifth;  // rows of the largest fifth, fitted without them; NaN for the others
  /// The parameters of leave_one_out, for what rests on them; column i.
  Eigen::MatrixXd without;
};

/// Huber's loss on log(predicted / measured); a measurement whose own error is e counts 1 / sqrt(1 + (e / 5 %)^2), since the
/// model itself is wrong by about 5 %. Refits for the errors start at the answer and keep its scale.
/// Without `held_out` the errors on unseen rows are NaN (and nothing is refitted).
TimeFit fit_times(const TimeModel& model, bool held_out = true);

/// exp of a log error, minus 1: mean absolute value and mean, in percent; NaNs are left out.
struct ErrorSummary {
  int rows = 0;
  double mean_absolute = 0, bias = 0, median_absolute = 0, worst = 0;
};
ErrorSummary summary_of(const Eigen::VectorXd& log_errors);
ErrorSummary summary_of(const Eigen::VectorXd& log_errors, std::span<const std::size_t> rows);

}  // namespace rehearse::calibrate
