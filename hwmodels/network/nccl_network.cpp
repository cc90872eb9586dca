#include "hwmodels/network/nccl_network.h"

#include <algorithm>
#include <cmath>

#include "hwmodels/collective/algorithm.h"
#include "hwmodels/collective/closed_forms.h"
#include "hwmodels/collective/direct.h"
#include "hwmodels/collective/flow.h"
#include "hwmodels/collective/timing.h"
#include "hwmodels/network/communicator_memory.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

// The playbook's jobs ran on two networks, the slower 1.4 (2 nodes) to 6 times (32 nodes) as slow as the other. On it all-gathers over 2 to
// 32 nodes waited 0.31 to 0.32 ms in each step of the ring, whether it carried 67 or 4 MB, if waits and data hide each other as on the
// tuned network (latency_norm of EFA in hwmodels/data/collective/nccl.yaml); no job of the faster one reaches kStalled. Source:
// ag_gbps_world in tests/accuracy/runs/nanotron_ultrascale_playbook.csv.
constexpr double kStalled = 1.5, kStallNorm = 2.4;

bool direct(CollectiveKind kind) { return kind == CollectiveKind::all_to_all; }

GroupShape one_node(const ClusterDescription& cluster) {
  int n = std::max(2, cluster.gpus_per_node);
  return {n, 1, n, 1, 1, 1};
}

double bus_factor(CollectiveKind kind, int ranks) {
  return kind == CollectiveKind::all_reduce ? all_reduce_bus_factor(ranks) : shard_bus_factor(ranks);
}

double measured_bus(const MeasuredBandwidth& m, CollectiveKind kind, bool world) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return world ? m.all_reduce_world : m.all_reduce_node;
    case CollectiveKind::all_gather:
    case CollectiveKind::broadcast:
      return world ? m.all_gather_world : m.all_gather_node;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::reduce:
      return world ? m.reduce_scatter_world : m.reduce_scatter_node;
    default:
      return 0;
  }
}

}  // namespace

NcclNetwork::NcclNetwork(ClusterDescription cluster, CommunicationOptions options)
    : cluster_(std::move(cluster)), options_(std::move(options)) {
  fabric_may_limit_ = cluster_.nodes > 1 && (cluster_.fabric.kind == FabricKind::graph ||
                                             cluster_.effective_oversubscription() > 1);
}

Group NcclNetwork::group_for(const GroupShape& shape) const {
  Group group = make_group(cluster_, shape, cluster_.collectives ? *cluster_.collectives : collective_parameters());
  group.sharp = options_.sharp;
  return group;
}

CommunicationCost NcclNetwork::alone(CollectiveKind kind, double bytes, const Group& group) const {
  CommunicationCost cost;
  double time = 0;
  WireBytes wire;
  if (direct(kind)) {
    cost.algorithm = Algorithm::direct;
    cost.channels = executed_p2p_channels(group);
    cost.protocol = bytes <= cost.channels * 16.0 * 1024 ? Protocol::ll : Protocol::simple;
    time = all_to_all_time(group, bytes);
    wire = all_to_all_wire(group);
  } else {
    Choice choice = choose(group, kind, bytes, options_);
    cost.algorithm = choice.algorithm->id();
    cost.protocol = choice.protocol;
    cost.channels = choice.channels;
    time = choice.algorithm->time(group, kind, bytes, choice.protocol);
    wire = choice.algorithm->wire(group, kind);
  }
  cost.duration = microseconds(time);
  double gigabytes_per_second = time > 0 ? bytes / (1000 * time) : 0;
  cost.use.nvlink = std::min(1.0, wire.scale_up * gigabytes_per_second / group.link);
  const double nics = group.network_bandwidth();   // what they reach, alone or together
  cost.use.nic = nics > 0 ? std::min(1.0, wire.network * gigabytes_per_second / nics) : 0;
  cost.use.sms = cost.channels;
  // Each byte on a link is read from and written to HBM at its ends; the reduction reads once more.
  double hbm = cluster_.gpu.hbm_bandwidth.value * 1e-9;
  double touches = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ? 3.0 : 2.0;
  double per_gpu = std::max(wire.scale_up, wire.network / group.local);
  if (hbm > 0) cost.use.hbm = std::min(1.0, touches * per_gpu * gigabytes_per_second / hbm);
  if (!group.nvlink && group.local > 1) cost.use.pcie = cost.use.nvlink;
  return cost;
}

/// The job's message, beyond the launch, in us: as modelled and as measured. Nothing where it measured none of this kind.
std::optional<NcclNetwork::JobsMessage> NcclNetwork::jobs_message(CollectiveKind kind, bool world) const {
  if (!options_.measured || direct(kind)) return {};
  const MeasuredBandwidth& m = *options_.measured;
  double bus = measured_bus(m, kind, world);
  if (bus <= 0) return {};
  Group reference = group_for(world ? m.world : one_node(cluster_));
  double bytes = static_cast<double>(m.message.value);
  double launch = reference.timing->launch;
  const CommunicationCost cost = alone(kind, bytes, reference);
  JobsMessage message{reference.ranks, reference.nodes, cost.algorithm, to_seconds(cost.duration) * 1e6 - launch,
                      bytes * bus_factor(kind, reference.ranks) / (1000 * bus) - launch};
  if (m.through_lists && kind != CollectiveKind::all_reduce)
    message.measured -= 2 * bytes / (reference.common->copy_efficiency * cluster_.gpu.hbm_bandwidth.value) * 1e6;
  if (message.measured <= 0 || message.modelled <= 0) return {};
  return message;
}

