// From a model and a strategy to the plan of the whole job: rank classes, their programs and their process groups.
// Leaves out costs and machines; it knows only how many GPUs share a node.
#pragma once

#include <vector>

#include "sim/core/error.h"
#include "sim/model/description.h"
#include "sim/plan/plan.h"
#include "strategies/framework/profile.h"
#include "strategies/layout.h"
#include "strategies/pipeline/schedule.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Every reason why this strategy cannot train this model, in the user's words and keys, each with a fix. Empty: it can.
std::vector<Diagnostic> problems_of(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node);

/// Folded: equal ranks are one class, simulated once. Unfolded: every rank is a class of its own, and every collective a
/// meeting of its members: the oracle of the folding, for small clusters.
enum class Folding : std::uint8_t { folded, unfolded };

/// Precondition: problems_of(...) is empty.
plan::Plan write_plan(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node, Folding folding = Folding::folded);

/// Parameters of each rank of a pipeline after tensor and pipeline splitting, for reports: index = place in the pipeline.
std::vector<std::int64_t> parameters_per_stage(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile);

/// What a schedule is made for.
PipelineShape pipeline_shape(const Strategy& strategy);
/// The schedule that write_plan follows.
PipelineProgram schedule_of(const Strategy& strategy);

}  // namespace rehearse::strategies
