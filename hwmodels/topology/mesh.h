// GPUs that are joined by direct links without a switch: which pairs are joined, and how many links rings over a group of them use.
// Leaves out how fast a link is (device/gpu.h) and what NCCL makes of it (collective/group.h).
#pragma once

#include <vector>

#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels {

/// Links between two GPUs of a node whose scale-up network is a mesh; 0: the pair is not joined.
int mesh_links(const NodeDesign& node, int a, int b);

/// Links of each member that rings over `members` (GPUs of one node, at least two) use in either direction: all of a pair's; of more
/// members two for each of as many rings as have no link in common. 0: no ring is closed.
/// Source: NCCL's search for rings (src/graph/search.cc): a channel per ring and direction, and its link its own.
int ring_links(const NodeDesign& node, const std::vector<int>& members);

}  // namespace rehearse::hwmodels
