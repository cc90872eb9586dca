#include "sim/executor/timing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "sim/core/contract.h"
#include "sim/executor/block_replay.h"
#include "sim/executor/contention.h"

namespace rehearse::executor {

using plan::GroupAxis;
using plan::Opcode;
using plan::Stream;

namespace {

Cause cause_of(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tensor: return Cause::tensor;
    case GroupAxis::context:
    case GroupAxis::context_ulysses:
    case GroupAxis::context_ring: return Cause::context;
    case GroupAxis::expert: return Cause::expert;
    default: return Cause::data;
  }
}

Cause cause_of(const model::KernelSpec& k) {
  switch (k.kind) {
    case model::KernelKind::gemm:
    case model::KernelKind::grouped_gemm: return Cause::gemm;
    case model::KernelKind::attention_forward:
    case model::KernelKind::attention_backward: return Cause::attention;
    case model::KernelKind::optimizer: return Cause::optimizer;
    default: return Cause::memory_bound;
  }
}

class Simulation {
 public:
  Simulation(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options) : plan_(plan), costs_(costs), options_(options), ranks_(plan.classes.size() + 1), next_(plan.classes.size(), kNever), earliest_(plan.classes.size() / kBlock + 1, kNever),
        meetings_of_(plan.classes.size()), replay_of_(plan.blocks.size(), kUnmeasured) {
    for (std::size_t r = 0; r < plan.classes.size(); ++r) ranks_[r].rank_class = r;
    replays_allowed_ = options.shortcuts && !options.trace && messages_have_their_streams(plan);
    for (auto& of_axis : meetings_of_) of_axis.fill(UINT32_MAX);
    for (const model::KernelSpec& k : plan.kernels) kernel_cause_.push_back(cause_of(k));
  }

  TimingResult run() {
    for (std::size_t r = 0; r < classes(); ++r) {
      ranks_[r].slot_event.assign(plan_.classes[r].program.slots, UINT32_MAX);
      if (options_.steps == 1) ranks_[r].measured_from = 0;
      ranks_[r].result.call_host.assign(plan_.classes[r].program.step.size(), 0);
      issue(r);
      for (int s = 0; s < plan::kStreams; ++s) poll(r, s);
      settle(r);
    }
    for (std::size_t r = 0; r < classes(); ++r) set_next(r, next(r));
    // Global order of time: the rank whose next happening is earliest goes on.
    for (;;) {
      const auto block = static_cast<std::size_t>(std::min_element(earliest_.begin(), earliest_.end()) - earliest_.begin());
      if (earliest_[block] == kNever) break;
      const auto first = next_.begin() + static_cast<std::ptrdiff_t>(block * kBlock);
      const auto who = static_cast<std::size_t>(std::find(first, next_.end(), earliest_[block]) - next_.begin());
      happen(who, next_[who]);
      set_next(who, next(who));
    }
    return finish();
  }

 private:
  std::size_t classes() const { return plan_.classes.size(); }
  const plan::Program& program(std::size_t r) const { return plan_.classes[r].program; }

  /// Ranks in blocks, each with its earliest: two short scans find the next of a thousand ranks.
  void set_next(std::size_t r, std::int64_t t) {
    next_[r] = t;
    const std::size_t block = r / kBlock, end = std::min(next_.size(), (block + 1) * kBlock);
    earliest_[block] = *std::min_element(next_.begin() + static_cast<std::ptrdiff_t>(block * kBlock), next_.begin() + static_cast<std::ptrdiff_t>(end));
  }

  // Host thread -------------------------------------------------------------------------------------------------------

  std::uint32_t slot(const plan::Call& call, const plan::Instruction& i) const { return call.frames[static_cast<std::size_t>(i.frame)] + i.index; }

  std::uint32_t new_event(RankState& rank, Stream recorder) {
    rank.events.emplace_back().recorder = recorder;
    return static_cast<std::uint32_t>(rank.events.size() - 1);
  }

  void push(RankState& rank, Stream s, Opcode op, std::uint32_t index) {
    rank.streams[static_cast<std::size_t>(s)].fifo.push_back({op, s, false, index, static_cast<std::uint32_t>(rank.call), 0, rank.host});
  }

