#include "strategies/plan_writer.h"

#include <algorithm>
#include <numeric>

#include "sim/core/contract.h"
#include "strategies/host_backend.h"
#include "strategies/launch_blocking.h"
#include "strategies/layer/routing.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/one_process_plan.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/pipeline/messages.h"
#include "strategies/pipeline/sharding.h"
#include "strategies/pipeline/table.h"
#include "strategies/rank_classes.h"
#include "strategies/serial_collectives.h"
#include "strategies/stage_layers.h"
#include "strategies/stage_writer.h"

namespace rehearse::strategies {
namespace {

GroupSizes sizes_of(const Degrees& d) {
  GroupSizes sizes;
  sizes.tensor = d.tensor;
  sizes.data = d.data * d.context;
  sizes.shard = d.shard() * d.context;
  sizes.replicate = d.replicate();
  sizes.expert_data = d.expert_data();
  sizes.pipeline = d.pipeline;
  sizes.secondary = std::max(1, d.data_secondary);
  sizes.inside = d.data_inside > 0 ? d.data_inside : sizes.shard;
  sizes.expert_inside = d.expert_inside > 0 ? d.expert_inside : d.expert;
  return sizes;
}

/// With the groups that the strategy cuts in two.
Degrees cut_degrees(const Strategy& s, const FrameworkProfile& profile, int gpus_per_node) {
  Degrees d = s.parallelism.degrees;
  const auto in_a_node = [&](Axis axis) { return Layout(s.parallelism.degrees, s.parallelism.order).shape_of(axis, 0, gpus_per_node).ranks_per_node; };
  if (s.data_parallel.secondary_partition.value_or(1) > 1) d.data_secondary = static_cast<int>(*s.data_parallel.secondary_partition);
  if (s.data_parallel.quantized_gradients) d.data_inside = in_a_node(Axis::data_shard_context);
  if (s.experts.dispatcher.value_or(profile.dispatcher) == Dispatcher::hierarchical && d.expert > 1) d.expert_inside = in_a_node(Axis::expert);
  return d;
}

constexpr std::pair<plan::GroupAxis, Axis> kAxes[] = {
    {plan::GroupAxis::tensor, Axis::tensor}, {plan::GroupAxis::context, Axis::context},
    {plan::GroupAxis::context_ulysses, Axis::context_ulysses}, {plan::GroupAxis::context_ring, Axis::context_ring}, {plan::GroupAxis::data, Axis::data_shard_context},
    {plan::GroupAxis::data_replicate, Axis::data_replicate}, {plan::GroupAxis::data_context, Axis::data_context}, {plan::GroupAxis::data_secondary, Axis::data_secondary},
    {plan::GroupAxis::data_inside, Axis::data_inside}, {plan::GroupAxis::data_across, Axis::data_across}, {plan::GroupAxis::pipeline, Axis::pipeline},
    {plan::GroupAxis::model, Axis::model}, {plan::GroupAxis::expert, Axis::expert}, {plan::GroupAxis::expert_inside, Axis::expert_inside},
    {plan::GroupAxis::expert_across, Axis::expert_across}, {plan::GroupAxis::expert_tensor, Axis::expert_tensor}, {plan::GroupAxis::expert_data, Axis::expert_data},
    {plan::GroupAxis::embedding, Axis::embedding}, {plan::GroupAxis::mirror, Axis::mirror}, {plan::GroupAxis::world, Axis::world}};

void describe(plan::RankClass& c, int index, const RankClasses& classes, const Layout& layout, int gpus_per_node) {
  const Degrees& d = layout.degrees();
  c.representative = classes.representative(index);
  c.ranks = classes.ranks(index);
  c.name = classes.name(index);
  for (const auto& [mine, theirs] : kAxes) {
    c.groups[static_cast<std::size_t>(mine)] = layout.shape_of(theirs, c.representative, gpus_per_node);
    if (mine != plan::GroupAxis::pipeline && mine != plan::GroupAxis::world) c.partners[static_cast<std::size_t>(mine)] = classes.partners(index, theirs);
  }
  for (int other = 0; other < d.pipeline; ++other) {
    const int peer = classes.at_stage(index, other);
    if (peer != index && !Layout::share_node(c.representative, classes.representative(peer), gpus_per_node)) c.stage_peers_other_node.push_back(static_cast<std::uint16_t>(peer));
  }
}

/// Runs the schedule's actions of one rank through its writer.
void follow(const PipelineProgram& program, int rank, const FrameworkProfile& profile, StageWriter& writer) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    switch (a.kind) {
      case ActionKind::forward: writer.forward(a.chunk, a.micro_batch); break;
      case ActionKind::backward: writer.backward(a.chunk, a.micro_batch); break;
      case ActionKind::backward_input: writer.backward_input(a.chunk, a.micro_batch); break;
      case ActionKind::backward_weight: writer.backward_weight(a.chunk, a.micro_batch); break;
      case ActionKind::overlapped: writer.overlapped(a.chunk, a.micro_batch, a.under_chunk, a.under_micro_batch); break;
      case ActionKind::send_forward:
      case ActionKind::recv_forward:
      case ActionKind::send_backward:
      case ActionKind::recv_backward: {
        // Messages of one batch are issued together, then waited for together.
        std::size_t end = i + 1;
        while (a.batch >= 0 && end < actions.size() && actions[end].batch == a.batch) ++end;
        // Messages that travel under the passes are not batched, and only batches are waited for by the host.
        // Source: megatron/core/pipeline_parallel/p2p_communication.py, _communicate (batch_p2p_comm and batch_p2p_sync).
        const bool batched = program.channels == Channels::per_rank;
        for (std::size_t k = i; k < end; ++k) writer.message(actions[k], batched);
        if (a.wait == Wait::at_issue)
          for (std::size_t k = i; k < end; ++k) writer.wait_for(actions[k]);
        const bool receives = std::any_of(actions.begin() + static_cast<std::ptrdiff_t>(i), actions.begin() + static_cast<std::ptrdiff_t>(end),
                                          [](const Action& x) { return x.kind == ActionKind::recv_forward || x.kind == ActionKind::recv_backward; });
        const bool polls = profile.message_poll > Duration{};
        if (a.wait == Wait::at_issue && batched && profile.message_sync && (receives || profile.send_sync || polls)) writer.synchronise();
        if (a.wait == Wait::at_issue && batched && polls) {
          // Two messages announce each tensor (an activation travels with its mask), one after the other: the first look comes half an
          // interval late on the average, each that follows a whole one. Source: nanotron 67c5ebb6, parallel/pipeline_parallel/p2p.py, _send_meta.
          int half_looks = 0;
          for (std::size_t k = i; k < end; ++k) half_looks += actions[k].kind == ActionKind::send_forward || actions[k].kind == ActionKind::recv_forward ? 7 : 3;
          writer.sleep(profile.message_poll * half_looks / 2);
        }
        i = end - 1;
        break;
      }
      case ActionKind::unshard: writer.unshard(a.chunk); break;
      case ActionKind::reshard: writer.reshard(a.chunk); break;
      case ActionKind::reduce_gradient: writer.reduce_gradient(a.chunk); break;
    }
  }
}

