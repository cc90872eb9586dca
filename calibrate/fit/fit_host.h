// What a node's host can do, from measurements of it: DRAM for copies and for the optimizer, pageable copies, disks.
// Leaves out copies of pinned memory, which are the GPU's (fit_copies.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/fit/fit_copies.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::calibrate {

/// One number of a node file. `spread`: (largest - smallest) / value of the series that it rests on.
struct HostNumber {
  std::string key;    // "cpu.update_bandwidth"
  double value = 0;   // bytes/s, or a fraction
  int rows = 0;
  double spread = 0;
  std::string how;    // for people
};

/// Read off rather than fitted: the median over series with all threads (DRAM triad, Adam); the best rate over requests of
/// 1 MiB or more past the page cache (disks); the mean of both directions (pageable over pinned rate).
std::vector<HostNumber> fit_host(const Observations& observations, const std::vector<LinearFit>& copies);

/// The base's file with these numbers in their places, their source beside them. `gpu`: the GPU file's name in it.
std::string node_yaml(const hwmodels::NodeDesign& base, const std::vector<HostNumber>& numbers, const std::string& gpu, const std::string& origin);

}  // namespace rehearse::calibrate