  /// The host runs ahead of the device until it has to wait for it.
  void issue(std::size_t r) {
    RankState& rank = ranks_[r];
    if (rank.host_done || rank.host_waits != UINT32_MAX || rank.host_syncs) return;
    const auto& calls = program(r).step;
    for (;;) {
      if (rank.call == calls.size()) {
        rank.call = 0;
        push(rank, Stream::compute, Opcode::host, static_cast<std::uint32_t>(rank.step));  // end-of-step marker
        if (++rank.step == options_.steps) {
          rank.host_done = true;
          return;
        }
        if (calls.empty()) continue;
      }
      const plan::Call& call = calls[rank.call];
      const plan::Block& block = plan_.blocks[call.block];
      if (rank.position == 0) {
        rank.result.call_host[rank.call] = rank.host;
        if (replays_allowed_ && issue_whole(rank, call.block)) {
          ++rank.call;
          continue;
        }
      }
      while (rank.position < block.timing.size()) {
        const plan::Instruction& i = block.timing[rank.position++];
        ++instructions_;
        switch (i.op) {
          case Opcode::kernel:
            rank.host += i.value;
            push(rank, i.stream, i.op, i.index);
            break;
          case Opcode::collective:
          case Opcode::send:
          case Opcode::recv:
          case Opcode::copy:
            rank.host += i.value;
            if (i.flags & plan::kAfterCompute) join(rank, Stream::compute, i.stream);
            push(rank, i.stream, i.op, i.index);
            if (i.flags & plan::kComputeWaits) join(rank, i.stream, Stream::compute);
            break;
          case Opcode::host:
            rank.host += i.value;
            break;
          case Opcode::host_work:
            rank.host += costs_.host_works[i.index];
            break;
          case Opcode::record: {
            const std::uint32_t e = new_event(rank, i.stream);
            rank.slot_event[slot(call, i)] = e;
            push(rank, i.stream, Opcode::record, e);
            break;
          }
          case Opcode::wait:
            if (const std::uint32_t e = rank.slot_event[slot(call, i)]; e != UINT32_MAX) push(rank, i.stream, Opcode::wait, e);
            break;
          case Opcode::host_wait:
            if (const std::uint32_t e = rank.slot_event[slot(call, i)]; e != UINT32_MAX) {
              rank.host_waits = e;
              if (!host_resumes(rank)) return;
            }
            break;
          case Opcode::host_sync:
            rank.host_syncs = true;
            if (!host_resumes(rank)) return;
            break;
          default:
            EXPECTS(false, "a memory instruction among timing instructions");
        }
      }
      rank.position = 0;
      ++rank.call;
    }
  }

  /// `to` waits for what `from` has been given so far.
  void join(RankState& rank, Stream from, Stream to) {
    const std::uint32_t e = new_event(rank, from);
    push(rank, from, Opcode::record, e);
    push(rank, to, Opcode::wait, e);
  }

  // Whole blocks ------------------------------------------------------------------------------------------------------

  /// Issues a block in one piece, if it is one that can be replayed: its place is kept on each stream that it uses.
  bool issue_whole(RankState& rank, std::uint32_t block) {
    std::uint32_t& id = replay_of_[block];
    if (id == kUnmeasured) id = measure(rank.rank_class, block);
    if (id == kNotReplayed || replays_[id].rank_class != rank.rank_class) return false;
    const BlockReplay& b = replays_[id];
    const auto first_event = static_cast<std::uint32_t>(rank.events.size());
    for (const ReplayedRecord& record : b.records)
      rank.slot_event[program(rank.rank_class).step[rank.call].frames[static_cast<std::size_t>(record.frame)] + record.slot] = new_event(rank, record.stream);
    for (unsigned k = 0; k < plan::kStreams; ++k)
      if (k == 0 || (b.streams >> k & 1u))
        rank.streams[k].fifo.push_back({Opcode::host, static_cast<Stream>(k), true, id, static_cast<std::uint32_t>(rank.call), first_event, rank.host});
    rank.host += b.host;
    instructions_ += static_cast<std::int64_t>(plan_.blocks[block].timing.size());
    return true;
  }

