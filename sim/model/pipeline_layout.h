// Megatron-Core's text of what each chunk of a pipeline holds (pipeline_model_parallel_layout).
// Leaves out splits by number (strategies/pipeline/partition.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::model {

struct PipelineLayout {
  std::vector<std::int64_t> layers;   // of each chunk, in model order; empty: the text is no layout
  int predictions = 0;                // multi-token-prediction layers
  std::int64_t total() const;         // of `layers`
};

/// "Et*3|(tt|)*6tmL" is 3, 2, 2, 2, 2, 2, 2, 1 and one prediction layer. A letter or a group in brackets may be repeated (*n); bars part chunks;
/// t is a layer, m a prediction layer, other letters are neither.
/// Source: NVIDIA/Megatron-LM megatron/core/transformer/pipeline_parallel_layer_layout.py.
PipelineLayout read_pipeline_layout(const std::string& text);

}  // namespace rehearse::model
