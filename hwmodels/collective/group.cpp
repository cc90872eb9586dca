#include "hwmodels/collective/group.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "hwmodels/topology/mesh.h"
#include "sim/config/document.h"
#include "sim/config/scalar_types.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"
#include "sim/core/suggestion.h"

namespace rehearse::hwmodels {

Generation generation_of(int compute_capability) {
  if (compute_capability >= 100) return Generation::blackwell;
  if (compute_capability >= 90) return Generation::hopper;
  if (compute_capability >= 80) return Generation::ampere;
  return Generation::volta;
}

double nccl_pcie_bandwidth(int pcie_generation) {
  switch (pcie_generation) {
    case 1:
    case 2:
    case 3:
      return 12;
    case 4:
      return 24;
    case 5:
      return 48;
    default:
      return 96;
  }
}

namespace {

/// What check sums and the protocol leave of an xGMI link: 48 of 64 GB/s.
/// Source: rocm.blogs.amd.com, Understanding RCCL Bandwidth and xGMI Performance on AMD Instinct MI300X (2025-03).
constexpr double kXgmiUsable = 0.75;

}  // namespace

double nccl_link_bandwidth(const Gpu& gpu) {
  if (gpu.nvlink_links == 0 || gpu.nvlink_bandwidth.value == 0)
    return nccl_pcie_bandwidth(gpu.pcie_generation);
  if (is_cdna(gpu.architecture)) return gpu.nvlink_bandwidth.value * kXgmiUsable * 1e-9;
  double per_link = 20;
  if (gpu.compute_capability == 86 || gpu.compute_capability == 89)
    per_link = 12;
  else if (gpu.compute_capability >= 100)
    per_link = 40.1;
  else if (gpu.compute_capability >= 90)
    per_link = 20.6;
  return per_link * gpu.nvlink_links;
}

namespace {

const char* timing_name(const Gpu& gpu, bool nvlink) {
  if (gpu.architecture == Architecture::cdna4) return "cdna4";
  if (is_cdna(gpu.architecture)) return "cdna3";
  if (!nvlink) return "pcie";
  switch (generation_of(gpu.compute_capability)) {
    case Generation::volta:
      return "volta";
    case Generation::ampere:
      return "ampere";
    case Generation::hopper:
      return "hopper";
    case Generation::blackwell:
      return "blackwell";
  }
  return "hopper";
}

/// Of the groups that fill a node, `local` GPUs each, `stride` apart, the one whose rings have the fewest links: the others wait for it.
int fewest_ring_links(const ClusterDescription& cluster, int local, int stride) {
  int fewest = std::numeric_limits<int>::max();
  const int block = local * stride;
  for (int first = 0; first == 0 || first + block <= cluster.gpus_per_node; first += block)
    for (int offset = 0; offset < stride; ++offset) {
      std::vector<int> members;
      for (int i = 0; i < local; ++i) members.push_back(first + offset + i * stride);
      fewest = std::min(fewest, ring_links(cluster.node, members));
    }
  return fewest;
}

/// GB/s of the link between the sockets for each of `groups` groups that cross it at the same moment: NCCL's constant holds for all of them
/// together. Source: MooreThreads/SimuMax a100_pcie (dp_fixed_bw): four rings at once have 3.9 to 4 each, two 7 to 7.65.
double between_sockets(const NodeDesign& node, int groups) {
  const double link = node.cpu.socket_link.value * 1e-9;
  return link > 0 ? link / std::max(1, groups) : std::numeric_limits<double>::infinity();
}

/// What the members of `shape` within a node can use of the link, in GB/s; `across` is the part left when they span both sockets.
double usable_link(const ClusterDescription& cluster, int local, const GroupShape& shape, double link, double across) {
  const NodeDesign& node = cluster.node;
  double pcie = nccl_pcie_bandwidth(cluster.gpu.pcie_generation);
  switch (node.scale_up) {
    case ScaleUp::nvswitch:
      return link;
    case ScaleUp::mesh:
      if (const int links = fewest_ring_links(cluster, local, shape.stride); links > 0) return std::min(link, link / std::max(1, cluster.gpu.nvlink_links) * links);
      break;
    case ScaleUp::bridge:
      if (local <= 2 && shape.stride == 1) return link;
      [[fallthrough]];
    case ScaleUp::none:
      break;
  }
  const bool one_socket = local * shape.stride <= std::max(1, node.gpus / std::max(1, node.cpu.sockets));
  return one_socket ? pcie * node.pcie.efficiency : std::min(pcie * across, between_sockets(node, shape.groups_per_node));
}

/// Members under several leaves meet at the spine. What the user says of the cards holds everywhere.
double nic_efficiency_of(const ClusterDescription& cluster, int span) {
  const FabricDesign& fabric = cluster.fabric;
  const bool leaves = fabric.kind == FabricKind::rail || fabric.kind == FabricKind::leaf_spine;
  const bool spine = leaves && span > fabric.nodes_per_leaf && !cluster.nic_efficiency;
  return cluster.effective_nic_efficiency() * (spine ? cluster.node.nic.spine_efficiency : 1);
}

}  // namespace

const NetworkTiming& network_timing(const NodeDesign& node, const CollectiveParameters& parameters) {
  const std::string& name = node.nic.network;
  if (const auto known = parameters.networks.find(name); known != parameters.networks.end()) return known->second;
  std::vector<std::string> names;
  for (const auto& [network, timing] : parameters.networks) names.push_back(network);
  const std::string problem = "there is no network '" + name + "'", fix = did_you_mean(name, names, fmt::format("Known: {}", fmt::join(names, ", ")));
  if (config::is_file_name(node.name)) {
    const config::Document file = config::load_document(node.name);
    const config::Value* nic = file.root.find("nic");
    if (const config::Value* said = nic != nullptr ? nic->find("network") : nullptr) throw ConfigError(said->diagnostic(problem, fix));
  }
  throw ConfigError(Diagnostic{{}, "nic.network", problem, fix, ""});
}

Group make_group(const ClusterDescription& cluster, const GroupShape& shape,
                 const CollectiveParameters& parameters) {
  EXPECTS(shape.ranks >= 1 && shape.nodes >= 1 && shape.ranks_per_node >= 1);
  const NodeDesign& node = cluster.node;
  Group group;
  group.ranks = shape.ranks;
  // Trays of one rack-wide NVLink domain are one node to NCCL.
  int trays = std::max(1, node.domain / std::max(1, node.gpus));
  int span = (shape.nodes - 1) * shape.node_stride + 1;
  group.nodes = trays == 1 ? shape.nodes : (span + trays - 1) / trays;
  group.local = trays == 1 ? shape.ranks_per_node : (shape.ranks + group.nodes - 1) / group.nodes;
  group.compute_capability = cluster.gpu.compute_capability;
  group.generation = generation_of(group.compute_capability);
  group.cpu = node.cpu.vendor;

  bool has_links = cluster.gpu.nvlink_links > 0 && cluster.gpu.nvlink_bandwidth.value > 0;
  bool pair_only = node.scale_up == ScaleUp::bridge && (group.local > 2 || shape.stride > 1);
  group.nvlink = has_links && node.scale_up != ScaleUp::none && !pair_only;
  group.link =
      group.nvlink ? nccl_link_bandwidth(cluster.gpu) : nccl_pcie_bandwidth(cluster.gpu.pcie_generation);
  group.ring_link = group.direct_link = group.link;
  if (group.local > 1) {
    group.ring_link =
        usable_link(cluster, group.local, shape, group.link, node.pcie.efficiency_across);
    group.direct_link =
        usable_link(cluster, group.local, shape, group.link, node.pcie.all_to_all_across);
  }
  // Measured on two MI300X (47.7 GB/s of their one link's 48); V100's small groups on a mesh are not, and stay as they were.
  group.copy_link = is_cdna(cluster.gpu.architecture) ? group.link : group.ring_link;
  group.nvls = node.nvls && node.scale_up == ScaleUp::nvswitch;

  // NICs within reach: those beside the members, at least one; a rack counts the NICs of all its trays.
  int trays_used = trays == 1 ? 1 : std::max(1, shape.nodes / group.nodes);
  double per_gpu = node.gpus > 0 ? node.nic.count / static_cast<double>(node.gpus) : 0;
  group.gpus_per_nic = per_gpu > 0 ? 1 / per_gpu : 1;
  int reach = std::min(node.nic.count, std::max(node.nic.count > 0 ? 1 : 0,
                                                static_cast<int>(std::ceil(per_gpu * shape.ranks_per_node))));
  if (node.nic.per_communicator > 0) reach = std::min(reach, node.nic.per_communicator);
  group.nics = reach * trays_used;
  group.nic = node.nic.bandwidth.value * 1e-9;
  double wanted = static_cast<double>(reach) * shape.groups_per_node;
  group.nic_share = reach > 0 ? std::min(1.0, node.nic.count / std::max(1.0, wanted)) : 1;
  group.nic_efficiency = nic_efficiency_of(cluster, span);

  auto timing = parameters.generations.find(timing_name(cluster.gpu, group.nvlink));
  EXPECTS(timing != parameters.generations.end(), "no timing for this GPU generation");
  group.timing = &timing->second;
  group.network = &network_timing(node, parameters);
  group.common = &parameters.common;
  group.dispatch = &parameters.expert_dispatch;
  group.registered = &parameters.registered_buffers;
  return group;
}

}  // namespace rehearse::hwmodels
