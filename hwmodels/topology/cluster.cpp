#include "hwmodels/topology/cluster.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "hwmodels/source_field.h"
#include "sim/config/document.h"
#include "sim/config/fields.h"
#include "sim/core/remembered.h"
#include "sim/core/resources.h"
#include "sim/core/suggestion.h"

namespace rehearse::hwmodels {

std::string_view name_of(ScaleUp design) {
  constexpr std::string_view names[] = {"nvswitch", "mesh", "bridge", "none"};
  return names[static_cast<std::size_t>(design)];
}
std::string_view name_of(CpuVendor vendor) {
  constexpr std::string_view names[] = {"intel", "amd", "arm"};
  return names[static_cast<std::size_t>(vendor)];
}
std::string_view name_of(FabricKind kind) {
  constexpr std::string_view names[] = {"single-switch", "rail", "leaf-spine", "graph"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {
using namespace config;

constexpr const char* kNodeFolder = "hwmodels/data/node";
constexpr const char* kFabricFolder = "hwmodels/data/fabric";

const Fields<NicDesign>& nic_fields() {
  static const Fields<NicDesign> fields{
      integer("count", &NicDesign::count, "NICs for GPU traffic in one node", non_negative),
      rate("bandwidth", &NicDesign::bandwidth, "line rate of one NIC, one direction", non_negative),
      text("network", &NicDesign::network,
           "infiniband, roce, slingshot, efa, efa-untuned or tcp: latencies of hwmodels/data/collective/nccl.yaml"),
      fraction("efficiency", &NicDesign::efficiency,
               "achieved part of the line rate in large ring collectives", between(0.01, 1)),
      integer("per_communicator", &NicDesign::per_communicator, "NICs that one communicator's rings go through; 0: all beside its members", non_negative),
      fraction("spine_efficiency", &NicDesign::spine_efficiency,
               "what is left of it where a group's nodes stand under several leaves (static hashing of flows)", between(0.01, 1)),
      source_field<NicDesign>(),
  };
  return fields;
}

const Fields<PcieDesign>& pcie_fields() {
  static const Fields<PcieDesign> fields{
      integer("gpus_per_switch", &PcieDesign::gpus_per_switch, "GPUs below one PCIe switch or root port",
              positive),
      boolean("peer_to_peer", &PcieDesign::peer_to_peer, "GPUs may read each other's memory"),
      fraction("efficiency", &PcieDesign::efficiency, "of NCCL's PCIe number, one socket", between(0.01, 2)),
      fraction("efficiency_across", &PcieDesign::efficiency_across, "of NCCL's PCIe number, both sockets",
               between(0.01, 2)),
      fraction("all_to_all_across", &PcieDesign::all_to_all_across,
               "of NCCL's PCIe number, all-to-all over both sockets", between(0.01, 2)),
      source_field<PcieDesign>(),
  };
  return fields;
}

const Fields<CpuDesign>& cpu_fields() {
  static const Fields<CpuDesign> fields{
      choice("vendor", &CpuDesign::vendor, "CPU vendor",
             {{"intel", CpuVendor::intel, "Xeon"},
              {"amd", CpuVendor::amd, "EPYC"},
              {"arm", CpuVendor::arm, "Grace"}}),
      text("model", &CpuDesign::model, "CPU model"),
      integer("sockets", &CpuDesign::sockets, "sockets", positive),
      integer("numa_nodes", &CpuDesign::numa_nodes, "memory domains of the node (NUMA nodes); absent: one per socket", positive),
      integer("cores", &CpuDesign::cores, "cores of the node", positive),
      rate("memory_bandwidth", &CpuDesign::memory_bandwidth, "peak DRAM bandwidth of the node", non_negative),
      rate("socket_link", &CpuDesign::socket_link, "between sockets, one direction, as NCCL counts it", non_negative),
      bytes("memory", &CpuDesign::memory, "DRAM of the node", non_negative),
      rate("copy_bandwidth", &CpuDesign::copy_bandwidth, "DRAM traffic that copies reach, measured; absent: 80 % of the peak", non_negative),
      rate("update_bandwidth", &CpuDesign::update_bandwidth, "DRAM traffic of a CPU optimizer on all cores, measured; absent: 46 % of the peak", non_negative),
      rate("core_bandwidth", &CpuDesign::core_bandwidth, "DRAM traffic of a CPU optimizer on one core, measured; absent: 12 GB/s of a Xeon's, 27 GB/s of an EPYC's, no bound of its own for Grace's", non_negative),
      fraction("pageable_fraction", &CpuDesign::pageable_fraction, "rate of a pageable copy, of a pinned one's", between(0.01, 1)),
      fraction("launch_time", &CpuDesign::launch_time, "host time of issuing work, relative to a Xeon Platinum 8480C", between(0.1, 10)),
      source_field<CpuDesign>(),
  };
  return fields;
}

const Fields<NvmeDesign>& nvme_fields() {
  static const Fields<NvmeDesign> fields{
      rate("read", &NvmeDesign::read, "of the node", non_negative),
      rate("write", &NvmeDesign::write, "of the node", non_negative),
      bytes("capacity", &NvmeDesign::capacity, "of the node", non_negative),
      source_field<NvmeDesign>(),
  };
  return fields;
}

const Fields<MeshLinks>& mesh_links_fields() {
  static const Fields<MeshLinks> fields{
      integer("from", &MeshLinks::from, "one GPU, from 0", non_negative).required(),
      integer("to", &MeshLinks::to, "the other", non_negative).required(),
      integer("count", &MeshLinks::count, "NVLinks between them", positive).required(),
  };
  return fields;
}

const Fields<NodeDesign>& node_fields() {
  static const Fields<NodeDesign> fields{
      text("title", &NodeDesign::title, "full name").required(),
      text("gpu", &NodeDesign::gpu, "name under hwmodels/data/gpu of the card it is sold with").required(),
      power("gpu_power", &NodeDesign::gpu_power, "what each may draw in it; absent: as much as it draws anywhere", positive),
      integer("gpus", &NodeDesign::gpus, "GPUs of one node", positive).required(),
      choice("scale_up", &NodeDesign::scale_up, "how the GPUs are joined",
             {{"nvswitch", ScaleUp::nvswitch, "switched NVLink"},
              {"mesh", ScaleUp::mesh, "direct links between pairs"},
              {"bridge", ScaleUp::bridge, "NVLink bridges between neighbours 0-1, 2-3, ..."},
              {"none", ScaleUp::none, "PCIe only"}})
          .required(),
      integer("links_per_pair", &NodeDesign::links_per_pair, "mesh: NVLinks between two GPUs", non_negative),
      list_of("links", &NodeDesign::links, "mesh whose pairs differ: the pairs that are joined", mesh_links_fields()),
      integer("domain", &NodeDesign::domain, "GPUs of one NVLink network, which may hold many nodes",
              positive),
      boolean("nvls", &NodeDesign::nvls, "the NVSwitches reduce and multicast (SHARP)"),
      nested("nic", &NodeDesign::nic, "network cards", nic_fields()),
      nested("pcie", &NodeDesign::pcie, "PCIe tree", pcie_fields()),
      nested("cpu", &NodeDesign::cpu, "host", cpu_fields()),
      nested("nvme", &NodeDesign::nvme, "local disks", nvme_fields()),
      source_field<NodeDesign>(),
  };
  return fields;
}

const Fields<GraphNode>& graph_node_fields() {
  static const Fields<GraphNode> fields{
      text("name", &GraphNode::name, "its name in links").required(),
      text("kind", &GraphNode::kind, "gpu, nvswitch, pcie, cpu, nic, leaf or spine").required(),
      integer("node", &GraphNode::node, "machine it belongs to; -1 for switches of the fabric", at_least(-1)),
  };
  return fields;
}

const Fields<GraphLink>& graph_link_fields() {
  static const Fields<GraphLink> fields{
      text("from", &GraphLink::from, "one end").required(),
      text("to", &GraphLink::to, "other end").required(),
      rate("bandwidth", &GraphLink::bandwidth, "each direction", positive).required(),
      duration("latency", &GraphLink::latency, "one way", non_negative),
  };
  return fields;
}

const Fields<FabricDesign>& fabric_fields() {
  static const Fields<FabricDesign> fields{
      text("title", &FabricDesign::title, "full name").required(),
      choice("kind", &FabricDesign::kind, "how the NICs are joined",
             {{"single-switch", FabricKind::single_switch, "one switch, non-blocking"},
              {"rail", FabricKind::rail, "NIC i of every node on leaf i"},
              {"leaf-spine", FabricKind::leaf_spine, "all NICs of neighbouring nodes on one leaf"},
              {"graph", FabricKind::graph, "nodes and links written below"}})
          .required(),
      integer("nodes_per_leaf", &FabricDesign::nodes_per_leaf,
              "rail: nodes of a pod; leaf-spine: nodes of a leaf", positive),
      integer("spines", &FabricDesign::spines, "spine switches", positive),
      number("oversubscription", &FabricDesign::oversubscription, "bandwidth down to bandwidth up of a leaf",
             at_least(1)),
      duration("hop_latency", &FabricDesign::hop_latency, "one switch", non_negative),
      list_of("nodes", &FabricDesign::graph_nodes, "kind graph: every device", graph_node_fields()),
      list_of("links", &FabricDesign::graph_links, "kind graph: full-duplex links", graph_link_fields()),
      source_field<FabricDesign>(),
  };
  return fields;
}

template <typename T>
T load(const std::filesystem::path& path, const std::string& shown, const Fields<T>& fields) {
  Document document = load_document(path);
  Diagnostics wrong;
  T design = read(document.root, fields, wrong);
  throw_if_any(std::move(wrong));
  design.file = shown;
  return design;
}

template <typename T>
T load_named(const std::string& what, const std::string& folder, const std::string& name,
             const Fields<T>& fields) {
  std::vector<std::string> known = resource_names(folder, ".yaml");
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::string list;
    for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
    throw ConfigError(Diagnostic{{},
                                 what,
                                 "unknown " + what + " '" + name + "'",
                                 did_you_mean(name, known, "Known: " + list),
                                 {}});
  }
  std::string file = folder + "/" + name + ".yaml";
  T design = load(resource_root() / file, file, fields);
  design.name = name;
  return design;
}

}  // namespace

namespace {

/// Every pair once, both GPUs in the node.
void check_links(const NodeDesign& node) {
  Diagnostics wrong;
  std::set<std::pair<int, int>> seen;
  for (const MeshLinks& l : node.links) {
    const std::string pair = std::to_string(l.from) + "-" + std::to_string(l.to);
    if (l.from == l.to || std::max(l.from, l.to) >= node.gpus)
      wrong.push_back({{node.file, 0, 0}, "links", "no pair of the node's GPUs: " + pair, "Name two of its GPUs, from 0 to " + std::to_string(node.gpus - 1), {}});
    else if (!seen.insert(std::minmax(l.from, l.to)).second)
      wrong.push_back({{node.file, 0, 0}, "links", "pair " + pair + " is named twice", "Give all its links at once, as count", {}});
  }
  throw_if_any(std::move(wrong));
}

NodeDesign checked(NodeDesign node) {
  check_links(node);
  return node;
}

}  // namespace

NodeDesign load_node(const std::string& name) {
  static Remembered<std::string, NodeDesign> designs;
  if (!is_file_name(name)) return designs.get(name, [&] { return checked(load_named("node", kNodeFolder, name, node_fields())); });
  NodeDesign node = checked(load(name, name, node_fields()));
  node.name = name;
  const std::filesystem::path beside = std::filesystem::path(name).parent_path() / node.gpu;
  std::error_code unknown;   // reading the file says what is wrong with it
  if (is_file_name(node.gpu) && std::filesystem::path(node.gpu).is_relative() && std::filesystem::exists(beside, unknown)) node.gpu = beside.string();
  return node;
}

FabricDesign load_fabric(const std::string& name) {
  static Remembered<std::string, FabricDesign> designs;
  if (!is_file_name(name)) return designs.get(name, [&] { return load_named("fabric", kFabricFolder, name, fabric_fields()); });
  FabricDesign fabric = load(name, name, fabric_fields());
  fabric.name = name;
  return fabric;
}

std::vector<std::string> node_names() { return resource_names(kNodeFolder, ".yaml"); }
std::vector<std::string> fabric_names() { return resource_names(kFabricFolder, ".yaml"); }

ClusterDescription load_cluster(const std::string& node, int nodes, const std::string& fabric,
                                const std::string& gpu) {
  ClusterDescription cluster;
  cluster.node = load_node(node);
  cluster.fabric = load_fabric(fabric);
  cluster.gpu = load_gpu(gpu.empty() ? cluster.node.gpu : gpu);
  if (cluster.node.gpu_power > 0 && cluster.node.gpu_power < cluster.gpu.own_watts) cluster.gpu.limit_watts = cluster.node.gpu_power;
  cluster.nodes = nodes;
  cluster.gpus_per_node = cluster.node.gpus;
  return cluster;
}

}  // namespace rehearse::hwmodels