/// What each step of a ring over nodes waits beside moving data, in us.
double NcclNetwork::step_wait(const JobsMessage& message, CollectiveKind kind) {
  if (message.nodes == 1 || message.algorithm != Algorithm::ring || message.measured <= kStalled * message.modelled) return 0;
  return std::pow(std::pow(message.measured, kStallNorm) - std::pow(message.modelled, kStallNorm), 1 / kStallNorm) / steps_of(kind, message.ranks);
}

Duration NcclNetwork::ring_step_wait() const {
  const auto message = options_.measured && options_.measured->world.nodes > 1 ? jobs_message(CollectiveKind::all_gather, true) : std::nullopt;
  return message ? microseconds(step_wait(*message, CollectiveKind::all_gather)) : Duration{};
}

// What the job measured of one message, put on others. Rings over nodes that wait in each step do so whatever they carry. All else
// stretches the time beyond the launch by measured / modelled; a group over fewer nodes than the job crosses fewer links: its share of
// the stretch is that of its doublings of the node count.
void NcclNetwork::as_measured(CommunicationCost& cost, CollectiveKind kind, const Group& group) const {
  const bool world = group.nodes > 1 && options_.measured && options_.measured->world.ranks > 1;
  const auto message = jobs_message(kind, world);
  if (!message) return;
  const Duration modelled = cost.duration, launch = microseconds(group.timing->launch);
  if (modelled <= launch) return;
  if (const double wait = world && cost.algorithm == Algorithm::ring ? step_wait(*message, kind) : 0; wait > 0) {
    cost.duration = launch + microseconds(overlapped(to_seconds(modelled - launch) * 1e6, wait * steps_of(kind, group.ranks), kStallNorm));
    cost.waits = cost.duration - modelled;
  } else {
    double stretch = message->measured / message->modelled;
    if (world && group.nodes < message->nodes) stretch = std::pow(stretch, std::log2(group.nodes) / std::log2(message->nodes));
    cost.duration = launch + seconds(to_seconds(modelled - launch) * stretch);
  }
  if (cost.duration == modelled) return;
  cost.use = cost.use.scaled(to_seconds(modelled) / to_seconds(cost.duration));
}

const Topology& NcclNetwork::topology() const {
  std::call_once(topology_built_,
                 [this] { topology_ = std::make_unique<Topology>(make_topology(cluster_)); });
  return *topology_;
}

double NcclNetwork::fabric_seconds(CollectiveKind kind, Bytes bytes, const GroupShape& shape,
                                   Algorithm algorithm) const {
  return busiest_link_seconds(topology(), flow_loads(topology(), kind, algorithm, bytes, shape));
}

CommunicationCost NcclNetwork::collective(CollectiveKind kind, Bytes bytes, const GroupShape& shape) const {
  EXPECTS(shape.ranks >= 1 && bytes.value >= 0);
  if (shape.ranks == 1) return {};
  if (kind == CollectiveKind::send_recv) return shift(bytes, shape);
  if (kind == CollectiveKind::scatter || kind == CollectiveKind::gather) return copies_in_turn(*this, bytes, shape);
  Group group = group_for(shape);
  CommunicationCost cost = alone(kind, static_cast<double>(bytes.value), group);
  as_measured(cost, kind, group);
  if (fabric_may_limit_ && group.nodes > 1) {
    double limit = fabric_seconds(kind, bytes, shape, cost.algorithm) / group.nic_efficiency;
    double duration = to_seconds(cost.duration);
    if (duration > 0) cost.use.fabric = std::min(1.0, limit / std::max(limit, duration));
    if (limit > duration) {
      cost.use = cost.use.scaled(duration / limit);
      cost.duration = seconds(limit);
    }
  }
  return cost;
}

// Every member sends to the next one round the ring: it ends with the slowest hop, the one between nodes if there is any. Each hop
// has a communicator of its own, as torch.distributed gives messages that are not batched (Transformer Engine's ring of context
// ranks: flash_attn_p2p_communicate).
CommunicationCost NcclNetwork::shift(Bytes bytes, const GroupShape& shape) const {
  const CommunicationCost inside = point_to_point(bytes, true, 1);
  if (shape.nodes == 1) return inside;
  const CommunicationCost across = point_to_point(bytes, false, std::max(1, shape.groups_per_node));
  return shape.ranks_per_node > 1 && inside.duration > across.duration ? inside : across;
}

