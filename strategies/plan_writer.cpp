#include "strategies/plan_writer.h"

#include <algorithm>

#include "sim/core/contract.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/stage_writer.h"

namespace rehearse::strategies {
namespace {

/// nanotron's rule: a block goes to the current stage, and the next stage begins once the summed cost has passed that
/// stage's share. Costs: 4 q h + 3 f h for a layer, V h for the head, nothing for the rest.
/// Source: huggingface/nanotron, models/base.py (placement) and models/llama.py (get_block_compute_costs).
std::vector<std::int64_t> layers_by_cost(const model::ModelDescription& m, int stages) {
  const double layer = static_cast<double>(m.hidden) * (4.0 * static_cast<double>(m.query_width()) + 3.0 * static_cast<double>(m.ffn_hidden));
  const double total = layer * static_cast<double>(m.layer_count()) + static_cast<double>(m.hidden) * static_cast<double>(m.vocab);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(stages), 0);
  int stage = 0;
  double sum = 0;
  for (std::int64_t l = 0; l < m.layer_count(); ++l) {
    ++counts[static_cast<std::size_t>(stage)];
    sum += layer;
    if (sum > total * (stage + 1) / stages && stage + 1 < stages) ++stage;
  }
  return counts;
}

/// Layers of each virtual stage: as given, by cost, or as even as can be (the first stages take the remainder).
std::vector<std::vector<int>> partition(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int virtual_stages) {
  const std::int64_t layers = model.layer_count();
  std::vector<std::int64_t> counts = strategy.pipeline.layers_per_stage;
  if (counts.empty() && profile.pipeline_by_cost) counts = layers_by_cost(model, virtual_stages);
  // Where the head alone is worth several stages, cost would leave stages between without layers: then by count.
  if (std::any_of(counts.begin(), counts.empty() ? counts.end() : std::prev(counts.end()), [](std::int64_t n) { return n == 0; }) && strategy.pipeline.layers_per_stage.empty()) counts.clear();
  if (counts.empty() && layers < virtual_stages) {  // the head's stage, then the embedding's, holds no layer
    counts.assign(static_cast<std::size_t>(virtual_stages), 1);
    counts.back() = 0;
    if (layers + 1 < virtual_stages) counts.front() = 0;
  }
  if (counts.empty())
    for (int v = 0; v < virtual_stages; ++v) counts.push_back(layers / virtual_stages + (v < layers % virtual_stages ? 1 : 0));
  std::vector<std::vector<int>> out(static_cast<std::size_t>(virtual_stages));
  int next = 0;
  for (std::size_t v = 0; v < out.size(); ++v)
    for (std::int64_t i = 0; i < counts[v]; ++i) out[v].push_back(next++);
  return out;
}

PipelineShape shape_of(const Strategy& strategy) {
  PipelineShape shape;
  shape.stages = strategy.parallelism.degrees.pipeline;
  shape.micro_batches = static_cast<int>(strategy.micro_batches());
  shape.chunks = strategy.pipeline.virtual_stages;
  return shape;
}

GroupSizes sizes_of(const Degrees& d) {
  GroupSizes sizes;
  sizes.tensor = d.tensor;
  sizes.data = d.data * d.context;
  sizes.shard = d.shard() * d.context;
  sizes.replicate = d.replicate();
  sizes.pipeline = d.pipeline;
  return sizes;
}

void describe_groups(plan::RankClass& c, const Layout& layout, int gpus_per_node) {
  using plan::GroupAxis;
  const std::pair<GroupAxis, Axis> axes[] = {
      {GroupAxis::tensor, Axis::tensor}, {GroupAxis::context, Axis::context}, {GroupAxis::data, Axis::data_shard_context}, {GroupAxis::data_replicate, Axis::data_replicate},
      {GroupAxis::data_context, Axis::data_context}, {GroupAxis::pipeline, Axis::pipeline}, {GroupAxis::model, Axis::model}, {GroupAxis::expert, Axis::expert},
      {GroupAxis::expert_data, Axis::expert_data}, {GroupAxis::embedding, Axis::embedding}, {GroupAxis::world, Axis::world}};
  for (const auto& [mine, theirs] : axes) c.groups[static_cast<std::size_t>(mine)] = layout.shape_of(theirs, c.representative, gpus_per_node);
}

/// Runs the schedule's actions of one rank through its writer.
void follow(const PipelineProgram& program, int rank, StageWriter& writer) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    switch (a.kind) {
      case ActionKind::forward: writer.forward(a.chunk, a.micro_batch); break;
      case ActionKind::backward: writer.backward(a.chunk, a.micro_batch); break;
      case ActionKind::send_forward:
      case ActionKind::recv_forward:
      case ActionKind::send_backward:
      case ActionKind::recv_backward: {
        // Messages of one batch are issued together, then waited for together.
        std::size_t end = i + 1;
        while (a.batch >= 0 && end < actions.size() && actions[end].batch == a.batch) ++end;
        for (std::size_t k = i; k < end; ++k) writer.message(actions[k]);
        if (a.wait == Wait::at_issue)
          for (std::size_t k = i; k < end; ++k) writer.wait_for(actions[k]);
        i = end - 1;
        break;
      }
      default:
        EXPECTS(false, "a schedule with actions that the stage writer does not write passed the rules: " + program.name);
    }
  }
}

}  // namespace

