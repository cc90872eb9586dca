// One run of the probe: takes the planned cases in turn, leaves out what the output file has already, stops at the budget
// or when interrupted, and keeps the file whole at every moment. Leaves out arguments and messages at the end (program.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibrate/probe/cases.h"
#include "calibrate/probe/device.h"
#include "calibrate/probe/options.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {

struct SessionResult {
  enum class End { complete, out_of_time, interrupted, device_lost };
  End end = End::complete;
  std::int64_t measured = 0;   // in this run
  std::int64_t skipped = 0;
  std::int64_t left = 0;       // planned, but not reached
  std::string message;         // of device_lost
};

struct Surroundings {
  Device& device;
  Team& team;
  Clock clock;
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> say;  // progress, on rank 0
};

/// What an earlier run left in options.out, if it may be continued on this machine. Throws ConfigError when the file is of
/// another machine or other software, or is no measurements file.
Measurements earlier_measurements(const ProbeOptions& options, const Measurements& now);

/// Called by every process. Only rank 0 reads `so_far` and writes the file.
SessionResult run_session(const std::vector<Case>& cases, const ProbeOptions& options, Measurements so_far, Surroundings& around);

}  // namespace rehearse::calibrate
