// NCCL's choice: which algorithm, protocol and number of channels a collective of this size gets.
// Leaves out how long it then takes (algorithm.h, `time`).
#pragma once

#include "hwmodels/collective/algorithm.h"

namespace rehearse::hwmodels {

struct Choice {
  const CollectiveAlgorithm* algorithm = nullptr;
  Protocol protocol = Protocol::simple;
  int channels = 0;
  double tuner_microseconds = 0;  // what NCCL itself expects
};

/// The enabled pair with the least expected time; `options` may forbid NVLS or force either half.
/// A forced pair that this group or kind cannot use is dropped, as NCCL does for kinds that the variable does
/// not name.
Choice choose(const Group& group, CollectiveKind kind, double bytes, const CommunicationOptions& options);

/// Channels left after NCCL's shrinking: fewer bytes than channels x threads x threshold halve the channels.
/// Source: NVIDIA/nccl 2.30 src/enqueue.cc.
int shrunk_channels(const CollectiveAlgorithm& algorithm, const Group& group, CollectiveKind kind,
                    double bytes, Protocol protocol);

}  // namespace rehearse::hwmodels
