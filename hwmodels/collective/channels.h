// How many channels NCCL builds for a group and how fast it believes each to be.
// Leaves out what a message of some size takes on them (tuner.h).
#pragma once

#include "hwmodels/collective/group.h"

namespace rehearse::hwmodels {

/// Result of NCCL's graph search, before the executed channels are doubled.
struct ChannelGraph {
  int channels = 1;
  double speed_intra = 0;  // GB/s per channel inside a node
  double speed_inter = 0;  // between nodes
};

/// Rings and trees. Source: NVIDIA/nccl 2.30 src/graph/search.cc: per-channel speeds are tried from high to
/// low and the largest total wins.
ChannelGraph search_rings(const Group& group);
/// Trees: as rings, but over two nodes each NIC carries the data once where the chain inside a node carries it twice, so the search goes on to
/// speeds up to twice as high inside. Source: ncclTopoCompute, "increase bwIntra for trees (2 nodes or collnet)".
ChannelGraph search_trees(const Group& group);
/// NVLS: one channel ("head") per member of a node.
ChannelGraph search_nvls(const Group& group);

/// CTAs that run: rings are doubled after the search; NVLS has its own fixed numbers; all-to-all rounds up to
/// 2^k.
int executed_ring_channels(const Group& group);
int executed_nvls_channels(const Group& group);
int executed_p2p_channels(const Group& group);

}  // namespace rehearse::hwmodels
