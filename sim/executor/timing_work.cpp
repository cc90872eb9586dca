// Work on a GPU: begins, shares what it runs on, ends, and is accounted for.
#include <bit>
#include <cmath>

#include "sim/executor/contention.h"
#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::GroupAxis;
using plan::Opcode;

namespace {

Cause cause_of(GroupAxis axis) {
  switch (axis) {
    case GroupAxis::tensor: return Cause::tensor;
    case GroupAxis::context:
    case GroupAxis::context_ulysses:
    case GroupAxis::context_ring: return Cause::context;
    case GroupAxis::expert:
    case GroupAxis::expert_inside:
    case GroupAxis::expert_across: return Cause::expert;
    default: return Cause::data;
  }
}

/// What buckets are packed, cast and unpacked on while they travel: waiting for it is waiting for data-parallel communication.
bool reduces_or_gathers(plan::Stream s) { return s == plan::Stream::data_gather || s == plan::Stream::data_reduce || s == plan::Stream::data_shard || s == plan::Stream::data_replicate; }

}  // namespace

void TimingRun::happen(std::size_t r, std::int64_t now) {
  RankState& rank = ranks_[r];
  bool changed = false;
  unsigned finished = 0;
  for (const int k : used_) {
    StreamState& s = rank.streams[static_cast<std::size_t>(k)];
    if (s.running && s.finish == now) {
      if (s.late) {
        begin_late_tiles(s, now);
        changed = true;
        continue;
      }
      complete(r, k, now);
      finished |= 1u << k;
      changed = true;
    }
  }
  // Tiles that waited are there before whatever begins now.
  StreamState& compute = rank.streams[0];
  if (finished != 0 && compute.running && compute.late && !tiles_are_late(*compute.work, held_sms(rank))) begin_late_tiles(compute, now);
  for (; finished != 0; finished &= finished - 1) poll(r, std::countr_zero(finished));
  for (const int k : used_) {
    StreamState& s = rank.streams[static_cast<std::size_t>(k)];
    if (s.running || s.start > now) continue;
    if (!s.without_sms && finds_no_sms(r, k, now)) {
      s.without_sms = true;
      s.start = leaves_sms(compute, now);
      continue;
    }
    begin(r, k, s.start);
    changed = true;
  }
  if (changed) {
    // The order of what begins in one instant does not matter.
    if (compute.running && compute.began == now) compute.late = tiles_are_late(*compute.work, held_sms(rank));
    share(rank, now);
  }
  settle(r);
}

bool TimingRun::finds_no_sms(std::size_t r, int stream, std::int64_t now) const {
  const StreamState &compute = ranks_[r].streams[0], &s = ranks_[r].streams[static_cast<std::size_t>(stream)];
  const Item& item = s.front();
  if (!compute.running || !reduces_or_gathers(item.stream)) return false;
  const float sms = price(r, item).load.sm;
  if (sms == 0 || compute.work->load.sm + sms <= 1) return false;
  // Of two that come at once, one that follows work of its own stream is there before one that follows another stream's.
  if (compute.began == now && compute.crossed && !s.crossed) return false;
  return leaves_sms(compute, now) > now;
}

std::int64_t TimingRun::leaves_sms(const StreamState& compute, std::int64_t now) const {
  if (compute.tail == 0) return compute.finish;
  const double left = compute.remaining - static_cast<double>(now - compute.updated) * compute.rate - compute.tail;
  return std::min<std::int64_t>(compute.finish, now + std::llround(std::max(0.0, left) / compute.rate));
}

double TimingRun::held_sms(const RankState& rank) const {
  double held = 0;
  for (const int k : used_)
    if (const StreamState& s = rank.streams[static_cast<std::size_t>(k)]; s.running && s.work->occupies) held += static_cast<double>(s.work->load.sm);
  return held;
}

