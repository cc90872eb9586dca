// GPipe: all forwards, then all backwards in the same order; every activation of the step is kept.
// Receives block, sends are waited for when the pass ends. Source: torch ScheduleGPipe (PyTorch 2.13).
#include "strategies/pipeline/emit.h"

namespace rehearse::strategies {

PipelineProgram make_gpipe(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("gpipe", shape, 1);
  for (int r = 0; r < shape.stages; ++r) {
    RankWriter w(out, r);
    for (int i = 0; i < shape.micro_batches; ++i) {
      w.batch(Wait::at_issue).recv_forward(0, i);
      w.forward(0, i);
      w.batch(Wait::at_use).send_forward(0, i);
    }
    for (int i = 0; i < shape.micro_batches; ++i) {
      w.batch(Wait::at_issue).recv_backward(0, i);
      w.backward(0, i);
      w.batch(Wait::at_use).send_backward(0, i);
    }
  }
  return out;
}

}  // namespace rehearse::strategies
