// Which of our GPU and node files a machine's own words mean ("NVIDIA H100 80GB HBM3" -> h100-sxm).
// Leaves out machines that we have no file for: the user then says which to start from.
#pragma once

#include <optional>
#include <string>

namespace rehearse::calibrate {

/// `driver_name`: as nvidia-smi, NCCL and profilers write it. Null: not known.
std::optional<std::string> gpu_of(const std::string& driver_name);
/// The usual node of a GPU with that many GPUs on it: dgx-h100 for h100-sxm. single-gpu for one.
std::string node_of(const std::string& gpu, int gpus_per_node);

}  // namespace rehearse::calibrate