  /// Runs a block by itself, the host far ahead, and keeps what it did.
  std::uint32_t measure(std::size_t rank_class, std::uint32_t block) {
    const plan::Block& b = plan_.blocks[block];
    BlockReplay replay{.block = block, .rank_class = rank_class};
    if (!may_replay(plan_, plan_.classes[rank_class], b, replay)) return kNotReplayed;
    const std::size_t r = classes();   // the spare rank
    RankState& rank = ranks_[r] = {};
    rank.rank_class = rank_class;
    rank.host = kLongAgo;
    rank.measured_from = kLongAgo;
    for (std::size_t k = 1; k < rank.streams.size(); ++k) rank.streams[k].ready = kLongAgo;
    for (const ReplayedRecord& record : replay.records) new_event(rank, record.stream);
    open(rank, replay, 0);
    replay.host = rank.host - kLongAgo;
    for (std::size_t k = 0; k < rank.streams.size(); ++k) {
      replay.items[k] = rank.streams[k].left = static_cast<std::uint32_t>(rank.streams[k].opened.size());
      if (k > 0 && replay.items[k] > 0) replay.streams |= 1u << k;
    }
    slack_ = kNever;
    measuring_ = true;
    for (int k = 0; k < plan::kStreams; ++k) poll(r, k);
    bool usable = true;
    for (std::int64_t t; usable && (t = next(r)) != kNever;) {
      usable = t >= 0;   // else something ran that waits for nothing: when it runs depends on what was before
      if (usable) happen(r, t);
    }
    measuring_ = false;
    replay.duration = rank.streams[0].ready;
    replay.slack = slack_;
    replay.time = rank.result.time;
    replay.busy = rank.result.busy;
    for (std::size_t k = 0; k < rank.streams.size(); ++k) {
      const StreamState& s = rank.streams[k];
      replay.ready[k] = s.ready;
      replay.last[k] = s.last;
      if (k > 0 && (replay.streams >> k & 1u) == 0) continue;
      usable = usable && s.empty() && s.ready >= 0 && s.ready <= replay.duration && s.last_met == 0;
    }
    for (std::size_t i = 0; i < replay.records.size(); ++i) {
      const Event& e = rank.events[i];
      usable = usable && e.time >= 0 && e.met == 0;
      replay.records[i].time = e.time;
      replay.records[i].cause = e.cause;
    }
    if (!usable) return kNotReplayed;
    replay.beside_messages = fits_beside(costs_, rank_class, b, messages_of(rank_class));
    replays_.push_back(replay);
    return static_cast<std::uint32_t>(replays_.size() - 1);
  }

  const Load& messages_of(std::size_t rank_class) {
    if (most_messages_for_ != rank_class) most_messages_ = most_of_messages(costs_.messages[rank_class]);
    most_messages_for_ = rank_class;
    return most_messages_;
  }

  /// Queues the instructions of a block as the host would have issued them.
  void open(RankState& rank, const BlockReplay& b, std::uint32_t event) {
    const std::uint32_t first_event = event;
    std::size_t wait = 0;
    for (const plan::Instruction& i : plan_.blocks[b.block].timing) {
      if (i.op == Opcode::record) {
        push_opened(rank, i.stream, i.op, event++);
        continue;
      }
      if (i.op == Opcode::wait) {
        push_opened(rank, i.stream, i.op, first_event + b.waits[wait++]);
        continue;
      }
      rank.host += i.value;
      if (i.op == Opcode::host) continue;
      if (i.flags & plan::kAfterCompute) join_opened(rank, Stream::compute, i.stream);
      push_opened(rank, i.stream, i.op, i.index);
      if (i.flags & plan::kComputeWaits) join_opened(rank, i.stream, Stream::compute);
    }
  }
  void push_opened(RankState& rank, Stream s, Opcode op, std::uint32_t index) {
    rank.streams[static_cast<std::size_t>(s)].opened.push_back({op, s, false, index, static_cast<std::uint32_t>(rank.call), 0, rank.host});
  }
  void join_opened(RankState& rank, Stream from, Stream to) {
    const std::uint32_t e = new_event(rank, from);
    push_opened(rank, from, Opcode::record, e);
    push_opened(rank, to, Opcode::wait, e);
  }

