// What a cluster is made of, as data files describe it: a node design, a fabric and how many of them.
// Leaves out the graph of links that follows from it (topology.h) and what communication costs
// (network/network.h).
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hwmodels/device/gpu.h"
#include "sim/core/units.h"

namespace rehearse::hwmodels {

/// How the GPUs of one NVLink domain are joined.
///   nvswitch  every GPU to a switch, full speed to any peer
///   mesh      direct links: `links_per_pair` between any two GPUs, or as many as `links` says
///   bridge    pairs only (GPU 0-1, 2-3, ...); other peers over PCIe
///   none      PCIe only
enum class ScaleUp : std::uint8_t { nvswitch, mesh, bridge, none };
std::string_view name_of(ScaleUp design);

enum class CpuVendor : std::uint8_t { intel, amd, arm };
std::string_view name_of(CpuVendor vendor);

struct CpuDesign {
  CpuVendor vendor = CpuVendor::intel;
  std::string model;
  int sockets = 2;
  int numa_nodes = 0;               // memory domains of the whole node; 0: one per socket
  int cores = 0;                    // of the whole node
  BytesPerSecond memory_bandwidth;  // peak of the whole node
  BytesPerSecond socket_link;       // between sockets, one direction, as NCCL counts it
  Bytes memory;                     // of the whole node
  // Measured on the node (calibrate/fit/fit_host.h); 0: a usual part of the peak (host.cpp).
  BytesPerSecond copy_bandwidth;    // DRAM traffic that copies reach
  BytesPerSecond update_bandwidth;  // DRAM traffic of a CPU optimizer on all cores
  BytesPerSecond core_bandwidth;    // and on one
  double pageable_fraction = 0.35;  // of a pinned copy's rate; 25-50 % are reported
  double launch_time = 1;           // host time of issuing work, relative to the Xeon that framework profiles were measured on
};

struct NvmeDesign {
  BytesPerSecond read, write;  // of the whole node; 0 = none
  Bytes capacity;
};

struct NicDesign {
  int count = 0;                       // for GPU traffic, per node; 0 = a node that stands alone
  BytesPerSecond bandwidth;            // line rate of one, one direction
  std::string network = "infiniband";  // a name under `networks` in hwmodels/data/collective/nccl.yaml
  double efficiency = 0.92;            // achieved fraction of the line rate in large ring collectives
  int per_communicator = 0;            // through which the rings of one communicator go; 0: all beside its members
  double spine_efficiency = 1;         // what is left of it between leaves: flows hashed onto the same uplink wait for each other
};

struct PcieDesign {
  int gpus_per_switch = 2;          // 1 = each GPU has its own root port
  bool peer_to_peer = true;         // false: stock driver of consumer cards, copies go through host memory
  double efficiency = 0.92;         // of NCCL's PCIe number, GPUs under one socket
  double efficiency_across = 0.56;  // the same when the group spans both sockets
  double all_to_all_across = 0.40;  // the same for an all-to-all, whose pairs all cross at once
};

/// NVLinks between two GPUs of a mesh whose pairs differ.
struct MeshLinks {
  int from = 0, to = 0;   // GPUs of the node, from 0
  int count = 1;
};

struct NodeDesign {
  std::string name, title, file;
  std::string gpu;  // the card it is sold with
  double gpu_power = 0;  // watts that each may draw in it, where that is less than its own
  int gpus = 8;
  ScaleUp scale_up = ScaleUp::nvswitch;
  int links_per_pair = 0;  // mesh only
  std::vector<MeshLinks> links;   // mesh whose pairs differ: those that are joined
  int domain = 8;          // GPUs that share one scale-up network; larger than `gpus` for rack designs
  bool nvls = false;       // the switches can reduce and multicast (SHARP)
  NicDesign nic;
  PcieDesign pcie;
  CpuDesign cpu;
  NvmeDesign nvme;
};

/// single-switch: one switch holds every NIC.  rail: NIC i of every node on leaf i.  leaf-spine: the NICs of
/// `nodes_per_leaf` neighbouring nodes on one leaf.  graph: links written by hand.
enum class FabricKind : std::uint8_t { single_switch, rail, leaf_spine, graph };
std::string_view name_of(FabricKind kind);

struct GraphNode {
  std::string name, kind;  // kind: gpu, nvswitch, pcie, cpu, nic, leaf, spine
  int node = 0;            // machine it belongs to; switches of the fabric: -1
};
struct GraphLink {
  std::string from, to;      // full duplex
  BytesPerSecond bandwidth;  // each direction
  Duration latency{};
};

struct FabricDesign {
  std::string name, title, file;
  FabricKind kind = FabricKind::rail;
  int nodes_per_leaf = 32;  // rail: nodes of one pod; leaf-spine: nodes of one leaf
  int spines = 8;
  double oversubscription = 1.0;       // bandwidth down : bandwidth up of a leaf, >= 1
  Duration hop_latency{};              // one switch
  std::vector<GraphNode> graph_nodes;  // kind graph only
  std::vector<GraphLink> graph_links;
};

struct CollectiveParameters;

struct ClusterDescription {
  NodeDesign node;
  FabricDesign fabric;
  Gpu gpu;
  int nodes = 1;
  int gpus_per_node = 8;                   // used ones, <= node.gpus
  std::optional<double> oversubscription;  // instead of the fabric's
  std::optional<double> nic_efficiency;    // instead of the node's
  std::shared_ptr<const CollectiveParameters> collectives;  // instead of hwmodels/data/collective/nccl.yaml

  /// GPUs that no network lies between: those of a node, or of the rack that its NVLink spans.
  int linked_gpus() const { return node.domain > node.gpus ? std::min(node.domain, gpus_per_node * nodes) : gpus_per_node; }
  double effective_oversubscription() const { return oversubscription.value_or(fabric.oversubscription); }
  double effective_nic_efficiency() const { return nic_efficiency.value_or(node.nic.efficiency); }
};

/// Read hwmodels/data/node/<name>.yaml and hwmodels/data/fabric/<name>.yaml, or the path of a YAML file of the user's own
/// (a fabric may then be a graph written by hand; a node's GPU may be a file beside it). Throw ConfigError: unknown names list the valid ones.
NodeDesign load_node(const std::string& name);
FabricDesign load_fabric(const std::string& name);
std::vector<std::string> node_names();
std::vector<std::string> fabric_names();

/// Node and fabric by name, with the node's own GPU unless `gpu` names another.
ClusterDescription load_cluster(const std::string& node, int nodes,
                                const std::string& fabric = "rail-fat-tree", const std::string& gpu = "");

}  // namespace rehearse::hwmodels
