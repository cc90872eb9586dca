// A whole measurements file fitted: every family in its turn, the files that scenarios name, and what to tell the person.
// Leaves out writing to disk (sim/cli/calibrate_fit.cpp).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

struct FittedMachine {
  std::string text;                                        // parameters, errors on rows seen and unseen, what was not used
  std::vector<std::pair<std::string, std::string>> files;  // name -> content: gpu.points.csv, gpu.yaml, node.yaml, collectives.yaml, cluster.yaml; none: nothing could be fitted
};

/// `gpu`: name or file to start from. `node`: design likewise; "" = the usual one of that GPU. `folder`: where the files will
/// lie, for the hint in cluster.yaml. Throws ConfigError for names that are not known.
FittedMachine fit_machine(const Measurements& measurements, const std::string& gpu, const std::string& node, const std::string& folder, const std::string& date);

}  // namespace rehearse::calibrate
