// Blocks that the host issues in one piece: measured once, then replayed where nothing else can happen meanwhile, and
// opened into their instructions where something can.
#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;
using plan::Stream;

bool TimingRun::issue_whole(RankState& rank, std::uint32_t block) {
  std::uint32_t& id = replay_of_[block];
  if (id == kUnmeasured) id = measure(rank.rank_class, block);
  if (id == kNotReplayed || replays_[id].rank_class != rank.rank_class) return false;
  const BlockReplay& b = replays_[id];
  const auto first_event = static_cast<std::uint32_t>(rank.events.size());
  for (const ReplayedRecord& record : b.records) {
    const std::uint32_t e = new_event(rank, record.stream);
    rank.slot_event[program(rank.rank_class).step[rank.call].frames[static_cast<std::size_t>(record.frame)] + record.slot] = e;
    note_use(rank, EventUse::Kind::record, record.stream, record.frame, record.slot, e);
  }
  for (unsigned k = 0; k < plan::kStreams; ++k)
    if (k == 0 || (b.streams >> k & 1u))
      rank.streams[k].fifo.push_back({Opcode::host, static_cast<Stream>(k), true, id, static_cast<std::uint32_t>(rank.call), first_event, rank.host});
  rank.host += b.host;
  instructions_ += static_cast<std::int64_t>(plan_.blocks[block].timing.size());
  return true;
}

std::uint32_t TimingRun::measure(std::size_t rank_class, std::uint32_t block) {
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
  for (const int k : used_) poll(r, k);
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
  replay.done = rank.result.done;
  for (std::size_t k = 0; k < rank.streams.size(); ++k) {
    const StreamState& s = rank.streams[k];
    replay.ready[k] = s.ready;
    replay.last[k] = s.last;
    replay.crossed[k] = s.crossed;
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

const Load& TimingRun::messages_of(std::size_t rank_class) {
  if (most_messages_for_ != rank_class) most_messages_ = most_of_messages(costs_.messages[rank_class]);
  most_messages_for_ = rank_class;
  return most_messages_;
}

void TimingRun::open(RankState& rank, const BlockReplay& b, std::uint32_t event) {
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

void TimingRun::meet_whole(std::size_t r) {
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
      s.crossed = b.crossed[k];
      s.last_issued = s.last_met = 0;
      if (k > 0 && options_.progress)
        for (const std::int64_t done : b.done[k]) rank.result.done[k].push_back(start + done);
    }
    if (options_.progress) rank.result.call_device[item.call] = start + b.duration;
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

bool TimingRun::can_replay(const RankState& rank, const BlockReplay& b, const Item& item) {
  const std::int64_t start = rank.streams[0].ready;
  const EventRange own{item.first_event, static_cast<std::uint32_t>(b.records.size())};
  if (item.issue >= start + b.slack) {
    issue_bound_ = true;
    return false;
  }
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

bool TimingRun::reach_opened(StreamState& s) {
  if (s.opened_head == s.opened.size()) return false;
  s.left = replays_[s.fifo[s.head].index].items[static_cast<std::size_t>(s.fifo[s.head].stream)];
  ++s.head;
  return true;
}

}  // namespace rehearse::executor
