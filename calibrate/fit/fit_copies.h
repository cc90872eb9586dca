// Fits copies and launches: a latency and a rate, or a latency and a time per node of a graph.
// Leaves out sharing of links by several copies at once (sim/engine).
#pragma once

#include <string>
#include <vector>

#include "calibrate/fit/observations.h"
#include "calibrate/fit/time_fit.h"

namespace rehearse::calibrate {

/// t = latency + amount / rate. Standard errors of 0 where a bound (>= 0) holds or one point is all there is.
struct LinearFit {
  std::string operation;
  int rows = 0;
  double latency_s = 0, latency_error_s = 0;
  double per_unit_s = 0, per_unit_error_s = 0;  // seconds per byte, or per node
  ErrorSummary after, leave_one_out;
  double rate() const { return per_unit_s > 0 ? 1 / per_unit_s : 0; }
};

/// Non-negative least squares on relative errors, reweighted against outliers (Huber), per operation.
std::vector<LinearFit> fit_copies(const Observations& observations);
/// The same over the nodes of graphs; a kernel launch has one size, so its median is the answer.
std::vector<LinearFit> fit_launches(const Observations& observations);

/// The fit of one set of points. Precondition: as many amounts as seconds, seconds > 0.
LinearFit fit_line(const std::string& operation, const std::vector<double>& amounts, const std::vector<double>& seconds);

}  // namespace rehearse::calibrate