  /// The compute stream has come to a whole block: replays it if nothing else can happen meanwhile, else opens it.
  void meet_whole(std::size_t r) {
    RankState& rank = ranks_[r];
    StreamState& compute = rank.streams[0];
    const Item item = compute.front();
    const BlockReplay& b = replays_[item.index];
    if (can_replay(rank, b, item)) {
      const std::int64_t start = compute.ready;
      for (unsigned k = 0; k < plan::kStreams; ++k) {
        if (k > 0 && (b.streams >> k & 1u) == 0) continue;
        StreamState& s = rank.streams[k];
        s.pop();
        s.ready = start + b.ready[k];
        s.last = b.last[k];
        s.last_met = 0;
      }
      replayed_ += static_cast<std::int64_t>(plan_.blocks[b.block].timing.size());
      if (rank.measured_from != kNever) {
        for (std::size_t c = 0; c < b.time.size(); ++c) rank.result.time[c] += b.time[c];
        for (std::size_t k = 0; k < b.busy.size(); ++k) rank.result.busy[k] += b.busy[k];
      }
      for (std::size_t i = 0; i < b.records.size(); ++i) {
        Event& e = rank.events[item.first_event + i];
        e.time = start + b.records[i].time;
        e.cause = b.records[i].cause;
      }
      return;
    }
    const std::int64_t host = std::exchange(rank.host, item.issue);
    const std::size_t call = std::exchange(rank.call, static_cast<std::size_t>(item.call));
    compute.pop();
    open(rank, b, item.first_event);
    compute.left = b.items[0];
    rank.host = host;
    rank.call = call;
  }

  bool can_replay(const RankState& rank, const BlockReplay& b, const Item& item) const {
    const std::int64_t start = rank.streams[0].ready;
    const EventRange own{item.first_event, static_cast<std::uint32_t>(b.records.size())};
    if (item.issue >= start + b.slack) return false;
    if (rank.host_waits != UINT32_MAX) return false;
    for (int k = 1; k < plan::kStreams; ++k) {
      if (b.streams >> k & 1u) {
        const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
        if (!s.idle() || s.ready > start || !s.opened.empty() || !s.fifo[s.head].whole || s.fifo[s.head].call != item.call) return false;
        // What comes after the block on its own side stream may not slip in before the block ends.
        if (s.head + 1 < s.fifo.size() && !stays_blocked(rank, s.fifo[s.head + 1], own)) return false;
      } else if (!stays_quiet(rank, k, start + b.duration, b.beside_messages, own)) {
        return false;
      }
    }
    return true;
  }

  /// The place of an opened block on a side stream gives way to its work. False: the block is not open yet.
  bool reach_opened(StreamState& s) {
    if (s.opened_head == s.opened.size()) return false;
    s.left = replays_[s.fifo[s.head].index].items[static_cast<std::size_t>(s.fifo[s.head].stream)];
    ++s.head;
    return true;
  }

  /// When the head of a stream may go on.
  std::int64_t ready_and_issued(const StreamState& s, const Item& item) {
    if (measuring_) [[unlikely]]
      slack_ = std::min(slack_, s.ready - (item.issue - kLongAgo));
    return std::max(s.ready, item.issue);
  }

  bool host_resumes(RankState& rank) {
    if (rank.host_waits != UINT32_MAX) {
      const Event& e = rank.events[rank.host_waits];
      if (e.time == kUnset) return false;
      rank.host = std::max(rank.host, e.time);
      rank.host_waits = UINT32_MAX;
    }
    if (rank.host_syncs) {
      std::int64_t latest = 0;
      for (const StreamState& s : rank.streams) {
        if (!s.empty() || s.running) return false;
        latest = std::max(latest, s.ready);
      }
      rank.host = std::max(rank.host, latest);
      rank.host_syncs = false;
    }
    return true;
  }

  // Streams -----------------------------------------------------------------------------------------------------------