ChunkContents contents_of(const PipelineProgram& program, int rank, int chunk, const StageLayers& held) {
  ChunkContents contents{.embedding = held.embedding, .head = held.head, .loss = held.loss, .layers = std::vector<int>(static_cast<std::size_t>(held.count)), .micro_batches = program.micro_batches / program.replicas};
  std::iota(contents.layers.begin(), contents.layers.end(), held.first);
  for (const Action& a : program.ranks[static_cast<std::size_t>(rank)]) {
    contents.splits = contents.splits || (a.kind == ActionKind::backward_input && a.chunk == chunk);
    contents.reduces = contents.reduces || (a.kind == ActionKind::reduce_gradient && a.chunk == chunk);
    contents.overlaps = contents.overlaps || (a.kind == ActionKind::overlapped && (a.chunk == chunk || a.under_chunk == chunk));
  }
  return contents;
}

/// Slots that the rank's experts get, over the mean of the expert ranks, in all layers that it holds and all routings.
double load_of(const model::ModelDescription& model, const Strategy& strategy, int expert_rank, const std::vector<ChunkContents>& chunks) {
  const Degrees& d = strategy.parallelism.degrees;
  const std::int64_t tokens = strategy.tokens() / (strategy.parallelism.sequence_parallel ? d.tensor : 1);
  double mine = 0, mean = 0;
  for (const ChunkContents& chunk : chunks)
    for (const int layer : chunk.layers) {
      if (!model.layers[static_cast<std::size_t>(layer)].moe) continue;
      for (int draw = 0; draw < strategy.routing_draws(); ++draw) {
        const RankLoads loads = rank_loads(expert_slots(strategy.experts.routing, model.experts, {layer, draw}, tokens, strategy.experts.capacity_factor), d.expert);
        mine += static_cast<double>(loads.received[static_cast<std::size_t>(expert_rank)]);
        mean += static_cast<double>(loads.sent);
      }
    }
  return mean > 0 ? mine / mean : 1;
}

