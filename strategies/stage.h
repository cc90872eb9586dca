// One rank's share of the model and the program being written for it: units (embedding, layers, head), frames, calls.
// The pipeline schedule drives it (stage_writer.h, stage_passes.h); data-parallel strategies hook into it (data/data_parallel.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/core/contract.h"
#include "sim/plan/builder.h"
#include "strategies/framework/profile.h"
#include "strategies/layer/tape.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Parameters that are kept, gathered and reduced together: one layer, the embedding, or norm + head.
struct Unit {
  const Tape* tape = nullptr;
  const std::vector<const Tape*>* draws = nullptr;   // of micro-batches that the router treats differently, `tape` the first; null: all alike
  int layer = -1;               // global layer number, -1 for embedding and head
  int chunk = 0;                // of this rank
  std::uint32_t frame = 0;      // unit frame: one slot per weight (its gradient), then kUnitExtraSlots
  bool checkpoint = false;      // only its input is kept; backward runs it again
  int span = 1;                 // units under one checkpoint: only the first one's input is kept; backward of the last runs all of them again
  int of_span = 0;              // which of them this is
  bool input_gradient = true;   // somebody below wants a gradient
  bool in_parallel = false;     // launched by threads that take turns (torch.nn.DataParallel)
  bool retains = false;         // its ends stay until backward is over (kept_graphs.h)
  bool above_retains = false;   // those of the unit above do
  bool trainable() const { return tape->trainable_elements() > 0; }
  bool ends_span() const { return span > 1 && of_span + 1 == span; }
  std::size_t draw_of(int micro_batch) const { return draws != nullptr && micro_batch >= 0 ? static_cast<std::size_t>(micro_batch) % draws->size() : 0; }
  const Tape& tape_of_draw(std::size_t draw) const { return draws != nullptr ? *(*draws)[draw] : *tape; }
  /// The same blocks serve both.
  bool runs_like(const Unit& other) const {
    return tape == other.tape && checkpoint == other.checkpoint && input_gradient == other.input_gradient && in_parallel == other.in_parallel && retains == other.retains &&
           above_retains == other.above_retains;
  }
};
constexpr std::uint32_t kForeachSlot = 9;   // of those, the optimizer's
constexpr std::uint32_t kUnitExtraSlots = 10;

/// How many ranks share what. `shard` divides optimizer states (and more); `replicate` repeats the shards.
struct GroupSizes {
  int tensor = 1;
  int data = 1;        // data x context: everybody whose gradients are summed
  int shard = 1;
  int replicate = 1;
  int secondary = 1;   // that hold a second copy of the weights together (ZeRO++ hpZ)
  int inside = 1;      // of `shard`, that reduce quantised gradients first (ZeRO++ qgZ)
  int expert_data = 1; // ranks that hold the same experts: shards and sums for expert weights
  int pipeline = 1;
  int copies = 1;      // of the model that a pipeline holds (bidirectional schedules)
  int expert_inside = 1; // of an expert group: that exchange tokens first (hierarchical all-to-all)
  int expert_rank = 0; // which of the expert-parallel ranks this is
  int stage_before = -1, stage_after = -1;  // rank classes of the neighbours in the pipeline

  /// Ranks that share the states of a part.
  int sharing(Part part) const { return part == Part::experts ? expert_data : shard; }
};

class Stage {
 public:
  Stage(const Strategy& chosen, const FrameworkProfile& framework, plan::PlanBuilder& plan_builder, plan::RankClass& ranks, GroupSizes groups, std::int64_t model_layers)
      : strategy(chosen), profile(framework), builder(plan_builder), rank_class(ranks), sizes(groups), persistent(frames.acquire(kPersistentSlots)), layers(model_layers) {}

  const Strategy& strategy;
  const FrameworkProfile& profile;
  plan::PlanBuilder& builder;
  plan::RankClass& rank_class;
  GroupSizes sizes;
  std::vector<Unit> units;      // all chunks, in forward order of the chunks
  plan::FrameAllocator frames;
  static constexpr std::uint32_t kPersistentSlots = 256;
  static constexpr std::uint32_t kNamedSlots = 40;   // the last ones, which writers name by their distance from the end
  static constexpr std::uint32_t kBackwardWorkspace = kPersistentSlots - 30;   // counted from the program's first slot, as the frame is its first
  std::uint32_t persistent;     // first slot of this rank's persistent tensors

  bool in_setup = false;
  std::int64_t layers;              // of the model
  std::int64_t bytes_on_host = 0;   // parameters that a device map keeps there

  /// The block that `write` writes, once per key; kNoFrame: nothing was written.
  template <typename Write>
  std::uint32_t block(const std::string& key, Write write) {
    auto it = blocks_.find(key);
    if (it != blocks_.end() && !rewrites_blocks) return it->second;
    plan::BlockWriter writer(key);
    write(writer);
    if (it == blocks_.end()) return blocks_.emplace(key, writer.empty() ? plan::kNoFrame : builder.add_block(writer.take())).first->second;
    ENSURES(it->second == plan::kNoFrame ? writer.empty() : builder.block(it->second) == writer.take(), "block '" + key + "' has a key that stands for two");
    return it->second;
  }
  static inline bool rewrites_blocks = false;   // for tests: a key that comes back must stand for the same instructions

  /// Appends a call of `block`; blocks with the same key are written once.
  template <typename Write>
  void call(const std::string& key, plan::Phase phase, const Unit* unit, Write write, int micro_batch = -1) {
    const std::uint32_t id = block(key, write);
    if (id == plan::kNoFrame) return;
    plan::Call c{.block = id, .phase = phase, .micro_batch = micro_batch};
    c.frames[static_cast<std::size_t>(plan::Frame::own)] = persistent;
    if (unit != nullptr) {
      c.frames[static_cast<std::size_t>(plan::Frame::unit)] = unit->frame;
      c.layer = static_cast<std::int16_t>(unit->layer);
    }
    append(c);
  }
  void append(const plan::Call& c) { (in_setup ? rank_class.program.setup : rank_class.program.step).push_back(c); }

  /// A persistent tensor of this rank: a slot in the persistent frame.
  std::uint32_t persistent_slot() {
    EXPECTS(persistent_used_ < kPersistentSlots - kNamedSlots, "more persistent tensors than slots");
    return persistent_used_++;
  }
  bool runs_backward(std::size_t unit) const { return !evaluates() && (units[unit].input_gradient || units[unit].trainable()); }
  bool evaluates() const { return strategy.training.phase == StepKind::evaluation; }
  /// A chunk's output stays after it has been sent, until its backward.
  bool keeps_sent() const { return profile.keeps_sent_output && !evaluates(); }

  std::int64_t elements(Part part = Part::all) const;   // parameters of this rank's units (after tensor and pipeline splitting)
  std::int64_t trainable_elements(Part part = Part::all) const;
  std::int64_t parameter_bytes(std::int64_t element, Part part = Part::all) const;   // as stored; `element`: usual bytes (layer/tape.h)
  std::int64_t trainable_bytes(std::int64_t element, Part part = Part::all) const;
  std::int64_t wide_trainable_elements(Part part = Part::all) const;               // trained in fp32 beside a 16-bit model

 private:
  std::map<std::string, std::uint32_t> blocks_;
  std::uint32_t persistent_used_ = 0;
};

}  // namespace rehearse::strategies