CommunicationCost NcclNetwork::peer_copies(Bytes bytes, const GroupShape& shape) const {
  CommunicationCost cost = shift(bytes, shape);
  // Within an NVLink domain, so over the trays of a rack too (Transformer Engine maps memory of other trays: multi-node NVLink).
  if (shape.ranks == 1 || group_for(shape).nodes > 1) return cost;
  const Group pair = group_for(GroupShape{2, 1, 2, 1, 1, 1});
  const double time = copy_time(pair, static_cast<double>(bytes.value)), rate = static_cast<double>(bytes.value) / (1000 * time);
  cost.duration = microseconds(time);
  cost.use.nvlink = std::min(1.0, rate / pair.link);
  if (!pair.nvlink) cost.use.pcie = cost.use.nvlink;
  const double hbm = cluster_.gpu.hbm_bandwidth.value * 1e-9;
  if (hbm > 0) cost.use.hbm = std::min(1.0, 2 * rate / hbm);
  cost.use.sms = 0;
  return cost;
}

int NcclNetwork::registered_sms(CollectiveKind kind, const GroupShape& shape, int usual) const {
  const bool gathers = kind == CollectiveKind::all_gather;
  if (shape.ranks == 1 || (!gathers && kind != CollectiveKind::reduce_scatter)) return usual;
  const Group group = group_for(shape);
  if (group.nodes == 1 && !(group.nvls && options_.nvls)) return usual;   // without multicast GPUs pass data on as ever
  const RegisteredBuffers& known = *group.registered;
  const RegisteredSms& sms = group.nodes == 1 ? known.nvlink : group.local > 1 ? (group.sharp ? known.both_sharp : known.both) : group.sharp ? known.network_sharp : known.network;
  return std::min(usual, gathers ? sms.gather : sms.scatter);
}

CommunicationCost NcclNetwork::dispatch(Bytes bytes, const TokenExchange& exchange, const GroupShape& shape) const {
  EXPECTS(bytes.value >= 0 && exchange.choices >= 1 && exchange.places >= exchange.choices);
  if (shape.ranks == 1) return {};
  const Group group = group_for(shape);
  const DispatchBytes moved = dispatch_bytes(group, exchange);
  const double tokens = bytes_with_weights(group, exchange, static_cast<double>(bytes.value)), time = dispatch_time(group, exchange, tokens, moved);
  CommunicationCost cost;
  cost.algorithm = Algorithm::direct;
  cost.protocol = Protocol::simple;
  cost.channels = static_cast<int>(dispatch_sms(group, exchange));
  cost.duration = microseconds(time);
  const double rate = time > 0 ? tokens / (1000 * time) : 0;
  cost.use.nvlink = std::min(1.0, moved.inside * rate / group.link);
  const double nics = group.network_bandwidth();
  cost.use.nic = nics > 0 ? std::min(1.0, moved.between * group.local * rate / nics) : 0;
  cost.use.sms = cost.channels;
  const double hbm = cluster_.gpu.hbm_bandwidth.value * 1e-9;
  if (hbm > 0) cost.use.hbm = std::min(1.0, 2 * moved.inside * rate / hbm);
  return cost;
}

CommunicationCost NcclNetwork::point_to_point(Bytes bytes, bool same_node, int concurrent_per_node, const GroupShape& communicator) const {
  EXPECTS(bytes.value >= 0 && concurrent_per_node >= 1 && communicator.ranks >= 2);
  GroupShape pair = pair_of(same_node);
  // Messages of a node that go from socket to socket at the same moment share the link between them.
  if (same_node) pair.stride = communicator.stride, pair.groups_per_node = concurrent_per_node;
  Group group = group_for(pair);
  bool same_domain = group.nodes == 1;  // trays of one rack talk over NVLink
  group.nics = std::max(1, cluster_.node.nic.count);
  double time = send_time(group, group_for(communicator), static_cast<double>(bytes.value), same_domain, concurrent_per_node);
  CommunicationCost cost;
  cost.algorithm = Algorithm::direct;
  cost.channels = std::min(8, executed_p2p_channels(group));
  cost.protocol =
      static_cast<double>(bytes.value) <= cost.channels * 16.0 * 1024 ? Protocol::ll : Protocol::simple;
  cost.duration = microseconds(time);
  double rate = static_cast<double>(bytes.value) / (1000 * time);
  if (same_domain)
    cost.use.nvlink = std::min(1.0, rate / group.link);
  else
    cost.use.nic = std::min(1.0, rate / (group.nic * std::max(1.0, 1 / group.gpus_per_nic)));
  if (same_domain && !group.nvlink) cost.use.pcie = cost.use.nvlink;
  cost.use.sms = cost.channels;
  double hbm = cluster_.gpu.hbm_bandwidth.value * 1e-9;
  if (hbm > 0) cost.use.hbm = std::min(1.0, 2 * rate / hbm);
  return cost;
}

CommunicatorMemory NcclNetwork::communicator_memory(const GroupShape& shape,
                                                    const std::vector<CollectiveKind>& kinds) const {
  if (shape.ranks < 2) return {};
  return {nccl_memory(group_for(shape), kinds, options_)};
}

}  // namespace rehearse::hwmodels
