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

/// What one model chunk of a rank holds, and what its schedule does with it.
struct ChunkContents {
  bool embedding = false, head = false, loss = false;   // head: final norm and output layer
  std::vector<int> layers;          // global layer numbers
  std::int64_t micro_batches = 1;   // that pass through it
  bool splits = false;              // backward may come in two actions
  bool overlaps = false;            // a forward may run together with a backward of another chunk
  bool reduces = false;             // the schedule says when its gradients are reduced
};

/// Where a chunk's activations come from and go to: rank classes, or nothing at the ends of the model. A neighbouring
/// chunk on the same rank hands its tensor over without a message.
struct ChunkNeighbours {
  int previous = -1, next = -1;              // rank class; -1: this chunk begins or ends the model
  int previous_chunk = -1, next_chunk = -1;  // of this rank; -1: the neighbour is elsewhere
  bool previous_is_below = true, next_is_above = true;  // on the side of the ranks before and after this one
  bool gathered = false;                     // outputs of all replicas meet on the first GPU's last chunk (one process)
  bool begins() const { return previous < 0 && previous_chunk < 0; }
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
  void backward_input(int chunk, int micro_batch);
  void backward_weight(int chunk, int micro_batch);
  /// A forward and a whole backward at once: where one waits for communication, the other computes.
  void overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch);
  /// Messages of a chunk's boundary, named as in pipeline/schedule.h. Issued only: computation waits at its first use,
  /// or at wait_for.
  void message(const Action& action);
  void wait_for(const Action& action);
  /// The host waits until the device has done everything (torch.cuda.synchronize).
  void synchronise();
  /// FSDP's actions on a chunk. A schedule that has `reduce_gradient` decides when that is; else it follows the chunk's last
  /// backward.
  void unshard(int chunk);
  void reshard(int chunk);
  void reduce_gradient(int chunk);
  /// Host time of a chunk's passes: one process's other threads wait for the one that has the loss.
  Duration launch_time(int chunk) const;
  void wait_for_thread(Duration busy);
  void end_step();
  /// Fixes the program's size; call last.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::strategies
