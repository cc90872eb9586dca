// Heads of streams: how far each goes without time passing, and whom it meets.
#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::GroupAxis;
using plan::Opcode;

void TimingRun::poll(std::size_t r, int stream) {
  RankState& rank = ranks_[r];
  StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
  if (s.running || s.arrived || s.met || s.without_sms) return;
  s.start = kNever;
  std::optional<std::int64_t> quiet_until;   // not known
  // A record below lets other streams go on, which may move this one: its state is looked at afresh each time.
  while (!s.empty() && !s.running && !s.arrived && !s.met) {
    s.start = kNever;   // one of them may have set it for work that can now run at once
    const Item& item = s.front();
    if (item.whole) [[unlikely]] {
      if (stream == 0) meet_whole(r);
      else if (!reach_opened(s)) return;
      quiet_until.reset();
      continue;
    }
    switch (item.op) {
      case Opcode::record: {
        Event& e = rank.events[item.index];
        e.time = ready_and_issued(s, item);
        e.cause = s.ready > item.issue ? s.last : Cause::host;
        e.issued = s.ready > item.issue ? s.last_issued : 0;
        e.met = s.ready > item.issue ? s.last_met : 0;
        s.pop();
        for (const int other : used_)
          if (other != stream && !rank.streams[static_cast<std::size_t>(other)].empty()) poll(r, other);
        break;
      }
      case Opcode::wait: {
        const Event& e = rank.events[item.index];
        if (e.time == kUnset) return;
        if (e.time > s.ready) {
          if (stream == 0) {
            // Waiting for the host, and for a peer, is not the message's own time.
            const std::int64_t issued = e.cause == Cause::host ? e.time : std::clamp(e.issued, s.ready, e.time), met = std::clamp(e.met, issued, e.time);
            account_host(rank, s.ready, issued);
            account(rank, Cause::bubble, issued, met);
            account(rank, e.cause, met, e.time);
          }
          s.ready = e.time;
        }
        if (e.time == s.ready) s.crossed = true;
        if (stream == 0) note_progress(rank, stream, item, s.ready);
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
        // Kernels move no other stream, so what holds for one holds for those behind it.
        if (stream == 0 && !quiet_until) quiet_until = undisturbed_until(rank);
        if (stream == 0 && start + costs_.kernel(rank.rank_class, item.index).duration <= *quiet_until) {
          run_alone(r, s, item, start);
          continue;
        }
        s.start = start;
        return;
      }
    }
    quiet_until.reset();
  }
}

std::int64_t TimingRun::undisturbed_until(const RankState& rank) const {
  std::int64_t until = kNever;
  for (const int k : used_) {
    if (k == 0) continue;
    const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
    if (s.running && s.work->load.sm + s.work->load.hbm > 0) return INT64_MIN;
    if (may_go_on(rank, s)) return INT64_MIN;
    // A collective that waits for its members may begin at any moment (messages disturb no kernels).
    if (s.arrived && s.front().op == Opcode::collective) return INT64_MIN;
    until = std::min(until, s.start);
  }
  return until;
}

bool TimingRun::may_go_on(const RankState& rank, const StreamState& s) const {
  if (s.empty() || !s.idle()) return false;
  const Item& item = s.front().whole && !s.opened.empty() ? s.opened[s.opened_head] : s.front();
  return !item.whole && (item.op != Opcode::wait || rank.events[item.index].time != kUnset);
}

void TimingRun::run_alone(std::size_t r, StreamState& s, const Item& item, std::int64_t start) {
  RankState& rank = ranks_[r];
  const std::int64_t duration = costs_.kernel(rank.rank_class, item.index).duration;
  account_gap(rank, s, start, item);
  account(rank, kernel_cause_[item.index], start, start + duration);
  rank.result.busy[0] += in_window(rank, start, start + duration);
  trace(r, item, start, start + duration);
  s.last = kernel_cause_[item.index];
  s.last_met = 0;
  s.ready = start + duration;
  s.crossed = false;
  note_progress(rank, 0, item, s.ready);
  s.pop();
}

void TimingRun::arrive_collective(std::size_t r, int stream, const Item& item) {
  StreamState& s = ranks_[r].streams[static_cast<std::size_t>(stream)];
  const GroupAxis axis = plan_.collectives[item.index].axis;
  const auto& partners = plan_.classes[r].partners[static_cast<std::size_t>(axis)];
  s.arrived = true;
  s.arrival = ready_and_issued(s, item);
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

std::uint32_t TimingRun::meeting_of(std::size_t r, GroupAxis axis) {
  std::uint32_t& id = meetings_of_[r][static_cast<std::size_t>(axis)];
  if (id == UINT32_MAX) {
    id = static_cast<std::uint32_t>(meetings_.size());
    meetings_.emplace_back();
    for (std::uint16_t other : plan_.classes[r].partners[static_cast<std::size_t>(axis)]) meetings_of_[other][static_cast<std::size_t>(axis)] = id;
  }
  return id;
}

void TimingRun::arrive_message(std::size_t r, int stream, const Item& item) {
  const plan::MessageSpec& m = plan_.messages[item.index];
  StreamState& s = ranks_[r].streams[static_cast<std::size_t>(stream)];
  s.arrived = true;
  s.arrival = ready_and_issued(s, item);
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

}  // namespace rehearse::executor
