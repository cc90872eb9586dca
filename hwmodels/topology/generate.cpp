// Builds the links of the reference designs, or of a hand-written graph.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "hwmodels/collective/group.h"
#include "hwmodels/topology/mesh.h"
#include "hwmodels/topology/topology.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"

namespace rehearse::hwmodels {
namespace {

// NVSwitch 25 ns and NIC 0.5 us: aliyun/SimAI defaults; PCIe hop and socket crossing: order of magnitude
// (recalled).
constexpr Duration kNvlinkLatency{25'000}, kPcieLatency{150'000}, kSocketLatency{300'000},
    kNicLatency{500'000};

class Builder {
 public:
  explicit Builder(const ClusterDescription& cluster) : c_(cluster) {}

  Topology build() {
    add_domains();
    for (int machine = 0; machine < c_.nodes; ++machine) add_machine(machine);
    if (c_.nodes > 1) add_fabric();
    return Topology(std::move(nodes_), std::move(links_), std::move(routes_));
  }

 private:
  int add(NodeKind kind, int machine, std::string name) {
    nodes_.push_back({std::move(name), kind, machine});
    return static_cast<int>(nodes_.size()) - 1;
  }
  // Two links, there and back; the id of the first.
  int join(int a, int b, BytesPerSecond bandwidth, Duration latency) {
    links_.push_back({a, b, bandwidth, latency});
    links_.push_back({b, a, bandwidth, latency});
    return static_cast<int>(links_.size()) - 2;
  }

  int trays_per_domain() const { return std::max(1, c_.node.domain / std::max(1, c_.node.gpus)); }

  void add_domains() {
    if (c_.node.scale_up != ScaleUp::nvswitch) return;
    int trays = trays_per_domain();
    for (int first = 0; first < c_.nodes; first += trays)
      switches_.push_back(
          add(NodeKind::nvswitch, trays == 1 ? first : -1, fmt::format("nvswitch{}", first / trays)));
  }

  void add_machine(int machine) {
    const NodeDesign& node = c_.node;
    auto pcie = BytesPerSecond{nccl_pcie_bandwidth(c_.gpu.pcie_generation) * 1e9};
    int sockets = std::max(1, node.cpu.sockets);
    std::vector<int> cpu, pcie_switch, gpu;
    for (int s = 0; s < sockets; ++s)
      cpu.push_back(add(NodeKind::cpu, machine, fmt::format("n{}.cpu{}", machine, s)));
    for (int s = 1; s < sockets; ++s)
      routes_.cpu_to_next.push_back(join(cpu[s - 1], cpu[s], node.cpu.socket_link, kSocketLatency));
    routes_.cpu_to_next.push_back(-1);  // the last socket has no next
    int per_switch = std::max(1, node.pcie.gpus_per_switch);
    int switch_count = (node.gpus + per_switch - 1) / per_switch;
    for (int s = 0; s < switch_count; ++s) {
      pcie_switch.push_back(add(NodeKind::pcie_switch, machine, fmt::format("n{}.pcie{}", machine, s)));
      routes_.pcie_to_cpu.push_back(
          join(pcie_switch[s], cpu[s * sockets / switch_count], pcie, kPcieLatency));
    }
    for (int g = 0; g < c_.gpus_per_node; ++g) {
      gpu.push_back(add(NodeKind::gpu, machine, fmt::format("n{}.gpu{}", machine, g)));
      routes_.gpu_to_pcie.push_back(join(gpu[g], pcie_switch[g / per_switch], pcie, kPcieLatency));
    }
    add_scale_up(machine, gpu);
    for (int i = 0; i < node.nic.count; ++i) {
      nics_.push_back(add(NodeKind::nic, machine, fmt::format("n{}.nic{}", machine, i)));
      auto slot = BytesPerSecond{std::max(pcie.value, node.nic.bandwidth.value)};
      routes_.nic_to_pcie.push_back(
          join(nics_.back(), pcie_switch[i * switch_count / node.nic.count], slot, kPcieLatency));
    }
    if (machine == 0) note_shape(sockets, per_switch, switch_count);
  }

  // What is the same in every machine.
  void note_shape(int sockets, int per_switch, int switch_count) {
    routes_.gpus_per_machine = c_.gpus_per_node;
    routes_.nics_designed_for = c_.node.gpus;
    routes_.nics_per_machine = c_.node.nic.count;
    routes_.switches_per_machine = switch_count;
    routes_.sockets = sockets;
    routes_.machines_per_domain = trays_per_domain();
    for (int g = 0; g < c_.gpus_per_node; ++g) routes_.switch_of_gpu.push_back(g / per_switch);
    for (int i = 0; i < c_.node.nic.count; ++i)
      routes_.switch_of_nic.push_back(i * switch_count / c_.node.nic.count);
    for (int s = 0; s < switch_count; ++s) routes_.socket_of_switch.push_back(s * sockets / switch_count);
  }

  void add_scale_up(int machine, const std::vector<int>& gpu) {
    BytesPerSecond all = c_.gpu.nvlink_bandwidth;
    if (all.value <= 0) return;
    if (c_.node.scale_up == ScaleUp::nvswitch)
      for (int g : gpu)
        routes_.gpu_to_nvswitch.push_back(
            join(g, switches_[machine / trays_per_domain()], all, kNvlinkLatency));
    bool mesh = c_.node.scale_up == ScaleUp::mesh, bridge = c_.node.scale_up == ScaleUp::bridge;
    if (!mesh && !bridge) return;
    auto count = static_cast<int>(gpu.size());
    auto first = routes_.gpu_pair.size();
    routes_.gpu_pair.resize(first + gpu.size() * gpu.size(), -1);
    for (int a = 0; a < count; ++a)
      for (int b = a + 1; b < count; ++b) {
        if (bridge && (a % 2 != 0 || b != a + 1)) continue;
        const int links = mesh ? mesh_links(c_.node, a, b) : std::max(1, c_.gpu.nvlink_links);
        if (links == 0) continue;
        int link = join(gpu[a], gpu[b], BytesPerSecond{all.value / std::max(1, c_.gpu.nvlink_links) * links}, kNvlinkLatency);
        routes_.gpu_pair[first + a * gpu.size() + b] = link;
        routes_.gpu_pair[first + b * gpu.size() + a] = link + 1;
      }
  }

  void add_fabric() {
    const FabricDesign& f = c_.fabric;
    int nics = c_.node.nic.count;
    EXPECTS(nics > 0, "nodes without NICs cannot be joined by a fabric");
    bool rail = f.kind == FabricKind::rail;
    bool single = f.kind == FabricKind::single_switch;
    int group = single ? c_.nodes : std::max(1, f.nodes_per_leaf);
    int pods = (c_.nodes + group - 1) / group;
    int leaves_per_pod = rail ? nics : 1;
    std::vector<int> leaf, spine;
    for (int l = 0; l < pods * leaves_per_pod; ++l)
      leaf.push_back(add(NodeKind::leaf, -1, fmt::format("leaf{}", l)));
    for (int machine = 0; machine < c_.nodes; ++machine)
      for (int i = 0; i < nics; ++i) {
        int at = machine / group * leaves_per_pod + (rail ? i : 0);
        routes_.leaf_of_nic.push_back(at);
        routes_.nic_to_leaf.push_back(
            join(nics_[machine * nics + i], leaf[at], c_.node.nic.bandwidth, f.hop_latency + kNicLatency));
      }
    if (leaf.size() < 2) return;
    int spines = std::max(1, f.spines);
    double down = c_.node.nic.bandwidth.value * group * (rail ? 1 : nics);
    auto up = BytesPerSecond{down / c_.effective_oversubscription() / spines};
    for (int s = 0; s < spines; ++s) spine.push_back(add(NodeKind::spine, -1, fmt::format("spine{}", s)));
    for (int l : leaf)
      for (int s : spine) routes_.leaf_to_spine.push_back(join(l, s, up, f.hop_latency));
    routes_.spines = spines;
  }

  const ClusterDescription& c_;
  std::vector<TopologyNode> nodes_;
  std::vector<TopologyLink> links_;
  RouteTables routes_;
  std::vector<int> switches_, nics_;
};

Topology from_graph(const FabricDesign& fabric) {
  std::map<std::string, int> index;
  std::vector<TopologyNode> nodes;
  std::vector<TopologyLink> links;
  std::vector<Diagnostic> wrong;
  for (const GraphNode& node : fabric.graph_nodes) {
    int kind = 0;
    while (kind <= static_cast<int>(NodeKind::spine) && name_of(static_cast<NodeKind>(kind)) != node.kind)
      ++kind;
    if (kind > static_cast<int>(NodeKind::spine)) {
      wrong.push_back({{fabric.file, 0, 0},
                       "nodes." + node.name,
                       "unknown kind '" + node.kind + "'",
                       "Use gpu, nvswitch, pcie, cpu, nic, leaf or spine",
                       {}});
      continue;
    }
    if (!index.emplace(node.name, static_cast<int>(nodes.size())).second)
      wrong.push_back(
          {{fabric.file, 0, 0}, "nodes." + node.name, "named twice", "Give each node its own name", {}});
    nodes.push_back({node.name, static_cast<NodeKind>(kind), node.node});
  }
  for (const GraphLink& link : fabric.graph_links) {
    auto from = index.find(link.from), to = index.find(link.to);
    if (from == index.end() || to == index.end()) {
      wrong.push_back({{fabric.file, 0, 0},
                       "links",
                       "link between '" + link.from + "' and '" + link.to + "' names an unknown node",
                       "List both under nodes",
                       {}});
      continue;
    }
    links.push_back({from->second, to->second, link.bandwidth, link.latency});
    links.push_back({to->second, from->second, link.bandwidth, link.latency});
  }
  if (!wrong.empty()) throw ConfigError(std::move(wrong));
  return Topology(std::move(nodes), std::move(links));
}

}  // namespace

Topology make_topology(const ClusterDescription& cluster) {
  if (cluster.fabric.kind == FabricKind::graph) return from_graph(cluster.fabric);
  return Builder(cluster).build();
}

}  // namespace rehearse::hwmodels
