// The changes that are near a scenario: one decision made differently, the rest as it was.
// Leaves out which of them help (advise.h).
#pragma once

#include "sim/advice/trial.h"

namespace rehearse::advice {

/// Every decision that a user can turn without buying anything: precision of 32-bit jobs, recomputation, micro-batch,
/// data-parallel strategy, tensor and pipeline degrees, overlap; and, marked as such, offload. Some may be refused by the
/// rules: ask. In the order in which they are usually tried.
std::vector<Change> changes_near(const scenario::Scenario& scenario);

}  // namespace rehearse::advice
