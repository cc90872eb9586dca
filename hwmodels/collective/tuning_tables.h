// NCCL's own tuning constants: what its tuner believes about latencies and bandwidths.
// Leaves out what is measured (parameters.h).
// Source of every number: NVIDIA/nccl 2.30.7, src/graph/tuning.cc.
#pragma once

#include "hwmodels/collective/group.h"
#include "hwmodels/network/network.h"

namespace rehearse::hwmodels::tuning {

/// Base latency of one call, microseconds.
double base_latency(Algorithm algorithm, Protocol protocol);

enum class Hop : std::uint8_t { nvlink, pcie, network };
/// Latency of one hop, microseconds.
double hop_latency(Algorithm algorithm, Protocol protocol, Hop hop);

/// Ceilings in GB/s. `group` gives the row (GPU generation, CPU vendor across nodes) and the column (1, 2,
/// more nodes).
double ll_max_bandwidth(const Group& group);
double ring_ll128_per_channel(const Group& group);
double tree_ll128_per_channel(const Group& group);
double tree_simple_per_channel(const Group& group);
double nvls_tree_per_channel(const Group& group);
double nvls_efficiency(const Group& group);

/// Microseconds that a network proxy adds to each ring step, by CPU vendor; three times that for Simple.
double network_overhead(const Group& group, Protocol protocol);

/// Factor on a tree's bandwidth by message size: trees fall behind their model at middle sizes.
double tree_correction(Protocol protocol, double bytes);

/// LL128 needs 128-byte atomic stores all the way: cc >= 70, NVLink inside the node and a network that
/// keeps their order.
bool ll128_enabled(const Group& group);

}  // namespace rehearse::hwmodels::tuning
