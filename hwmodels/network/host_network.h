// Network as Gloo and MPI drive it: alpha-beta through host memory, a ring over TCP or the NIC.
// Leaves out GPUDirect MPI builds, which behave like NCCL without its tuning.
#pragma once

#include "hwmodels/collective/parameters.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"
#include "hwmodels/topology/host.h"

namespace rehearse::hwmodels {

class HostNetwork final : public Network {
 public:
  HostNetwork(ClusterDescription cluster, const HostBackendTiming& timing);

  CommunicationCost collective(CollectiveKind kind, Bytes bytes, const GroupShape& group) const override;
  /// Gloo and MPI know no dispatch kernel: a copy for each choice.
  CommunicationCost dispatch(Bytes bytes, const TokenExchange& exchange, const GroupShape& group) const override {
    return collective(CollectiveKind::all_to_all, Bytes{bytes.value * exchange.choices}, group);
  }
  using Network::point_to_point;
  CommunicationCost point_to_point(Bytes bytes, bool same_node, int concurrent_per_node, const GroupShape& communicator) const override;
  CommunicatorMemory communicator_memory(const GroupShape&,
                                         const std::vector<CollectiveKind>&) const override {
    return {};
  }

 private:
  BytesPerSecond bandwidth(bool across_nodes, int sharing) const;
  /// Copies to host memory and back, one after the other, while the node's other GPUs do the same.
  Duration copy_time(Bytes down, Bytes up) const;
  ClusterDescription cluster_;
  HostBackendTiming timing_;
  HostRates host_;
};

}  // namespace rehearse::hwmodels
