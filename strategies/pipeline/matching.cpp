#include "strategies/pipeline/matching.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

namespace rehearse::strategies {

std::string describe(const PipelineProgram& program, int rank, int action) {
  const Action& a = program.ranks[rank][action];
  std::string text =
      fmt::format("rank {}: {} chunk {} micro-batch {}", rank, name_of(a.kind), a.chunk, a.micro_batch);
  if (a.kind == ActionKind::overlapped)
    text += fmt::format(" over backward chunk {} micro-batch {}", a.under_chunk, a.under_micro_batch);
  return text;
}

Matching match_messages(const PipelineProgram& program) {
  Matching out;
  struct Queue {
    std::vector<MessageEnd> sends, receives;
  };
  std::map<std::tuple<int, int, bool>, Queue>
      queues;  // (from, to, forward); one communicator does not tell directions apart
  for (int rank = 0; rank < program.stages(); ++rank) {
    const auto& actions = program.ranks[rank];
    out.pair_of.emplace_back(actions.size(), -1);
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      const Action& a = actions[i];
      if (!is_message(a.kind)) continue;
      const int peer = program.peer(rank, a);
      if (peer < 0 || peer == rank) {
        out.problems.push_back(describe(program, rank, i) + " has no rank on the other side");
        continue;
      }
      const bool is_send = a.kind == ActionKind::send_forward || a.kind == ActionKind::send_backward;
      const bool is_forward = a.kind == ActionKind::send_forward || a.kind == ActionKind::recv_forward;
      const bool direction = program.channels == Channels::per_direction && is_forward;
      Queue& queue = is_send ? queues[{rank, peer, direction}] : queues[{peer, rank, direction}];
      (is_send ? queue.sends : queue.receives).push_back({rank, i});
    }
  }
  for (const auto& [key, queue] : queues) {
    for (std::size_t k = 0; k < std::max(queue.sends.size(), queue.receives.size()); ++k) {
      if (k >= queue.sends.size() || k >= queue.receives.size()) {
        const MessageEnd alone = k < queue.sends.size() ? queue.sends[k] : queue.receives[k];
        out.problems.push_back(describe(program, alone.rank, alone.action) + " has no partner");
        break;
      }
      const MessageEnd s = queue.sends[k], r = queue.receives[k];
      const Action &sent = program.ranks[s.rank][s.action], &received = program.ranks[r.rank][r.action];
      const bool is_forward = sent.kind == ActionKind::send_forward;
      const auto target =
          is_forward ? program.next(s.rank, sent.chunk) : program.previous(s.rank, sent.chunk);
      if (received.kind != (is_forward ? ActionKind::recv_forward : ActionKind::recv_backward) ||
          received.micro_batch != sent.micro_batch ||
          target != PipelineProgram::Location{r.rank, received.chunk}) {
        out.problems.push_back(fmt::format("{} meets {}", describe(program, s.rank, s.action),
                                           describe(program, r.rank, r.action)));
        break;
      }
      const int id = static_cast<int>(out.pairs.size());
      out.pairs.push_back({s, r, k == 0 ? -1 : id - 1});
      out.pair_of[s.rank][s.action] = out.pair_of[r.rank][r.action] = id;
    }
  }
  return out;
}

}  // namespace rehearse::strategies
