// How one operation is timed: warm-up, how many executions make a sample, when there are samples enough.
// The same rule as nvbench's: stop at a wished relative error or at a time cap, and say which. Leaves out what is timed.
#pragma once

#include <functional>

#include "calibrate/measurements.h"
#include "calibrate/probe/device.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {

struct SamplingRule {
  double target_relative_error = 0.01;
  double warm_up_s = 0.05;      // least time of unrecorded executions: lazy loading, clocks that rise
  double least_s = 0.1;         // least time of recorded ones: clocks that fall
  double cap_s = 1.0;           // most time of recorded ones
  double sample_s = 0.5e-3;     // executions are repeated until a sample takes about this long
  std::int64_t least_samples = 10;
  std::int64_t most_samples = 2000;
};

/// Seconds since some moment, never falling.
using Clock = std::function<double()>;
Clock steady_clock();

/// Times `work` (null: this process only keeps step with the others). Every process returns the same statistics.
/// Throws NotPossible when the work fails in any process, and Interrupted when `interrupted` says so in any.
Series sample(Work* work, const SamplingRule& rule, Device& device, Team& team, const Clock& clock,
              const std::function<bool()>& interrupted);

/// Somebody asked the program to stop.
struct Interrupted {};

}  // namespace rehearse::calibrate
