// The one door to the machine: what the probe asks of CUDA, NCCL and NVML, and nothing else. The real device is in cuda/,
// a made-up one in the tests. Leaves out how often things are timed and when to stop (sampling.h).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

/// Why something cannot be measured here: too little memory, no such number format, one GPU only. Not a fault.
struct NotPossible : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The device does not answer any more (a sticky CUDA error): nothing else can be measured in this run.
struct DeviceLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An operation made ready: buffers allocated and filled with random numbers, algorithm chosen.
class Work {
 public:
  virtual ~Work() = default;
  /// Executes it `count` times back to back and returns the seconds from the first one's begin to the last one's end,
  /// by the device's own clock where it has one. Operands rotate so that none is found in the L2 cache.
  virtual double run(std::int64_t count) = 0;
  /// Most executions in one run (depth of the launch queue, memory).
  virtual std::int64_t most_repeats() const { return std::numeric_limits<std::int64_t>::max(); }
  /// For people: the algorithm that was chosen.
  virtual std::string note() const { return {}; }
};

struct ClockState {
  double sm_clock_mhz = 0;            // 0 = not known
  std::vector<std::string> throttle;  // NVML's reasons; idle and application clocks are none
};

class Device {
 public:
  virtual ~Device() = default;
  /// Keys of machine_keys() and software_keys().
  virtual Facts machine() = 0;
  virtual Facts software() = 0;
  /// What is wrong with the machine's state: another process on the GPU, ECC errors, a low power limit.
  virtual std::vector<std::string> warnings() = 0;
  virtual ClockState clocks() = 0;
  /// Called by every process with the same arguments in the same order; null for processes that take no part.
  /// Throws NotPossible, in every process or in none.
  virtual std::unique_ptr<Work> prepare(const std::string& operation, const Facts& parameters) = 0;
};

}  // namespace rehearse::calibrate
