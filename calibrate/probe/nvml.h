// The driver's management library, loaded when the program runs: clocks, reasons for low clocks, who else is on the GPU.
// Leaves out changing anything: the probe measures the machine as it finds it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/measurements.h"
#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

/// One GPU as NVML sees it.
class NvmlGpu {
 public:
  virtual ~NvmlGpu() = default;
  virtual ClockState clocks() = 0;
  /// Keys of machine_keys() that NVML knows.
  virtual Facts facts() = 0;
  /// What is wrong with its state, in sentences that begin with `name`. Call it before this process opens the GPU.
  virtual std::vector<std::string> warnings(const std::string& name) = 0;
};

/// The GPU at this PCI address ("0000:1b:00.0"); null when NVML is not there.
std::unique_ptr<NvmlGpu> nvml_gpu(const std::string& pci_address);

/// NVML's bit mask in words; idle clocks and clocks that were set by the administrator are no reasons.
std::vector<std::string> throttle_reasons(std::uint64_t mask);

}  // namespace rehearse::calibrate