/// Chunk k of rank r is stage k * p + r: messages go round. Elsewhere they go down the ranks and back up.
bool is_looped(const PipelineProgram& program) {
  for (int r = 0; r < program.stages(); ++r)
    for (int k = 0; k < program.chunks(r); ++k)
      if (program.placement[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)] != Place{k * program.stages() + r}) return false;
  return true;
}

ChunkNeighbours neighbours_of(const PipelineProgram& program, int rank, int chunk, int index, const RankClasses& classes) {
  const auto previous = program.previous(rank, chunk), next = program.next(rank, chunk);
  ChunkNeighbours out;
  if (previous.rank == rank) out.previous_chunk = previous.chunk;
  else out.previous = classes.at_stage(index, previous.rank);
  if (next.rank == rank) out.next_chunk = next.chunk;
  else out.next = classes.at_stage(index, next.rank);
  if (!is_looped(program)) {
    out.previous_is_below = previous.rank < rank;
    out.next_is_above = next.rank > rank;
  }
  return out;
}

}  // namespace

PipelineShape pipeline_shape(const Strategy& strategy) {
  const Pipeline& p = strategy.pipeline;
  PipelineShape shape;
  shape.stages = strategy.parallelism.degrees.pipeline;
  shape.micro_batches = static_cast<int>(strategy.micro_batches() / p.accumulation_steps);
  shape.chunks = p.virtual_stages;
  shape.times = p.times;
  shape.group_size = p.group_size;
  shape.overlap_messages = p.overlap_messages.value_or(true);
  shape.overlap_warmup_flush = p.overlap_warmup_flush;
  shape.overlap_expert_messages = strategy.experts.overlap_exchange;
  return shape;
}

PipelineProgram schedule_of(const Strategy& strategy) {
  const PipelineShape shape = pipeline_shape(strategy);
  if (shape.stages == 1 && !shape.overlap_expert_messages) {
    // One stage: micro-batches one after the other.
    PipelineProgram program = empty_looped("none", shape, 1);
    for (int m = 0; m < shape.micro_batches; ++m) {
      program.ranks[0].push_back({.kind = ActionKind::forward, .micro_batch = m});
      program.ranks[0].push_back({.kind = ActionKind::backward, .micro_batch = m});
    }
    return program;
  }
  const PipelineSchedule* schedule = kPipelineSchedules.find(shape.stages == 1 ? "1f1b" : strategy.pipeline.schedule);
  // torch's runtime for schedules of many chunks gathers and frees fully_shard's parameters chunk by chunk.
  const int rounds = strategy.pipeline.accumulation_steps;
  if (schedule != nullptr && schedule->pytorch_runtime && strategy.data_parallel.kind == DataParallelKind::fsdp2)
    return in_rounds(with_messages(with_sharded_parameters(without_messages(schedule->make(shape)))), rounds);
  if (strategy.pipeline.schedule == "table") return in_rounds(parse_schedule_table(strategy.pipeline.table, strategy.pipeline.table_file), rounds);
  return in_rounds(schedule->make(shape), rounds);
}

/// A pass without gradients: the same order, forward only.
PipelineProgram forward_only(PipelineProgram program) {
  for (auto& actions : program.ranks)
    for (Action& a : actions)
      if (a.kind == ActionKind::overlapped) a = {.kind = ActionKind::forward, .chunk = a.chunk, .micro_batch = a.micro_batch};
  for (auto& actions : program.ranks)
    std::erase_if(actions, [](const Action& a) { return a.kind != ActionKind::forward && a.kind != ActionKind::send_forward && a.kind != ActionKind::recv_forward; });
  return program;
}

