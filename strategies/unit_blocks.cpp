#include "strategies/unit_blocks.h"

#include <algorithm>

#include "sim/core/contract.h"
#include "strategies/block_segments.h"

namespace rehearse::strategies {

namespace {

/// Modules around all layers: the model with its head, and the one inside it that ends with the final norm.
constexpr int kModelModules = 2;

}  // namespace

UnitBlocks::UnitBlocks(Stage& stage, const DataParallelWriter& data)
    : stage_(stage), data_(data), launching_(with_layer_host(stage.profile, stage.strategy)), taking_turns_(launching_), variants_(stage.units.size()) {
  // Threads of one process hold Python's lock in turn; backward is launched by autograd's threads, which need no lock.
  taking_turns_.kernel_host *= stage.sizes.data;
  for (Duration FrameworkProfile::*host : {&FrameworkProfile::layer_host, &FrameworkProfile::checkpoint_host, &FrameworkProfile::recompute_host, &FrameworkProfile::reentrant_host}) taking_turns_.*host *= stage.sizes.data;
  for (const Unit& u : stage.units) {
    const auto alike = std::find_if(stage.units.begin(), stage.units.end(), [&](const Unit& other) { return other.runs_like(u); });
    first_alike_.push_back(static_cast<std::size_t>(alike - stage.units.begin()));
  }
}

std::uint32_t UnitBlocks::block_of(std::size_t unit, Pass pass, int micro_batch, bool first) {
  const std::size_t draw = stage_.units[unit].draw_of(micro_batch);
  switch (pass) {
    case Pass::forward: return blocks(unit, {data_.gradient_mode(true), SplitBackward::none, draw, first_pass(unit)}).forward;
    case Pass::backward: return blocks(unit, {data_.gradient_mode(first), SplitBackward::none, draw}).backward;
    case Pass::input_gradients: return blocks(unit, {data_.gradient_mode(first), split(), draw}).backward;
    case Pass::weight_gradients: break;
  }
  return blocks(unit, {data_.gradient_mode(first), split(), draw}).weights;
}

const std::vector<std::uint32_t>& UnitBlocks::segments_of(std::uint32_t block) {
  auto it = segments_.find(block);
  if (it == segments_.end()) it = segments_.emplace(block, strategies::segments_of(stage_.builder, block)).first;
  return it->second;
}

const std::vector<std::uint32_t>& UnitBlocks::hooked_parts(std::size_t unit, Pass pass, int micro_batch) {
  const std::uint32_t block = pass == Pass::forward ? whole(unit, micro_batch).forward : whole(unit, micro_batch).backward;
  auto it = parts_.find(block);
  if (it != parts_.end()) return it->second;
  std::vector<plan::Cut> places;
  for (const HookPoint& point : hooks(unit, pass, micro_batch)) places.push_back(point.at);
  return parts_.emplace(block, parts_of(stage_.builder, block, places)).first->second;
}

const std::vector<OffloadPoint>& UnitBlocks::offload_points(std::size_t unit, Pass pass, int micro_batch, bool first) {
  EXPECTS(pass == Pass::forward || pass == Pass::backward, "a backward in two halves brings nothing back by modules");
  const TapeBlocks& b = blocks(unit, {data_.gradient_mode(pass == Pass::forward || first), SplitBackward::none, stage_.units[unit].draw_of(micro_batch)});
  return pass == Pass::forward ? b.forward_offloads : b.backward_offloads;
}

const std::vector<std::uint32_t>& UnitBlocks::offload_parts(std::size_t unit, Pass pass, int micro_batch, bool first) {
  const std::uint32_t block = block_of(unit, pass, micro_batch, first);
  auto it = parts_.find(block);
  if (it != parts_.end()) return it->second;
  std::vector<plan::Cut> places;
  for (const OffloadPoint& point : offload_points(unit, pass, micro_batch, first)) places.push_back(point.at);
  return parts_.emplace(block, parts_of(stage_.builder, block, places)).first->second;
}

std::uint32_t UnitBlocks::slots(std::size_t unit, const StageChunk& chunk) {
  std::uint32_t most = 0;
  const std::size_t draws = stage_.units[unit].draws != nullptr ? stage_.units[unit].draws->size() : 1;
  for (std::size_t draw = 0; draw < draws; ++draw)
    for (const bool first : {true, false})
      for (const bool in_two : {false, true}) {
        if (in_two && !chunk.contents.splits && !may_defer(unit, chunk)) continue;
        const TapeBlocks& b = blocks(unit, {data_.gradient_mode(first), in_two ? split() : SplitBackward::none, draw});
        most = std::max(most, b.slots);
        if (first_pass(unit) != FirstPass::recorded) most = std::max(most, blocks(unit, {data_.gradient_mode(first), SplitBackward::none, draw, first_pass(unit)}).slots);
        if (chunk.contents.overlaps && !in_two)
          for (std::uint32_t id : {b.forward, b.backward}) most = std::max(most, slots_with_cuts(stage_.builder.block(id)));
      }
  return most;
}

SplitBackward UnitBlocks::split() const {
  const bool taken_each_time = data_.gradient_mode(false) == WeightGradient::first;
  return stage_.profile.retains_graph || taken_each_time ? SplitBackward::retained_graph : SplitBackward::stored_operands;
}

bool UnitBlocks::may_defer(std::size_t unit, const StageChunk& chunk) const {
  return chunk.contents.head && unit + 1 == chunk.last && stage_.strategy.pipeline.deferred_head_gradients.has_value() && !stage_.evaluates();
}

UnitBlocks::FirstPass UnitBlocks::first_pass(std::size_t unit) const {
  const Unit& u = stage_.units[unit];
  return u.span == 1 || !stage_.runs_backward(unit) ? FirstPass::recorded : u.of_span == 0 ? FirstPass::keeps_input : FirstPass::keeps_nothing;
}

const TapeBlocks& UnitBlocks::blocks(std::size_t unit, const Variant& variant) {
  Variants& variants = variants_[first_alike_[unit]];
  if (variants.last != nullptr && variants.last->first == variant) return variants.last->second;
  auto it = variants.all.find(variant);
  if (it == variants.all.end()) it = variants.all.emplace(variant, emit_unit(stage_.units[unit], variant)).first;
  variants.last = &*it;
  return it->second;
}

TapeBlocks UnitBlocks::emit_unit(const Unit& u, const Variant& variant) {
  const Tape& tape = u.tape_of_draw(variant.draw);
  EmitOptions options;
  options.checkpoint = u.checkpoint;
  options.recorded = !stage_.evaluates() && variant.first_pass == FirstPass::recorded;
  options.keeps_input = variant.first_pass == FirstPass::keeps_input && tape.input != kNoTensor;
  options.gradient = variant.mode;
  options.input_gradient = u.input_gradient;
  options.gradient_element_bytes = data_.gradient_element_bytes();
  options.main_gradient_element_bytes = data_.main_gradient_element_bytes();
  if (stage_.rank_class.groups[static_cast<std::size_t>(plan::GroupAxis::tensor)].nodes > 1) options.collective_wait = stage_.profile.ring_step_wait * (stage_.sizes.tensor - 1);
  else if (stage_.profile.proxies_always_stall || !stage_.rank_class.stage_peers_other_node.empty()) options.collective_wait = stage_.profile.proxy_stall * stage_.sizes.tensor;
  if (stage_.profile.workspaces.size() > 1) options.backward_workspace = stage_.profile.workspaces[1].value;
  options.backward_workspace_slot = Stage::kBackwardWorkspace;
  options.split = variant.split;
  options.retains_ends = u.retains;
  options.above_retains = u.above_retains;
  if (stage_.strategy.data_parallel.kind == DataParallelKind::zero2) options.hooked_gradients = static_cast<int>(std::count_if(tape.weights.begin(), tape.weights.end(), [](const Weight& w) { return w.trainable; }));
  options.hooks_above = data_.hooks_above();
  options.output_gradient_asked = tape.input == kNoTensor && stage_.profile.input_require_gradients && stage_.strategy.memory.recompute != Recompute::none;
  options.modules_around = kModelModules + (stage_.strategy.tuning.low_rank() ? 1 : 0);   // PeftModel and LoraModel, which calls the model with its head past its hooks
  options.gather_again = data_.gather_again(u);
  options.least_offloaded = 2 * stage_.strategy.memory.offload.least_elements;   // of 16 bits, as most are
  return emit(tape, options, u.in_parallel ? taking_turns_ : launching_, stage_.builder);
}

}  // namespace rehearse::strategies