  /// Moves the head of a stream as far as it goes without time passing; sets when the next work may start.
  void poll(std::size_t r, int stream) {
    RankState& rank = ranks_[r];
    StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
    if (s.running || s.arrived || s.met) return;
    s.start = kNever;
    // A record below lets other streams go on, which may move this one: its state is looked at afresh each time.
    while (!s.empty() && !s.running && !s.arrived && !s.met) {
      s.start = kNever;   // one of them may have set it for work that can now run at once
      const Item& item = s.front();
      if (item.whole) [[unlikely]] {
        if (stream == 0) meet_whole(r);
        else if (!reach_opened(s)) return;
        continue;
      }
      switch (item.op) {
        case Opcode::record: {
          Event& e = rank.events[item.index];
          e.time = ready_and_issued(s, item);
          e.cause = s.ready > item.issue ? s.last : Cause::host;
          e.met = s.ready > item.issue ? s.last_met : 0;
          s.pop();
          for (int other = 0; other < plan::kStreams; ++other)
            if (other != stream && !rank.streams[static_cast<std::size_t>(other)].empty()) poll(r, other);
          break;
        }
        case Opcode::wait: {
          const Event& e = rank.events[item.index];
          if (e.time == kUnset) return;
          if (e.time > s.ready) {
            if (stream == 0) {
              // Waiting for a peer is not the message's own time.
              const std::int64_t met = std::clamp(e.met, s.ready, e.time);
              account(rank, Cause::bubble, s.ready, met);
              account(rank, e.cause, met, e.time);
            }
            s.ready = e.time;
          }
          s.pop();
          break;
        }
        case Opcode::host: {  // end of step
          end_of_step(r, s, static_cast<int>(item.index));
          s.pop();
          break;
        }
        case Opcode::collective:
          if (!plan_.classes[rank.rank_class].partners[static_cast<std::size_t>(plan_.collectives[item.index].axis)].empty()) {
            arrive_collective(r, stream, item);
            return;
          }
          s.start = ready_and_issued(s, item);
          return;
        case Opcode::send:
        case Opcode::recv:
          arrive_message(r, stream, item);
          return;
        default: {
          const std::int64_t start = ready_and_issued(s, item);
          if (stream == 0 && undisturbed(rank, start, item)) {
            run_alone(r, s, item, start);
            break;
          }
          s.start = start;
          return;
        }
      }
    }
  }

  /// Nothing else on this rank can start or run while this kernel does, so it needs no event and no solver.
  bool undisturbed(const RankState& rank, std::int64_t start, const Item& item) const {
    const std::int64_t end = start + costs_.kernels[item.index].duration;
    for (int k = 1; k < plan::kStreams; ++k) {
      const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
      if (s.running && s.work->load.sm + s.work->load.hbm > 0) return false;
      if (s.start != kNever && s.start < end) return false;
      if (may_go_on(rank, s)) return false;
      // A collective that waits for its members may begin at any moment (messages disturb no kernels).
      if (s.arrived && s.front().op == Opcode::collective) return false;
    }
    return true;
  }

  /// Has this stream work that nothing holds back, and has only not been looked at yet in this instant?
  bool may_go_on(const RankState& rank, const StreamState& s) const {
    if (s.empty() || !s.idle()) return false;
    const Item& item = s.front().whole && !s.opened.empty() ? s.opened[s.opened_head] : s.front();
    return !item.whole && (item.op != Opcode::wait || rank.events[item.index].time != kUnset);
  }

  void run_alone(std::size_t r, StreamState& s, const Item& item, std::int64_t start) {
    RankState& rank = ranks_[r];
    const std::int64_t duration = costs_.kernels[item.index].duration;
    account_gap(rank, s, start, item);
    account(rank, kernel_cause_[item.index], start, start + duration);
    rank.result.busy[0] += in_window(rank, start, start + duration);
    trace(r, item, start, start + duration);
    s.last = kernel_cause_[item.index];
    s.last_met = 0;
    s.ready = start + duration;
    s.pop();
  }

