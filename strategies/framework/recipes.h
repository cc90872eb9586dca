// What a framework's published runs were told beyond what their tables say, release by release: dispatcher, CUDA graphs,
// recomputed modules, and where their configurations are public, degrees and micro-batch. Data:
// strategies/framework/recipes/<profile>.yaml. Leaves out what the tables do say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategies/spec.h"

namespace rehearse::strategies {

struct Recipe {
  std::string release, model, gpu;
  std::vector<std::string> precision;
  std::int64_t global_batch = 0;
  std::optional<Dispatcher> dispatcher;
  bool cuda_graph = false;
  std::vector<std::string> cuda_graph_modules, recompute_modules;
  bool fused_mlp = false, fused_index_map = false, unfused_rope = false, overlap_exchange = false;
  bool fp8_attention = false, fp8_head = false, paged_stash = false;
  bool unfused_router = false, multi_token_prediction = false, exposed_tensor = false;
  std::int64_t last_layers_16bit = 0;
  std::optional<std::int64_t> dispatch_sms;
  std::optional<std::int64_t> deferred_head_gradients;
  int tensor = 0;                    // tensor-parallel degree; 0: not said
  std::int64_t micro_batch = 0;      // samples; 0: not said
  bool partition_activations = false, synchronize_checkpoints = false;
  std::vector<std::string> layouts;  // of the model, for as many chunks as each has (sim/model/pipeline_layout.h)
};

struct RecipeKey {
  std::string release, model, gpu, precision;
  std::int64_t global_batch = 0;
};

/// The entry of the newest release that is not after `key.release`; the batch decides between entries of one release, and
/// where none has it the newest entry counts. Nothing where the profile has no recipes, or none for this model and GPU.
std::optional<Recipe> recipe_for(const std::string& profile, const RecipeKey& key);

/// The strategy as the recipe says. Recomputation only where `recompute_unsaid`; what stages hold only of a model of the layouts' `layers`.
void apply(const Recipe& recipe, bool recompute_unsaid, std::int64_t layers, Strategy& strategy);

}  // namespace rehearse::strategies
