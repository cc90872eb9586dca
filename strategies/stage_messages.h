// Messages of one rank's chunks with their neighbours: sends, receives, and compute's waits for them.
// Leaves out in which order a schedule wants them (pipeline/messages.h).
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "strategies/pipeline/schedule.h"
#include "strategies/stage_chunks.h"
#include "strategies/stage_frames.h"

namespace rehearse::strategies {

class StageMessages {
 public:
  StageMessages(Stage& stage, const StageChunks& chunks, StageFrames& frames) : stage_(stage), chunks_(chunks), frames_(frames) {}

  /// Issued only: computation waits at its first use, or at wait_for. `batched` with others, so in the communicator of all stages.
  void issue(const Action& action, bool batched);
  void wait_for(const Action& action);
  /// Before a forward and a backward, where what they need comes from another rank.
  void wait_for_input(int chunk, int micro_batch);
  void wait_for_gradient(int chunk, int micro_batch);

 private:
  void exchange(const Action& action);
  std::uint32_t block_of(const Action& action, int peer, bool batched);
  std::uint32_t boundary(const Action& action);
  void through(const Action& action);
  std::int64_t bytes_of(const Action& action) const;
  bool splits(std::int64_t bytes) const;
  void wait(bool forward, std::uint32_t frame, int micro_batch);
  void gather(std::int64_t bytes, int micro_batch);

  Stage& stage_;
  const StageChunks& chunks_;
  StageFrames& frames_;
  std::map<std::tuple<ActionKind, int, plan::Stream, std::int64_t, bool>, std::uint32_t> blocks_;   // kind, peer, stream, bytes, batched
  std::optional<std::uint32_t> waits_for_activation_, waits_for_gradient_;                          // blocks
  std::map<std::int64_t, std::uint32_t> gathers_;                                                   // blocks by whole bytes
};

}  // namespace rehearse::strategies
