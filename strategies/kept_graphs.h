// What outlives a micro-batch's backward on one rank: what its recorded graph holds beside what backward reads, until the graph goes, a
// recomputation's graph that the layer's dispatcher holds until the layer runs again, and the ends of checkpoints that FSDP watches. Leaves out which tensors these are (layer/tape_emitter.h, outliving).
#pragma once

#include <algorithm>
#include <vector>

#include "strategies/stage_frames.h"
#include "strategies/unit_blocks.h"

namespace rehearse::strategies {

class KeptGraphs {
 public:
  KeptGraphs(Stage& stage, const StageChunks& chunks, UnitBlocks& blocks, StageFrames& frames) : stage_(stage), chunks_(chunks), blocks_(blocks), frames_(frames) {}

  /// How many more need a unit's frame than its passes.
  int users(std::size_t unit) { return (blocks_.outlives(unit) ? 1 : 0) + (stage_.units[unit].above_retains ? 1 : 0); }
  /// A step begins with the graph of the last micro-batch of the step before, where the training loop holds one.
  void setup();
  void forward_begins(std::size_t unit, int micro_batch);
  void backward_of_unit_begins(std::size_t unit, int micro_batch);
  void loss_is_there(int micro_batch);
  void backward_of_unit_is_over(std::size_t unit, int micro_batch);
  void backward_is_over(int chunk, int micro_batch);
  void end_step();

 private:
  /// The training loop's variable holds a graph until the next loss is there.
  bool held_by_loop() const { return stage_.profile.holds_last_graph && chunks_.chunks.size() == 1 && stage_.sizes.pipeline == 1 && !stage_.evaluates(); }
  /// An object of each layer holds the graph of a recomputation until the layer runs again. Left out where backward is split.
  bool held_by_layers() const {
    return stage_.profile.dispatcher_keeps_weights && std::none_of(chunks_.chunks.begin(), chunks_.chunks.end(), [](const StageChunk& c) { return c.contents.splits; });
  }
  void let_go(std::size_t unit, plan::Phase phase, int micro_batch);
  plan::Call call(std::size_t unit, std::uint32_t block, plan::Phase phase, int micro_batch, std::uint32_t own) const;
  void drop(int chunk, int micro_batch);

  Stage& stage_;
  const StageChunks& chunks_;
  UnitBlocks& blocks_;
  StageFrames& frames_;
  int held_ = -1;                            // micro-batch; -1: of the step before, or none
  int last_ = 0;                             // micro-batch of a step
  std::vector<std::uint32_t> of_before_;     // frames of the step before's, by unit
  std::vector<int> held_of_;                 // micro-batch, by unit, where layers hold their graphs; as held_, kNothing: none
  static constexpr int kNothing = -2;
};

}  // namespace rehearse::strategies
