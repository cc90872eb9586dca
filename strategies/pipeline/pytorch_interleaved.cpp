// PyTorch's interleaved schedules: micro-batches in rounds, each round through chunk 0, 1, ... of the rank,
// then the next. The zero-bubble form holds weight gradients back by as many backwards as the rank's number;
// with one chunk it is ZB-H1. Source: torch ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
// (PyTorch 2.13); arXiv 2401.10241.
#include <algorithm>
#include <string>

#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {
namespace {

/// The n-th forward of a rank, and the n-th backward with chunks reversed.
struct RoundOrder {
  int per_round, chunks;
  int micro_batch(int n) const { return n / (per_round * chunks) * per_round + n % per_round; }
  int forward_chunk(int n) const { return n / per_round % chunks; }
  int backward_chunk(int n) const { return chunks - 1 - forward_chunk(n); }
};

enum class WeightGradients { with_backward, held_back };

PipelineProgram make_rounds(const std::string& name, const PipelineShape& shape, int chunks,
                            WeightGradients weights) {
  PipelineProgram out = empty_looped(name, shape, chunks);
  const int rounds = std::max(1, shape.micro_batches / shape.stages);
  const RoundOrder order{shape.micro_batches / rounds, chunks};
  const int total = shape.micro_batches * chunks;
  const int per_hop = weights == WeightGradients::held_back
                          ? 1
                          : 2;  // backward without weight gradient is one unit faster per stage
  for (int r = 0; r < shape.stages; ++r) {
    auto& actions = out.ranks[r];
    int next_weight = 0;
    const auto run_backward = [&](int n) {
      if (weights == WeightGradients::with_backward) {
        actions.push_back(backward(order.backward_chunk(n), order.micro_batch(n)));
        return;
      }
      actions.push_back(backward_input(order.backward_chunk(n), order.micro_batch(n)));
      if (n < r) return;
      actions.push_back(backward_weight(order.backward_chunk(next_weight), order.micro_batch(next_weight)));
      ++next_weight;
    };
    const int warm_up = std::min(total, (chunks - 1) * order.per_round + per_hop * (shape.stages - 1 - r));
    for (int n = 0; n < total; ++n) {
      actions.push_back(forward(order.forward_chunk(n), order.micro_batch(n)));
      if (n >= warm_up) run_backward(n - warm_up);
    }
    for (int n = total - warm_up; n < total; ++n) run_backward(n);
    if (weights == WeightGradients::held_back)
      for (; next_weight < total; ++next_weight)
        actions.push_back(backward_weight(order.backward_chunk(next_weight), order.micro_batch(next_weight)));
  }
  return with_messages(out);
}

}  // namespace

PipelineProgram make_pytorch_interleaved(const PipelineShape& shape) {
  return make_rounds("pytorch-interleaved-1f1b", shape, shape.chunks, WeightGradients::with_backward);
}

PipelineProgram make_pytorch_interleaved_zero_bubble(const PipelineShape& shape) {
  return make_rounds("pytorch-interleaved-zero-bubble", shape, shape.chunks, WeightGradients::held_back);
}

PipelineProgram make_zero_bubble_h1(const PipelineShape& shape) {
  return make_rounds("zb-h1", shape, 1, WeightGradients::held_back);
}

}  // namespace rehearse::strategies
