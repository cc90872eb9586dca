// What importers of topologies find, and how it becomes a node file.
// Leaves out the texts it comes from (topology_matrix.cpp, nccl_topology.cpp).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "calibrate/import/topology.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::calibrate {

struct NodeDraft {
  int gpus = 0;
  std::map<std::pair<int, int>, int> nvlinks;  // between two GPUs; both orders
  std::map<int, int> switch_links;             // of a GPU to NVSwitches, where the text tells
  std::optional<int> gpus_per_switch, sockets, nics;
  std::optional<double> nic_bytes_per_second;
  std::string network, cpu_vendor;
};

/// Decides how the GPUs are joined by the GPU's own number of NVLinks: as many to every peer = a switch; some to every peer = a
/// mesh; pairs only = bridges. Throws ConfigError when `options.gpu` is missing or unknown.
ImportedNode node_from(const NodeDraft& draft, const std::string& file, const TopologyOptions& options, ImportReport report);

}  // namespace rehearse::calibrate
