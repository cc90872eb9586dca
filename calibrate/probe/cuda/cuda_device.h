// The real machine: one GPU per process, cuBLASLt, NCCL, NVML.
#pragma once

#include <memory>

#include "calibrate/probe/device.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {

/// GPUs that this process may use (CUDA_VISIBLE_DEVICES respected), counted in a child so that this process stays free to
/// fork; 0 when there is no driver.
int count_cuda_gpus();

/// Opens the GPU of this rank. Throws NotPossible when there is no usable GPU or driver.
std::unique_ptr<Device> open_cuda_device(const RankInfo& me, Team& team);

}  // namespace rehearse::calibrate
