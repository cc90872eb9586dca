#include <algorithm>
#include <utility>

#include "sim/core/contract.h"
#include "strategies/pipeline/schedule.h"

namespace rehearse::strategies {

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::backward_input:
      return "backward_input";
    case ActionKind::backward_weight:
      return "backward_weight";
    case ActionKind::overlapped:
      return "overlapped";
    case ActionKind::send_forward:
      return "send_forward";
    case ActionKind::recv_forward:
      return "recv_forward";
    case ActionKind::send_backward:
      return "send_backward";
    case ActionKind::recv_backward:
      return "recv_backward";
    case ActionKind::unshard:
      return "unshard";
    case ActionKind::reshard:
      return "reshard";
    case ActionKind::reduce_gradient:
      return "reduce_gradient";
  }
  return "?";
}

bool is_compute(ActionKind kind) { return kind <= ActionKind::overlapped; }
bool is_message(ActionKind kind) {
  return kind >= ActionKind::send_forward && kind <= ActionKind::recv_backward;
}

PipelineProgram::Location PipelineProgram::locate(Place place) const {
  if (place.stage < 0 || place.stage >= virtual_stages) return {};
  // Looped, V and bidirectional placements put stage s where one of these two guesses finds it; tables may
  // not.
  const int p = static_cast<int>(placement.size());
  for (const int rank : {place.stage % p, p - 1 - place.stage % p})
    for (int chunk = 0; chunk < chunks(rank); ++chunk)
      if (placement[rank][chunk] == place) return {rank, chunk};
  for (int rank = 0; rank < p; ++rank)
    for (int chunk = 0; chunk < chunks(rank); ++chunk)
      if (placement[rank][chunk] == place) return {rank, chunk};
  return {};
}

PipelineProgram in_rounds(PipelineProgram program, int rounds) {
  EXPECTS(rounds >= 1);
  const int each = program.micro_batches;
  for (std::vector<Action>& actions : program.ranks) {
    const std::vector<Action> once = std::exchange(actions, {});
    int batches = 0;
    for (const Action& a : once) batches = std::max(batches, a.batch + 1);
    for (int round = 0; round < rounds; ++round)
      for (Action a : once) {
        if (a.kind == ActionKind::reduce_gradient && round + 1 < rounds) continue;
        if (a.micro_batch >= 0) a.micro_batch += round * each;
        if (a.under_micro_batch >= 0) a.under_micro_batch += round * each;
        if (a.batch >= 0) a.batch += round * batches;
        actions.push_back(a);
      }
  }
  program.micro_batches = each * rounds;
  program.rounds = rounds;
  return program;
}

int PipelineProgram::peer(int rank, const Action& a) const {
  const bool downstream = a.kind == ActionKind::send_forward || a.kind == ActionKind::recv_backward;
  return (downstream ? next(rank, a.chunk) : previous(rank, a.chunk)).rank;
}

PipelineProgram empty_looped(std::string name, const PipelineShape& shape, int chunks) {
  PipelineProgram out;
  out.name = std::move(name);
  out.micro_batches = shape.micro_batches;
  out.virtual_stages = shape.stages * chunks;
  out.ranks.resize(shape.stages);
  out.placement.resize(shape.stages);
  for (int r = 0; r < shape.stages; ++r)
    for (int k = 0; k < chunks; ++k) out.placement[r].push_back({k * shape.stages + r});
  return out;
}

PipelineProgram empty_v(std::string name, const PipelineShape& shape) {
  PipelineProgram out = empty_looped(std::move(name), shape, 2);
  for (int r = 0; r < shape.stages; ++r) out.placement[r][1].stage = 2 * shape.stages - 1 - r;
  return out;
}

}  // namespace rehearse::strategies
