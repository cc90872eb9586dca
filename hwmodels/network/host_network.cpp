#include "hwmodels/network/host_network.h"

#include <algorithm>

#include "hwmodels/collective/closed_forms.h"

namespace rehearse::hwmodels {

BytesPerSecond HostNetwork::bandwidth(bool across_nodes, int sharing) const {
  if (!across_nodes) return BytesPerSecond{timing_.intra * 1e9};
  double nics =
      cluster_.node.nic.bandwidth.value * std::max(1, cluster_.node.nic.count) * timing_.nic_fraction;
  return BytesPerSecond{std::min(timing_.inter * 1e9, nics) / std::max(1, sharing)};
}

HostNetwork::HostNetwork(ClusterDescription cluster, const HostBackendTiming& timing)
    : cluster_(std::move(cluster)), timing_(timing), host_(host_rates(cluster_)) {}

Duration HostNetwork::copy_time(Bytes down, Bytes up) const {
  return down / (host_.to_host * timing_.copies) + up / (host_.to_device * timing_.copies);
}

CommunicationCost HostNetwork::collective(CollectiveKind kind, Bytes bytes, const GroupShape& group) const {
  CommunicationCost cost;
  if (group.ranks == 1) return cost;
  if (kind == CollectiveKind::send_recv) return point_to_point(bytes, group.nodes == 1, group.groups_per_node);
  if (kind == CollectiveKind::scatter || kind == CollectiveKind::gather) return copies_in_turn(*this, bytes, group);
  Duration alpha = microseconds(timing_.alpha);
  BytesPerSecond rate = bandwidth(group.nodes > 1, group.groups_per_node);
  cost.algorithm = Algorithm::ring;
  switch (kind) {
    case CollectiveKind::all_reduce:
      cost.duration = ring_all_reduce_time(bytes, group.ranks, alpha, rate);
      break;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
      cost.duration = pipelined_broadcast_time(bytes, group.ranks, alpha, rate);
      break;
    default:
      cost.duration = ring_all_gather_time(bytes, group.ranks, alpha, rate);
      break;
  }
  // Down from the GPU and up again: what a rank gives, and what it gets.
  const Bytes part{bytes.value / group.ranks};
  const Duration copies = copy_time(kind == CollectiveKind::all_gather ? part : bytes, kind == CollectiveKind::reduce_scatter ? part : bytes);
  cost.duration += copies;
  cost.use.pcie = std::min(1.0, to_seconds(copies) / to_seconds(cost.duration));
  if (group.nodes > 1) cost.use.nic = 1;
  return cost;
}

CommunicationCost HostNetwork::point_to_point(Bytes bytes, bool same_node, int concurrent_per_node, const GroupShape&) const {
  CommunicationCost cost;
  cost.algorithm = Algorithm::direct;
  cost.duration = microseconds(timing_.alpha) + bytes / bandwidth(!same_node, concurrent_per_node) +
                  copy_time(bytes, bytes);
  if (!same_node) cost.use.nic = 1;
  return cost;
}

}  // namespace rehearse::hwmodels