PipelineProgram schedule_of(const Strategy& strategy) {
  const PipelineShape shape = shape_of(strategy);
  if (shape.stages == 1) {
    // One stage: micro-batches one after the other.
    PipelineProgram program = empty_looped("none", shape, 1);
    for (int m = 0; m < shape.micro_batches; ++m) {
      program.ranks[0].push_back({.kind = ActionKind::forward, .micro_batch = m});
      program.ranks[0].push_back({.kind = ActionKind::backward, .micro_batch = m});
    }
    return program;
  }
  return kPipelineSchedules.find(strategy.pipeline.schedule)->make(shape);
}

plan::Plan write_plan(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node) {
  const Degrees& d = strategy.parallelism.degrees;
  const Layout layout(d, strategy.parallelism.order);
  const PipelineProgram program = schedule_of(strategy);
  const auto layers = partition(model, strategy, profile, program.virtual_stages);

  plan::PlanBuilder builder;
  builder.plan().classes.resize(static_cast<std::size_t>(d.pipeline));
  for (int r = 0; r < d.pipeline; ++r) {
    plan::RankClass& c = builder.plan().classes[static_cast<std::size_t>(r)];
    Coordinates at;
    at.pipeline = r;
    c.name = d.pipeline == 1 ? "all ranks" : "stage " + std::to_string(r);
    c.representative = layout.rank_of(at);
    c.ranks = d.world() / d.pipeline;
    describe_groups(c, layout, gpus_per_node);
    for (int other = 0; other < d.pipeline; ++other) {
      if (other == r) continue;
      c.partners[static_cast<std::size_t>(plan::GroupAxis::model)].push_back(static_cast<std::uint16_t>(other));
      Coordinates there = at;
      there.pipeline = other;
      if (!Layout::share_node(c.representative, layout.rank_of(there), gpus_per_node)) c.stage_peers_other_node.push_back(static_cast<std::uint16_t>(other));
    }
    if (d.pipeline > 1 && (r == 0 || r == d.pipeline - 1)) c.partners[static_cast<std::size_t>(plan::GroupAxis::embedding)] = {static_cast<std::uint16_t>(r == 0 ? d.pipeline - 1 : 0)};

    std::vector<ChunkContents> chunks;
    std::vector<ChunkNeighbours> neighbours;
    for (int k = 0; k < program.chunks(r); ++k) {
      const int stage = program.placement[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)].stage;
      chunks.push_back({.embedding = stage == 0, .head = stage == program.virtual_stages - 1, .layers = layers[static_cast<std::size_t>(stage)]});
      neighbours.push_back({.previous = program.previous(r, k).rank, .next = program.next(r, k).rank});
    }
    StageWriter writer(model, strategy, profile, builder, c, sizes_of(d), std::move(chunks), std::move(neighbours));
    writer.setup();
    writer.begin_step();
    follow(program, r, writer);
    writer.end_step();
    writer.finish();
  }
  return builder.take();
}

std::vector<std::int64_t> parameters_per_class(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile) {
  const PipelineProgram program = schedule_of(strategy);
  const auto layers = partition(model, strategy, profile, program.virtual_stages);
  plan::PlanBuilder builder;
  const LowerContext context = make_context(model, strategy, profile, builder);
  std::vector<std::int64_t> out;
  for (int r = 0; r < program.stages(); ++r) {
    std::int64_t n = 0;
    bool first = false;
    for (int k = 0; k < program.chunks(r); ++k) {
      const int stage = program.placement[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)].stage;
      if (stage == 0) n += embedding_tape(context, false).elements(), first = true;
      for (int layer : layers[static_cast<std::size_t>(stage)]) n += layer_tape(context, model.layers[static_cast<std::size_t>(layer)]).elements();
      if (stage == program.virtual_stages - 1) n += head_tape(context, model.tied_embeddings && first).elements();
    }
    out.push_back(n);
  }
  return out;
}

}  // namespace rehearse::strategies
