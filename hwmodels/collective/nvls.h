// What NVLS inside a node and NVLSTree across nodes have in common: chunk sizes and the plateau of the
// switches. Leaves out the algorithms (nvls.cpp, nvls_tree.cpp).
#pragma once

#include "hwmodels/collective/group.h"

namespace rehearse::hwmodels {

/// Bytes of one chunk. Source: NVIDIA/nccl 2.30 src/enqueue.cc: 128 KiB, halved while the message is too
/// small for it.
double nvls_chunk_bytes(const Group& group, double bytes);
/// NVLSTree's ladder is one step larger.
double nvls_tree_chunk_bytes(const Group& group, double bytes);

/// GB/s of bus bandwidth in the middle of a long all-reduce: link * e * 2(n-1)/(n+1), the wire carrying
/// (n+1)/n of the message, lowered by the fixed cost of each chunk.
double nvls_bus_bandwidth(const Group& group, double chunk_bytes);

}  // namespace rehearse::hwmodels
