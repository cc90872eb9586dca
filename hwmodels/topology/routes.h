// Routes of generated clusters, assembled from what the generator knows instead of searched for.
// Leaves out hand-written graphs, whose routes are searched (Topology::search).
#pragma once

#include <vector>

#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels {

/// Link ids as the generator numbered them: the other direction of link i is i + 1. Tables are indexed by the
/// position of a device in the cluster: machine x per machine + number.
struct RouteTables {
  int gpus_per_machine = 0, nics_per_machine = 0, switches_per_machine = 0, sockets = 1,
      machines_per_domain = 1;
  int nics_designed_for = 0;         // GPUs of the design, of which some may be unused
  std::vector<int> gpu_to_nvswitch;  // empty without NVSwitches
  std::vector<int> gpu_to_pcie, pcie_to_cpu, cpu_to_next, nic_to_pcie, nic_to_leaf;
  std::vector<int> gpu_pair;  // machine x n x n: direct NVLink from a to b, -1 where there is none
  std::vector<int> switch_of_gpu, switch_of_nic, socket_of_switch;  // within a machine
  std::vector<int> leaf_of_nic;                                     // by position of the NIC
  std::vector<int> leaf_to_spine;                                   // leaf x spines
  int spines = 0;
};

/// Links from GPU `a` to GPU `b` (positions), first to last; `flow` picks among equal spines.
std::vector<int> assembled_route(const RouteTables& tables, int a, int b, int flow);

}  // namespace rehearse::hwmodels
