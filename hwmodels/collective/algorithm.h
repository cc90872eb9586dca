// One way of carrying out a collective: NCCL's opinion of it (enabled, bandwidth, latency) and how long it
// really takes. Leaves out the choice among them (tuner.h).
#pragma once

#include "hwmodels/collective/channels.h"
#include "hwmodels/collective/group.h"
#include "hwmodels/network/network.h"

namespace rehearse::hwmodels {

/// Bytes that one member puts on its links per byte of nccl-tests size, one direction (the larger of both).
struct WireBytes {
  double scale_up = 0;  // NVLink or PCIe, per GPU
  double network = 0;   // out of one node, all its members together
};

class CollectiveAlgorithm {
 public:
  virtual ~CollectiveAlgorithm() = default;
  virtual Algorithm id() const = 0;

  /// NCCL's enablement rules. Source: src/graph/tuning.cc of 2.30.
  virtual bool enabled(const Group& group, CollectiveKind kind, Protocol protocol) const = 0;
  /// Algorithm bandwidth in GB/s and latency in microseconds as NCCL's tuner sees them; only meaningful when
  /// enabled.
  virtual double tuner_bandwidth(const Group& group, CollectiveKind kind, Protocol protocol) const = 0;
  virtual double tuner_latency(const Group& group, CollectiveKind kind, Protocol protocol) const = 0;
  /// Size-dependent corrections of the two at selection time.
  virtual double tuner_time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const {
    return tuner_latency(group, kind, protocol) + bytes / (1000 * tuner_bandwidth(group, kind, protocol));
  }
  virtual int channels(const Group& group, CollectiveKind kind) const = 0;

  /// Measured behaviour in microseconds, alone on the machines.
  virtual double time(const Group& group, CollectiveKind kind, double bytes, Protocol protocol) const = 0;
  virtual WireBytes wire(const Group& group, CollectiveKind kind) const = 0;
};

/// Ring steps of a collective: 2(n-1) for all-reduce, n-1 for all-gather and reduce-scatter, n for broadcast
/// and reduce.
int steps_of(CollectiveKind kind, int ranks);

const CollectiveAlgorithm& ring_algorithm();
const CollectiveAlgorithm& tree_algorithm();
const CollectiveAlgorithm& nvls_algorithm();
const CollectiveAlgorithm& nvls_tree_algorithm();
const CollectiveAlgorithm& collnet_algorithm();
const CollectiveAlgorithm& pat_algorithm();

}  // namespace rehearse::hwmodels
