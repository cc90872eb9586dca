// Messages that NCCL schedules without rings or trees: send/recv and all-to-all, where each pair talks
// directly. Leaves out expert-parallel kernels that bypass NCCL (DeepEP): strategies ask for those by their
// own bandwidths.
#pragma once

#include "hwmodels/collective/algorithm.h"

namespace rehearse::hwmodels {

/// Microseconds of an all-to-all in which every member sends bytes/n to each of the n members.
/// Traffic between nodes uses the NIC of its own GPU: NICs are not aggregated. Source: NVIDIA/nccl-tests
/// #130, #267.
double all_to_all_time(const Group& group, double bytes);
WireBytes all_to_all_wire(const Group& group);

/// Microseconds of one message inside a domain, or between nodes while `concurrent` messages leave the node.
double send_time(const Group& group, double bytes, bool same_domain, int concurrent);

}  // namespace rehearse::hwmodels
