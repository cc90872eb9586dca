// The changes that are near a scenario: one decision made differently, the rest as it was.
// Leaves out which of them help (advise.h).
#pragma once

#include "sim/advice/trial.h"

namespace rehearse::advice {

/// Every decision that a user can turn without buying anything: precision of 32-bit jobs, recomputation of all or some layers,
/// the allocator's segments, micro-batch, data-parallel strategy, tensor, pipeline, context and expert degrees, the schedule and the cut of a pipeline, which ranks
/// are neighbours; and, marked as such, offload. Some may be refused by the rules: ask. In the order in which they are usually tried.
std::vector<Change> changes_near(const scenario::Scenario& scenario);

/// What is beyond them, for a job that nothing near makes fit: more of the same machines (up to eight times), a shorter sequence, and
/// other trainings, with smaller states or fewer trained weights. In this order.
std::vector<Change> changes_beyond(const scenario::Scenario& scenario);

/// The same GPUs between other links: node designs that are sold with this kind of GPU, and fabrics.
std::vector<Change> other_links(const scenario::Scenario& scenario);

/// Both changes at once; nothing when they set the same key differently.
std::optional<Change> both(const Change& a, const Change& b);

}  // namespace rehearse::advice
