// Which nodes of a layer are modules whose saved tensors wait in host memory (Megatron's fine-grained activation offloading).
// Leaves out which of these tensors can leave (emitter.h) and when they are copied (memory/module_offload.h).
#pragma once

#include <string>
#include <vector>

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

/// Their names: Megatron's offload_modules.
const std::vector<std::string>& offload_module_names();

/// Marks the groups of `layer` that the strategy offloads. What a norm saves leaves when the residual has been added, everything else when its module has run.
/// Source: NVIDIA/Megatron-LM at d98e8a64 (2026-08): megatron/core/transformer/transformer_layer.py, attention.py, multi_latent_attention.py, moe/experts.py
/// (off_interface and its group_offload).
void mark_offloaded(const LowerContext& context, const model::Layer& layer, Tape& tape);

}  // namespace rehearse::strategies
