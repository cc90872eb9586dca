// rehearse-probe from its arguments to its exit code, over any device. Leaves out CUDA (cuda/).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/probe/device.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {

/// The machine as the program finds it; a made-up one in tests.
struct ProbeHooks {
  /// GPUs of this node that this process may use, found without opening any of them: the program forks afterwards.
  std::function<int()> count_gpus;
  /// Opens the GPU of this process. Throws NotPossible when there is no usable GPU, driver or library.
  std::function<std::unique_ptr<Device>(const RankInfo&, Team&)> open;
  std::string version;
  /// One line per check, "WRONG ..." for what failed; empty function: there is nothing to check.
  std::function<std::vector<std::string>()> self_test;
};

/// Returns the exit code: 0, 1, 2, 3, 4 or 130 (design: README, "Exit codes"). Results go to --out, all else to stderr;
/// --list, --help and --version to stdout.
int probe_main(const std::vector<std::string>& arguments, const ProbeHooks& hooks);

}  // namespace rehearse::calibrate
