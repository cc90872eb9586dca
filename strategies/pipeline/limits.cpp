#include "strategies/pipeline/limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace rehearse::strategies {

Problems any_shape(const PipelineShape& s) {
  Problems out;
  if (s.stages < 1)
    out.push_back(fmt::format("{} pipeline stages make no pipeline. Use 1 or more", s.stages));
  if (s.micro_batches < 1)
    out.push_back(
        fmt::format("{} micro-batches per step leave nothing to do. Use 1 or more", s.micro_batches));
  if (s.chunks < 1)
    out.push_back(fmt::format("{} model chunks per rank hold no model. Use 1 or more", s.chunks));
  return out;
}

Problems at_least_one_per_stage(const PipelineShape& s) {
  Problems out = any_shape(s);
  if (out.empty() && s.micro_batches < s.stages)
    out.push_back(
        fmt::format("{} micro-batches are fewer than {} stages, which PyTorch's 1F1B refuses. "
                    "Use {} micro-batches or more, or schedule gpipe",
                    s.micro_batches, s.stages, s.stages));
  return out;
}

Problems interleaved_limits(const PipelineShape& s) {
  Problems out = any_shape(s);
  if (!out.empty()) return out;
  if (s.chunks < 2)
    out.push_back(
        "interleaving needs 2 or more model chunks per rank (virtual_stages). Use schedule 1f1b for one");
  if (s.stages < 2)
    out.push_back("interleaving needs 2 or more pipeline stages. Raise parallelism.pipeline");
  else if (s.stages == 2 && !s.overlap_messages)
    out.push_back(
        "with 2 stages both neighbours are the same rank and Megatron needs overlapped messages "
        "(overlap_p2p_comm). "
        "Switch them on, or use 3 or more stages");
  const int p = s.stages, m = s.micro_batches, g = s.group_size > 0 ? s.group_size : p;
  if (g < p || g > m) {
    if (m < p)
      out.push_back(
          fmt::format("{} micro-batches are fewer than {} stages. Use {} micro-batches or more", m, p, p));
    else
      out.push_back(
          fmt::format("micro-batch group size {} must lie between {} stages and {} micro-batches. Use {}", g,
                      p, m, std::clamp(g, p, m)));
  } else if (m % g != 0 && m % g < p) {
    out.push_back(
        fmt::format("{} micro-batches in groups of {} leave a last group of {}, shorter than {} stages. Use "
                    "{} or {} micro-batches",
                    m, g, m % g, p, m - m % g, m - m % g + p));
  }
  return out;
}

Problems whole_rounds(const PipelineShape& s) {
  Problems out = any_shape(s);
  if (!out.empty()) return out;
  const int rounds = std::max(1, s.micro_batches / s.stages);
  if (s.micro_batches % rounds != 0)
    out.push_back(fmt::format(
        "{} micro-batches are not a multiple of {} rounds of {} stages. Use {} or {} micro-batches",
        s.micro_batches, rounds, s.stages, rounds * s.stages, (rounds + 1) * s.stages));
  return out;
}

Problems dualpipe_limits(const PipelineShape& s) {
  Problems out = any_shape(s);
  if (!out.empty()) return out;
  if (s.stages % 2 != 0)
    out.push_back(fmt::format("DualPipe pairs ranks from both ends, and {} stages are odd. Use {} or {}",
                              s.stages, s.stages - 1, s.stages + 1));
  const int least = 2 * (s.stages + s.stages % 2);
  if (s.micro_batches % 2 != 0 || s.micro_batches < least)
    out.push_back(fmt::format(
        "DualPipe needs an even number of micro-batches, at least twice the stages, not {}. Use {}",
        s.micro_batches, std::max(least, s.micro_batches + s.micro_batches % 2)));
  return out;
}

Problems dualpipe_v_limits(const PipelineShape& s) {
  Problems out = any_shape(s);
  if (out.empty() && s.micro_batches < 2 * s.stages)
    out.push_back(
        fmt::format("DualPipeV needs at least as many micro-batches as chunks, {}, not {}. Use {} or more",
                    2 * s.stages, s.micro_batches, 2 * s.stages));
  return out;
}

}  // namespace rehearse::strategies
