// Double binary tree: each node is an inner node of at most one of two trees, so both directions of every NIC
// work; a chain joins the GPUs inside a node. All-reduce only; latency grows with log2(nodes).
#include <algorithm>
#include <cmath>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {
namespace {

class Tree final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::tree; }

  bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    return kind == CollectiveKind::all_reduce &&
           (protocol != Protocol::ll128 || tuning::ll128_enabled(group));
  }

  double tuner_bandwidth(const Group& group, CollectiveKind, Protocol protocol) const override {
    ChannelGraph graph = search_trees(group);
    double bus = graph.channels * (group.nodes <= 2 ? graph.speed_intra : graph.speed_inter);
    if (protocol == Protocol::simple)
      bus = std::min(0.92 * bus, graph.channels * tuning::tree_simple_per_channel(group));
    if (protocol == Protocol::ll) bus = std::min(bus / 3.8, tuning::ll_max_bandwidth(group));
    if (protocol == Protocol::ll128)
      bus = std::min(bus * (group.nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                     graph.channels * tuning::tree_ll128_per_channel(group));
    return 0.5 * bus;
  }

  double tuner_latency(const Group& group, CollectiveKind, Protocol protocol) const override {
    tuning::Hop inside = group.nvlink ? tuning::Hop::nvlink : tuning::Hop::pcie;
    double intra = tuning::hop_latency(Algorithm::tree, protocol, inside);
    double inter = tuning::hop_latency(Algorithm::tree, protocol, tuning::Hop::network);
    return tuning::base_latency(Algorithm::tree, protocol) +
           2 * ((group.local - 1) * intra + std::log2(group.nodes) * inter);
  }

  double tuner_time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    double bandwidth = tuner_bandwidth(group, kind, protocol) * tuning::tree_correction(protocol, bytes);
    return tuner_latency(group, kind, protocol) + bytes / (1000 * bandwidth);
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_ring_channels(group); }

  // 2 log2(nodes) hops over the network, up and down, each dearer once it carries whole slices; the data
  // itself is limited by the chain inside the node and by the NICs, which carry S each way for two nodes and
  // 2S for more.
  double time(const Group& group, CollectiveKind, double bytes, Protocol protocol) const override {
    const GenerationTiming& t = *group.timing;
    double size = bytes / kMiB;
    double inside = group.local > 1 ? 0.92 * group.ring_link * t.ring_efficiency : 1e9;
    if (protocol == Protocol::ll) inside = std::min(inside, t.ll_bandwidth);
    double data = 2 * bytes / (1000 * inside);
    double latency = 2 * (group.local - 1) * t.chain_step;
    if (group.nodes == 1)
      return t.launch + latency + data + (group.local - 1) * ramp(t.ramp_step, data / 2, t.ramp_half);
    const NetworkTiming& net = *group.network;
    double hop = net.tree_hop + ramp(net.tree_hop_large - net.tree_hop, size, net.tree_hop_half);
    double passes = group.nodes == 2 ? 1 : 2;
    double through =
        passes * bytes / (1000 * group.network_bandwidth() * net.tree_efficiency * (protocol == Protocol::ll ? 0.5 : 1.0));
    return t.launch + latency + 2 * std::log2(group.nodes) * hop + std::max(data, through) +
           ramp(net.ramp, size, net.ramp_half);
  }

  WireBytes wire(const Group& group, CollectiveKind) const override {
    return {group.local > 1 ? 2.0 : 0.0, group.nodes == 1 ? 0.0 : group.nodes == 2 ? 1.0 : 2.0};
  }
};

}  // namespace

const CollectiveAlgorithm& tree_algorithm() {
  static const Tree tree;
  return tree;
}

}  // namespace rehearse::hwmodels
