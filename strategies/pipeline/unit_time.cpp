#include "strategies/pipeline/unit_time.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "strategies/pipeline/matching.h"

namespace rehearse::strategies {
namespace {

constexpr int kUnknown = -1;

/// Messages of one rank that are issued together.
struct Batch {
  int first = 0, last = 0;  // actions, last excluded
  Wait wait = Wait::at_use;
  int issued = kUnknown, done = kUnknown;
};

struct RankState {
  int next = 0;  // action
  int clock = 0;
  std::vector<Batch> batches;
  std::vector<int> batch_of;                           // [action]
  int open = 0;                                        // first batch that is not known to be done
  std::vector<int> taken_back;                         // batches to wait for after the next computation
  std::map<std::tuple<bool, int, int>, int> arrivals;  // (forward, chunk, micro-batch) -> receive action
};

class UnitTimeRun {
 public:
  UnitTimeRun(const PipelineProgram& program, const UnitTimes& times)
      : program_(program),
        times_(times),
        matching_(match_messages(program)),
        pair_done_(matching_.pairs.size(), kUnknown) {
    for (int r = 0; r < program.stages(); ++r) states_.push_back(prepare(r));
    out_.ranks.resize(program.ranks.size());
  }

  UnitTimeline run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int r = 0; r < program_.stages(); ++r) {
        while (finish_messages(r) || step(r)) progress = true;
      }
    }
    for (int r = 0; r < program_.stages(); ++r) {
      out_.length = std::max(out_.length, states_[r].clock);
      if (states_[r].next < static_cast<int>(program_.ranks[r].size()))
        out_.stuck.push_back(describe(program_, r, states_[r].next));
    }
    return std::move(out_);
  }

 private:
  RankState prepare(int rank) const {
    RankState s;
    const auto& actions = program_.ranks[rank];
    s.batch_of.assign(actions.size(), -1);
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      const Action& a = actions[i];
      if (!is_message(a.kind)) continue;
      const bool same = i > 0 && is_message(actions[i - 1].kind) && actions[i - 1].batch == a.batch;
      if (!same) s.batches.push_back({.first = i, .last = i, .wait = a.wait});
      s.batches.back().last = i + 1;
      s.batch_of[i] = static_cast<int>(s.batches.size()) - 1;
      if (a.kind == ActionKind::recv_forward) s.arrivals[{true, a.chunk, a.micro_batch}] = i;
      if (a.kind == ActionKind::recv_backward) s.arrivals[{false, a.chunk, a.micro_batch}] = i;
    }
    return s;
  }

  /// When a batch could run on its rank: unknown before it is issued, and behind an unfinished batch of one
  /// communicator.
  int ready(int rank, int batch) const {
    const Batch& b = states_[rank].batches[batch];
    if (b.issued == kUnknown || program_.channels == Channels::per_direction || batch == 0) return b.issued;
    const int before = states_[rank].batches[batch - 1].done;
    return before == kUnknown ? kUnknown : std::max(b.issued, before);
  }

  bool finish_messages(int rank) {
    RankState& s = states_[rank];
    bool progress = false;
    for (int b = s.open; b < static_cast<int>(s.batches.size()) && s.batches[b].issued != kUnknown; ++b) {
      if (s.batches[b].done != kUnknown) continue;
      int done = 0;
      for (int i = s.batches[b].first; i < s.batches[b].last; ++i) {
        const int at = finish_pair(matching_.pair_of[rank][i]);
        done = at == kUnknown || done == kUnknown ? kUnknown : std::max(done, at);
      }
      if (done == kUnknown) {
        if (program_.channels == Channels::per_rank) break;  // the next batch stands behind this one
        continue;
      }
      s.batches[b].done = done;
      progress = true;
    }
    while (s.open < static_cast<int>(s.batches.size()) && s.batches[s.open].done != kUnknown) ++s.open;
    return progress;
  }

  int finish_pair(int pair) {
    if (pair < 0) return kUnknown;
    if (pair_done_[pair] != kUnknown) return pair_done_[pair];
    const MessagePair& m = matching_.pairs[pair];
    const int a = ready(m.send.rank, states_[m.send.rank].batch_of[m.send.action]);
    const int b = ready(m.receive.rank, states_[m.receive.rank].batch_of[m.receive.action]);
    if (a == kUnknown || b == kUnknown) return kUnknown;
    int before = 0;
    if (program_.channels == Channels::per_direction && m.previous >= 0) {
      before = finish_pair(m.previous);
      if (before == kUnknown) return kUnknown;
    }
    return pair_done_[pair] = std::max({a, b, before}) + times_.message;
  }

  /// Moves the rank by one action; false when it must wait for something unknown.
  bool step(int rank) {
    RankState& s = states_[rank];
    const auto& actions = program_.ranks[rank];
    if (s.next == static_cast<int>(actions.size())) return false;
    const Action& a = actions[s.next];
    if (is_message(a.kind)) {
      Batch& batch = s.batches[s.batch_of[s.next]];
      if (batch.issued == kUnknown) {
        batch.issued = s.clock;
        if (batch.wait == Wait::after_next_compute) s.taken_back.push_back(s.batch_of[s.next]);
        if (batch.wait == Wait::at_issue) return true;
      } else if (batch.done == kUnknown) {
        return false;
      } else {
        s.clock = std::max(s.clock, batch.done);
      }
      s.next = batch.last;
      return true;
    }
    if (!is_compute(a.kind)) {
      ++s.next;
      return true;
    }
    return compute(rank, a);
  }

  bool compute(int rank, const Action& a) {
    RankState& s = states_[rank];
    int begin = s.clock, taken_back = 0, duration = 0;
    switch (a.kind) {
      case ActionKind::forward:
        begin = std::max(begin, arrival(s, rank, true, a.chunk, a.micro_batch));
        duration = times_.forward;
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        begin = std::max(begin, arrival(s, rank, false, a.chunk, a.micro_batch));
        duration = times_.backward_input + (a.kind == ActionKind::backward ? times_.backward_weight : 0);
        break;
      case ActionKind::overlapped:
        begin = std::max({begin, arrival(s, rank, true, a.chunk, a.micro_batch),
                          arrival(s, rank, false, a.under_chunk, a.under_micro_batch)});
        duration = times_.overlapped > 0 ? times_.overlapped
                                         : times_.forward + times_.backward_input + times_.backward_weight;
        break;
      default:
        duration = times_.backward_weight;
        break;
    }
    for (const int b : s.taken_back) {
      if (s.batches[b].done == kUnknown) return false;
      taken_back = std::max(taken_back, s.batches[b].done);
    }
    if (begin == kNever) return false;
    s.taken_back.clear();
    out_.ranks[rank].push_back({s.next, begin, begin + duration});
    s.clock = std::max(begin + duration, taken_back);
    ++s.next;
    return true;
  }

  static constexpr int kNever = 1 << 30;

  /// When what a computation reads has come from another rank; 0 where it comes from this rank or from
  /// outside.
  int arrival(const RankState& s, int rank, bool is_forward, int chunk, int mb) const {
    const auto it = s.arrivals.find({is_forward, chunk, mb});
    if (it == s.arrivals.end()) return 0;
    const int done =
        program_.channels == Channels::per_rank
            ? s.batches[s.batch_of[it->second]].done
            : (matching_.pair_of[rank][it->second] < 0 ? kUnknown
                                                       : pair_done_[matching_.pair_of[rank][it->second]]);
    return done == kUnknown ? kNever : done;
  }

  const PipelineProgram& program_;
  UnitTimes times_;
  Matching matching_;
  std::vector<int> pair_done_;
  std::vector<RankState> states_;
  UnitTimeline out_;
};

}  // namespace

double UnitTimeline::bubble_fraction() const {
  long busy = 0;
  for (const auto& spans : ranks)
    for (const UnitSpan& span : spans) busy += span.end - span.begin;
  return length == 0 ? 0
                     : 1 - static_cast<double>(busy) /
                               (static_cast<double>(length) * static_cast<double>(ranks.size()));
}

UnitTimeline run_in_unit_time(const PipelineProgram& program, const UnitTimes& times) {
  return UnitTimeRun(program, times).run();
}

std::vector<int> peak_in_flight(const PipelineProgram& program) {
  std::vector<int> out;
  for (const auto& actions : program.ranks) {
    int live = 0, peak = 0;
    for (const Action& a : actions) {
      if (a.kind == ActionKind::forward || a.kind == ActionKind::overlapped) peak = std::max(peak, ++live);
      if (a.kind == ActionKind::backward || a.kind == ActionKind::backward_weight ||
          a.kind == ActionKind::overlapped)
        --live;
    }
    out.push_back(peak);
  }
  return out;
}

}  // namespace rehearse::strategies
