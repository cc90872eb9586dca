// Ring: every GPU passes 1/n of the data to its neighbour, 2(n-1) times for an all-reduce. Bandwidth-optimal
// on any topology; latency grows with the number of ranks.
#include <algorithm>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {

int steps_of(CollectiveKind kind, int ranks) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (ranks - 1);
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
      return ranks;
    default:
      return ranks - 1;
  }
}

namespace {

// Besides what it sends, a GPU moves one piece within its own memory (its own into the result, or the last into it), which costs
// what `own_piece` of a piece costs on NVLink. Efficiencies are those of 8 GPUs.
constexpr int kReferenceRanks = 8;

double own_piece_share(const Group& group, CollectiveKind kind) {
  const auto share = [kind](int ranks, double own) { return steps_of(kind, ranks) / (steps_of(kind, ranks) + own); };
  const double own = group.common->own_piece;
  return share(group.ranks, own * group.ring_link / group.copy_link) / share(kReferenceRanks, own);
}

class Ring final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::ring; }

  bool enabled(const Group& group, CollectiveKind, Protocol protocol) const override {
    return protocol != Protocol::ll128 || tuning::ll128_enabled(group);
  }

  double tuner_bandwidth(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    ChannelGraph graph = search_rings(group);
    int channels = executed_ring_channels(group);
    double bus = graph.channels * (group.nodes <= 2 ? graph.speed_intra : graph.speed_inter);
    if (protocol == Protocol::ll) bus = std::min(tuning::ll_max_bandwidth(group), 0.5 * bus);
    if (protocol == Protocol::ll128)
      bus = std::min(0.92 * bus, channels * tuning::ring_ll128_per_channel(group));
    return bus * group.ranks / steps_of(kind, group.ranks);
  }

  double tuner_latency(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    tuning::Hop inside = group.nvlink ? tuning::Hop::nvlink : tuning::Hop::pcie;
    double intra = tuning::hop_latency(Algorithm::ring, protocol, inside);
    double inter = tuning::hop_latency(group.local == 1 ? Algorithm::tree : Algorithm::ring, protocol,
                                       tuning::Hop::network);
    double base = tuning::base_latency(Algorithm::ring, protocol);
    if (kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce)
      return base + (group.nodes > 1 ? inter : intra);
    int steps = steps_of(kind, group.ranks);
    int across = (kind == CollectiveKind::all_reduce ? 2 : 1) * (group.nodes - 1);
    if (group.nodes > 1) intra = std::max(intra, tuning::network_overhead(group, protocol));
    return base + (steps - across) * intra + across * inter;
  }

  double tuner_time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    double latency = tuner_latency(group, kind, protocol);
    bool plateau = protocol == Protocol::simple && group.nodes > 1 && kind == CollectiveKind::all_reduce &&
                   bytes / (static_cast<double>(executed_ring_channels(group)) * group.ranks) >= 64;
    if (plateau) latency *= group.compute_capability < 80 ? 1.9 : 1.4;
    return latency + bytes / (1000 * tuner_bandwidth(group, kind, protocol));
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_ring_channels(group); }

  // Large messages: the slower of the links inside a node and the node's NICs. Small ones: one latency per
  // step. Inside a node the two add up, because a step cannot start before the last one has been seen; across
  // nodes there are many steps in flight, so they hide each other in part.
  double time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const override {
    const GenerationTiming& t = *group.timing;
    int steps = steps_of(kind, group.ranks);
    int across = group.nodes == 1 ? 0 : (kind == CollectiveKind::all_reduce ? 2 : 1) * (group.nodes - 1);
    double efficiency = kind == CollectiveKind::all_reduce ? t.ring_efficiency : t.gather_efficiency;
    double bus = group.local > 1 ? group.ring_link * efficiency : 1e9;
    if (group.nodes == 1 && group.nvlink) bus *= own_piece_share(group, kind);
    if (protocol == Protocol::ll) bus = std::min(bus, t.ll_bandwidth);
    if (protocol == Protocol::ll128) bus *= 0.94;  // 120 of 128 bytes are data
    if (group.nodes > 1)
      bus = std::min(bus, group.network_bandwidth() * (protocol == Protocol::ll ? 0.5 : 1.0));
    double data = bytes *
                  (kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce
                       ? 1.0
                       : steps / static_cast<double>(group.ranks)) /
                  (1000 * bus);
    double step = protocol == Protocol::ll      ? t.step_ll
                  : protocol == Protocol::ll128 ? t.step_ll128
                                                : t.step_simple;
    double inside_steps = steps - across;
    double slices = protocol == Protocol::ll ? 0 : ramp(t.ramp_step, data / steps, t.ramp_half);
    double inside = inside_steps * (step + slices);
    if (group.nodes == 1) return t.launch + inside + data;
    const NetworkTiming& net = *group.network;
    double hop = protocol == Protocol::ll      ? net.ring_step_ll
                 : protocol == Protocol::ll128 ? net.ring_step_ll128
                                               : net.ring_step_simple;
    return t.launch + overlapped(inside + across * hop, data, net.latency_norm) +
           ramp(net.ramp, bytes / kMiB, net.ramp_half);
  }

  WireBytes wire(const Group& group, CollectiveKind kind) const override {
    double each = kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce
                      ? 1.0
                      : steps_of(kind, group.ranks) / static_cast<double>(group.ranks);
    return {group.local > 1 ? each : 0.0, group.nodes > 1 ? each : 0.0};
  }
};

}  // namespace

const CollectiveAlgorithm& ring_algorithm() {
  static const Ring ring;
  return ring;
}

}  // namespace rehearse::hwmodels
