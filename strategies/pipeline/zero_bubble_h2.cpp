// ZB-H2: enough warm-up forwards that no rank ever waits, and weight gradients held back to fill the drain.
// Twice the activations of 1F1B: every rank holds 2p - 1 micro-batches. Source of the bounds: arXiv
// 2401.10241, section 2.3.
#include <algorithm>

#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {

// With F = I = W = 1 rank r starts at r and may not pause. The first gradient reaches it at 2p - 1 - r, so it
// runs 2p - 1 - 2r forwards first. The last input gradient must leave rank r at 3m - 1 - r for rank 0 to end
// at 3m, and rank r ends at 3m + r, so 2r + 1 weight gradients come after the last input gradient: a lag of
// 2r. Together 2p - 1 are live.
PipelineProgram make_zero_bubble_h2(const PipelineShape& shape) {
  PipelineProgram out = empty_looped("zb-h2", shape, 1);
  const int m = shape.micro_batches, p = shape.stages;
  for (int r = 0; r < p; ++r) {
    auto& actions = out.ranks[r];
    const int warm_up = std::min(m, 2 * (p - r) - 1), lag = 2 * r;
    for (int i = 0; i < warm_up; ++i) actions.push_back(forward(0, i));
    for (int i = 0; i < m; ++i) {
      actions.push_back(backward_input(0, i));
      if (i >= lag) actions.push_back(backward_weight(0, i - lag));
      if (warm_up + i < m) actions.push_back(forward(0, warm_up + i));
    }
    for (int i = std::max(0, m - lag); i < m; ++i) actions.push_back(backward_weight(0, i));
  }
  return with_messages(out);
}

}  // namespace rehearse::strategies
