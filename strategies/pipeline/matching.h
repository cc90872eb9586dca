// Pairs every send of a program with its receive, as NCCL does: by order on the channel, not by name.
// Leaves out when messages run (unit_time.h).
#pragma once

#include <string>
#include <vector>

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

struct MessageEnd {
  int rank = 0;
  int action = 0;  // index in PipelineProgram::ranks[rank]
};
struct MessagePair {
  MessageEnd send, receive;
  int previous = -1;  // the pair before it on the same channel
};

struct Matching {
  std::vector<MessagePair> pairs;
  std::vector<std::vector<int>>
      pair_of;  // [rank][action] -> pair, -1 for computations and ends without a partner
  std::vector<std::string> problems;  // ends without a partner, partners that mean different tensors
};

Matching match_messages(const PipelineProgram& program);

/// "rank 2: send_forward chunk 0 micro-batch 3"
std::string describe(const PipelineProgram& program, int rank, int action);

}  // namespace rehearse::strategies
