#include "strategies/kept_graphs.h"

#include <utility>

namespace rehearse::strategies {

using plan::Frame;
using plan::Phase;

plan::Call KeptGraphs::call(std::size_t u, std::uint32_t block, Phase phase, int micro_batch, std::uint32_t own) const {
  plan::Call out{.block = block, .phase = phase, .layer = static_cast<std::int16_t>(stage_.units[u].layer), .micro_batch = micro_batch};
  out.frames[static_cast<std::size_t>(Frame::own)] = own;
  return out;
}

/// In frames of its own, which stay.
void KeptGraphs::setup() {
  if (!held_by_loop() && !held_by_layers()) return;
  of_before_.assign(stage_.units.size(), plan::kNoFrame);
  held_of_.assign(stage_.units.size(), -1);
  last_ = static_cast<int>(chunks_.chunks.front().contents.micro_batches) - 1;
  for (std::size_t u = 0; u < stage_.units.size(); ++u) {
    if (!blocks_.outlives(u)) continue;
    of_before_[u] = stage_.frames.acquire(blocks_.slots(u, chunks_[stage_.units[u].chunk]));
    stage_.append(call(u, blocks_.whole(u, last_).last_graph, Phase::setup, -1, of_before_[u]));
  }
}

void KeptGraphs::loss_is_there(int micro_batch) {
  if (!held_by_loop() || (held_ < 0 && micro_batch != 0)) return;
  if (held_ >= 0) drop(0, held_);
  else
    for (std::size_t u = stage_.units.size(); u-- > 0;)
      if (blocks_.outlives(u)) stage_.append(call(u, blocks_.whole(u, last_).drop_graph, Phase::forward, micro_batch, of_before_[u]));
  held_ = -1;
}

/// The layer's object takes the weights of another micro-batch.
void KeptGraphs::let_go(std::size_t u, Phase phase, int micro_batch) {
  if (!held_by_layers() || !blocks_.outlives(u)) return;
  const int held = std::exchange(held_of_[u], kNothing);
  if (held == kNothing) return;
  stage_.append(call(u, blocks_.whole(u, held < 0 ? last_ : held).drop_graph, phase, micro_batch, held < 0 ? of_before_[u] : frames_.units.at(held, u)));
  if (held >= 0) frames_.units.drop(held, u);
}

void KeptGraphs::forward_begins(std::size_t unit, int micro_batch) { let_go(unit, Phase::forward, micro_batch); }

void KeptGraphs::backward_of_unit_begins(std::size_t unit, int micro_batch) { let_go(unit, Phase::backward, micro_batch); }

void KeptGraphs::backward_of_unit_is_over(std::size_t unit, int micro_batch) {
  if (held_by_layers() && blocks_.outlives(unit)) held_of_[unit] = micro_batch;
}

void KeptGraphs::backward_is_over(int chunk, int micro_batch) {
  if (held_by_layers()) return;
  if (held_by_loop()) held_ = micro_batch;
  else drop(chunk, micro_batch);
}

void KeptGraphs::drop(int chunk, int micro_batch) {
  const StageChunk& c = chunks_[chunk];
  for (std::size_t u = c.last; u-- > c.first;) {
    if (!blocks_.outlives(u)) continue;
    plan::Call dropped = call(u, blocks_.whole(u, micro_batch).drop_graph, Phase::backward, micro_batch, frames_.units.at(micro_batch, u));
    const bool retains = stage_.units[u].retains;
    if (retains) dropped.frames[static_cast<std::size_t>(Frame::below)] = frames_.units.at(micro_batch, u - 1);
    stage_.append(dropped);
    frames_.units.drop(micro_batch, u);
    if (retains) frames_.units.drop(micro_batch, u - 1);
  }
}

/// The last micro-batch's graph becomes that of the step before.
void KeptGraphs::end_step() {
  for (std::size_t u = 0; u < stage_.units.size(); ++u) {
    const int held = held_by_layers() ? std::exchange(held_of_[u], -1) : held_;
    if (held < 0 || !blocks_.outlives(u)) continue;
    plan::Call kept = call(u, blocks_.whole(u, held).keep_graph, Phase::optimizer, -1, of_before_[u]);
    kept.frames[static_cast<std::size_t>(Frame::below)] = frames_.units.at(held, u);
    stage_.append(kept);
    frames_.units.drop(held, u);
  }
  held_ = -1;
}

}  // namespace rehearse::strategies
