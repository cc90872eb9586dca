// NVLSTree: NVLS inside each node, double binary tree between the nodes. All-reduce across nodes with
// NVSwitch SHARP.
#include <algorithm>
#include <cmath>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/nvls.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {
namespace {

class NvlsTree final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::nvls_tree; }

  bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    return group.nvls && group.nodes > 1 && group.local > 1 && kind == CollectiveKind::all_reduce &&
           protocol == Protocol::simple;
  }

  double tuner_bandwidth(const Group& group, CollectiveKind kind, Protocol) const override {
    ChannelGraph graph = search_nvls(group);
    double heads = graph.channels;
    double intra = graph.speed_intra * tuning::nvls_efficiency(group) * (heads - 1) / heads * 2;
    double inter = graph.speed_inter * (group.nodes <= 2 ? 2 : 1);
    double each = std::min({intra, inter, tuning::nvls_tree_per_channel(group)});
    return each * heads * group.ranks / steps_of(kind, group.ranks);
  }

  double tuner_latency(const Group& group, CollectiveKind, Protocol protocol) const override {
    return tuning::hop_latency(Algorithm::nvls_tree, protocol, tuning::Hop::nvlink) +
           2 * std::log2(group.nodes) *
               tuning::hop_latency(Algorithm::nvls_tree, protocol, tuning::Hop::network);
  }

  double tuner_time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    double bandwidth = tuner_bandwidth(group, kind, protocol);
    bool corrected = group.generation == Generation::blackwell && group.cpu != CpuVendor::arm;
    if (corrected) bandwidth *= tuning::tree_correction(protocol, bytes);
    return tuner_latency(group, kind, protocol) + bytes / (1000 * bandwidth);
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_nvls_channels(group); }

  double time(const Group& group, CollectiveKind, double bytes, Protocol) const override {
    const GenerationTiming& t = *group.timing;
    const NetworkTiming& net = *group.network;
    double size = bytes / kMiB, n = group.ranks;
    double bus = nvls_bus_bandwidth(group, nvls_tree_chunk_bytes(group, bytes)) * t.nvls_tree_efficiency;
    double data = bytes * 2 * (n - 1) / n / (1000 * bus);
    double through = (group.nodes == 2 ? 1 : 2) * bytes / (1000 * group.network_bandwidth() * net.tree_efficiency);
    double hop = net.tree_hop + ramp(net.tree_hop_large - net.tree_hop, size, net.tree_hop_half);
    return t.nvls_launch + 2 * std::log2(group.nodes) * hop + std::max(data, through) +
           ramp(t.nvls_ramp, size, t.nvls_ramp_half) + ramp(net.ramp, size, net.ramp_half);
  }

  WireBytes wire(const Group& group, CollectiveKind) const override {
    double n = group.local;
    return {(n + 1) / n, group.nodes == 2 ? 1.0 : 2.0};
  }
};

}  // namespace

const CollectiveAlgorithm& nvls_tree_algorithm() {
  static const NvlsTree nvls_tree;
  return nvls_tree;
}

}  // namespace rehearse::hwmodels
