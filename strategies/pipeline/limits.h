// What each schedule demands of stages, micro-batches and chunks, as messages for the user with the fix.
// Leaves out demands of the model (partition.h) and of the layout (strategies/layout.h).
#pragma once

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

using Problems = std::vector<std::string>;

Problems any_shape(const PipelineShape& shape);
/// PyTorch's Schedule1F1B: m >= p.
Problems at_least_one_per_stage(const PipelineShape& shape);
/// Megatron: p <= g <= m, the last group not shorter than p; p > 2 without overlapped messages.
Problems interleaved_limits(const PipelineShape& shape);
/// PyTorch's interleaved schedules: m a multiple of the number of rounds, max(1, m / p).
Problems whole_rounds(const PipelineShape& shape);
/// p even, m even and at least 2p.
Problems dualpipe_limits(const PipelineShape& shape);
/// m at least 2p.
Problems dualpipe_v_limits(const PipelineShape& shape);

}  // namespace rehearse::strategies
