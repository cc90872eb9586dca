// DualPipeV: DualPipe cut in half. Each rank holds two chunks in a V, and no part of the model is held twice.
// Source: deepseek-ai/DualPipe, dualpipe/dualpipev.py; messages as torch ScheduleDualPipeV (PyTorch 2.13).
#include <deque>

#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {
namespace {

class DualPipeVRank {
 public:
  explicit DualPipeVRank(std::vector<Action>& out) : out_(out) {}
  void f(int chunk) { out_.push_back(forward(chunk, forwards_[chunk]++)); }
  void b(int chunk) { out_.push_back(backward(chunk, backwards_[chunk]++)); }
  void i(int chunk) {
    held_.push_back(backward_weight(chunk, backwards_[chunk]));
    out_.push_back(backward_input(chunk, backwards_[chunk]++));
  }
  void i_or_b(int chunk, bool hold_weights) { hold_weights ? i(chunk) : b(chunk); }
  void w() {
    if (held_.empty()) return;
    out_.push_back(held_.front());
    held_.pop_front();
  }
  void f_under_b(int chunk, int under) {
    out_.push_back(overlapped(chunk, forwards_[chunk]++, under, backwards_[under]++));
  }

 private:
  std::vector<Action>& out_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::deque<Action> held_;
};

}  // namespace

PipelineProgram make_dualpipe_v(const PipelineShape& shape) {
  PipelineProgram out = empty_v("dualpipev", shape);
  const int p = shape.stages;
  for (int r = 0; r < p; ++r) {
    DualPipeVRank rank(out.ranks[r]);
    for (int n = 0; n < 2 * (p - r - 1); ++n) rank.f(0);
    for (int n = 0; n < r + 1; ++n) rank.f(0), rank.f(1);
    for (int n = 0; n < p - r - 1; ++n) rank.i(1), rank.w(), rank.f(1);
    for (int n = 0; n < shape.micro_batches - 2 * p + r + 1; ++n) {
      if (n == 0 && r == p - 1)
        rank.f(0), rank.b(1);  // not overlapped: the bubble is smaller so
      else
        rank.f_under_b(0, 1);
      rank.f_under_b(1, 0);
    }
    for (int n = 0; n < p - r - 1; ++n) rank.b(1), rank.f_under_b(1, 0);
    for (int n = 0; n < r + 1; ++n) {  // weight gradients are held back in the second half
      const int half = (r + 1) / 2;
      rank.i_or_b(1, r % 2 == 1 ? n >= half : n > half);
      rank.i_or_b(0, n >= half);
    }
    for (int n = 0; n < p - r - 1; ++n) rank.w(), rank.i(0);
    for (int n = 0; n < r + 1; ++n) rank.w();
  }
  return with_messages(out);
}

}  // namespace rehearse::strategies
