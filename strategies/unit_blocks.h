// The blocks of a rank's units in each variant that its passes use; units with the same tape share them.
// Leaves out how a tape becomes blocks (layer/tape_emitter.h) and when they are called (stage_passes.h).
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "strategies/data/data_parallel.h"
#include "strategies/stage_chunks.h"

namespace rehearse::strategies {

/// What a call of a unit's block makes.
enum class Pass : std::uint8_t { forward, backward, input_gradients, weight_gradients };

class UnitBlocks {
 public:
  UnitBlocks(Stage& stage, const DataParallelWriter& data);

  /// `first`: no micro-batch has made gradients of this kind in this step. Forward of a unit under a checkpoint of several leaves nothing for backward.
  std::uint32_t block_of(std::size_t unit, Pass pass, int micro_batch, bool first);
  /// Forward of such a unit within backward.
  std::uint32_t again(std::size_t unit, int micro_batch) { return whole(unit, micro_batch).forward; }
  /// The unit's blocks leave something behind that goes with the graph of the micro-batch: what lets go of it, and more.
  bool outlives(std::size_t unit) { return stage_.runs_backward(unit) && whole(unit, 0).drop_graph != plan::kNoFrame; }
  /// Of a backward in one piece, the step's first.
  const TapeBlocks& whole(std::size_t unit, int micro_batch) { return blocks(unit, {data_.gradient_mode(true), SplitBackward::none, stage_.units[unit].draw_of(micro_batch)}); }
  /// Its parts, cut where compute would wait.
  const std::vector<std::uint32_t>& segments_of(std::uint32_t block);
  /// Where modules have hooks in a pass, and the parts between them (plan::kNoFrame: empty).
  const std::vector<HookPoint>& hooks(std::size_t unit, Pass pass, int micro_batch) { return pass == Pass::forward ? whole(unit, micro_batch).forward_hooks : whole(unit, micro_batch).backward_hooks; }
  const std::vector<std::uint32_t>& hooked_parts(std::size_t unit, Pass pass, int micro_batch);
  /// Of what waits in host memory by modules: the groups, where a pass meets them, and the parts of the block between these places.
  const std::vector<OffloadedGroup>& offloaded(std::size_t unit, int micro_batch) { return whole(unit, micro_batch).offloaded; }
  const std::vector<OffloadPoint>& offload_points(std::size_t unit, Pass pass, int micro_batch, bool first);
  const std::vector<std::uint32_t>& offload_parts(std::size_t unit, Pass pass, int micro_batch, bool first);
  /// Slots of the unit's frame, in all variants that its chunk's passes may use.
  std::uint32_t slots(std::size_t unit, const StageChunk& chunk);

  /// How backward is split, where a schedule does it. Who takes the gradients away after each micro-batch cannot take some
  /// of them early: only autograd's own split will do.
  SplitBackward split() const;
  /// The unit's weight gradients may wait for the end of the step: Megatron's --defer-embedding-wgrad-compute.
  bool may_defer(std::size_t unit, const StageChunk& chunk) const;

 private:
  /// Of a unit under a checkpoint of several nothing is kept, but for the first one's input.
  enum class FirstPass : std::uint8_t { recorded, keeps_input, keeps_nothing };
  /// What a unit's blocks depend on beside the unit.
  struct Variant {
    WeightGradient mode;
    SplitBackward split;
    std::size_t draw = 0;
    FirstPass first_pass = FirstPass::recorded;
    auto operator<=>(const Variant&) const = default;
  };
  struct Variants {
    std::map<Variant, TapeBlocks> all;
    const std::pair<const Variant, TapeBlocks>* last = nullptr;   // asked for: a pass goes through many units with one variant
  };
  FirstPass first_pass(std::size_t unit) const;
  const TapeBlocks& blocks(std::size_t unit, const Variant& variant);
  TapeBlocks emit_unit(const Unit& unit, const Variant& variant);

  Stage& stage_;
  const DataParallelWriter& data_;
  FrameworkProfile launching_;             // the stage's, with what its layers cost the host
  FrameworkProfile taking_turns_;          // launches of one of several threads
  std::vector<std::size_t> first_alike_;   // by unit: the first one that the same blocks serve
  std::vector<Variants> variants_;         // by such a unit
  std::map<std::uint32_t, std::vector<std::uint32_t>> segments_;   // of blocks that overlap
  std::map<std::uint32_t, std::vector<std::uint32_t>> parts_;      // of blocks with hooks, or with groups that are offloaded
};

}  // namespace rehearse::strategies
