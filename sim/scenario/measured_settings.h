// Settings of Megatron and NeMo that a row of a table of measured runs names in its note, in the words of their own
// configurations: experts, stages, recomputed modules, deferred gradients. Leaves out what columns say (measured_scenario.h).
#pragma once

#include "sim/scenario/measured_row.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// What the note names, of:
///   alltoall dispatcher                 moe_token_dispatcher_type
///   capacity factor 1.0[, padded ...]   slots per expert over the mean; padded: empty ones are computed too. A model whose name
///                                       holds "tokendrop" has 1, padded (NeMo's MegatronTokenDropCallback)
///   moe_grouped_gemm false              a loop over the experts
///   first stage 7 layers, last 6        num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage; others share the rest
///   recompute_modules mla_up_proj,moe   of selective recomputation
///   wgrad_deferral_limit 22             under pipeline stages
///   mcore_distributed_optim             NeMo 24.x: Megatron-Core's optimizer, not Apex's
///   no tp_comm_overlap                  tensor-parallel collectives run by themselves
///   NCCL_NVLS_ENABLE=0 (or 1)           NVLink SHARP; where nothing is said it is off under NeMo's and Megatron-Bridge's recipes
/// Call it once degrees, schedule and recomputation are chosen.
void apply_stated_settings(const config::CsvRow& row, Scenario& s);

}  // namespace rehearse::scenario