  void arrive_collective(std::size_t r, int stream, const Item& item) {
    StreamState& s = ranks_[r].streams[static_cast<std::size_t>(stream)];
    const GroupAxis axis = plan_.collectives[item.index].axis;
    const auto& partners = plan_.classes[r].partners[static_cast<std::size_t>(axis)];
    s.arrived = true;
    s.arrival = std::max(s.ready, item.issue);
    auto& waiting = meetings_[meeting_of(r, axis)];
    waiting.push_back({r, stream});
    if (waiting.size() <= partners.size()) return;
    std::int64_t start = 0;
    for (const auto& [rank, st] : waiting) start = std::max(start, ranks_[rank].streams[static_cast<std::size_t>(st)].arrival);
    const auto all = std::exchange(waiting, {});
    for (const auto& [rank, st] : all) {
      StreamState& member = ranks_[rank].streams[static_cast<std::size_t>(st)];
      member.arrived = false;
      member.met = true;
      member.start = start;
      set_next(rank, std::min(next_[rank], start));
    }
  }

  /// Where the members of a rank's group on an axis meet.
  std::uint32_t meeting_of(std::size_t r, GroupAxis axis) {
    std::uint32_t& id = meetings_of_[r][static_cast<std::size_t>(axis)];
    if (id == UINT32_MAX) {
      id = static_cast<std::uint32_t>(meetings_.size());
      meetings_.emplace_back();
      for (std::uint16_t other : plan_.classes[r].partners[static_cast<std::size_t>(axis)]) meetings_of_[other][static_cast<std::size_t>(axis)] = id;
    }
    return id;
  }

  /// The k-th send on a channel meets the k-th receive.
  void arrive_message(std::size_t r, int stream, const Item& item) {
    const plan::MessageSpec& m = plan_.messages[item.index];
    StreamState& s = ranks_[r].streams[static_cast<std::size_t>(stream)];
    s.arrived = true;
    s.arrival = std::max(s.ready, item.issue);
    const bool sending = item.op == Opcode::send;
    const auto from = static_cast<std::uint16_t>(sending ? r : m.peer), to = static_cast<std::uint16_t>(sending ? m.peer : r);
    Rendezvous& meeting = messages_[{from, to, m.channel}];
    auto& mine = sending ? meeting.senders : meeting.receivers;
    auto& theirs = sending ? meeting.receivers : meeting.senders;
    if (theirs.empty()) {
      mine.push_back({r, stream});
      return;
    }
    const auto [peer, peer_stream] = theirs.front();
    theirs.erase(theirs.begin());
    StreamState& p = ranks_[peer].streams[static_cast<std::size_t>(peer_stream)];
    const std::int64_t start = std::max(s.arrival, p.arrival);
    set_next(peer, std::min(next_[peer], start));
    for (StreamState* side : {&s, &p}) {
      side->arrived = false;
      side->met = true;
      side->start = start;
    }
  }

  // Work --------------------------------------------------------------------------------------------------------------

  std::int64_t next(std::size_t r) const {
    std::int64_t t = kNever;
    for (const StreamState& s : ranks_[r].streams) t = std::min(t, s.running ? s.finish : s.start);
    return t;
  }

  const Priced& price(std::size_t r, const Item& item) const {
    switch (item.op) {
      case Opcode::kernel: return costs_.kernels[item.index];
      case Opcode::collective: return costs_.collectives[ranks_[r].rank_class][item.index];
      case Opcode::copy: return costs_.copies[item.index];
      default: return costs_.messages[ranks_[r].rank_class][item.index];
    }
  }

  /// Completions before starts: what ends at this instant is out of the way of what begins.
  void happen(std::size_t r, std::int64_t now) {
    RankState& rank = ranks_[r];
    bool changed = false;
    unsigned finished = 0;
    for (int k = 0; k < plan::kStreams; ++k) {
      StreamState& s = rank.streams[static_cast<std::size_t>(k)];
      if (s.running && s.finish == now) {
        complete(r, k, now);
        finished |= 1u << k;
        changed = true;
      }
    }
    for (int k = 0; finished != 0 && k < plan::kStreams; ++k)
      if (finished >> k & 1u) poll(r, k);
    for (int k = 0; k < plan::kStreams; ++k) {
      StreamState& s = rank.streams[static_cast<std::size_t>(k)];
      if (!s.running && s.start <= now) {
        begin(r, k, s.start);
        changed = true;
      }
    }
    if (changed) share(rank, now);
    settle(r);
  }

