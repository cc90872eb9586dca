// What communication costs on a cluster: collectives and point-to-point messages, alone and as loads on
// shared links. Leaves out when they start and what they wait for (sim/executor).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/device/gpu.h"
#include "sim/core/communication.h"
#include "sim/core/units.h"

namespace rehearse::hwmodels {

enum class Algorithm : std::uint8_t { none, ring, tree, nvls, nvls_tree, collnet, pat, direct };
enum class Protocol : std::uint8_t { none, ll, ll128, simple };
std::string_view name_of(Algorithm a);
std::string_view name_of(Protocol p);

/// Shared things a communication uses, as shares (0..1) of what one GPU (or its node, per GPU) has, while it
/// runs alone.
///   nvlink    of the GPU's NVLink (or PCIe peer) bandwidth
///   nic       of the NIC bandwidth that belongs to this GPU's share of the node
///   fabric    of the fabric above the NIC (leaf-spine), 0 when it never limits
///   pcie      of the GPU's PCIe link to the host
///   hbm       of the GPU's HBM bandwidth
///   sms       streaming multiprocessors occupied by the channels
struct CommunicationUse {
  double nvlink = 0, nic = 0, fabric = 0, pcie = 0, hbm = 0;
  int sms = 0;
  /// The same bytes at `rate` of the speed. The fabric's share is counted from the time itself.
  CommunicationUse scaled(double rate) const { return {nvlink * rate, nic * rate, fabric, pcie * rate, hbm * rate, sms}; }
};

struct CommunicationCost {
  Duration duration{};  // alone, from the last arrival to the end
  Duration waits{};     // of it, what a ring over nodes waits in its steps beyond moving data (ring_step_wait)
  Algorithm algorithm = Algorithm::none;
  Protocol protocol = Protocol::none;
  int channels = 0;
  CommunicationUse use;
};

/// Bus bandwidths (GB/s, as nccl-tests counts them) that a job measured with one large message before it
/// trained. They describe that day's network: the part of a time that is not latency is scaled so that the
/// model meets them.
///   *_world   over all GPUs of the job: applies to groups that span nodes, in part to groups over fewer nodes
///   *_node    over the GPUs of one node: applies to groups inside a node
/// 0 = not measured.
struct MeasuredBandwidth {
  double all_reduce_world = 0, all_gather_world = 0, reduce_scatter_world = 0;
  double all_reduce_node = 0, all_gather_node = 0, reduce_scatter_node = 0;
  GroupShape world;                  // the shape that measured it
  Bytes message = Bytes{1LL << 30};  // nccl-tests size of the message
  /// Gathered into (scattered from) a list of tensors, which costs a copy of the whole message that training
  /// does not make.
  bool through_lists = true;
};

/// What a job may force or has measured (NCCL_ALGO, NCCL_PROTO, NVLS off, measured bus bandwidths).
struct CommunicationOptions {
  bool nvls = true;
  bool sharp = false;  // reduction in the fabric's switches (CollNet) is installed and enabled
  bool forced_algorithm = false;
  Algorithm algorithm = Algorithm::none;
  bool forced_protocol = false;
  Protocol protocol = Protocol::none;
  bool connects_at_once = false;  // NCCL before 2.22: a communicator connects for all algorithms when it is made
  std::string backend = "nccl";  // nccl, gloo, mpi
  std::optional<MeasuredBandwidth> measured;
};

/// Bytes on the device (or the host) outside the caching allocator for one communicator.
struct CommunicatorMemory {
  Bytes device;
};

class Network {
 public:
  virtual ~Network() = default;

  /// Closed form: what NCCL would choose, and its time when no other traffic shares the links.
  ///   bytes   nccl-tests' size: per-rank buffer for all-reduce and broadcast; the total (n x shard) for
  ///   all-gather and
  ///           reduce-scatter; per-rank total send for all-to-all;
  ///           send_recv: what each member sends to the next one round the ring;
  ///           all parts together for scatter and gather, which are one copy after the other between the first rank and
  ///           each of the others (PyTorch's comm.scatter, comm.gather)
  virtual CommunicationCost collective(CollectiveKind kind, Bytes bytes, const GroupShape& group) const = 0;

  /// Expert dispatch that sends a token once to each place: tokens of `bytes` in all leave this rank (on the way home: have
  /// left it). Between nodes a token travels once per node and is copied there; the way home is the same backwards.
  /// Source: deepseek-ai/DeepEP README (normal kernels).
  virtual CommunicationCost dispatch(Bytes bytes, const TokenExchange& tokens, const GroupShape& group) const = 0;

  /// One message between two GPUs of `communicator`, on one node or on two; `concurrent_per_node` messages of a node share its NICs.
  virtual CommunicationCost point_to_point(Bytes bytes, bool same_node, int concurrent_per_node, const GroupShape& communicator) const = 0;

  /// The same, of a communicator that has no other members.
  CommunicationCost point_to_point(Bytes bytes, bool same_node, int concurrent_per_node) const {
    return point_to_point(bytes, same_node, concurrent_per_node, pair_of(same_node));
  }
  static GroupShape pair_of(bool same_node) { return same_node ? GroupShape{2, 1, 2, 1, 1, 1} : GroupShape{2, 2, 1, 1, 1, 1}; }

  /// SMs that gathers and scatters of registered buffers (ncclCommRegister, windows) hold, of the `usual`.
  virtual int registered_sms(CollectiveKind, const GroupShape&, int usual) const { return usual; }

  /// What each step of a ring over nodes waits beside moving data, as the job's own all-gather has it; nothing on a sound network.
  virtual Duration ring_step_wait() const { return {}; }

  /// What each member puts straight into the memory of the next one round the ring, by copy engines: Transformer Engine's
  /// user buffers and PyTorch's symmetric memory. No kernel of NCCL's, so no SMs and no few channels for small messages.
  virtual CommunicationCost peer_copies(Bytes bytes, const GroupShape& group) const { return collective(CollectiveKind::send_recv, bytes, group); }

  /// Buffers NCCL keeps for a communicator of this shape once `kinds` have run on it.
  virtual CommunicatorMemory communicator_memory(const GroupShape& group,
                                                 const std::vector<CollectiveKind>& kinds) const = 0;
};

struct ClusterDescription;

/// Copies of `bytes / ranks` between one GPU and each of the others in turn, by the copy engines: scatter and gather.
CommunicationCost copies_in_turn(const Network& network, Bytes bytes, const GroupShape& group);

/// The network of a cluster. Cheap: builds no graph unless the fabric is oversubscribed or written by hand.
/// Throws ConfigError for an unknown backend.
std::unique_ptr<Network> make_network(const ClusterDescription& cluster,
                                      const CommunicationOptions& options = {});

}  // namespace rehearse::hwmodels
