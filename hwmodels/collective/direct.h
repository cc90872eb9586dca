// Messages that NCCL schedules without rings or trees: send/recv and all-to-all, where each pair talks
// directly; and expert dispatch by kernels of their own (DeepEP), which send a token once to each place.
#pragma once

#include "hwmodels/collective/algorithm.h"

namespace rehearse::hwmodels {

/// Microseconds of an all-to-all in which every member sends bytes/n to each of the n members.
/// Traffic between nodes uses the NIC of its own GPU: NICs are not aggregated. Source: NVIDIA/nccl-tests
/// #130, #267.
double all_to_all_time(const Group& group, double bytes);
WireBytes all_to_all_wire(const Group& group);

/// Bytes of a dispatch in multiples of the tokens that one rank sends: over its NVLinks, through its NIC.
struct DispatchBytes {
  double inside = 0, between = 0;
};
/// On the way to another node a token travels once and is copied there, so every copy crosses NVLink.
/// Source: deepseek-ai/DeepEP README.
DispatchBytes dispatch_bytes(const Group& group, const TokenExchange& exchange);
/// The kernel that carries the exchange out: HybridEP's for bulk, else DeepEP's, which has one for each way.
const DispatchKernel& dispatch_kernel(const Group& group, const TokenExchange& exchange);
/// SMs that it holds: as the job says, else what its library takes.
double dispatch_sms(const Group& group, const TokenExchange& exchange);
/// `bytes` of tokens with the weights that travel beside them.
double bytes_with_weights(const Group& group, const TokenExchange& exchange, double bytes);
/// Microseconds, for tokens of `bytes` in all; NVLink and NIC move at the same time. Inside a node DeepEP's warps copy token by
/// token, so that SMs may be what holds it up: a fixed time per token and the bytes of its copies, its own rank's too.
double dispatch_time(const Group& group, const TokenExchange& exchange, double bytes, const DispatchBytes& moved);

/// Channels that carry one message between two members of a communicator: the more members it has, the fewer, and more once
/// parts are large. Source: NVIDIA/nccl@5067397c26 src/enqueue.cc (addP2pToPlan), src/graph/paths.cc (ncclTopoComputeP2pChannels).
int message_channels(const Group& communicator, double bytes);

/// Microseconds of one message between two members of `communicator`, of which `pair` is these two: inside a domain, or between
/// nodes while `concurrent` messages leave the node.
double send_time(const Group& pair, const Group& communicator, double bytes, bool same_domain, int concurrent);

/// Microseconds that a copy engine takes to put `bytes` into the memory of a peer in the same domain.
double copy_time(const Group& group, double bytes);

}  // namespace rehearse::hwmodels
