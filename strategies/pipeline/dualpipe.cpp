// DualPipe: the model twice, fed from both ends of the pipeline, so that a forward of one direction always
// runs together with a backward of the other and hides its expert messages. Source: deepseek-ai/DualPipe,
// dualpipe/dualpipe.py.
#include <algorithm>
#include <deque>

#include "strategies/pipeline/emit.h"

namespace rehearse::strategies {
namespace {

/// Phase 0 is the direction that enters the pipeline at the rank's own half, phase 1 the other. Messages
/// collect until the next computation, then go out in one batch that blocks.
class DualPipeRank {
 public:
  DualPipeRank(PipelineProgram& program, int rank)
      : program_(program), rank_(rank), second_half_(rank >= program.stages() / 2) {}

  void recv_f(int phase) { collect(ActionKind::recv_forward, phase, received_forward_[phase]++); }
  void recv_b(int phase) { collect(ActionKind::recv_backward, phase, received_backward_[phase]++); }
  void send_f(int phase) { collect(ActionKind::send_forward, phase, sent_forward_[phase]++); }
  void send_b(int phase) { collect(ActionKind::send_backward, phase, sent_backward_[phase]++); }

  void compute_f(int phase) {
    commit();
    put(forward(chunk(phase), micro_batch(phase, forwards_[phase]++)));
  }
  void compute_b(int phase, bool hold_weights) {
    commit();
    const int mb = micro_batch(phase, backwards_[phase]++);
    put(hold_weights ? backward_input(chunk(phase), mb) : backward(chunk(phase), mb));
    if (hold_weights) held_.push_back(backward_weight(chunk(phase), mb));
  }
  void compute_f_under_b(int forward_phase, int backward_phase) {
    commit();
    put(overlapped(chunk(forward_phase), micro_batch(forward_phase, forwards_[forward_phase]++),
                   chunk(backward_phase), micro_batch(backward_phase, backwards_[backward_phase]++)));
  }
  void weights() {
    commit();
    put(held_.front());
    held_.pop_front();
  }
  void commit() {
    for (Action& a : pending_) {
      a.batch = batches_;
      put(a);
    }
    if (!pending_.empty()) ++batches_;
    pending_.clear();
  }

  // The usual steps: receive, compute, send.
  void f(int phase) { recv_f(phase), compute_f(phase), send_f(phase); }
  void b(int phase, bool hold_weights) { recv_b(phase), compute_b(phase, hold_weights), send_b(phase); }
  void f_under_b(int forward_phase, int backward_phase) {
    recv_f(forward_phase), f_received_under_b(forward_phase, backward_phase);
  }
  void f_received_under_b(int forward_phase, int backward_phase) {
    recv_b(backward_phase), compute_f_under_b(forward_phase, backward_phase);
    send_f(forward_phase), send_b(backward_phase);
  }

 private:
  int chunk(int phase) const { return second_half_ ? 1 - phase : phase; }
  int micro_batch(int phase, int n) const { return n + chunk(phase) * program_.micro_batches / 2; }
  void put(const Action& a) { program_.ranks[rank_].push_back(a); }
  void collect(ActionKind kind, int phase, int n) {
    Action a{.kind = kind, .chunk = chunk(phase), .micro_batch = micro_batch(phase, n)};
    a.wait = Wait::at_issue;
    if (program_.peer(rank_, a) >= 0) pending_.push_back(a);  // nothing crosses the ends of the model
  }

  PipelineProgram& program_;
  int rank_;
  bool second_half_;
  int batches_ = 0;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  int received_forward_[2] = {0, 0}, received_backward_[2] = {0, 0}, sent_forward_[2] = {0, 0},
      sent_backward_[2] = {0, 0};
  std::vector<Action> pending_;
  std::deque<Action> held_;
};

/// The eight steps of the reference (its comments number them so). h: distance from the near end, of H ranks
/// in a half.
void write_rank(DualPipeRank& rank, int h, int H, int micro_batches) {
  const bool middle = h == H - 1;
  for (int i = 0; i < 2 * (H - h - 1); ++i) rank.f(0);  // 1
  rank.recv_f(0);
  for (int i = 0; i < h + 1; ++i) {  // 2
    rank.compute_f(0);
    if (middle) rank.send_f(0);
    rank.recv_f(0);
    rank.recv_f(1), rank.compute_f(1);
    if (!middle || i < h) rank.send_f(1);
    if (!middle) rank.send_f(0);
  }
  for (int i = 0; i < H - h - 1; ++i) {  // 3
    rank.b(1, true);
    rank.recv_f(1);
    rank.weights();
    rank.compute_f(1), rank.send_f(1);
  }
  for (int i = 0; i < micro_batches / 2 - 2 * H + h + 1; ++i) {  // 4
    if (i > 0) {
      rank.f_under_b(0, 1);
    } else if (middle) {  // not overlapped: the bubble is smaller so
      rank.compute_f(0), rank.send_f(1);
      rank.recv_b(1), rank.compute_b(1, false);
      rank.send_f(0), rank.send_b(1);
    } else {
      rank.f_received_under_b(0, 1);
    }
    rank.f_under_b(1, 0);
  }
  for (int i = 0; i < H - h - 1; ++i) rank.b(1, false), rank.f_under_b(1, 0);  // 5
  for (int i = 0; i < h + 1; ++i) {  // 6: weight gradients are held back in the second half
    const int half = (h + 1) / 2;
    rank.b(1, h % 2 == 1 ? i >= half : i > half);
    rank.b(0, i >= half);
  }
  for (int i = 0; i < H - h - 1; ++i) rank.weights(), rank.b(0, true);  // 7
  for (int i = 0; i < h + 1; ++i) rank.weights();                       // 8
  rank.commit();
}

}  // namespace

PipelineProgram make_dualpipe(const PipelineShape& shape) {
  const int p = shape.stages;
  PipelineProgram out = empty_looped("dualpipe", shape, 1);
  out.replicas = 2;
  for (int r = 0; r < p; ++r) out.placement[r].push_back({p - 1 - r, 1});
  for (int r = 0; r < p; ++r) {
    DualPipeRank rank(out, r);
    write_rank(rank, std::min(r, p - 1 - r), p / 2, shape.micro_batches);
  }
  return out;
}

}  // namespace rehearse::strategies
