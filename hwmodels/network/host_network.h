// Network as Gloo and MPI drive it: alpha-beta through host memory, a ring over TCP or the NIC.
// Leaves out GPUDirect MPI builds, which behave like NCCL without its tuning.
#pragma once

#include "hwmodels/collective/parameters.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels {

class HostNetwork final : public Network {
 public:
  HostNetwork(ClusterDescription cluster, const HostBackendTiming& timing)
      : cluster_(std::move(cluster)), timing_(timing) {}

  CommunicationCost collective(CollectiveKind kind, Bytes bytes, const GroupShape& group) const override;
  /// Gloo and MPI know no dispatch kernel: a copy for each choice.
  CommunicationCost dispatch(Bytes bytes, int choices, int, int, const GroupShape& group) const override {
    return collective(CollectiveKind::all_to_all, Bytes{bytes.value * choices}, group);
  }
  CommunicationCost point_to_point(Bytes bytes, bool same_node, int concurrent_per_node) const override;
  CommunicatorMemory communicator_memory(const GroupShape&,
                                         const std::vector<CollectiveKind>&) const override {
    return {};
  }

 private:
  BytesPerSecond bandwidth(bool across_nodes, int sharing) const;
  ClusterDescription cluster_;
  HostBackendTiming timing_;
};

}  // namespace rehearse::hwmodels
