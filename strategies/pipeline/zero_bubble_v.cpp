// ZB-V: two chunks per rank, down the ranks and back up, so the loss is computed where the batch came in. No
// bubble when forward, input gradient and weight gradient take equally long, with the activations of 1F1B.
// Order of torch ScheduleZBVZeroBubble (PyTorch 2.13); arXiv 2401.10241, section 6.
#include <algorithm>

#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {
namespace {

/// Counts micro-batches by itself: the n-th call of a kind on a chunk is micro-batch n.
class ZeroBubbleVRank {
 public:
  ZeroBubbleVRank(std::vector<Action>& out, int micro_batches) : out_(out), limit_(micro_batches) {}
  void f(int chunk) { put(forward(chunk, forwards[chunk]++)); }
  void i(int chunk) { put(backward_input(chunk, inputs[chunk]++)); }
  void w(int chunk) { put(backward_weight(chunk, weights[chunk]++)); }
  void iw(int chunk) { i(chunk), w(chunk); }

  int forwards[2] = {0, 0}, inputs[2] = {0, 0}, weights[2] = {0, 0};

 private:
  // The order is made for at least 2p - 1 micro-batches; with fewer, those that do not exist are left out.
  void put(const Action& a) {
    if (a.micro_batch < limit_) out_.push_back(a);
  }
  std::vector<Action>& out_;
  int limit_;
};

}  // namespace

PipelineProgram make_zero_bubble_v(const PipelineShape& shape) {
  PipelineProgram out = empty_v("zb-v", shape);
  const int p = shape.stages, m = std::max(2 * p - 1, shape.micro_batches);
  for (int r = 0; r < p; ++r) {
    ZeroBubbleVRank rank(out.ranks[r], shape.micro_batches);
    for (int n = 0; n < 2 * (p - r) - 1; ++n) rank.f(0);
    for (int n = 0; n < r; ++n) rank.f(1), rank.f(0);
    for (int n = 0; n < p - r; ++n) rank.f(1), rank.iw(1);
    while (rank.forwards[1] < rank.forwards[0] || rank.forwards[0] < m) {
      if (rank.forwards[0] < m) rank.f(0);
      rank.iw(0);
      rank.f(1), rank.iw(1);
    }
    for (int n = 0; n < r; ++n) rank.i(0), rank.i(1);
    for (int n = 0; n < p - r; ++n) rank.iw(0);
    while (rank.weights[1] < rank.inputs[1]) rank.w(1);
    while (rank.weights[0] < rank.inputs[0]) rank.w(0);
  }
  return with_messages(out);
}

}  // namespace rehearse::strategies