  /// Lets the host thread go on if what it waited for has happened.
  void settle(std::size_t r) {
    RankState& rank = ranks_[r];
    while ((rank.host_waits != UINT32_MAX || rank.host_syncs) && host_resumes(rank)) {
      issue(r);
      for (int k = 0; k < plan::kStreams; ++k) poll(r, k);
    }
  }

  void begin(std::size_t r, int stream, std::int64_t now) {
    RankState& rank = ranks_[r];
    StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
    const Item& item = s.front();
    s.running = true;
    s.met = false;
    s.work = &price(r, item);
    s.began = s.updated = now;
    s.remaining = static_cast<double>(s.work->duration);
    s.rate = 1;
    s.finish = now + s.work->duration;
    s.start = kNever;
    if (stream == 0) account_gap(rank, s, now, item);
  }

  void complete(std::size_t r, int stream, std::int64_t now) {
    RankState& rank = ranks_[r];
    StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
    const Item& item = s.front();
    s.running = false;
    s.last = cause(item);
    if (stream == 0) account(rank, s.last, s.began, now);
    rank.result.busy[static_cast<std::size_t>(stream)] += in_window(rank, s.began, now);
    s.last_met = s.arrival != kUnset && s.began > s.arrival ? s.began : 0;
    s.arrival = kUnset;
    trace(r, item, s.began, now);
    s.ready = now;
    s.pop();
  }

  Cause cause(const Item& item) const {
    switch (item.op) {
      case Opcode::kernel: return kernel_cause_[item.index];
      case Opcode::collective: return cause_of(plan_.collectives[item.index].axis);
      case Opcode::copy: return Cause::copy;
      default: return Cause::pipeline_message;
    }
  }

  /// Max-min fair shares among what runs on this rank now. Collectives hold their SMs; kernels share the rest.
  void share(RankState& rank, std::int64_t now) {
    std::array<StreamState*, plan::kStreams> running;
    int n = 0;
    for (StreamState& s : rank.streams)
      if (s.running) running[static_cast<std::size_t>(n++)] = &s;
    if (n == 0) return;
    std::array<double, plan::kStreams> rate;
    if (n == 1) {
      rate[0] = 1;
    } else {
      std::array<const Priced*, plan::kStreams> work;
      for (int i = 0; i < n; ++i) work[static_cast<std::size_t>(i)] = running[static_cast<std::size_t>(i)]->work;
      share_gpu({work.data(), static_cast<std::size_t>(n)}, {rate.data(), static_cast<std::size_t>(n)});
    }
    for (int i = 0; i < n; ++i) {
      StreamState& s = *running[static_cast<std::size_t>(i)];
      if (rate[static_cast<std::size_t>(i)] == s.rate) continue;
      s.remaining -= static_cast<double>(now - s.updated) * s.rate;
      s.updated = now;
      s.rate = rate[static_cast<std::size_t>(i)];
      s.finish = now + std::llround(std::max(0.0, s.remaining) / s.rate);
    }
  }

  // Accounts ----------------------------------------------------------------------------------------------------------

  static std::int64_t in_window(const RankState& rank, std::int64_t from, std::int64_t to) {
    return rank.measured_from == kNever ? 0 : std::max<std::int64_t>(0, to - std::max(from, rank.measured_from));
  }
  static void account(RankState& rank, Cause c, std::int64_t from, std::int64_t to) { rank.result.time[static_cast<std::size_t>(c)] += in_window(rank, from, to); }

  /// Waits have been accounted for where they happened; what is left before a start is the host's.
  void account_gap(RankState& rank, const StreamState& s, std::int64_t start, const Item& item) {
    account(rank, item.issue >= start ? Cause::host : Cause::bubble, s.ready, start);
  }

  void end_of_step(std::size_t r, StreamState& compute, int step) {
    RankState& rank = ranks_[r];
    const std::int64_t now = compute.ready;
    rank.step_end.push_back(now);
    if (step == options_.steps - 2) rank.measured_from = now;
  }

