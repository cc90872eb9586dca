#include "strategies/pipeline/sharding.h"

#include <algorithm>
#include <span>

namespace rehearse::strategies {
namespace {

Action on_chunk(ActionKind kind, int chunk) { return {.kind = kind, .chunk = chunk, .micro_batch = -1}; }

/// The chunks that the coming actions use, in order of first use, at most `count`.
std::vector<int> next_chunks(std::span<const Action> coming, int count) {
  std::vector<int> out;
  const auto add = [&](int chunk) {
    if (std::ranges::find(out, chunk) == out.end()) out.push_back(chunk);
  };
  for (const Action& a : coming) {
    add(a.chunk);
    if (a.kind == ActionKind::overlapped) add(a.under_chunk);
    if (static_cast<int>(out.size()) >= count)
      break;  // an overlapped pair may exceed the count by one, as in PyTorch
  }
  return out;
}

}  // namespace

PipelineProgram without_messages(const PipelineProgram& program) {
  PipelineProgram out = program;
  for (auto& actions : out.ranks) std::erase_if(actions, [](const Action& a) { return is_message(a.kind); });
  return out;
}

PipelineProgram with_sharded_parameters(const PipelineProgram& in, int max_unsharded) {
  PipelineProgram out = in;
  for (int rank = 0; rank < in.stages(); ++rank) {
    const auto& actions = in.ranks[rank];
    auto& written = out.ranks[rank];
    written.clear();
    std::vector<int> whole;  // ascending
    std::vector<int> backwards(in.placement[rank].size(), 0);
    const auto count_backward = [&](int chunk) {
      const int all = in.micro_batches / in.replicas;
      if (++backwards[chunk] == all) written.push_back(on_chunk(ActionKind::reduce_gradient, chunk));
    };
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const auto wanted = next_chunks(std::span(actions).subspan(i), max_unsharded);
      std::erase_if(whole, [&](int chunk) {
        if (std::ranges::find(wanted, chunk) != wanted.end()) return false;
        written.push_back(on_chunk(ActionKind::reshard, chunk));
        return true;
      });
      for (const int chunk : wanted) {
        if (std::ranges::find(whole, chunk) != whole.end()) continue;
        written.push_back(on_chunk(ActionKind::unshard, chunk));
        whole.insert(std::ranges::upper_bound(whole, chunk), chunk);
      }
      const Action& a = actions[i];
      written.push_back(a);
      if (a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight) count_backward(a.chunk);
      if (a.kind == ActionKind::overlapped) count_backward(a.under_chunk);
    }
    for (const int chunk : whole) written.push_back(on_chunk(ActionKind::reshard, chunk));
  }
  return out;
}

}  // namespace rehearse::strategies
