// PAT (parallel aggregated trees): all-gather and reduce-scatter in log2(n) rounds, for one GPU per node.
#include <algorithm>
#include <cmath>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {
namespace {

class Pat final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::pat; }

  bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    bool shards = kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter;
    return shards && protocol == Protocol::simple && group.local == 1 && group.nodes > 1;
  }

  double tuner_bandwidth(const Group& group, CollectiveKind, Protocol) const override {
    ChannelGraph graph = search_rings(group);
    return 0.75 * graph.channels * (group.nodes <= 2 ? graph.speed_intra : graph.speed_inter);
  }

  double tuner_latency(const Group& group, CollectiveKind, Protocol protocol) const override {
    double inter = tuning::hop_latency(Algorithm::pat, protocol, tuning::Hop::network);
    return tuning::base_latency(Algorithm::pat, protocol) + std::log2(group.nodes) * inter / 3.5 +
           group.ranks * 2.8;
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_ring_channels(group); }

  // No measurements: the tuner's latency, log2 hops of a tree, and the ring's bytes at 0.9 of the NICs
  // (assumption).
  double time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    double n = group.ranks;
    double data = bytes * (n - 1) / n / (1000 * 0.9 * group.network_bandwidth());
    double latency = std::max(tuner_latency(group, kind, protocol),
                              std::log2(group.nodes) * group.network->tree_hop_large);
    return group.timing->launch + latency + data +
           ramp(group.network->ramp, bytes / kMiB, group.network->ramp_half);
  }

  WireBytes wire(const Group& group, CollectiveKind) const override {
    return {0, (group.ranks - 1) / static_cast<double>(group.ranks)};
  }
};

}  // namespace

const CollectiveAlgorithm& pat_algorithm() {
  static const Pat pat;
  return pat;
}

}  // namespace rehearse::hwmodels
