// How long the passes of one micro-batch take on each rank, for schedules that are searched for with them.
// Leaves out where the times come from (sim/scenario/pass_times.h) and everything but their ratios.
#pragma once

#include <vector>

namespace rehearse::strategies {

struct PassTimes {
  std::vector<double> forward, input_gradient, weight_gradient;  // by rank, in any unit; empty: 1 each
  double message = 0;                                            // between neighbours
  double kept_for_weights = 0.5;   // share of a micro-batch's activations that stays until its weight gradients are made
};

}  // namespace rehearse::strategies
