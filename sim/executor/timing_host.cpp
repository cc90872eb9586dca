// Host threads: each runs ahead of its device, as far as it need not wait for it.
#include "sim/core/contract.h"
#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;
using plan::Stream;

void TimingRun::issue(std::size_t r) {
  RankState& rank = ranks_[r];
  if (rank.host_done || rank.host_waits != UINT32_MAX || rank.host_syncs != 0) return;
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
          rank.result.host_works.push_back({i.index, static_cast<std::uint32_t>(rank.call), rank.host, rank.host + costs_.host_works[i.index]});
          rank.host += costs_.host_works[i.index];
          break;
        case Opcode::record: {
          const std::uint32_t e = new_event(rank, i.stream);
          rank.slot_event[slot(call, i)] = e;
          note_use(rank, EventUse::Kind::record, i.stream, i.frame, i.index, e);
          push(rank, i.stream, Opcode::record, e);
          break;
        }
        case Opcode::wait: {
          const std::uint32_t e = rank.slot_event[slot(call, i)];
          note_use(rank, EventUse::Kind::wait, i.stream, i.frame, i.index, e);
          if (e != UINT32_MAX) push(rank, i.stream, Opcode::wait, e);
          break;
        }
        case Opcode::host_wait: {
          const std::uint32_t e = rank.slot_event[slot(call, i)];
          note_use(rank, EventUse::Kind::host_wait, i.stream, i.frame, i.index, e);
          if (e == UINT32_MAX) break;
          rank.host_waits = e;
          if (!host_resumes(rank)) return;
          break;
        }
        case Opcode::host_sync:
          rank.host_syncs = i.index == 0 ? kAllStreams : i.index;
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

bool TimingRun::host_resumes(RankState& rank) {
  if (rank.host_waits != UINT32_MAX) {
    const Event& e = rank.events[rank.host_waits];
    if (e.time == kUnset) return false;
    rank.host = std::max(rank.host, e.time);
    rank.host_waits = UINT32_MAX;
  }
  if (rank.host_syncs != 0) {
    std::int64_t latest = 0;
    for (const int k : used_) {
      if ((rank.host_syncs >> k & 1u) == 0) continue;
      const StreamState& s = rank.streams[static_cast<std::size_t>(k)];
      if (!s.empty() || s.running) return false;
      latest = std::max(latest, s.ready);
    }
    rank.host = std::max(rank.host, latest);
    rank.host_syncs = 0;
  }
  return true;
}

void TimingRun::settle(std::size_t r) {
  RankState& rank = ranks_[r];
  while ((rank.host_waits != UINT32_MAX || rank.host_syncs != 0) && host_resumes(rank)) {
    pass_standstill(r);
    issue(r);
    for (const int k : used_) poll(r, k);
  }
}

void TimingRun::account_host(RankState& rank, std::int64_t from, std::int64_t to) {
  const std::vector<HostSlice>& works = rank.result.host_works;
  while (rank.past_host_works < works.size() && works[rank.past_host_works].end <= from) ++rank.past_host_works;
  for (std::size_t i = rank.past_host_works; i < works.size() && works[i].start < to; ++i) {
    const std::int64_t begin = std::max(from, works[i].start), end = std::min(to, works[i].end);
    account(rank, Cause::host, from, begin);
    account(rank, Cause::host_work, begin, end);
    from = end;
  }
  account(rank, Cause::host, from, to);
}

void TimingRun::end_of_step(std::size_t r, StreamState& compute, int step) {
  RankState& rank = ranks_[r];
  const std::int64_t now = compute.ready;
  rank.step_end.push_back(now);
  if (step == options_.steps - 2) rank.measured_from = now;
}

}  // namespace rehearse::executor
