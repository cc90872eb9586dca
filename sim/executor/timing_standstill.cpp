// Blocks whose host thread waits for the device again and again (chunks on their way to and from the host): what they do from
// one moment in which all is through to another takes the same time whenever it is done. It is measured once.
//
// At a standstill nothing is queued or runs, and no stream was busy later than the host thread goes on. Whatever is issued from
// there on starts when it is issued or later, so three things of what was before can matter: how long the compute stream has had
// nothing to do, what it did last (both for the accounts), and events that are waited for but were recorded earlier; these
// have to be past (no later than the compute stream was through; for others, than the host thread). Times are integers and rates depend on differences of times alone: the same to the bit.
#include <set>

#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;
using plan::Stream;

namespace {

constexpr std::size_t kReprises = 4;   // of a block that are kept: one that begins elsewhere each time is not worth it

bool is_wait_of_host(Opcode op) { return op == Opcode::host_wait || op == Opcode::host_sync; }

/// Behind the last instruction in which the host thread waits, 0 if it never does.
std::uint32_t last_wait_of_host(const plan::Block& block) {
  std::size_t end = block.timing.size();
  while (end > 0 && !is_wait_of_host(block.timing[end - 1].op)) --end;
  return static_cast<std::uint32_t>(end);
}

}  // namespace

bool TimingRun::stands_still(const RankState& rank) const {
  for (const int k : used_)
    if (const StreamState& s = rank.streams[static_cast<std::size_t>(k)]; !s.empty() || !s.idle() || !s.opened.empty() || s.ready > rank.host) return false;
  const StreamState& compute = rank.streams[0];
  const std::vector<HostSlice>& works = rank.result.host_works;
  return compute.last_issued == 0 && compute.last_met == 0 && (works.empty() || works.back().end <= compute.ready) && (rank.measured_from == kNever || rank.measured_from <= compute.ready);
}

void TimingRun::pass_standstill(std::size_t r) {
  RankState& rank = ranks_[r];
  if (!standstills_allowed_ || rank.position == 0 || !stands_still(rank)) return;
  for (const int k : used_) {   // nobody looks back at what is through
    StreamState& s = rank.streams[static_cast<std::size_t>(k)];
    s.fifo.clear();
    s.head = 0;
  }
  const std::uint32_t id = program(r).step[rank.call].block;
  const plan::Block& block = plan_.blocks[id];
  BlockStandstills& known = standstills_[id];
  if (!known.last) known.last = last_wait_of_host(block);
  Beginning& since = since_[r];
  const bool measures = since.call == rank.call && since.step == rank.step;
  if (measures && rank.position == known.last) keep(rank, since, known.reprises[since.reprise]);
  if (measures || rank.position >= known.last) return;

  Reprise here{.rank_class = r, .from = static_cast<std::uint32_t>(rank.position), .to = *known.last, .unused = rank.host - rank.streams[0].ready, .last = rank.streams[0].last, .measured = rank.measured_from != kNever};
  auto found = std::find_if(known.reprises.begin(), known.reprises.end(), [&](const Reprise& other) { return other.begins_as(here); });
  if (found == known.reprises.end()) {
    if (known.reprises.size() == kReprises) return;
    if (!survey(block, here)) known.last = 0;
    found = known.reprises.insert(found, std::move(here));
  }
  if (known.last == 0 || !waits_are_past(rank, *found)) return;
  if (found->known) go_through(rank, *found);
  else since = {rank.call, rank.step, static_cast<std::size_t>(found - known.reprises.begin()), rank.host, rank.result.time, rank.result.busy};
}

