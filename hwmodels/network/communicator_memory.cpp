#include "hwmodels/network/communicator_memory.h"

#include <algorithm>
#include <set>

#include "hwmodels/collective/tuner.h"

namespace rehearse::hwmodels {
namespace {

// One connection: the receiver holds LL (512 KiB), LL128 (4.69 MiB) and Simple (4 MiB) buffers, rounded up to
// 10 MiB; the sender a header in a 2 MiB allocation.
constexpr Bytes kReceive = 10_MiB;
constexpr Bytes kSend = 2_MiB;
constexpr Bytes kPair = kReceive + kSend;
constexpr Bytes kNetworkEach = 10_MiB;    // either side of a ring connection with GPUDirect RDMA
constexpr Bytes kNetworkShared = 64_MiB;  // shared p2p buffers, per direction
constexpr double kSmallMessage =
    64 * 1024;  // a job sends small and large messages, so both choices get connected
constexpr double kLargeMessage = 256e6;

Bytes memory_of(Algorithm algorithm, const Group& group) {
  int rings = executed_ring_channels(group);
  switch (algorithm) {
    case Algorithm::ring: {
      // The ends of a node's part of each ring talk to a NIC; averaged over the node's GPUs.
      if (group.nodes == 1) return kPair * rings;
      std::int64_t local = group.local, across = 2 * rings;
      std::int64_t inside = static_cast<std::int64_t>(rings) * (local - 1) * kPair.value;
      return Bytes{(inside + across * kNetworkEach.value) / local};
    }
    case Algorithm::tree: {
      // A chain inside the node (one up, one down), both trees over the network at its head.
      Bytes chain = group.local > 1 ? kPair * rings : Bytes{0};
      Bytes heads = group.nodes > 1 ? Bytes{kNetworkEach.value * 4 * rings / group.local} : Bytes{0};
      return chain + heads;
    }
    case Algorithm::nvls:
    case Algorithm::nvls_tree:
      // channels x 2 directions x 8 slots of a 128 KiB chunk x heads
      return Bytes{static_cast<std::int64_t>(executed_nvls_channels(group)) * 2 * (1_MiB).value *
                   group.local};
    case Algorithm::collnet:
    case Algorithm::pat:
      return kNetworkEach * 2 * rings;
    default:
      return Bytes{0};
  }
}

Bytes direct_memory(const Group& group, bool all_peers) {
  int peers = all_peers ? group.local - 1 : 1;
  Bytes inside = group.local > 1 ? kPair * executed_p2p_channels(group) * peers : Bytes{0};
  return group.nodes > 1 ? inside + 2 * kNetworkShared : inside;
}

}  // namespace

Bytes nccl_memory(const Group& group, const std::vector<CollectiveKind>& kinds,
                  const CommunicationOptions& options) {
  if (group.ranks < 2) return Bytes{0};
  std::set<Algorithm> connected;
  bool to_peers = false, to_neighbour = false;
  for (CollectiveKind kind : kinds) {
    if (kind == CollectiveKind::all_to_all)
      to_peers = true;
    else if (kind == CollectiveKind::send_recv)
      to_neighbour = true;
    else
      for (double bytes : {kSmallMessage, kLargeMessage})
        connected.insert(choose(group, kind, bytes, options).algorithm->id());
  }
  if (options.connects_at_once) {
    connected.insert({Algorithm::ring, Algorithm::tree});
    if (group.nvls && options.nvls && group.local > 1) connected.insert(Algorithm::nvls);
  }
  Bytes total{0};
  for (Algorithm algorithm : connected) total += memory_of(algorithm, group);
  if (to_peers || to_neighbour) total += direct_memory(group, to_peers);
  return total;
}

Bytes dispatch_buffers(int ranks, Bytes token_bytes) {
  if (ranks < 2) return Bytes{0};
  constexpr std::int64_t kChannels = 20 / 2, kPeers = 8, kChoices = 128, kScales = 128, kOrigin = 8;  // two channels to an SM pair
  const std::int64_t nodes = std::max<std::int64_t>(1, ranks / kPeers), peers = std::min<std::int64_t>(ranks, kPeers);
  const std::int64_t chunk = ranks <= 8 ? 256 : ranks <= 64 ? 288 : ranks <= 128 ? 560 : 720, far_chunk = 128;
  const std::int64_t token = token_bytes.value + kOrigin + kChoices * (8 + 4) + kScales * 4;
  const std::int64_t near = kChannels * peers * chunk * token;
  const std::int64_t far = ranks > kPeers ? 2 * kChannels * nodes * far_chunk * (token + 16) : 0;
  return Bytes{near + far};
}

}  // namespace rehearse::hwmodels
