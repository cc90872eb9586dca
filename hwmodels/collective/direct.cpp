#include "hwmodels/collective/direct.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "hwmodels/collective/channels.h"
#include "hwmodels/collective/timing.h"

namespace rehearse::hwmodels {

namespace {

// A GPU's messages use the NICs beside it, but no more of them than make 400 Gb/s: trays with two such NICs
// per GPU reach the rate of one (OCI GB200 all-to-all tables), nodes with four 100 Gb/s cards per GPU use all
// four.
double own_nics(const Group& group) {
  constexpr double kEnough = 50;
  double beside = std::max(1.0, 1.0 / group.gpus_per_nic);
  return group.nic * std::min(beside, std::ceil(kEnough / group.nic));
}

/// GB/s of a message between nodes as far as its channels carry it.
double channels_rate(const NetworkTiming& net, int channels) {
  return net.send_channel > 0 ? net.send_channel * std::pow(channels, net.send_more_channels) : std::numeric_limits<double>::infinity();
}

}  // namespace

// Local and remote parts move at the same time; the slower one decides.
double all_to_all_time(const Group& group, double bytes) {
  const GenerationTiming& t = *group.timing;
  double n = group.ranks, local = group.local;
  double inside = bytes * (local - 1) / n / (1000 * group.direct_link * t.direct_efficiency);
  // One's own part goes through channels as well. Where each of them carries one part alone, it moves nearly what it moves of a message.
  if (const double channels = n * message_channels(group, bytes / n); t.send_channel > 0 && group.nodes == 1 && channels <= executed_p2p_channels(group))
    inside = std::max(inside, bytes / (1000 * channels * group.common->all_channels * t.send_channel));
  double time = t.direct_launch + t.direct_peer * (local - 1);
  if (group.nodes == 1) return time + inside + ramp(t.direct_ramp, bytes / kMiB, t.direct_ramp_half);
  const NetworkTiming& net = *group.network;
  double per_gpu = std::min(own_nics(group), group.nics * group.nic * group.nic_share / local);
  double efficiency = net.all_to_all_efficiency * std::pow(group.nodes / 2.0, -net.all_to_all_decline);
  const double carried = (n - local) * channels_rate(net, message_channels(group, bytes / n));
  double through = bytes * (n - local) / n / (1000 * std::min(carried, per_gpu * std::min(efficiency, group.nic_efficiency)));
  return time + net.send + net.all_to_all_peer * (n - local) + std::max(inside, through) +
         ramp(t.direct_ramp, bytes / kMiB, t.direct_ramp_half);
}

WireBytes all_to_all_wire(const Group& group) {
  double n = group.ranks, local = group.local;
  return {(local - 1) / n, group.nodes == 1 ? 0.0 : local * (n - local) / n};
}

DispatchBytes dispatch_bytes(const Group& group, const TokenExchange& exchange) {
  const double n = group.ranks, nodes = group.nodes;
  DispatchBytes moved;
  moved.inside = places_visited(exchange, group.ranks) * (n - 1) / n;
  if (group.nodes == 1) return moved;
  moved.between = parts_visited(exchange, group.nodes) * (nodes - 1) / nodes;
  return moved;
}

const DispatchKernel& dispatch_kernel(const Group& group, const TokenExchange& exchange) {
  return exchange.bulk ? group.dispatch->bulk : exchange.home ? group.dispatch->combine : group.dispatch->dispatch;
}

/// Source: deepseek-ai/DeepEP hybrid-ep, csrc/hybrid_ep/backend/hybrid_ep_backend.cuh: intra_node_prob_buffer, of experts per rank times
/// ranks per node floats, is copied to each place beside the token (forward's dispatch; backward's combine brings it back).
double bytes_with_weights(const Group& group, const TokenExchange& exchange, double bytes) {
  if (!exchange.bulk || !exchange.weights) return bytes;
  constexpr double kWeight = 4;   // bytes
  return bytes * (1 + kWeight * exchange.places / group.nodes / std::max<double>(1, exchange.token_bytes));
}

double dispatch_sms(const Group& group, const TokenExchange& exchange) { return exchange.sms > 0 ? exchange.sms : dispatch_kernel(group, exchange).sms; }

double dispatch_time(const Group& group, const TokenExchange& exchange, double bytes, const DispatchBytes& moved) {
  const GenerationTiming& t = *group.timing;
  const DispatchKernel& kernel = dispatch_kernel(group, exchange);
  const double inside = bytes * moved.inside / (1000 * group.direct_link * t.direct_efficiency);
  if (group.nodes == 1 && !exchange.bulk) {
    const double copies = moved.inside * group.ranks / std::max(1, group.ranks - 1), tokens = bytes / std::max<double>(1, exchange.token_bytes);
    const double copying = kernel.rate > 0 ? copies * exchange.token_bytes / (1000 * kernel.rate) : 0;
    const double sms = tokens / dispatch_sms(group, exchange) * (kernel.token + copying);
    return kernel.launch + std::max(sms, bytes * moved.inside / (1000 * group.direct_link * kernel.link_efficiency));
  }
  const double time = exchange.bulk ? kernel.launch : t.direct_launch;
  if (group.nodes == 1) return time + inside;
  const NetworkTiming& net = *group.network;
  double per_gpu = std::min(own_nics(group), group.nics * group.nic * group.nic_share / group.local);
  double through = bytes * moved.between / (1000 * per_gpu * std::min(net.all_to_all_efficiency, group.nic_efficiency));
  return time + net.send + std::max(inside, through);
}

double copy_time(const Group& group, double bytes) {
  const GenerationTiming& t = *group.timing;
  return t.direct_launch + ramp(t.send_ramp, bytes / kMiB, t.send_ramp_half) + bytes / (1000 * group.ring_link * t.send_efficiency);
}

int message_channels(const Group& communicator, double bytes) {
  const int most = executed_p2p_channels(communicator);
  if (communicator.nodes == 1) {
    constexpr double kPart = 16 * kMiB;   // NCCL_P2P_NVL_CHUNKSIZE x 32
    int channels = most;
    while (channels * communicator.ranks > most && channels > 1) channels /= 2;
    while (channels <= most / 2 && bytes / channels > kPart) channels *= 2;
    return channels;
  }
  constexpr double kOfChannel = 14;       // GB/s: NCCL_P2P_PER_CHANNEL_NET_BW
  constexpr int kPeersOfBatch = 8;        // NCCL_MAX_DEV_WORK_P2P_PER_BATCH
  const double nics = std::max(1.0, 1.0 / communicator.gpus_per_nic);
  const double wanted = std::clamp(std::ceil(nics * communicator.nic / kOfChannel), nics, std::max(nics, static_cast<double>(most)));
  int channels = static_cast<int>(std::bit_ceil(static_cast<unsigned>(wanted)));
  const int batches = (communicator.ranks + kPeersOfBatch - 1) / kPeersOfBatch;
  while (channels * batches > most && channels > 1) channels /= 2;
  return channels;
}

double send_time(const Group& pair, const Group& communicator, double bytes, bool same_domain, int concurrent) {
  const GenerationTiming& t = *pair.timing;
  const int channels = message_channels(communicator, bytes);
  if (same_domain) {
    const double copied = copy_time(pair, bytes);
    return t.send_channel > 0 ? std::max(copied, t.direct_launch + bytes / (1000 * channels * t.send_channel)) : copied;
  }
  const NetworkTiming& net = *pair.network;
  // One message leaves through the NICs beside its GPU; many share all NICs of the node.
  const double own = own_nics(pair), shared = pair.nics * pair.nic / std::max(1, concurrent);
  const double card = std::min(own, shared) * std::max(pair.common->message_efficiency, pair.nic_efficiency);
  return net.send + bytes / (1000 * std::min(card, channels_rate(net, channels)));
}

}  // namespace rehearse::hwmodels
