#include "sim/executor/shortest_step.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace rehearse::executor {
namespace {

using plan::Opcode;

constexpr std::int64_t kNone = INT64_MIN / 4;   // no way from here to the end of the step; may be added to
constexpr std::size_t kSmall = 8;               // instructions of a block whose events are followed to other blocks

/// Longest chain from what each stream has been given so far to the end of the step.
using Tails = std::array<std::int64_t, plan::kStreams>;

std::size_t of(plan::Stream s) { return static_cast<std::size_t>(s); }
void raise(std::int64_t& tail, std::int64_t to) { tail = std::max(tail, to); }

/// What a large block does to tails: chains inside it, from one stream to another.
struct Summary {
  struct Way {
    std::size_t from, to;
    std::int64_t length;
  };
  std::vector<Way> ways;                                       // but for those of no length from a stream to itself
  std::vector<std::pair<plan::Frame, std::uint32_t>> records;  // events that begin anew
};

/// One class, gone through from the end of its step to its beginning.
struct Walk {
  Tails tails;
  std::vector<std::int64_t> events;   // by slot: from the latest record before to the end
  std::size_t call = 0, position = 0; // how many calls are left, and instructions of the last of them
};

class Chains {
 public:
  Chains(const plan::Plan& plan, const CostTable& costs) : plan_(plan), costs_(costs), whole_(plan.blocks.size()) {
    for (const plan::Block& b : plan.blocks)
      for (const plan::Instruction& i : b.timing) used_[of(i.stream)] = true;
    used_[0] = true;
    for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
      const auto& all = plan.blocks[b].timing;
      whole_[b] = all.size() > kSmall && std::none_of(all.begin(), all.end(), [](const plan::Instruction& i) { return i.op == Opcode::send || i.op == Opcode::recv; });
    }
  }

  std::int64_t shortest() {
    for (const plan::RankClass& c : plan_.classes) {
      Walk& w = walks_.emplace_back();
      w.tails.fill(kNone);
      w.tails[0] = 0;   // a step ends with its compute stream
      w.events.assign(c.program.slots, kNone);
      w.call = c.program.step.size();
      begin_call(w, c);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t c = 0; c < walks_.size(); ++c)
        while (walks_[c].call > 0 && back(c)) moved = true;
    }
    std::int64_t least = INT64_MAX;
    for (const Walk& w : walks_) least = std::min(least, w.call > 0 ? 0 : w.tails[0]);   // a deadlock has no time
    return walks_.empty() ? 0 : std::max<std::int64_t>(0, least);
  }

 private:
  void begin_call(Walk& w, const plan::RankClass& c) const {
    if (w.call > 0) w.position = plan_.blocks[c.program.step[w.call - 1].block].timing.size();
  }

  /// Goes back over one call; false where the other side of a send has not been reached.
  bool back(std::size_t c) {
    Walk& w = walks_[c];
    const plan::RankClass& rank_class = plan_.classes[c];
    const plan::Call& call = rank_class.program.step[w.call - 1];
    if (!call.first_step_only) {
      if (whole_[call.block]) {
        over(summary(c, call.block), call, w);
      } else {
        const auto& all = plan_.blocks[call.block].timing;
        for (; w.position > 0; --w.position)
          if (!over(c, all[w.position - 1], &call, w.tails, &w.events)) return false;
      }
    }
    --w.call;
    begin_call(w, rank_class);
    return true;
  }

  /// Goes back over one instruction. Without a call (inside a summary) events are looked up by frame and index.
  bool over(std::size_t c, const plan::Instruction& i, const plan::Call* call, Tails& tails, std::vector<std::int64_t>* events) {
    std::int64_t& own = tails[of(i.stream)];
    const auto event = [&]() -> std::int64_t& {
      if (call != nullptr) return (*events)[call->frames[static_cast<std::size_t>(i.frame)] + i.index];
      return inside_.try_emplace({i.frame, i.index}, kNone).first->second;
    };
    switch (i.op) {
      case Opcode::kernel: own += costs_.kernel(c, i.index).duration; break;
      case Opcode::collective: work(i, costs_.collectives[c][i.index].duration, tails, kNone); break;
      case Opcode::copy: work(i, costs_.copies[i.index].duration, tails, kNone); break;
      case Opcode::send: {
        auto& arrivals = messages_[{c, plan_.messages[i.index].peer, plan_.messages[i.index].channel}];
        if (arrivals.first == arrivals.second.size()) return false;
        work(i, costs_.messages[c][i.index].duration, tails, arrivals.second[arrivals.first++]);
        break;
      }
      case Opcode::recv: {
        const std::int64_t begun = work(i, costs_.messages[c][i.index].duration, tails, kNone);
        messages_[{plan_.messages[i.index].peer, c, plan_.messages[i.index].channel}].second.push_back(begun);
        break;
      }
      case Opcode::record: raise(own, std::exchange(event(), kNone)); break;
      case Opcode::wait: raise(event(), own); break;
      default: break;   // the host thread's
    }
    return true;
  }

  /// Work on a stream; `also` is a chain that begins when it does. Returns the chain from its begin.
  static std::int64_t work(const plan::Instruction& i, std::int64_t duration, Tails& tails, std::int64_t also) {
    std::int64_t& own = tails[of(i.stream)];
    std::int64_t after = own;
    if (i.flags & plan::kComputeWaits) raise(after, tails[0]);
    own = std::max(after + duration, also);
    if (i.flags & plan::kAfterCompute) raise(tails[0], own);
    return own;
  }

  static void over(const Summary& s, const plan::Call& call, Walk& w) {
    const Tails after = w.tails;
    for (const Summary::Way& way : s.ways) raise(w.tails[way.from], after[way.to] + way.length);
    for (const auto& [frame, index] : s.records) w.events[call.frames[static_cast<std::size_t>(frame)] + index] = kNone;
  }

  /// Collectives cost more or less in another class.
  const Summary& summary(std::size_t c, std::uint32_t block) {
    std::optional<Summary>& known = summaries_.try_emplace({c, block}).first->second;
    if (known) return *known;
    Summary s;
    const auto& all = plan_.blocks[block].timing;
    for (std::size_t to = 0; to < used_.size(); ++to) {
      if (!used_[to]) continue;
      Tails tails;
      tails.fill(kNone);
      tails[to] = 0;
      inside_.clear();
      for (std::size_t n = all.size(); n > 0; --n) over(c, all[n - 1], nullptr, tails, nullptr);
      for (std::size_t from = 0; from < used_.size(); ++from)
        if (tails[from] >= 0 && (from != to || tails[from] > 0)) s.ways.push_back({from, to, tails[from]});
    }
    for (const plan::Instruction& i : all)
      if (i.op == Opcode::record) s.records.emplace_back(i.frame, i.index);
    return *(known = std::move(s));
  }

  const plan::Plan& plan_;
  const CostTable& costs_;
  std::vector<bool> whole_;
  std::array<bool, plan::kStreams> used_{};
  std::vector<Walk> walks_;
  std::map<std::pair<std::size_t, std::uint32_t>, std::optional<Summary>> summaries_;
  std::map<std::pair<plan::Frame, std::uint32_t>, std::int64_t> inside_;
  /// Sender, receiver, channel: chains from the last message on, and how many of them have been used.
  std::map<std::tuple<std::size_t, std::size_t, int>, std::pair<std::size_t, std::vector<std::int64_t>>> messages_;
};

}  // namespace

std::int64_t shortest_step(const plan::Plan& plan, const CostTable& costs) { return Chains(plan, costs).shortest(); }

}  // namespace rehearse::executor
