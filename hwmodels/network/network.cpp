#include "hwmodels/network/network.h"

#include "hwmodels/network/host_network.h"
#include "hwmodels/network/nccl_network.h"
#include "sim/core/error.h"

namespace rehearse::hwmodels {

std::string_view name_of(Algorithm a) {
  switch (a) {
    case Algorithm::none:
      return "none";
    case Algorithm::ring:
      return "ring";
    case Algorithm::tree:
      return "tree";
    case Algorithm::nvls:
      return "nvls";
    case Algorithm::nvls_tree:
      return "nvls_tree";
    case Algorithm::collnet:
      return "collnet";
    case Algorithm::pat:
      return "pat";
    case Algorithm::direct:
      return "direct";
  }
  return "?";
}

std::string_view name_of(Protocol p) {
  switch (p) {
    case Protocol::none:
      return "none";
    case Protocol::ll:
      return "ll";
    case Protocol::ll128:
      return "ll128";
    case Protocol::simple:
      return "simple";
  }
  return "?";
}

CommunicationCost copies_in_turn(const Network& network, Bytes bytes, const GroupShape& group) {
  if (group.ranks == 1) return {};
  const Bytes part{bytes.value / group.ranks};
  const int inside = group.ranks_per_node - 1, outside = group.ranks - group.ranks_per_node;
  CommunicationCost cost = network.point_to_point(part, inside > 0, 1);
  const Duration far = outside > 0 ? network.point_to_point(part, false, 1).duration : Duration{};
  cost.duration = cost.duration * inside + far * outside;
  cost.use.sms = 0;
  return cost;
}

std::unique_ptr<Network> make_network(const ClusterDescription& cluster,
                                      const CommunicationOptions& options) {
  if (options.backend == "nccl") return std::make_unique<NcclNetwork>(cluster, options);
  const auto& backends = collective_parameters().backends;
  auto found = backends.find(options.backend);
  if (found != backends.end()) return std::make_unique<HostNetwork>(cluster, found->second);
  std::string known = "nccl";
  for (const auto& [name, timing] : backends) known += ", " + name;
  throw ConfigError(Diagnostic{
      {}, "backend", "unknown communication backend '" + options.backend + "'", "Use one of: " + known, {}});
}

}  // namespace rehearse::hwmodels
