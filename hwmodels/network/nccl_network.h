// Network as NCCL drives it: choice by its tuner, time by the measured model, limits of the fabric on top.
// Leaves out the host backends (host_network.h).
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "hwmodels/collective/group.h"
#include "hwmodels/collective/tuner.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"
#include "hwmodels/topology/topology.h"

namespace rehearse::hwmodels {

class NcclNetwork final : public Network {
 public:
  NcclNetwork(ClusterDescription cluster, CommunicationOptions options);

  CommunicationCost collective(CollectiveKind kind, Bytes bytes, const GroupShape& group) const override;
  CommunicationCost dispatch(Bytes bytes, const TokenExchange& exchange, const GroupShape& group) const override;
  CommunicationCost peer_copies(Bytes bytes, const GroupShape& shape) const override;
  int registered_sms(CollectiveKind kind, const GroupShape& shape, int usual) const override;
  using Network::point_to_point;
  CommunicationCost point_to_point(Bytes bytes, bool same_node, int concurrent_per_node, const GroupShape& communicator) const override;
  Duration ring_step_wait() const override;
  CommunicatorMemory communicator_memory(const GroupShape& group,
                                         const std::vector<CollectiveKind>& kinds) const override;

 private:
  Group group_for(const GroupShape& shape) const;
  CommunicationCost alone(CollectiveKind kind, double bytes, const Group& group) const;
  CommunicationCost shift(Bytes bytes, const GroupShape& shape) const;
  struct JobsMessage {
    int ranks = 1, nodes = 1;
    Algorithm algorithm = Algorithm::none;
    double modelled = 0, measured = 0;
  };
  std::optional<JobsMessage> jobs_message(CollectiveKind kind, bool world) const;
  static double step_wait(const JobsMessage& message, CollectiveKind kind);
  void as_measured(CommunicationCost& cost, CollectiveKind kind, const Group& group) const;
  double fabric_seconds(CollectiveKind kind, Bytes bytes, const GroupShape& shape, Algorithm algorithm) const;
  const Topology& topology() const;

  ClusterDescription cluster_;
  CommunicationOptions options_;
  bool fabric_may_limit_ = false;
  mutable std::once_flag topology_built_;
  mutable std::unique_ptr<Topology> topology_;
};

}  // namespace rehearse::hwmodels
