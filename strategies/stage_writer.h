// Writes one rank class's program: expands the schedule's actions into units, layers into blocks, and calls the hooks of
// the data-parallel strategy around them. Leaves out the order of actions (pipeline/) and what a layer is (layer/).
#pragma once

#include <memory>
#include <vector>

#include "strategies/data/data_parallel.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/pipeline/schedule.h"
#include "strategies/stage.h"

namespace rehearse::strategies {

/// What one model chunk of a rank holds.
struct ChunkContents {
  bool embedding = false, head = false, loss = false;   // head: final norm and output layer
  std::vector<int> layers;          // global layer numbers
};

/// Where a chunk's activations come from and go to: rank classes, or nothing at the ends of the model.
struct ChunkNeighbours {
  int previous = -1, next = -1;     // rank class; -1: this chunk begins or ends the model
};

class StageWriter {
 public:
  StageWriter(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class,
              GroupSizes sizes, std::vector<ChunkContents> chunks, std::vector<ChunkNeighbours> neighbours);
  ~StageWriter();

  void setup();
  void begin_step();
  void forward(int chunk, int micro_batch);
  void backward(int chunk, int micro_batch);
  /// Messages of a chunk's boundary, named as in pipeline/schedule.h. Issued only: computation waits at its first use,
  /// or at wait_for.
  void message(const Action& action);
  void wait_for(const Action& action);
  /// The host waits until the device has done everything (torch.cuda.synchronize).
  void synchronise();
  void end_step();
  /// Fixes the program's size; call last.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::strategies
