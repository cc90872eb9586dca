// CUDA graphs of parts of a layer: which nodes are replayed from them, and what is copied into them and back.
// Leaves out what a replay costs the host (emitter.h) and graphs' own memory.
#pragma once

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

/// The residual add that ends a layer's mixer.
inline constexpr const char* kMixerResidual = "attention residual";

/// Marks the nodes of `layer` that graphs replay: by module name (Megatron's cuda_graph_scope), all where the step is one graph. A graph reads and
/// writes at places of its own: before each replay its inputs are copied there, before each backward replay the gradients of its outputs.
/// Source: NVIDIA/TransformerEngine v2.16 pytorch/graph.py, Graphed.forward and backward; NVIDIA/Megatron-LM megatron/core/transformer/cuda_graphs.py likewise.
void capture_graphs(const LowerContext& context, const Operators& op, const model::Layer& layer, Tape& tape);

}  // namespace rehearse::strategies
