// Which layers each virtual stage of a job holds: the user's list, the framework's rule, or an even split.
// Leaves out the arithmetic of even splits (pipeline/partition.h) and which rank holds a stage (pipeline/schedule.h).
#pragma once

#include <string>
#include <vector>

#include "sim/model/description.h"
#include "sim/model/pipeline_layout.h"
#include "strategies/framework/profile.h"
#include "strategies/pipeline/partition.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// `virtual_stages`: how many the schedule's program has.
/// Why the layers cannot be dealt out to the stages, in the user's words. Empty: stage_layers may be called.
std::vector<std::string> stage_layer_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int virtual_stages);

/// One entry per virtual stage, in model order.
std::vector<StageLayers> stage_layers(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int virtual_stages);

/// Whether the layout's chunks are as many on each of `stages` ranks; only then the pipeline is given them, and is interleaved where ranks hold several.
bool take_layout(const model::PipelineLayout& layout, int stages, Pipeline& pipeline);

}  // namespace rehearse::strategies
