// NVLS: the NVSwitches reduce and multicast, so a GPU sends and receives about half of what a ring would.
#include "hwmodels/collective/nvls.h"

#include <algorithm>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels {
namespace {
constexpr double kKiB = 1024;

// Halve the chunk while the message holds fewer than `rounds` rounds of all channels and heads.
double shrink(double chunk, double bytes, double channels, double heads,
              std::initializer_list<double> rounds) {
  for (double limit : rounds)
    if (bytes < limit * channels * heads * chunk) chunk /= 2;
  return chunk;
}
}  // namespace

double nvls_chunk_bytes(const Group& group, double bytes) {
  return shrink(128 * kKiB, bytes, executed_nvls_channels(group), group.local, {64, 8, 2});
}

double nvls_tree_chunk_bytes(const Group& group, double bytes) {
  return shrink(256 * kKiB, bytes, executed_nvls_channels(group), group.local, {32, 8, 2});
}

double nvls_bus_bandwidth(const Group& group, double chunk_bytes) {
  const GenerationTiming& t = *group.timing;
  double n = group.local;
  double e = n > 8 ? t.nvls_rack_efficiency : t.nvls_efficiency;
  return group.link * e * 2 * (n - 1) / (n + 1) / (1 + t.nvls_chunk * (kKiB / chunk_bytes - 1 / 128.0));
}

namespace {

class Nvls final : public CollectiveAlgorithm {
 public:
  Algorithm id() const override { return Algorithm::nvls; }

  bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const override {
    if (!group.nvls || protocol != Protocol::simple || group.local < 2) return false;
    if (group.nodes > 1 && !group.sharp) return false;
    if (kind == CollectiveKind::all_reduce) return true;
    bool shards = kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter;
    return shards && group.local <= 32;
  }

  double tuner_bandwidth(const Group& group, CollectiveKind kind, Protocol) const override {
    ChannelGraph graph = search_nvls(group);
    double heads = graph.channels, n = group.ranks, local = group.local;
    double intra = graph.speed_intra * tuning::nvls_efficiency(group) * (heads - 1) / heads;
    intra *= kind == CollectiveKind::all_reduce ? 2.0 : (local - 1) / local;
    double bus = heads * (group.nodes == 1 ? intra : std::min(intra, graph.speed_inter));
    return bus * n / steps_of(kind, group.ranks);
  }

  double tuner_latency(const Group& group, CollectiveKind, Protocol protocol) const override {
    double latency = tuning::hop_latency(Algorithm::nvls, protocol, tuning::Hop::nvlink);
    return group.nodes == 1 ? latency
                            : latency + tuning::hop_latency(Algorithm::nvls, protocol, tuning::Hop::network);
  }

  int channels(const Group& group, CollectiveKind) const override { return executed_nvls_channels(group); }

  double time(const Group& group, CollectiveKind kind, double bytes, Protocol) const override {
    const GenerationTiming& t = *group.timing;
    double n = group.local;
    double bus = nvls_bus_bandwidth(group, nvls_chunk_bytes(group, bytes));
    // Half an all-reduce: only the gathering or only the reducing direction carries the whole message.
    double data = kind == CollectiveKind::all_reduce
                      ? bytes * 2 * (n - 1) / n / (1000 * bus)
                      : bytes * (n - 1) / n / (1000 * std::min(bus / 2, group.link * t.gather_efficiency));
    double time = t.nvls_launch + data + ramp(t.nvls_ramp, bytes / kMiB, t.nvls_ramp_half);
    if (group.nodes == 1) return time;
    double through = bytes / (1000 * (kind == CollectiveKind::all_reduce ? group.switched_bandwidth() : group.network_bandwidth()));  // SHARP: S out, S in
    return std::max(time, t.nvls_launch + through) + 2 * group.network->tree_hop;
  }

  WireBytes wire(const Group& group, CollectiveKind kind) const override {
    double n = group.local;
    return {kind == CollectiveKind::all_reduce ? (n + 1) / n : (n - 1) / n, group.nodes > 1 ? 1.0 : 0.0};
  }
};

}  // namespace

const CollectiveAlgorithm& nvls_algorithm() {
  static const Nvls nvls;
  return nvls;
}

}  // namespace rehearse::hwmodels
