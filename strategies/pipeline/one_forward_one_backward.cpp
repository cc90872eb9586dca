// 1F1B: warm-up forwards until the first gradient can arrive, then one forward and one backward in turn.
// Megatron and PyTorch compute in the same order and differ in how they send.
#include <algorithm>

#include "strategies/pipeline/emit.h"

namespace rehearse::strategies {

// Source: megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_without_interleaving:
// every message blocks; in the steady phase a send is fused with the receive from the same neighbour.
PipelineProgram make_one_forward_one_backward(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("1f1b", shape, 1);
  const int m = shape.micro_batches;
  if (shape.overlap_expert_messages && shape.stages == 1) {
    // Source: megatron/core/pipeline_parallel/combined_1f1b.py, combined_1f1b_schedule_for_no_pipelining.
    RankWriter w(out, 0);
    w.forward(0, 0);
    for (int i = 0; i + 1 < m; ++i) w.compute(overlapped(0, i + 1, 0, i));
    w.backward(0, m - 1);
    return out;
  }
  for (int r = 0; r < shape.stages; ++r) {
    RankWriter w(out, r);
    const int warm_up = std::min(m, shape.stages - r - 1);
    for (int i = 0; i < warm_up; ++i) {
      w.batch(Wait::at_issue).recv_forward(0, i);
      w.forward(0, i);
      w.batch(Wait::at_issue).send_forward(0, i);
    }
    const int steady = m - warm_up;
    if (steady > 0) w.batch(Wait::at_issue).recv_forward(0, warm_up);
    for (int i = 0; i < steady; ++i) {
      w.forward(0, warm_up + i);
      w.batch(Wait::at_issue).send_forward(0, warm_up + i).recv_backward(0, i);
      w.backward(0, i);
      w.batch(Wait::at_issue).send_backward(0, i);
      if (i + 1 < steady) w.recv_forward(0, warm_up + i + 1);
    }
    for (int i = steady; i < m; ++i) {
      w.batch(Wait::at_issue).recv_backward(0, i);
      w.backward(0, i);
      w.batch(Wait::at_issue).send_backward(0, i);
    }
  }
  return out;
}

// Source: torch Schedule1F1B._step_microbatches (PyTorch 2.13): warm-up and cool-down sends are taken back
// one computation later; the last warm-up send waits to be fused with the first gradient's receive.
PipelineProgram make_pytorch_one_forward_one_backward(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("pytorch-1f1b", shape, 1);
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.stages; ++r) {
    RankWriter w(out, r);
    const int warm_up = std::min(m, shape.stages - r);
    for (int i = 0; i < warm_up; ++i) {
      w.batch(Wait::at_issue).recv_forward(0, i);
      w.forward(0, i);
      if (i + 1 < warm_up) w.batch(Wait::after_next_compute).send_forward(0, i);
    }
    int next_backward = 0;
    for (int sent = warm_up - 1;; ++sent) {
      w.batch(Wait::at_issue).send_forward(0, sent).recv_backward(0, next_backward);
      w.backward(0, next_backward++);
      if (sent + 1 == m) break;
      w.batch(Wait::at_issue).send_backward(0, next_backward - 1).recv_forward(0, sent + 1);
      w.forward(0, sent + 1);
    }
    w.batch(Wait::after_next_compute).send_backward(0, next_backward - 1);
    while (next_backward < m) {
      w.batch(Wait::at_issue).recv_backward(0, next_backward);
      w.backward(0, next_backward);
      w.batch(Wait::after_next_compute).send_backward(0, next_backward++);
    }
  }
  return out;
}

}  // namespace rehearse::strategies
