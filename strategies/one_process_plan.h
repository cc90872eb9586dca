// The plan of torch.nn.DataParallel: one process drives all GPUs of a node, the first one does what the others do and more.
// Leaves out what is kept and exchanged (data/one_process.cpp) and how a pass is written (stage_writer.h).
#pragma once

#include "strategies/plan_writer.h"

namespace rehearse::strategies {

/// Precondition: problems_of(...) is empty and data_parallel.kind is one_process.
plan::Plan write_one_process_plan(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node, Folding folding);

}  // namespace rehearse::strategies
