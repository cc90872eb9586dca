// Measures the passes of a pipeline on the simulated machines, as zero bubble's code profiles a few steps before it searches
// for its schedule. Leaves out the search (strategies/pipeline/zero_bubble_searched.cpp).
#pragma once

#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// The schedule's order depends on times that are not known yet.
bool wants_pass_times(const Scenario& scenario);

/// The same scenario with the times of its passes: each kernel and each collective that compute waits for at its price
/// alone, summed per stage over one micro-batch; memory by what its activations leave behind.
Scenario with_pass_times(const Scenario& scenario);

}  // namespace rehearse::scenario
