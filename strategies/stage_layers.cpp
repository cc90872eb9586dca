#include "strategies/stage_layers.h"

#include <algorithm>

namespace rehearse::strategies {
namespace {

/// nanotron's rule: a block goes to the current stage, and the next stage begins once the summed cost has reached that
/// stage's share, or `passes` it, as the public code asks. The two differ where a share falls on a layer's end: of 146 such runs of the
/// Ultra-Scale Playbook all eight from before the last week of 2024 have the stages of the public code, 129 of the later 138 those of the other
/// (the source's Local Params; optimizer_phase_alloc_gib is 10 P + 14 P / d or 20 P bytes to 0.1 %). Costs: 4 q h + 3 f h
/// for a layer, V h for the head, nothing for the rest. Head and loss are the last stage's: by the public code the loss alone would be, where
/// the head passes the share of the stage before (16 layers on 8 stages), but logits of 4.3 GB per GPU that crossed between nodes twice
/// would take longer than those runs' micro-batches (64 GPUs, tensor degree 8). A stage before the last that is left with nothing takes a
/// layer from the one before it. Source: huggingface/nanotron, models/base.py (placement) and models/llama.py (get_block_compute_costs).
/// Empty: fewer layers than stages before the last.
std::vector<int> layers_by_cost(const model::ModelDescription& m, int stages, bool passes) {
  if (m.layer_count() < stages - 1) return {};
  const double layer = static_cast<double>(m.hidden) * (4.0 * static_cast<double>(m.query_width()) + 3.0 * static_cast<double>(m.ffn_hidden));
  const double total = layer * static_cast<double>(m.layer_count()) + static_cast<double>(m.hidden) * static_cast<double>(m.vocab);
  std::vector<int> counts(static_cast<std::size_t>(stages), 0);
  int stage = 0;
  double sum = 0;
  for (std::int64_t l = 0; l < m.layer_count(); ++l) {
    ++counts[static_cast<std::size_t>(stage)];
    sum += layer;
    const double share = total * (stage + 1) / stages;
    if ((passes ? sum > share : sum >= share) && stage + 1 < stages) ++stage;
  }
  for (int s = stages - 2; s > 0; --s)
    for (int from = s - 1; counts[static_cast<std::size_t>(s)] == 0; --from)
      if (counts[static_cast<std::size_t>(from)] > 1 || from == 0) {
        --counts[static_cast<std::size_t>(from)];
        ++counts[static_cast<std::size_t>(s)];
      }
  return counts;
}

/// A stage with neither layers nor an end of the model.
bool has_empty_stage(const std::vector<int>& counts) {
  for (std::size_t s = 1; s + 1 < counts.size(); ++s)
    if (counts[s] == 0) return true;
  return false;
}

PartitionRequest request_of(const model::ModelDescription& m, const Strategy& s, const FrameworkProfile& profile, int virtual_stages) {
  PartitionRequest q;
  q.layers = static_cast<int>(m.layer_count());
  q.stages = s.parallelism.degrees.pipeline;
  q.chunks = virtual_stages / q.stages;
  q.remainder = Remainder::first_stages;
  for (std::int64_t n : s.pipeline.layers_per_stage) q.layers_per_stage.push_back(static_cast<int>(n));
  if (q.layers_per_stage.empty() && profile.pipeline_by_cost && virtual_stages > 1) q.layers_per_stage = layers_by_cost(m, virtual_stages, profile.passes_share);
  if (q.layers_per_stage.empty()) {
    // The head, then the embedding, fill a stage of their own where layers are one or two short.
    q.head_counts_as_layer = q.layers < virtual_stages;
    q.embedding_counts_as_layer = q.layers + 1 < virtual_stages;
  }
  return q;
}

}  // namespace

std::vector<std::string> stage_layer_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int virtual_stages) {
  const PartitionRequest q = request_of(model, strategy, profile, virtual_stages);
  std::vector<std::string> problems = problems_of(q);
  if (!problems.empty()) return problems;
  std::vector<int> counts;
  for (const StageLayers& stage : partition(q)) counts.push_back(stage.count);
  if (has_empty_stage(counts)) problems.push_back("a virtual stage between the first and the last would hold no layer. Use fewer stages or chunks, or give each a layer");
  return problems;
}

std::vector<StageLayers> stage_layers(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int virtual_stages) {
  return partition(request_of(model, strategy, profile, virtual_stages));
}

bool take_layout(const model::PipelineLayout& layout, int stages, Pipeline& pipeline) {
  const std::int64_t chunks = std::ssize(layout.layers);
  if (chunks == 0 || stages < 2 || chunks % stages != 0) return false;
  pipeline.layers_per_stage = layout.layers;
  pipeline.virtual_stages = static_cast<int>(chunks / stages);
  if (pipeline.virtual_stages > 1) pipeline.schedule = "interleaved-1f1b";
  return true;
}

}  // namespace rehearse::strategies
