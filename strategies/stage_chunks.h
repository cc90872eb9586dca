// The model chunks of one rank and their units: which tapes they hold and which gradients they want.
// Leaves out the blocks that tapes become (unit_blocks.h) and the order of passes (stage_passes.h).
#pragma once

#include <deque>
#include <vector>

#include "strategies/layer/operators.h"
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
  bool ends() const { return next < 0 && next_chunk < 0; }
};

/// A chunk with its place among the rank's units.
struct StageChunk {
  ChunkContents contents;
  ChunkNeighbours neighbours;
  std::size_t first = 0, last = 0;            // units [first, last)
  std::int64_t bytes_in = 0, bytes_out = 0;   // of the messages to its neighbours
};

struct StageChunks {
  std::deque<Tape> tapes;        // owns; stable addresses. Units of equal layers share one
  std::deque<std::vector<const Tape*>> draws;   // a layer's, where micro-batches are routed differently
  std::vector<StageChunk> chunks;
  bool tied = false;             // embedding and head share their table on this rank

  const StageChunk& operator[](int chunk) const { return chunks[static_cast<std::size_t>(chunk)]; }
};

/// Fills stage.units with the units of these chunks, in order.
StageChunks stage_chunks(const LowerContext& context, Stage& stage, const std::vector<ChunkContents>& contents, const std::vector<ChunkNeighbours>& neighbours);

}  // namespace rehearse::strategies
