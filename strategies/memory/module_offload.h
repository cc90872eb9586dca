// What modules of a layer keep for backward, in host memory until then: group by group, each copied as its module has run.
// Leaves out which modules and tensors these are (layer/offload_groups.h, layer/emitter.h) and who calls when (stage_passes.cpp).
//
// As Megatron's fine-grained activation offloading does it: a group's tensors are free once they have been copied, and are asked for one group after
// the other, the last that left first, each as another group of the same pass has been through its backward. So they come back a layer ahead.
// Source: NVIDIA/Megatron-LM at d98e8a64 (2026-08), megatron/core/pipeline_parallel/fine_grained_activation_offload.py.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strategies/layer/tape_emitter.h"
#include "strategies/stage.h"

namespace rehearse::strategies {

class ModuleOffload {
 public:
  static constexpr std::uint32_t kMostGroups = 8;
  static constexpr std::uint32_t kSlots = 2 * kMostGroups;   // of a unit's own frame, behind its tape's: events of gone and back, by group

  explicit ModuleOffload(Stage& stage) : stage_(stage), active_(!stage.strategy.memory.offload.modules.empty() && !stage.evaluates()), pinned_(stage.strategy.memory.offload.pinned) {}
  bool active() const { return active_; }

  /// A unit in one micro-batch of a chunk: its calls' frames, its forward block, and the first of its own frame's kSlots.
  struct Place {
    std::pair<int, int> pass;    // chunk, micro-batch
    std::size_t unit = 0;
    plan::Call call;
    std::uint32_t forward = 0, extra = 0;
    const std::vector<OffloadedGroup>* groups = nullptr;
  };
  /// The group's module has run forward.
  void leave(const Place& place, std::size_t group);
  /// The group's backward begins: what has not been asked for comes back while compute waits.
  void begin(const Place& place, std::size_t group);
  /// A group has been through its backward: the next one is asked for.
  void end(const Place& place);

 private:
  struct Away {
    Place place;
    std::size_t group = 0;
    bool asked_for = false;
  };
  void fetch(const Away& away, bool compute_waits);
  template <typename Write>
  void call(const Place& place, const std::string& what, std::size_t group, plan::Phase phase, Write write);

  Stage& stage_;
  bool active_ = false, pinned_ = true;
  std::map<std::pair<int, int>, std::vector<Away>> away_;   // by pass, in the order in which they left
  std::map<std::string, std::deque<std::pair<Place, std::size_t>>> leaving_;   // by module: copies that compute has not waited for
  std::int64_t live_ = 0, peak_ = 0;
};

}  // namespace rehearse::strategies
