#include "hwmodels/collective/tuner.h"

#include <algorithm>

#include "hwmodels/collective/catalog.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

constexpr Protocol kProtocols[] = {Protocol::ll, Protocol::ll128, Protocol::simple};

bool allowed(const CommunicationOptions& options, Algorithm algorithm, Protocol protocol) {
  bool switch_reduction = algorithm == Algorithm::nvls || algorithm == Algorithm::nvls_tree;
  if (switch_reduction && !options.nvls) return false;
  if (options.forced_algorithm && algorithm != options.algorithm) return false;
  return !options.forced_protocol || protocol == options.protocol;
}

Choice best_of(const Group& group, CollectiveKind kind, double bytes, const CommunicationOptions& options) {
  Choice best;
  for (const auto& entry : collective_algorithms().entries()) {
    const CollectiveAlgorithm& algorithm = *entry.value;
    for (Protocol protocol : kProtocols) {
      if (!allowed(options, algorithm.id(), protocol) || !algorithm.enabled(group, kind, protocol)) continue;
      double time = algorithm.tuner_time(group, kind, bytes, protocol);
      if (!best.algorithm || time < best.tuner_microseconds) best = {&algorithm, protocol, 0, time};
    }
  }
  return best;
}

}  // namespace

Choice choose(const Group& group, CollectiveKind kind, double bytes, const CommunicationOptions& options) {
  EXPECTS(group.ranks >= 2);
  Choice best = best_of(group, kind, bytes, options);
  if (!best.algorithm) {
    CommunicationOptions free;
    free.nvls = options.nvls;
    best = best_of(group, kind, bytes, free);
  }
  ENSURES(best.algorithm != nullptr);
  best.channels = shrunk_channels(*best.algorithm, group, kind, bytes, best.protocol);
  return best;
}

int shrunk_channels(const CollectiveAlgorithm& algorithm, const Group& group, CollectiveKind kind,
                    double bytes, Protocol protocol) {
  int channels = algorithm.channels(group, kind);
  bool ring = algorithm.id() == Algorithm::ring;
  if (algorithm.id() == Algorithm::nvls || algorithm.id() == Algorithm::nvls_tree)
    return channels;  // one per head group
  int threads = 640, threshold = 64;
  if (protocol == Protocol::ll) threads = 512, threshold = ring ? 8 * group.ranks : 8;
  if (protocol == Protocol::ll128) threshold = 8;
  if (protocol == Protocol::simple && ring) threads = group.nvlink ? 512 : 256;
  while (channels >= 2 && bytes < static_cast<double>(channels) * threads * threshold) channels /= 2;
  return std::max(1, channels);
}

}  // namespace rehearse::hwmodels
