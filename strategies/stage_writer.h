// Writes one rank class's program: the schedule's actions, the step around them, and what is done once before it.
// Leaves out the order of actions (pipeline/), how a pass goes through units (stage_passes.h) and what a layer is (layer/).
#pragma once

#include <memory>
#include <vector>

#include "strategies/pipeline/schedule.h"
#include "strategies/stage_chunks.h"

namespace rehearse::strategies {

class StageWriter {
 public:
  StageWriter(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class,
              GroupSizes sizes, const std::vector<ChunkContents>& chunks, const std::vector<ChunkNeighbours>& neighbours);
  ~StageWriter();

  /// `actions`: what this rank is going to do in a step.
  void setup(const std::vector<Action>& actions);
  void begin_step();
  void forward(int chunk, int micro_batch);
  void backward(int chunk, int micro_batch);
  void backward_input(int chunk, int micro_batch);
  void backward_weight(int chunk, int micro_batch);
  /// A forward and a whole backward at once: where one waits for communication, the other computes.
  void overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch);
  /// Messages of a chunk's boundary, named as in pipeline/schedule.h. Issued only: computation waits at its first use,
  /// or at wait_for.
  void message(const Action& action, bool batched);
  void wait_for(const Action& action);
  /// The host waits until the device has done everything (torch.cuda.synchronize).
  void synchronise();
  void sleep(Duration time);   // of the host thread
  /// FSDP's actions on a chunk. A schedule that has `reduce_gradient` decides when that is; else it follows the chunk's last
  /// backward.
  void unshard(int chunk);
  void reshard(int chunk);
  void reduce_gradient(int chunk);
  /// Host time of a chunk's passes: one process's other threads wait for the one that has the loss.
  Duration launch_time(int chunk);
  void wait_for_thread(Duration busy);
  void end_step();
  /// Fixes the program's size; call last.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rehearse::strategies