namespace {

/// Parameters and gradients of data-parallel ranks lie in buffers that NCCL knows.
void register_buffers(plan::Plan& plan) {
  for (plan::CollectiveSpec& c : plan.collectives)
    c.registered = (c.axis == plan::GroupAxis::data || c.axis == plan::GroupAxis::expert_data) && (c.kind == CollectiveKind::all_gather || c.kind == CollectiveKind::reduce_scatter);
}

/// Every GPU has a process of its own.
plan::Plan write_plan_of_processes(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node, Folding folding) {
  const Layout layout(cut_degrees(strategy, profile, gpus_per_node), strategy.parallelism.order);
  const PipelineProgram program = strategy.training.phase == StepKind::evaluation ? forward_only(schedule_of(strategy)) : schedule_of(strategy);
  const std::vector<StageLayers> layers = stage_layers(model, strategy, profile, program.virtual_stages);
  const bool by_expert = strategy.uneven_experts() && strategy.parallelism.degrees.expert > 1;
  const RankClasses classes(layout, folding, by_expert);
  GroupSizes sizes = sizes_of(layout.degrees());
  sizes.copies = program.replicas;

  plan::PlanBuilder builder;
  builder.plan().classes.resize(static_cast<std::size_t>(classes.count()));
  builder.plan().class_of_rank = classes.of_rank();
  for (int index = 0; index < classes.count(); ++index) {
    plan::RankClass& c = builder.plan().classes[static_cast<std::size_t>(index)];
    describe(c, index, classes, layout, gpus_per_node);
    const int r = classes.stage_of(index);
    std::vector<ChunkContents> chunks;
    std::vector<ChunkNeighbours> neighbours;
    for (int k = 0; k < program.chunks(r); ++k) {
      const int stage = program.placement[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)].stage;
      chunks.push_back(contents_of(program, r, k, layers[static_cast<std::size_t>(stage)]));
      neighbours.push_back(neighbours_of(program, r, k, index, classes));
    }
    sizes.expert_rank = classes.expert_rank_of(index);
    if (by_expert) c.expert_load = load_of(model, strategy, sizes.expert_rank, chunks);
    sizes.stage_before = classes.at_stage(index, r - 1);
    sizes.stage_after = r + 1 < program.stages() ? classes.at_stage(index, r + 1) : -1;
    StageWriter writer(model, strategy, profile, builder, c, sizes, std::move(chunks), std::move(neighbours));
    writer.setup(program.ranks[static_cast<std::size_t>(r)]);
    writer.begin_step();
    follow(program, r, profile, writer);
    writer.end_step();
    writer.finish();
  }
  return builder.take();
}

}  // namespace

plan::Plan write_plan(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, int gpus_per_node, Folding folding) {
  plan::Plan plan = strategy.data_parallel.kind == DataParallelKind::one_process ? write_one_process_plan(model, strategy, profile, gpus_per_node, folding)
                                                                                : write_plan_of_processes(model, strategy, profile, gpus_per_node, folding);
  carry_through_host(plan, strategy.backend);
  if (strategy.data_parallel.registered_buffers) register_buffers(plan);
  if (strategy.training.serial_collectives) serialise_collectives(plan);
  if (strategy.training.launch_blocking) block_launches(plan);
  return plan;
}

std::vector<std::int64_t> parameters_per_stage(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile) {
  const PipelineProgram program = schedule_of(strategy);
  const std::vector<StageLayers> layers = stage_layers(model, strategy, profile, program.virtual_stages);
  plan::PlanBuilder builder;
  LowerContext context = make_context(model, strategy, profile, builder);
  // Layers of one kind have one tape (stage_chunks.cpp): each is written once.
  std::vector<std::pair<std::pair<model::Layer, std::string>, std::int64_t>> kinds;
  auto layer_elements = [&](int layer) {
    const std::pair kind(model.layers[static_cast<std::size_t>(layer)], tuning_signature(strategy.tuning, layer));
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
    if (known != kinds.end()) return known->second;
    context.layer = layer;
    return kinds.emplace_back(kind, layer_tape(context, kind.first).elements()).second;
  };
  std::vector<std::int64_t> out;
  for (int r = 0; r < program.stages(); ++r) {
    std::int64_t n = 0;
    bool first = false;
    for (const Place& place : program.placement[static_cast<std::size_t>(r)]) first = first || layers[static_cast<std::size_t>(place.stage)].embedding;
    for (const Place& place : program.placement[static_cast<std::size_t>(r)]) {
      const StageLayers& held = layers[static_cast<std::size_t>(place.stage)];
      context.layer = -1;
      if (held.embedding) n += embedding_tape(context, false).elements();
      for (int layer = held.first; layer < held.first + held.count; ++layer) n += layer_elements(layer);
      context.layer = -1;
      if (held.head) n += head_tape(context, model.tied_embeddings && first).elements();
    }
    out.push_back(n);
  }
  return out;
}

}  // namespace rehearse::strategies
