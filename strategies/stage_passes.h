// Passes of micro-batches through one rank's chunks: units in order, the hooks of the data-parallel strategy and of offloading
// around each, frames from the first action that needs them to the last.
// Leaves out messages between ranks (stage_messages.h) and what becomes of gradients at the end of the step (data/).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "strategies/kept_graphs.h"
#include "strategies/memory/activation_offload.h"
#include "strategies/memory/device_map.h"
#include "strategies/memory/module_offload.h"
#include "strategies/memory/saved_offload.h"
#include "strategies/stage_messages.h"
#include "strategies/unit_blocks.h"

namespace rehearse::strategies {

class StagePasses {
 public:
  /// `input_bytes`: of a layer's input on this rank.
  StagePasses(Stage& stage, const StageChunks& chunks, DataParallelWriter& data, StageFrames& frames, StageMessages& messages, std::int64_t input_bytes);

  void setup() { graphs_.setup(); }
  void begin_step();
  void end_step() { graphs_.end_step(); }
  void forward(int chunk, int micro_batch) { run(chunk, micro_batch, Pass::forward); }
  void backward(int chunk, int micro_batch);
  void backward_input(int chunk, int micro_batch);
  void backward_weight(int chunk, int micro_batch);
  /// A forward and a whole backward, in turn. Where tokens travel to experts: layer by layer, the backward first, so that each exchange
  /// of one runs beside what the other computes.
  void overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch);
  /// Makes the weight gradients of the output layer that were left for the end.
  void make_deferred_gradients();
  /// Host time of a chunk's passes.
  Duration launch_time(int chunk);

 private:
  /// Backward passes of a chunk in this step so far, of either half.
  struct Done {
    std::int64_t input_gradients = 0, weight_gradients = 0;
  };
  /// A micro-batch whose weight gradients of the output layer are still to come.
  struct Deferred {
    std::size_t unit = 0;
    int chunk = 0, micro_batch = 0;
  };

  Done& done(int chunk) { return done_[static_cast<std::size_t>(chunk)]; }
  void run(int chunk, int micro_batch, Pass pass);
  void run_unit(std::size_t unit, int chunk, int micro_batch, Pass pass);
  void run_hooked(plan::Call call, std::size_t unit, int micro_batch, Pass pass);
  void run_in_groups(plan::Call call, std::size_t unit, int chunk, int micro_batch, Pass pass);
  ModuleOffload::Place offload_place(std::size_t unit, int chunk, int micro_batch, Pass pass);
  bool leaves(std::size_t unit, int chunk, int micro_batch);
  std::vector<ModuleUse> module_uses();
  void begin_unit(std::size_t unit, int micro_batch, Pass pass);
  void end_unit(std::size_t unit, int chunk, int micro_batch, Pass pass);
  void count(int chunk, Pass pass);
  /// Parts of a pass, each up to a place where compute would wait for communication.
  using Steps = std::vector<std::function<void()>>;
  Steps steps(std::size_t unit, int chunk, int micro_batch, Pass pass);
  std::vector<std::size_t> units_of(int chunk, Pass pass) const;
  bool exchanges_tokens(int chunk, int micro_batch);
  void overlap_layers(int chunk, int micro_batch, int under_chunk, int under_micro_batch);

  std::uint32_t block_of(std::size_t unit, int chunk, int micro_batch, Pass pass);
  plan::Call unit_call(std::size_t unit, int chunk, int micro_batch, Pass pass);
  std::uint32_t frame_of(std::size_t unit, int chunk, int micro_batch);
  void release(std::size_t unit, int chunk, int micro_batch);
  void make_again(std::size_t last, int chunk, int micro_batch);
  void free_sent(std::size_t unit, int chunk, int micro_batch);
  void free_output(std::size_t unit, int chunk, int micro_batch);
  std::optional<StoredInput> stored_input(std::size_t unit, int chunk, int micro_batch, Pass pass);
  /// Offloads what a layer's forward keeps, and brings back what its backward reads.
  void offload_saved(std::size_t unit, int chunk, int micro_batch, Pass pass);
  SavedOffload::Layer saved_layer(std::size_t layer, int chunk, int micro_batch, Pass pass);
  /// A chunk's layers that run backward.
  const std::vector<std::size_t>& layers_of(int chunk);

  bool splits_nothing(int chunk) const;
  bool defers(std::size_t unit, int chunk, Pass pass) const;
  bool keeps_fetched(std::size_t unit) const;

  Stage& stage_;
  const StageChunks& chunks_;
  DataParallelWriter& data_;
  StageFrames& frames_;
  StageMessages& messages_;
  UnitBlocks blocks_;
  KeptGraphs graphs_;
  ActivationOffload inputs_;
  SavedOffload saved_;
  ModuleOffload modules_;
  DeviceMapWriter weights_on_host_;
  std::int64_t input_bytes_;
  std::vector<Done> done_;            // by chunk
  std::vector<std::uint32_t> slots_;  // of a unit's frame, 0: not known yet
  std::vector<std::vector<std::size_t>> layers_;   // by chunk, once asked for
  std::vector<Deferred> deferred_;
  bool followed_ = false;             // the data-parallel strategy knows which modules a micro-batch uses
};

}  // namespace rehearse::strategies
