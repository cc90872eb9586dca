// fit_times for models whose every prediction is dear, such as simulating all runs of a table: few evaluations, large steps.
// Leaves out what the model is (against.h) and the loss (time_fit.h).
#pragma once

#include "calibrate/fit/time_fit.h"

namespace rehearse::calibrate {

/// Robust Gauss-Newton: the model is replaced by its secants, the problem with bounds and loss is solved on those as fit_times
/// does, the model is asked at the answer, and so on until an answer would move no prediction by 0.02 %, or nothing gets
/// better. Costs 2 + p evaluations for p parameters and 1 + p for each further round: three or four of them as a rule.
///   usual   by parameter: a step that is large enough to be felt; the first derivatives are taken over it
/// `after` is the model's own; standard errors and errors on rows left out are by the secants at the answer.
TimeFit fit_dear_times(const TimeModel& model, const Eigen::VectorXd& usual, int most_rounds = 8);

}  // namespace rehearse::calibrate
