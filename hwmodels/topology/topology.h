// The links of a cluster: GPUs, NVSwitches, PCIe switches, sockets, NICs, leaf and spine switches, and routes
// over them. Leaves out time (hwmodels/network); built only where links are shared or shown.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/topology/cluster.h"
#include "hwmodels/topology/routes.h"

namespace rehearse::hwmodels {

enum class NodeKind : std::uint8_t { gpu, nvswitch, pcie_switch, cpu, nic, leaf, spine };
std::string_view name_of(NodeKind kind);

/// NCCL's path classes, best first. Source: NVIDIA/nccl src/graph/topo.h.
///   nvl  NVLink;  pix  one PCIe switch;  pxb  several;  phb  through one CPU;  sys  between CPUs;  net  the
///   fabric
enum class PathClass : std::uint8_t { local, nvl, pix, pxb, phb, sys, net };
std::string_view name_of(PathClass path);

struct TopologyNode {
  std::string name;
  NodeKind kind = NodeKind::gpu;
  int machine = -1;  // -1: a switch of the fabric
};

/// One direction of a cable.
struct TopologyLink {
  int from = 0, to = 0;
  BytesPerSecond bandwidth;
  Duration latency{};
};

class Topology {
 public:
  Topology(std::vector<TopologyNode> nodes, std::vector<TopologyLink> links,
           std::optional<RouteTables> routes = {});
  ~Topology();
  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;

  const std::vector<TopologyNode>& nodes() const { return nodes_; }
  const std::vector<TopologyLink>& links() const { return links_; }
  /// Indices into nodes() of the GPUs, machine by machine: position r is the GPU of rank r.
  const std::vector<int>& gpus() const { return gpus_; }
  int machines() const { return machines_; }

  /// Links from one GPU to another (positions in gpus()), first to last. Where equal spines exist, `flow`
  /// picks one (ECMP): the same flow always takes the same route. Empty when from == to. Precondition:
  /// connected.
  std::vector<int> route(int from_gpu, int to_gpu, int flow = 0) const;

  /// Links between any two nodes (indices into nodes()) by shortest path: least latency plus the time of 1
  /// MB, GPUs never as a way through. What route() does on hand-written graphs, and the oracle of what it
  /// does on generated ones.
  std::vector<int> search(int from, int to, int flow = 0) const;

  /// Class of the best path between two GPUs (positions in gpus()).
  PathClass path_class(int gpu_a, int gpu_b) const;

 private:
  struct Graph;
  const Graph& graph() const;

  std::vector<TopologyNode> nodes_;
  std::vector<TopologyLink> links_;
  std::vector<int> gpus_;
  int machines_ = 0;
  std::optional<RouteTables> routes_;
  mutable std::unique_ptr<Graph> graph_;
};

/// The links of a generated or hand-written cluster.
Topology make_topology(const ClusterDescription& cluster);

}  // namespace rehearse::hwmodels
