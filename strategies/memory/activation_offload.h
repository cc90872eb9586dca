// Checkpointed layer inputs that wait for backward elsewhere: in host memory, a piece on each tensor rank, or in buffers that
// were made together (DeepSpeed's contiguous_memory_optimization).
// Leaves out what a checkpoint is (layer/tape_emitter.h) and who calls when (stage_passes.cpp).
#pragma once

#include <optional>

#include "strategies/stage.h"

namespace rehearse::strategies {

/// Where the input of a unit lies, and the unit's own frame with kOffloadSlots behind its tape's slots.
struct StoredInput {
  plan::Call call;              // frames as the unit's own calls have them
  std::uint32_t extra = 0;      // first of kOffloadSlots in the own frame
  std::int64_t bytes = 0;       // of the input on this rank
};

class ActivationOffload {
 public:
  static constexpr std::uint32_t kOffloadSlots = 4;   // shard, gone, back, spare

  explicit ActivationOffload(Stage& stage);
  bool active() const { return to_host_ || partitions_ || contiguous_ || synchronises_; }
  /// Copies run ahead of their use.
  bool ahead() const { return to_host_ && pinned_; }

  void store(const StoredInput& input);   // after the unit's forward
  void settle();                          // lets go of what has been copied last: before backward
  void fetch(const StoredInput& input);   // issued before the unit's backward, or one unit earlier
  void use(const StoredInput& input);     // just before the unit's backward
  void done();                            // after the unit's backward

 private:
  template <typename Write>
  void call(const StoredInput& input, const std::string& name, plan::Phase phase, Write write);
  void make_buffers(std::int64_t bytes);
  void synchronise(plan::Phase phase);
  std::int64_t kept(std::int64_t bytes) const { return partitions_ ? bytes / stage_.sizes.tensor : bytes; }

  Stage& stage_;
  std::optional<StoredInput> leaving_;    // being copied; let go of when the next one is
  bool to_host_ = false, partitions_ = false, pinned_ = true;
  bool contiguous_ = false, synchronises_ = false;
  std::int64_t live_ = 0, peak_ = 0;
  std::uint32_t buffers_ = 0;                        // a slot for each buffer
  int number_ = 0, filled_ = 0;                      // buffers; of these, how many hold an input
  bool taking_ = false;                              // backward has begun to empty them
};

}  // namespace rehearse::strategies
