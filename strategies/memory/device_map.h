// Frozen weights that wait in host memory and come to the GPU for each use, as accelerate's hooks bring them: pageable copies
// on the compute stream, one tensor at a time, the host waiting for each.
// Leaves out layers on several GPUs, which are stages of a naive pipeline.
// Source: huggingface/accelerate hooks.py (AlignDevicesHook), utils/modeling.py (infer_auto_device_map, set_module_tensor_to_device).
#pragma once

#include <string>
#include <vector>

#include "sim/core/error.h"
#include "sim/model/description.h"
#include "strategies/stage.h"

namespace rehearse::strategies {

class DeviceMapWriter {
 public:
  explicit DeviceMapWriter(Stage& stage) : stage_(stage) {}

  /// Decides where the weights of the stage's units live; call when all units are there. Host memory is counted.
  void place();
  bool holds(std::size_t unit) const { return unit < copies_.size() && !copies_[unit].empty(); }
  void fetch(std::size_t unit, plan::Phase phase, int micro_batch);
  void drop(std::size_t unit, plan::Phase phase, int micro_batch);

 private:
  Stage& stage_;
  std::vector<std::vector<std::int64_t>> copies_;   // by unit: bytes of each tensor that waits in host memory
};

/// Bytes of each weight of a unit that waits in host memory; `fits`: the unit is within device_map.gpu_memory. Adapters stay
/// on the GPU, and of a layer's experts those that are trained beside others that are not.
std::vector<std::int64_t> bytes_on_host(const DeviceMap& map, const Tape& tape, int layer, bool fits, std::int64_t stored);

/// Why this placement cannot be, in the user's keys and words.
std::vector<Diagnostic> device_map_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile);

}  // namespace rehearse::strategies
