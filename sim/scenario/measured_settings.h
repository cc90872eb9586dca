// What a row of a table of measured runs says in prose of its job: the rules of readings/wording.yaml and readings/settings.yaml,
// and what takes more than a rule. Leaves out what columns say (measured_scenario.h).
#pragma once

#include "sim/scenario/row_rules.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// Takes what the rules of readings/<name>.yaml that hold set of the profile, the strategy and the model. Throws ConfigError at a
/// key that there is not.
void apply_readings(const std::string& name, const RowFacts& facts, Scenario& s);

/// readings/settings.yaml, and what the note names, of:
///   first stage 7 layers, last 6        num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage; others share the rest
///   layers per stage 4,4,5,3            the whole list of an uneven pipeline
///   layout Et*4|(t*4|)*14tmL            Megatron-Core's text of the same (sim/model/pipeline_layout.h)
///   local batch 8                       samples that one run of PyTorch's schedule takes (NeMo AutoModel)
///   recompute_modules mla_up_proj,moe   of selective recomputation
///   mtp-num-layers 1                    layers of multi-token prediction, trained (or mtp_num_layers)
///   mcore_distributed_optim             NeMo 24.x: Megatron-Core's optimizer, not Apex's
///   NCCL_NVLS_ENABLE=0 (or 1)           NVLink SHARP; where nothing is said it is off under NeMo's and Megatron-Bridge's recipes
/// Call it once degrees, schedule and recomputation are chosen.
void apply_stated_settings(const config::CsvRow& row, Scenario& s);

}  // namespace rehearse::scenario