void TimingRun::begin_late_tiles(StreamState& s, std::int64_t now) {
  s.late = false;
  const double others = std::max(0.0, s.remaining - static_cast<double>(now - s.updated) * s.rate);
  s.remaining = std::max(others, static_cast<double>(s.work->duration) * static_cast<double>(s.work->late_tiles));
  s.tail = s.remaining - others;
  s.updated = now;
  s.finish = now + std::llround(s.remaining / s.rate);
}

void TimingRun::begin(std::size_t r, int stream, std::int64_t now) {
  RankState& rank = ranks_[r];
  StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
  const Item& item = s.front();
  s.running = true;
  s.met = false;
  s.work = &price(r, item);
  s.began = s.updated = now;
  s.remaining = static_cast<double>(s.work->duration);
  s.rate = 1;
  s.late = s.without_sms = false;
  s.tail = 0;
  s.finish = now + s.work->duration;
  s.start = kNever;
  if (stream == 0) account_gap(rank, s, now, item);
}

void TimingRun::complete(std::size_t r, int stream, std::int64_t now) {
  RankState& rank = ranks_[r];
  StreamState& s = rank.streams[static_cast<std::size_t>(stream)];
  const Item& item = s.front();
  s.running = false;
  s.last = cause(item);
  if (stream == 0) account(rank, s.last, s.began, now);
  rank.result.busy[static_cast<std::size_t>(stream)] += in_window(rank, s.began, now);
  s.last_issued = stream > 0 && item.issue >= s.ready ? item.issue : 0;
  s.last_met = s.arrival != kUnset && s.began > s.arrival ? s.began : 0;
  s.arrival = kUnset;
  trace(r, item, s.began, now);
  note_progress(rank, stream, item, now);
  s.ready = now;
  s.crossed = false;
  s.pop();
}

void TimingRun::share(RankState& rank, std::int64_t now) {
  std::array<StreamState*, plan::kStreams> running;
  int n = 0;
  for (const int k : used_)
    if (StreamState& s = rank.streams[static_cast<std::size_t>(k)]; s.running) running[static_cast<std::size_t>(n++)] = &s;
  if (n == 0) return;
  std::array<double, plan::kStreams> rate;
  if (n == 1) {
    rate[0] = 1;
  } else if (n == 2) {
    const SharedPair& pair = shared(running[0]->work, running[1]->work);
    rate[0] = pair.rate[0];
    rate[1] = pair.rate[1];
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
  if (!rank.streams[0].running) return;
  for (const int k : used_)
    if (StreamState& s = rank.streams[static_cast<std::size_t>(k)]; s.without_sms) s.start = leaves_sms(rank.streams[0], now);
}

const TimingRun::SharedPair& TimingRun::shared(const Priced* a, const Priced* b) {
  const auto word = [](const Priced* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); };
  SharedPair& pair = pairs_[(word(a) * 0x9e3779b97f4a7c15 ^ word(b) * 0xc2b2ae3d27d4eb4f) >> 58];
  if (pair.work[0] != a || pair.work[1] != b) {
    pair.work = {a, b};
    share_gpu(pair.work, pair.rate);
  }
  return pair;
}

Cause TimingRun::cause(const Item& item) const {
  switch (item.op) {
    case Opcode::kernel: return reduces_or_gathers(item.stream) ? Cause::data : kernel_cause_[item.index];
    case Opcode::collective: return cause_of(plan_.collectives[item.index].axis);
    case Opcode::copy: return Cause::copy;
    default: return Cause::pipeline_message;
  }
}

void TimingRun::trace(std::size_t r, const Item& item, std::int64_t from, std::int64_t to) {
  const RankState& rank = ranks_[r];
  if (!options_.trace || (options_.steps > 1 && (rank.measured_from == kNever || from < rank.measured_from))) return;
  trace_.push_back({static_cast<std::uint16_t>(r), item.stream, item.op, item.index, item.call, from, to});
}

}  // namespace rehearse::executor
