// One communicator as the collective models see it: its shape and the bandwidths it can reach on its
// machines. Leaves out the cluster it was derived from (topology/cluster.h) and the models themselves
// (algorithm.h). Units in this folder are NCCL's: GB/s (1e9 bytes/s) and microseconds.
#pragma once

#include "hwmodels/collective/parameters.h"
#include "hwmodels/topology/cluster.h"
#include "sim/core/communication.h"

namespace rehearse::hwmodels {

/// Rows of NCCL's tuning tables.
enum class Generation : std::uint8_t { volta, ampere, hopper, blackwell };
Generation generation_of(int compute_capability);

struct Group {
  int ranks = 1;
  int nodes = 1;  // NVLink domains that hold a member: a rack of trays counts once
  int local = 1;  // members in one domain
  Generation generation = Generation::hopper;
  int compute_capability = 90;
  CpuVendor cpu = CpuVendor::intel;
  bool nvlink = true;  // members of one domain reach each other over NVLink
  bool nvls = false;
  bool sharp = false;  // reduction in the fabric's switches
  double link = 0;  // GB/s per GPU and direction, NCCL's constant (20 per A100 link, 20.6 per H100 link, ...)
  double ring_link = 0;  // the part of it that a ring over these members can use (mesh, PCIe across sockets)
  double copy_link = 0;  // what a copy within a GPU's memory is counted against: a mesh's few links to a smaller group do not slow it
  double direct_link = 0;  // the part that an all-to-all over them can use
  int nics = 0;            // NICs of a node that this group can drive
  double nic = 0;          // line rate of one
  double nic_share = 1;    // of their bandwidth, with every group of the axis active
  double nic_efficiency = 1;
  double gpus_per_nic = 1;
  const GenerationTiming* timing = nullptr;
  const NetworkTiming* network = nullptr;
  const CommonTiming* common = nullptr;
  const DispatchTiming* dispatch = nullptr;
  const RegisteredBuffers* registered = nullptr;

  /// What the group gets out of a node and into it, GB/s, in large messages.
  double network_bandwidth() const { return nics * nic * nic_share * nic_efficiency; }
  /// The same of an all-reduce whose sums the fabric's switches make (SHARP).
  double switched_bandwidth() const { return network_bandwidth() * network->sharp_efficiency; }
};

/// What is known of the network that the node's cards are on. Throws ConfigError where its name is none of the parameters'.
const NetworkTiming& network_timing(const NodeDesign& node, const CollectiveParameters& parameters);

/// Precondition: shape.ranks >= 2. `nic_efficiency` etc. come from `cluster`.
Group make_group(const ClusterDescription& cluster, const GroupShape& shape,
                 const CollectiveParameters& parameters);

/// NCCL's bandwidth constant for one GPU: all its NVLinks, or its PCIe slot. Source: NVIDIA/nccl
/// src/graph/topo.h.
double nccl_link_bandwidth(const Gpu& gpu);
double nccl_pcie_bandwidth(int pcie_generation);

}  // namespace rehearse::hwmodels
