// CollNetDirect: the fabric's switches reduce (SHARP); each GPU hands its part to the GPU beside a NIC.
// Leaves out CollNetChain, which NCCL keeps for nodes without NVSwitch.
#include <algorithm>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {
namespace {

class CollNet final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::collnet; }

  bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    bool known = kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather ||
                 kind == CollectiveKind::reduce_scatter;
    return group.sharp && known && protocol == Protocol::simple && group.nodes > 1 && group.nvlink &&
           group.local <= 8;
  }

  double tuner_bandwidth(const Group& group, CollectiveKind kind, Protocol) const override {
    ChannelGraph graph = search_rings(group);
    double late = group.compute_capability >= 90 ? 0.85 : 1.0;
    if (kind != CollectiveKind::all_reduce)
      return late * group.local * std::min(graph.speed_intra, 0.9 * graph.speed_inter);
    double bus = graph.channels * graph.speed_intra;
    double factor = std::max(1.0, group.gpus_per_nic);
    return 0.5 * late * bus / (factor - (factor - 1) / 2);
  }

  double tuner_latency(const Group& group, CollectiveKind, Protocol protocol) const override {
    double intra = tuning::hop_latency(Algorithm::collnet, protocol, tuning::Hop::nvlink);
    double inter = tuning::hop_latency(Algorithm::collnet, protocol, tuning::Hop::network);
    return 2 * (std::min(1, group.local - 1) * intra + (group.local - 1) * 0.4) + inter;
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_ring_channels(group); }

  double time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    const GenerationTiming& t = *group.timing;
    double each = kind == CollectiveKind::all_reduce ? 2.0 : 1.0;
    double inside = group.local > 1 ? each * bytes / (1000 * group.link * t.ring_efficiency) : 0;
    double through = bytes / (1000 * (kind == CollectiveKind::all_reduce ? group.switched_bandwidth() : group.network_bandwidth()));
    return t.launch + tuner_latency(group, kind, protocol) + std::max(inside, through) +
           ramp(group.network->ramp, bytes / kMiB, group.network->ramp_half);
  }

  WireBytes wire(const Group& group, CollectiveKind kind) const override {
    return {group.local > 1 ? (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) : 0.0, 1.0};
  }
};

}  // namespace

const CollectiveAlgorithm& collnet_algorithm() {
  static const CollNet collnet;
  return collnet;
}

}  // namespace rehearse::hwmodels
