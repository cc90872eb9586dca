// One GPU type as its data file states it: peaks, memory, links, and the measured or published fractions of them that
// kernels reach. Every number comes from hwmodels/data/gpu/<name>.yaml, where it carries its source.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/core/dtype.h"
#include "sim/core/units.h"

namespace rehearse::hwmodels {

enum class Architecture : std::uint8_t { volta, turing, ampere, ada, hopper, blackwell, cdna3 };

struct Gpu {
  std::string name;           // "h100-sxm": the name users write
  std::string title;          // "NVIDIA H100 SXM5 80 GB"
  Architecture architecture = Architecture::hopper;
  int compute_capability = 90;  // 70, 80, 86, 89, 90, 100
  int sms = 0;
  double boost_clock_mhz = 0;
  double tdp_watts = 0;
  Bytes memory;                 // what the driver reports as total
  BytesPerSecond hbm_bandwidth; // datasheet
  Bytes l2;
  std::map<DType, FlopsPerSecond> peak;  // dense tensor-core (or fp32 vector) peaks with fp32 accumulation
  BytesPerSecond nvlink_bandwidth;       // per direction, all links together; 0 = no NVLink
  int nvlink_links = 0;
  int pcie_generation = 4;
  BytesPerSecond host_to_device, device_to_host;  // achieved with pinned memory

  /// The kernel model's parameters for this GPU (hwmodels/device/kernel_model.h names and documents them).
  std::map<std::string, double> kernel_parameters;
  /// Data file and the sources it names, for provenance.
  std::string file;
};

/// Reads hwmodels/data/gpu/<name>.yaml. Throws ConfigError: unknown names list the valid ones.
Gpu load_gpu(const std::string& name);
std::vector<std::string> gpu_names();

}  // namespace rehearse::hwmodels
