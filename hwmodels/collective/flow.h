// Flow form of a collective: the bytes that all groups of an axis together put on every link of the cluster.
// Leaves out latency and protocols (algorithm.h): time >= load / capacity on every link.
#pragma once

#include <vector>

#include "hwmodels/network/network.h"
#include "hwmodels/topology/topology.h"

namespace rehearse::hwmodels {

/// Member ranks of every group with this shape, cluster-wide. Ranks fill machines in order.
std::vector<std::vector<int>> place_groups(const GroupShape& shape, int machines, int gpus_per_machine);

/// Bytes per link, index as topology.links().
///   bytes   nccl-tests' size, as for Network::collective
std::vector<double> flow_loads(const Topology& topology, CollectiveKind kind, Algorithm algorithm,
                               Bytes bytes, const GroupShape& shape);
/// The same for given groups of ranks.
std::vector<double> flow_loads(const Topology& topology, CollectiveKind kind, Algorithm algorithm,
                               Bytes bytes, const std::vector<std::vector<int>>& groups);

/// Largest load / bandwidth over the links, in seconds.
double busiest_link_seconds(const Topology& topology, const std::vector<double>& loads);

}  // namespace rehearse::hwmodels
