// One GPU type as its data file states it: peaks, memory, links, and the measured or published fractions of them that
// kernels reach. Every number comes from hwmodels/data/gpu/<name>.yaml, where it carries its source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/device/measured_kernel.h"
#include "sim/core/dtype.h"
#include "sim/core/units.h"

namespace rehearse::hwmodels {

enum class Architecture : std::uint8_t { volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4 };

/// AMD's, whose libraries are ROCm's.
constexpr bool is_cdna(Architecture a) { return a == Architecture::cdna2 || a == Architecture::cdna3 || a == Architecture::cdna4; }

struct Gpu {
  std::string name;           // "h100-sxm": the name users write
  std::string title;          // "NVIDIA H100 SXM5 80 GB"
  Architecture architecture = Architecture::hopper;
  int compute_capability = 90;  // 70, 75, 80, 86, 89, 90, 100, 120; AMD: 90 = gfx90a, 94 = gfx94x, 95 = gfx95x
  int sms = 0;
  double boost_clock_mhz = 0;   // of the datasheet's peaks
  double max_clock_mhz = 0;     // the highest that the driver offers, at which short kernels run; 0: the boost clock
  double locked_clock_mhz = 0;  // what the owner locked it at, at most highest_clock_mhz(); 0: not locked
  double highest_clock_mhz() const { return max_clock_mhz > 0 ? max_clock_mhz : boost_clock_mhz; }
  double tdp_watts = 0;
  double own_watts = 0;         // what it draws itself at its sustained clock: the TDP, or its part of a module's
  double limit_watts = 0;       // what its node or its owner allows it, at most own_watts; 0: all of that
  Bytes memory;                 // what the driver reports as total
  BytesPerSecond hbm_bandwidth; // datasheet
  Bytes l2;
  std::map<DType, FlopsPerSecond> peak;  // dense tensor-core (or fp32 vector) peaks with fp32 accumulation
  BytesPerSecond nvlink_bandwidth;       // per direction, all links together; 0 = no NVLink
  int nvlink_links = 0;
  int pcie_generation = 4;
  BytesPerSecond host_to_device, device_to_host;  // achieved with pinned memory

  /// What others measured, beside the datasheet: largest GEMM rates, and copies. For reading and tests; the kernel
  /// model uses its own fractions.
  std::map<DType, FlopsPerSecond> measured_peak;
  std::optional<BytesPerSecond> measured_hbm_bandwidth;

  /// The kernel model's parameters: hwmodels/data/kernel/<architecture>.yaml, overridden by the GPU's own file.
  /// Names and meanings: hwmodels/device/kernel_parameters.h.
  std::map<std::string, double> kernel_parameters;

  /// Single kernels measured on this GPU, from the table that its file names; near them the kernel model is corrected.
  std::vector<MeasuredKernel> measured_kernels;
  Reach reach;
  std::string measured_kernels_file;  // "" when there is none

  /// For provenance: the data file, and where each number comes from ("sms", "peak.bf16", "peak.bf16.measured",
  /// "kernel.sustained_clock").
  std::string file;
  std::map<std::string, std::string> sources;
};

/// Reads hwmodels/data/gpu/<name>.yaml, or the user's own file when `name` is a path (holds a '/' or ends in .yaml), and
/// the parameters of its architecture. Throws ConfigError with every mistake: unknown name (lists the valid ones), unknown
/// or missing key, wrong unit, number without a source, fraction above 1.
Gpu load_gpu(const std::string& name);

/// The same from a file that the user names, with <architecture>.yaml in `parameters_folder`; an empty folder: without
/// parameters.
Gpu load_gpu_file(const std::filesystem::path& file, const std::filesystem::path& parameters_folder);

/// All names that load_gpu knows, sorted.
std::vector<std::string> gpu_names();

std::string_view name_of(Architecture architecture);
std::optional<Architecture> architecture_named(std::string_view name);

}  // namespace rehearse::hwmodels
