#include "hwmodels/topology/topology.h"

// Boost 1.74 keeps an optional inside its edge iterator; GCC 12 cannot see that it is set before use.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <limits>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {

std::string_view name_of(NodeKind kind) {
  constexpr std::string_view names[] = {"gpu", "nvswitch", "pcie", "cpu", "nic", "leaf", "spine"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name_of(PathClass path) {
  constexpr std::string_view names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "NET"};
  return names[static_cast<std::size_t>(path)];
}

namespace {
// A message of this size decides between few slow hops and many fast ones.
constexpr double kRouteProbe = 1e6;
constexpr double kForbidden = 1e9;  // seconds: leaving a GPU that is not the start

using BoostGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                         boost::property<boost::edge_index_t, int>>;
}  // namespace

// Distances from the last asked start are kept: callers ask for many routes from one GPU.
struct Topology::Graph {
  BoostGraph boost;
  std::vector<std::vector<int>> arriving;  // links by their end
  std::vector<double> weights, distance;
  int start = -1;
};

Topology::Topology(std::vector<TopologyNode> nodes, std::vector<TopologyLink> links,
                   std::optional<RouteTables> routes)
    : nodes_(std::move(nodes)), links_(std::move(links)), routes_(std::move(routes)) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == NodeKind::gpu) gpus_.push_back(static_cast<int>(i));
    machines_ = std::max(machines_, nodes_[i].machine + 1);
  }
  std::stable_sort(gpus_.begin(), gpus_.end(),
                   [&](int a, int b) { return nodes_[a].machine < nodes_[b].machine; });
}
Topology::~Topology() = default;
Topology::Topology(Topology&&) noexcept = default;
Topology& Topology::operator=(Topology&&) noexcept = default;

const Topology::Graph& Topology::graph() const {
  if (!graph_) {
    graph_ = std::make_unique<Graph>();
    graph_->boost = BoostGraph(nodes_.size());
    graph_->arriving.resize(nodes_.size());
    for (std::size_t i = 0; i < links_.size(); ++i) {
      boost::add_edge(links_[i].from, links_[i].to, static_cast<int>(i), graph_->boost);
      graph_->arriving[links_[i].to].push_back(static_cast<int>(i));
    }
  }
  return *graph_;
}

std::vector<int> Topology::route(int from, int to, int flow) const {
  return routes_ ? assembled_route(*routes_, from, to, flow) : search(gpus_.at(from), gpus_.at(to), flow);
}

std::vector<int> Topology::search(int from, int to, int flow) const {
  if (from == to) return {};
  graph();
  Graph& g = *graph_;
  if (g.start != from) {
    g.start = from;
    g.weights.resize(links_.size());
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const TopologyLink& link = links_[i];
      bool through_gpu = nodes_[link.from].kind == NodeKind::gpu && link.from != from;
      g.weights[i] = through_gpu ? kForbidden : to_seconds(link.latency) + kRouteProbe / link.bandwidth.value;
    }
    g.distance.assign(nodes_.size(), std::numeric_limits<double>::max());
    auto edge_index = boost::get(boost::edge_index, g.boost);
    auto weights = boost::make_iterator_property_map(g.weights.begin(), edge_index);
    auto distance =
        boost::make_iterator_property_map(g.distance.begin(), boost::get(boost::vertex_index, g.boost));
    boost::dijkstra_shortest_paths(g.boost, from, boost::weight_map(weights).distance_map(distance));
  }
  EXPECTS(g.distance[to] < kForbidden, "no way from " + nodes_[from].name + " to " + nodes_[to].name);
  std::vector<int> path;
  for (int at = to; at != from;) {
    std::vector<int> equal;  // links that end a shortest path here
    for (int link : g.arriving[at]) {
      double through = g.distance[links_[link].from] + g.weights[link];
      if (through <= g.distance[at] * (1 + 1e-12)) equal.push_back(link);
    }
    ENSURES(!equal.empty());
    path.push_back(equal[static_cast<std::size_t>(flow) % equal.size()]);
    at = links_[path.back()].from;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

PathClass Topology::path_class(int a, int b) const {
  if (a == b) return PathClass::local;
  std::vector<int> links = route(a, b);
  int switches = 0, sockets = 0;
  for (int link : links) {
    NodeKind kind = nodes_[links_[link].to].kind;
    if (kind == NodeKind::nvswitch) return PathClass::nvl;
    if (kind == NodeKind::leaf) return PathClass::net;
    switches += kind == NodeKind::pcie_switch;
    sockets += kind == NodeKind::cpu;
  }
  if (sockets >= 2) return PathClass::sys;
  if (sockets == 1) return PathClass::phb;
  if (switches >= 2) return PathClass::pxb;
  return switches == 1 ? PathClass::pix : PathClass::nvl;  // no device between them: a direct NVLink
}

}  // namespace rehearse::hwmodels
