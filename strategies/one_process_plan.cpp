#include "strategies/one_process_plan.h"

#include <algorithm>
#include <numeric>

#include "strategies/stage_writer.h"

namespace rehearse::strategies {
namespace {

/// The first GPU is a class of its own; the others are equal.
void describe(plan::RankClass& c, int index, const Layout& layout, int gpus_per_node, Folding folding) {
  const int gpus = layout.world_size();
  c.representative = index;
  c.ranks = index == 0 || folding == Folding::unfolded ? 1 : gpus - 1;
  c.name = c.ranks == 1 ? "GPU " + std::to_string(index) : "GPUs 1-" + std::to_string(gpus - 1);
  const auto data = static_cast<std::size_t>(plan::GroupAxis::data);
  c.groups[data] = layout.shape_of(Axis::data_shard_context, index, gpus_per_node);
  const int classes = folding == Folding::unfolded ? gpus : 2;
  for (int other = 0; other < classes; ++other)
    if (other != index) c.partners[data].push_back(static_cast<std::uint16_t>(other));
}

Action at(ActionKind kind, int chunk, int micro_batch) { return {.kind = kind, .chunk = chunk, .micro_batch = micro_batch}; }

}  // namespace

plan::Plan write_one_process_plan(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node, Folding folding) {
  const Layout layout(strategy.parallelism.degrees, strategy.parallelism.order);
  const int gpus = layout.world_size(), micro_batches = static_cast<int>(strategy.micro_batches());
  const bool gathers_logits = strategy.data_parallel.gather == Gathered::logits, trains = strategy.training.phase == StepKind::training;
  GroupSizes sizes;
  sizes.data = sizes.shard = gpus;

  plan::PlanBuilder builder;
  const int classes = folding == Folding::unfolded ? gpus : 2;
  builder.plan().classes.resize(static_cast<std::size_t>(classes));
  for (int rank = 0; rank < gpus; ++rank) builder.plan().class_of_rank.push_back(static_cast<std::uint16_t>(std::min(rank, classes - 1)));
  Duration loss_launch{};
  for (int index = 0; index < classes; ++index) {
    plan::RankClass& c = builder.plan().classes[static_cast<std::size_t>(index)];
    describe(c, index, layout, gpus_per_node, folding);
    const bool has_loss = index == 0 && gathers_logits;
    std::vector<ChunkContents> chunks{{.embedding = true, .head = true, .loss = !gathers_logits, .layers = std::vector<int>(model.layers.size()), .micro_batches = micro_batches, .reduces = true}};
    std::iota(chunks[0].layers.begin(), chunks[0].layers.end(), 0);
    std::vector<ChunkNeighbours> neighbours(1);
    if (gathers_logits) neighbours[0] = {.next = 0, .gathered = true};
    if (has_loss) {
      chunks.push_back({.loss = true, .micro_batches = micro_batches, .reduces = true});
      neighbours.push_back({.previous = 0, .gathered = true});
    }
    StageWriter writer(model, strategy, profile, builder, c, sizes, std::move(chunks), std::move(neighbours));
    writer.setup({});
    writer.begin_step();
    if (has_loss) loss_launch = writer.launch_time(1);
    for (int m = 0; m < micro_batches; ++m) {
      writer.unshard(0);
      writer.forward(0, m);
      if (has_loss) writer.message(at(ActionKind::recv_forward, 1, m), false);
      writer.message(at(ActionKind::send_forward, 0, m), false);
      if (has_loss) writer.forward(1, m);
      else if (gathers_logits) writer.wait_for_thread(loss_launch);
      if (!trains) continue;
      if (has_loss) writer.backward(1, m);
      writer.message(at(ActionKind::recv_backward, 0, m), false);
      if (has_loss) writer.message(at(ActionKind::send_backward, 1, m), false);
      writer.backward(0, m);
      writer.reduce_gradient(0);
    }
    writer.end_step();
    writer.finish();
  }
  return builder.take();
}

}  // namespace rehearse::strategies
