#include "strategies/framework/recipes.h"

#include <algorithm>
#include <filesystem>

#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/core/error.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/model/pipeline_layout.h"
#include "strategies/framework/profile.h"
#include "strategies/stage_layers.h"

namespace rehearse::strategies {
namespace {

constexpr const char* kRecipeFolder = "strategies/framework/recipes";

struct ModelLayouts {
  std::string model, source;
  std::vector<std::string> layouts;
};

struct Recipes {
  std::string title, source;
  std::vector<Recipe> recipes;
  std::vector<ModelLayouts> layouts;
};

const config::Fields<ModelLayouts>& layout_fields() {
  static const config::Fields<ModelLayouts> table{
      config::text("model", &ModelLayouts::model, "model preset").required(),
      config::text("source", &ModelLayouts::source, "where they stand").required(),
      config::text("layouts", &ModelLayouts::layouts, "Megatron's pipeline_model_parallel_layout, for as many chunks as each has").required(),
  };
  return table;
}

const config::Fields<Recipe>& recipe_fields() {
  using R = Recipe;
  static const config::Fields<R> table{
      config::text("release", &R::release, "first release with these settings").required(),
      config::text("model", &R::model, "model preset").required(),
      config::text("gpu", &R::gpu, "GPU type").required(),
      config::text("precision", &R::precision, "number formats").required(),
      config::integer("global_batch", &R::global_batch, "samples per step", config::positive).required(),
      config::choice("dispatcher", &R::dispatcher, "how tokens reach their experts", dispatchers()),
      config::boolean("cuda_graph", &R::cuda_graph, "the whole step is one CUDA graph"),
      config::text("cuda_graph_modules", &R::cuda_graph_modules, "parts of a layer replayed from graphs"),
      config::text("recompute_modules", &R::recompute_modules, "what is recomputed"),
      config::boolean("fused_mlp", &R::fused_mlp, "the experts' products in fused kernels"),
      config::boolean("fused_index_map", &R::fused_index_map, "Megatron's experimental functions are enabled: DeepEP's lists of experts become maps in one kernel"),
      config::boolean("unfused_rope", &R::unfused_rope, "rotary embedding by PyTorch's operators: Transformer Engine's kernel does not know YaRN"),
      config::integer("tensor", &R::tensor, "tensor-parallel degree", config::positive),
      config::integer("micro_batch", &R::micro_batch, "samples per micro-batch", config::positive),
      config::boolean("partition_activations", &R::partition_activations, "each tensor rank keeps a piece of a recomputed layer's input"),
      config::boolean("synchronize_checkpoints", &R::synchronize_checkpoints, "the host waits for the device around each recomputed layer"),
      config::boolean("overlap_exchange", &R::overlap_exchange, "tokens travel beside another micro-batch's backward"),
      config::boolean("fp8_attention", &R::fp8_attention, "fp8_dot_product_attention"),
      config::boolean("fp8_head", &R::fp8_head, "fp8_output_proj"),
      config::boolean("unfused_router", &R::unfused_router, "moe_router_fusion is off"),
      config::boolean("exposed_tensor", &R::exposed_tensor, "comm_overlap is none: tensor-parallel collectives do not travel under products"),
      config::boolean("multi_token_prediction", &R::multi_token_prediction, "the model's multi-token-prediction layers are trained as well"),
      config::integer("last_layers_16bit", &R::last_layers_16bit, "num_layers_at_end_in_bf16", config::positive),
      config::integer("dispatch_sms", &R::dispatch_sms, "moe_deepep_num_sms or moe_hybridep_num_sms", config::positive),
      config::boolean("paged_stash", &R::paged_stash, "moe_paged_stash: what fused experts keep is copied into pages and back"),
      config::integer("deferred_head_gradients", &R::deferred_head_gradients, "wgrad_deferral_limit, under pipeline stages", config::positive),
  };
  return table;
}

Recipes read(const std::string& profile) {
  const std::filesystem::path file = resource_root() / kRecipeFolder / (profile + ".yaml");
  std::error_code unknown;   // of a name that no file can have
  if (!std::filesystem::exists(file, unknown)) return {};
  static const config::Fields<Recipes> table{
      config::text("title", &Recipes::title, "what the recipes are").required(),
      config::text("source", &Recipes::source, "where they stand").required(),
      config::list_of("recipes", &Recipes::recipes, "settings of one model on one GPU", recipe_fields()).required(),
      config::list_of("layouts", &Recipes::layouts, "which layers stages hold", layout_fields()),
  };
  config::Diagnostics problems;
  Recipes out = config::read(config::load_document(file).root, table, problems);
  config::throw_if_any(std::move(problems));
  for (Recipe& recipe : out.recipes)
    for (const ModelLayouts& of : out.layouts)
      if (of.model == recipe.model) recipe.layouts = of.layouts;
  return out;
}

/// The layout of as many chunks, where it is one of this many layers.
void take_layout_of(const Recipe& recipe, std::int64_t layers, Strategy& s) {
  const int stages = s.parallelism.degrees.pipeline;
  for (const std::string& text : recipe.layouts) {
    const model::PipelineLayout layout = model::read_pipeline_layout(text);
    if (std::ssize(layout.layers) == static_cast<std::ptrdiff_t>(stages) * s.pipeline.virtual_stages && layout.total() == layers) take_layout(layout, stages, s.pipeline);
  }
}

}  // namespace

std::optional<Recipe> recipe_for(const std::string& profile, const RecipeKey& key) {
  static Remembered<std::string, Recipes> all;
  const Recipes& known = all.get(profile, [&] { return read(profile); });
  const Recipe* best = nullptr;
  for (const Recipe& r : known.recipes) {
    if (r.model != key.model || r.gpu != key.gpu || r.release > key.release) continue;
    if (std::find(r.precision.begin(), r.precision.end(), key.precision) == r.precision.end()) continue;
    const auto rank = [&](const Recipe& x) { return std::pair(x.global_batch == key.global_batch, x.release); };
    if (best == nullptr || rank(r) > rank(*best)) best = &r;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

void apply(const Recipe& recipe, bool recompute_unsaid, std::int64_t layers, Strategy& s) {
  if (recipe.dispatcher) s.experts.dispatcher = recipe.dispatcher;
  if (recipe.cuda_graph) s.training.cuda_graph = true;
  s.training.cuda_graph_modules = recipe.cuda_graph_modules;
  if (recipe.fused_mlp) s.experts.fused_mlp = true;
  s.training.fp8_attention = recipe.fp8_attention;
  s.training.fp8_head = recipe.fp8_head;
  if (recipe.unfused_rope) s.training.fused_rope = false;
  if (recipe.unfused_router) s.experts.fused_router = false;
  if (recipe.exposed_tensor && s.parallelism.degrees.tensor > 1) s.parallelism.overlap_tensor = false;
  if (recipe.multi_token_prediction) s.training.multi_token_prediction = true;
  take_layout_of(recipe, layers, s);
  if (recipe.last_layers_16bit > 0) s.training.last_layers_16bit = static_cast<int>(recipe.last_layers_16bit);
  if (recipe.fused_index_map) s.experts.fused_index_map = true;
  if (recipe.dispatch_sms) s.experts.dispatch_sms = recipe.dispatch_sms;
  s.experts.paged_stash = recipe.paged_stash && s.experts.fused_mlp.value_or(false);
  if (s.parallelism.degrees.pipeline > 1) s.pipeline.deferred_head_gradients = recipe.deferred_head_gradients;
  // Overlap needs the interleaved schedule where there are stages.
  s.experts.overlap_exchange = recipe.overlap_exchange && s.parallelism.degrees.expert > 1 && (s.parallelism.degrees.pipeline == 1 || s.pipeline.virtual_stages > 1);
  if (s.memory.recompute == Recompute::full) {
    s.memory.partition_activations = recipe.partition_activations && s.parallelism.degrees.tensor > 1;
    s.memory.synchronize_checkpoints = recipe.synchronize_checkpoints;
  }
  if (!recompute_unsaid || recipe.recompute_modules.empty()) return;
  s.memory.recompute = Recompute::selective;
  s.memory.recompute_modules = recipe.recompute_modules;
}

}  // namespace rehearse::strategies
