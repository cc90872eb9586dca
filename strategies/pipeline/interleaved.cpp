// Megatron-LM's interleaved 1F1B: v chunks per rank, micro-batches in groups of g through chunk 0, 1, ...,
// then the next group. Each step sends the result just computed and receives what the next step needs.
// Source: megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving.
#include <algorithm>
#include <optional>

#include "sim/core/contract.h"
#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/limits.h"

namespace rehearse::strategies {
namespace {

struct Step {
  int chunk, micro_batch;
};

/// The order in which every rank runs its m*v forwards; backwards run in the same order with chunks reversed.
std::vector<Step> steps_of(const PipelineShape& shape, int group_size) {
  std::vector<Step> out;
  for (int first = 0; first < shape.micro_batches; first += group_size)
    for (int k = 0; k < shape.chunks; ++k)
      for (int i = first; i < std::min(first + group_size, shape.micro_batches); ++i) out.push_back({k, i});
  return out;
}

class InterleavedRank {
 public:
  InterleavedRank(PipelineProgram& program, int rank, const PipelineShape& shape,
                  const std::vector<Step>& steps)
      : shape_(shape),
        rank_(rank),
        steps_(steps),
        total_(static_cast<int>(steps.size())),
        w_(program, rank) {}

  void write(int group_size) {
    int warm_up = (shape_.stages - rank_ - 1) * 2 + (shape_.chunks - 1) * group_size +
                  (shape_.overlap_expert_messages ? 1 : 0);
    warm_up = std::min(warm_up, total_);
    const bool overlap_ends = shape_.overlap_messages && shape_.overlap_warmup_flush;
    const Wait ends = overlap_ends ? Wait::at_use : Wait::at_issue;

    if (rank_ > 0) receive_forward(w_.batch(Wait::at_issue), {steps_[0]});
    // Overlapping, a rank asks for its next input before it computes, unless that is the last rank's result.
    const bool asks_ahead = overlap_ends && rank_ > 0, asks_ahead_back = overlap_ends && rank_ + 1 < shape_.stages;
    for (int k = 0; k < warm_up; ++k) {
      if (asks_ahead) receive_forward(w_.batch(ends), input_after(k));
      w_.forward(steps_[k].chunk, steps_[k].micro_batch);
      auto& batch = w_.batch(ends).send_forward(steps_[k].chunk, steps_[k].micro_batch);
      if (!asks_ahead) receive_forward(batch, input_after(k));
      if (k + 1 < warm_up || warm_up == total_) continue;
      // The first gradient is asked for together with the last warm-up message, or apart from it when
      // overlapping.
      if (shape_.overlap_messages) w_.batch(Wait::at_use);
      receive_backward(batch, first_gradient());
    }
    for (int k = warm_up; k < total_; ++k) steady_step(k, k - warm_up);
    if (warm_up == total_) receive_backward(w_.batch(Wait::at_issue), first_gradient());
    for (int b = total_ - warm_up; b < total_; ++b) {
      if (asks_ahead_back) receive_backward(w_.batch(ends), gradient_after(b));
      w_.backward(backward_chunk(b), steps_[b].micro_batch);
      auto& batch = w_.batch(ends).send_backward(backward_chunk(b), steps_[b].micro_batch);
      if (!asks_ahead_back) receive_backward(batch, gradient_after(b));
    }
  }

 private:
  int backward_chunk(int b) const { return shape_.chunks - 1 - steps_[b].chunk; }

  void steady_step(int k, int b) {
    const Step f = steps_[k];
    const Step g{backward_chunk(b), steps_[b].micro_batch};
    if (shape_.overlap_expert_messages) {
      w_.compute(overlapped(f.chunk, f.micro_batch, g.chunk, g.micro_batch));
    } else {
      w_.forward(f.chunk, f.micro_batch);
      if (shape_.overlap_messages)
        receive_forward(w_.batch(Wait::at_use).send_forward(f.chunk, f.micro_batch), input_after(k));
      w_.backward(g.chunk, g.micro_batch);
    }
    auto& batch = w_.batch(shape_.overlap_messages ? Wait::at_use : Wait::at_issue);
    // Order within a fused batch: p2p_communication.py, _batched_p2p_ops (previous neighbour first).
    const bool forward_left = shape_.overlap_expert_messages || !shape_.overlap_messages;
    batch.send_backward(g.chunk, g.micro_batch);
    if (forward_left) {
      receive_forward(batch, input_after(k));
      batch.send_forward(f.chunk, f.micro_batch);
    }
    receive_backward(batch, gradient_after(b));
  }

  /// What arrives while step k's result leaves. The first rank is ahead of the last by p - 1 steps, so what
  /// it gets is the last rank's result of that long ago, now input of the next chunk; others get the input of
  /// their next step.
  std::optional<Step> input_after(int k) const {
    if (rank_ > 0) return k + 1 < total_ ? std::optional{steps_[k + 1]} : std::nullopt;
    const int sent = k - (shape_.stages - 1);
    if (sent < 0 || steps_[sent].chunk == shape_.chunks - 1) return std::nullopt;
    return Step{steps_[sent].chunk + 1, steps_[sent].micro_batch};
  }
  std::optional<Step> gradient_after(int b) const {
    if (rank_ + 1 < shape_.stages)
      return b + 1 < total_ ? std::optional{Step{backward_chunk(b + 1), steps_[b + 1].micro_batch}}
                            : std::nullopt;
    const int sent = b - (shape_.stages - 1);
    if (sent < 0 || backward_chunk(sent) == 0) return std::nullopt;
    return Step{backward_chunk(sent) - 1, steps_[sent].micro_batch};
  }
  std::optional<Step> first_gradient() const {
    if (rank_ + 1 == shape_.stages) return std::nullopt;
    return Step{backward_chunk(0), steps_[0].micro_batch};
  }
  static void receive_forward(RankWriter& w, std::optional<Step> s) {
    if (s) w.recv_forward(s->chunk, s->micro_batch);
  }
  static void receive_backward(RankWriter& w, std::optional<Step> s) {
    if (s) w.recv_backward(s->chunk, s->micro_batch);
  }

  const PipelineShape& shape_;
  int rank_;
  const std::vector<Step>& steps_;
  int total_;
  RankWriter w_;
};

}  // namespace

PipelineProgram make_interleaved(const PipelineShape& shape) {
  EXPECTS(interleaved_limits(shape).empty(),
          interleaved_limits(shape).empty() ? "" : interleaved_limits(shape).front());
  PipelineProgram out = empty_looped("interleaved-1f1b", shape, shape.chunks);
  out.channels = shape.overlap_messages ? Channels::per_direction : Channels::per_rank;
  const int group_size = shape.group_size > 0 ? shape.group_size : shape.stages;
  const std::vector<Step> steps = steps_of(shape, group_size);
  for (int r = 0; r < shape.stages; ++r) InterleavedRank(out, r, shape, steps).write(group_size);
  return out;
}

}  // namespace rehearse::strategies
