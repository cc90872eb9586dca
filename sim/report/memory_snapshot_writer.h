// The allocations of one rank as a PyTorch memory snapshot: opens in PyTorch's own viewer and in torch.cuda._memory_viz.
// Leaves out other ranks, Python stacks (frames name the layer and phase instead) and real time: the viewer's axis is
// the order of events.
#pragma once

#include <string>

#include "sim/report/accounts.h"

namespace rehearse::report {

enum class SnapshotFormat { pickle, json };

/// Of the fullest rank class, from setup to the end of the second step. Runs the allocator again with an observer; the
/// numbers are those of `result`.
std::string write_memory_snapshot(const Scenario& scenario, const Result& result, SnapshotFormat format);

}  // namespace rehearse::report