bool TimingRun::survey(const plan::Block& block, Reprise& reprise) const {
  const auto bit = [](Stream s) { return 1u << static_cast<unsigned>(s); };
  std::set<std::pair<plan::Frame, std::uint32_t>> recorded;
  for (std::uint32_t at = reprise.from; at < reprise.to; ++at) {
    const plan::Instruction& i = block.timing[at];
    switch (i.op) {
      case Opcode::collective:
        if (!plan_.classes[reprise.rank_class].partners[static_cast<std::size_t>(plan_.collectives[i.index].axis)].empty()) return false;
        [[fallthrough]];
      case Opcode::kernel:
      case Opcode::copy:
        reprise.worked |= bit(i.stream);
        reprise.moved |= bit(i.stream) | (i.op != Opcode::kernel && (i.flags & plan::kComputeWaits) != 0 ? bit(Stream::compute) : 0);
        break;
      case Opcode::record:
        // It tells what the stream did last: not anything before the standstill.
        if (i.stream != Stream::compute && (reprise.moved & ~reprise.worked & bit(i.stream)) != 0) return false;
        if (recorded.emplace(i.frame, i.index).second) reprise.records.push_back({i.frame, i.index});
        break;
      case Opcode::wait:
        reprise.moved |= bit(i.stream);
        [[fallthrough]];
      case Opcode::host_wait:
        if (!recorded.contains({i.frame, i.index})) reprise.waits.push_back({i.frame, i.index, i.op == Opcode::wait && i.stream == Stream::compute});
        break;
      case Opcode::host:
      case Opcode::host_sync: break;
      default: return false;
    }
  }
  return true;
}

bool TimingRun::waits_are_past(const RankState& rank, const Reprise& reprise) const {
  const plan::Call& call = program(reprise.rank_class).step[rank.call];
  return std::all_of(reprise.waits.begin(), reprise.waits.end(), [&](const Reprise::Wait& wait) {
    const std::uint32_t e = rank.slot_event[call.frames[static_cast<std::size_t>(wait.frame)] + wait.slot];
    if (e == UINT32_MAX) return true;
    const std::int64_t t = rank.events[e].time;
    return t != kUnset && t <= (wait.of_compute ? rank.streams[0].ready : rank.host);
  });
}

void TimingRun::keep(const RankState& rank, const Beginning& since, Reprise& reprise) const {
  const plan::Call& call = program(reprise.rank_class).step[rank.call];
  reprise.known = true;
  reprise.began = since.host;
  reprise.passed = rank.host - since.host;
  for (std::size_t c = 0; c < kCauses; ++c) reprise.time[c] = rank.result.time[c] - since.time[c];
  for (std::size_t k = 0; k < plan::kStreams; ++k) {
    const StreamState& s = rank.streams[k];
    reprise.busy[k] = rank.result.busy[k] - since.busy[k];
    reprise.ends[k] = {s.ready, s.last_issued, s.last_met, s.last, s.crossed};
  }
  for (Reprise::Record& record : reprise.records) record.event = rank.events[rank.slot_event[call.frames[static_cast<std::size_t>(record.frame)] + record.slot]];
  // Where the compute stream has gone on, all of before is past for it. An event that is so as well need not take its place.
  const std::int64_t ready = rank.streams[0].ready;
  if (ready >= since.host) std::erase_if(reprise.records, [&](const Reprise::Record& record) { return record.event.time <= ready; });
}

void TimingRun::go_through(RankState& rank, const Reprise& reprise) {
  const plan::Call& call = program(reprise.rank_class).step[rank.call];
  const std::int64_t by = rank.host - reprise.began;
  const auto moved = [&](std::int64_t t) { return t == 0 ? 0 : t + by; };
  for (std::size_t k = 0; k < plan::kStreams; ++k) {
    StreamState& s = rank.streams[k];
    const Reprise::End& end = reprise.ends[k];
    if (reprise.moved >> k & 1u) {
      s.ready = end.ready + by;
      s.crossed = end.crossed;
    }
    if (reprise.worked >> k & 1u) {
      s.last = end.last;
      s.last_issued = moved(end.last_issued);
      s.last_met = moved(end.last_met);
    }
    rank.result.busy[k] += reprise.busy[k];
  }
  for (std::size_t c = 0; c < kCauses; ++c) rank.result.time[c] += reprise.time[c];
  for (const Reprise::Record& record : reprise.records) {
    rank.slot_event[call.frames[static_cast<std::size_t>(record.frame)] + record.slot] = static_cast<std::uint32_t>(rank.events.size());
    rank.events.push_back(later(record.event, by));
  }
  rank.host += reprise.passed;
  rank.position = reprise.to;
  instructions_ += reprise.to - reprise.from;
  replayed_ += reprise.to - reprise.from;
}

}  // namespace rehearse::executor
