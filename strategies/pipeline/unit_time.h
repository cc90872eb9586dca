// Runs a pipeline program in small whole units of time: shows bubbles and deadlocks without any hardware.
// Leaves out real durations (sim/executor): for tests, drawings and the validity check only.
#pragma once

#include <string>
#include <vector>

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

/// Per computation of one chunk. A whole backward takes backward_input + backward_weight.
struct UnitTimes {
  int forward = 1, backward_input = 1, backward_weight = 1;
  int overlapped = 0;  // 0: forward + whole backward, nothing gained
  int message = 0;     // once both sides are ready
};

struct UnitSpan {
  int action = 0;  // index in PipelineProgram::ranks[rank]
  int begin = 0, end = 0;
};

struct UnitTimeline {
  std::vector<std::vector<UnitSpan>> ranks;  // computations in order
  int length = 0;
  std::vector<std::string> stuck;  // one line per rank that could not finish: a deadlock

  /// Idle share of all ranks' time, 0 to 1.
  double bubble_fraction() const;
};

/// A message starts when both sides have issued it and its channel is free (Channels), and waits hold as the
/// program says. Every send needs its receive: see problems_of (check.h).
UnitTimeline run_in_unit_time(const PipelineProgram& program, const UnitTimes& times = {});

/// Most micro-batches x chunks whose activations a rank holds at once: from the forward until the whole
/// backward, or the weight gradient where that comes later.
std::vector<int> peak_in_flight(const PipelineProgram& program);

}  // namespace rehearse::strategies
