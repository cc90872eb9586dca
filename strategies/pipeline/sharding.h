// Adds to a pipeline program when FSDP gathers and frees a chunk's parameters and reduces its gradients.
// Leaves out what gathering costs and schedules without FSDP, whose gradients the data-parallel strategy
// reduces (data/).
#pragma once

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

/// A chunk is gathered before its first use and as a look-ahead, so that at most `max_unsharded` chunks of a
/// rank are whole at once (one forward, one backward, one prefetched); its gradients are reduced right after
/// its last backward. Takes and returns computations without messages: call with_messages (messages.h)
/// afterwards. Source: torch/distributed/pipelining/schedules.py, _add_unshard_reshard and _add_reduce_grad
/// (PyTorch 2.13).
PipelineProgram with_sharded_parameters(const PipelineProgram& compute_only, int max_unsharded = 3);

/// The same program without its messages.
PipelineProgram without_messages(const PipelineProgram& program);

}  // namespace rehearse::strategies
