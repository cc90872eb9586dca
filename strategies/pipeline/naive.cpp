// Naive model parallelism: each micro-batch goes all the way down and back before the next one starts.
#include "strategies/pipeline/emit.h"

namespace rehearse::strategies {

PipelineProgram make_naive(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("naive", shape, 1);
  for (int r = 0; r < shape.stages; ++r) {
    RankWriter w(out, r);
    for (int i = 0; i < shape.micro_batches; ++i) {
      w.batch(Wait::at_issue).recv_forward(0, i);
      w.forward(0, i);
      w.batch(Wait::at_issue).send_forward(0, i);
      w.batch(Wait::at_issue).recv_backward(0, i);
      w.backward(0, i);
      w.batch(Wait::at_issue).send_backward(0, i);
    }
  }
  return out;
}

}  // namespace rehearse::strategies
