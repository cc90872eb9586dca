// Short forms for writing schedules: actions, and batches of messages in which ends of the model drop out by
// themselves. Leaves out the rules by which whole schedules get their messages (messages.h).
#pragma once

#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

inline Action forward(int chunk, int mb) {
  return {.kind = ActionKind::forward, .chunk = chunk, .micro_batch = mb};
}
inline Action backward(int chunk, int mb) {
  return {.kind = ActionKind::backward, .chunk = chunk, .micro_batch = mb};
}
inline Action backward_input(int chunk, int mb) {
  return {.kind = ActionKind::backward_input, .chunk = chunk, .micro_batch = mb};
}
inline Action backward_weight(int chunk, int mb) {
  return {.kind = ActionKind::backward_weight, .chunk = chunk, .micro_batch = mb};
}
inline Action overlapped(int chunk, int mb, int under_chunk, int under_mb) {
  return {.kind = ActionKind::overlapped,
          .chunk = chunk,
          .micro_batch = mb,
          .under_chunk = under_chunk,
          .under_micro_batch = under_mb};
}

/// Writes one rank's actions in host order.
class RankWriter {
 public:
  RankWriter(PipelineProgram& program, int rank) : program_(program), rank_(rank) {}

  void compute(const Action& a) { program_.ranks[rank_].push_back(a); }
  void forward(int chunk, int mb) { compute(strategies::forward(chunk, mb)); }
  void backward(int chunk, int mb) { compute(strategies::backward(chunk, mb)); }

  /// Starts a batch; messages that follow belong to it. A batch that stays empty leaves no trace.
  RankWriter& batch(Wait wait) {
    ++batch_;
    wait_ = wait;
    return *this;
  }
  RankWriter& send_forward(int chunk, int mb) { return message(ActionKind::send_forward, chunk, mb); }
  RankWriter& recv_forward(int chunk, int mb) { return message(ActionKind::recv_forward, chunk, mb); }
  RankWriter& send_backward(int chunk, int mb) { return message(ActionKind::send_backward, chunk, mb); }
  RankWriter& recv_backward(int chunk, int mb) { return message(ActionKind::recv_backward, chunk, mb); }

 private:
  /// The first stage receives no activations, the last sends none; neighbours on one rank hand over without a
  /// message.
  RankWriter& message(ActionKind kind, int chunk, int mb) {
    const Action a{.kind = kind,
                   .chunk = chunk,
                   .micro_batch = mb,
                   .under_chunk = -1,
                   .under_micro_batch = -1,
                   .batch = batch_,
                   .wait = wait_};
    const int peer = program_.peer(rank_, a);
    if (peer >= 0 && peer != rank_) program_.ranks[rank_].push_back(a);
    return *this;
  }

  PipelineProgram& program_;
  int rank_;
  int batch_ = -1;
  Wait wait_ = Wait::at_use;
};

}  // namespace rehearse::strategies