  void trace(std::size_t r, const Item& item, std::int64_t from, std::int64_t to) {
    const RankState& rank = ranks_[r];
    if (!options_.trace || (options_.steps > 1 && (rank.measured_from == kNever || from < rank.measured_from))) return;
    trace_.push_back({static_cast<std::uint16_t>(r), item.stream, item.op, item.index, item.call, from, to});
  }

  TimingResult finish() {
    TimingResult result;
    std::int64_t last = 0, before = 0;
    ranks_.pop_back();   // the spare one
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      RankState& rank = ranks_[r];
      if (rank.step_end.size() < static_cast<std::size_t>(options_.steps)) {
        result.deadlock += describe(r);
        continue;
      }
      last = std::max(last, rank.step_end.back());
      if (options_.steps > 1) before = std::max(before, rank.step_end[rank.step_end.size() - 2]);
    }
    result.step = last - before;
    for (RankState& rank : ranks_) {
      // Every class's account covers one step; what it waits at the end for slower classes is idle.
      std::int64_t sum = 0;
      for (std::int64_t t : rank.result.time) sum += t;
      // One that came to the second step before the others, and no longer at its end, has a longer step of its own.
      rank.result.step = std::max(result.step, sum);
      rank.result.time[static_cast<std::size_t>(Cause::idle)] += rank.result.step - sum;
      result.classes.push_back(std::move(rank.result));
    }
    result.trace = std::move(trace_);
    for (Slice& slice : result.trace) {
      slice.start -= before;
      slice.end -= before;
    }
    result.instructions = instructions_;
    result.replayed = replayed_;
    return result;
  }

  std::string describe(std::size_t r) const {
    const RankState& rank = ranks_[r];
    std::string text = plan_.classes[r].name + " stands still";
    for (int k = 0; k < plan::kStreams; ++k) {
      const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
      if (s.empty()) continue;
      const Item& item = s.front();
      text += "; stream '" + std::string(name_of(static_cast<Stream>(k))) + "' ";
      if (item.whole) text += "waits for the compute stream";
      else if (item.op == Opcode::wait) text += "waits for an event that is never recorded";
      else if (item.op == Opcode::send || item.op == Opcode::recv)
        text += std::string(item.op == Opcode::send ? "sends to " : "receives from ") + plan_.classes[plan_.messages[item.index].peer].name + ", which never answers";
      else if (item.op == Opcode::collective) text += "waits for the others in " + plan_.collectives[item.index].name;
      else text += "never starts";
    }
    return text + "\n";
  }

  struct Rendezvous {
    std::vector<std::pair<std::size_t, int>> senders, receivers;
  };

  const plan::Plan& plan_;
  const CostTable& costs_;
  const TimingOptions& options_;
  std::vector<RankState> ranks_;        // by class, and a spare one to measure blocks on
  static constexpr std::size_t kBlock = 32;
  std::vector<std::int64_t> next_;      // by rank: when its next work starts or ends
  std::vector<std::int64_t> earliest_;  // of each block of ranks
  std::vector<Cause> kernel_cause_;
  std::map<std::tuple<std::uint16_t, std::uint16_t, std::uint8_t>, Rendezvous> messages_;
  std::vector<std::vector<std::pair<std::size_t, int>>> meetings_;                    // who waits (rank, stream) in each group
  std::vector<std::array<std::uint32_t, plan::kGroupAxes>> meetings_of_;              // by rank and axis
  static constexpr std::int64_t kLongAgo = -(std::int64_t{1} << 60);
  static constexpr std::uint32_t kUnmeasured = UINT32_MAX, kNotReplayed = UINT32_MAX - 1;
  bool replays_allowed_ = false, measuring_ = false;
  std::vector<std::uint32_t> replay_of_;   // by block: index into replays_
  std::vector<BlockReplay> replays_;
  Load most_messages_;                     // of the class asked about last
  std::size_t most_messages_for_ = SIZE_MAX;
  std::int64_t slack_ = kNever;            // of the block being measured
  std::vector<Slice> trace_;
  std::int64_t instructions_ = 0, replayed_ = 0;
};

}  // namespace

TimingResult run_timing(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options) { return Simulation(plan, costs, options).run(); }

}  // namespace rehearse::executor
