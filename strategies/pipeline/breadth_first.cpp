// Breadth-first (looped BFS): all micro-batches of a chunk before the next chunk, so FSDP gathers each chunk
// once per pass. Order of torch ScheduleLoopedBFS (PyTorch 2.13), which follows arXiv 2211.05953: backward
// mirrors forward.
#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {

PipelineProgram make_breadth_first(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("breadth-first", shape, shape.chunks);
  for (auto& actions : out.ranks) {
    for (int k = 0; k < shape.chunks; ++k)
      for (int i = 0; i < shape.micro_batches; ++i) actions.push_back(forward(k, i));
    for (int k = shape.chunks - 1; k >= 0; --k)
      for (int i = shape.micro_batches - 1; i >= 0; --i) actions.push_back(backward(k, i));
  }
  return with_messages(out);
}

}  // namespace rehearse::strategies
