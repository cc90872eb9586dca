// Steps that settle into a rhythm: when all ranks stand to each other as they stood some micro-batches ago, and what is
// queued is the same again, what happened in between will happen again, and is counted instead of run.
//
// A moment is written down relative to its time: what every stream does, since and until when, what it still waits for,
// and who waits for whom. Equal moments have equal futures as long as the queues hold the same work, which is compared
// entry by entry, and as long as nothing has to wait for the host, which is ahead and does not fall back. Hosts that keep
// step with their devices: timing_lockstep.cpp.
#include <bit>

#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;

namespace {

constexpr std::size_t kMoments = 16;     // that are kept to compare with
constexpr std::size_t kAhead = 3;        // periods of the queues that are searched for events
constexpr std::int64_t kNothing = INT64_MIN;

bool names_event(const Item& item) { return !item.whole && (item.op == Opcode::record || item.op == Opcode::wait); }

/// Do these queue entries ask for the same work, `events` events and `issue` picoseconds apart?
bool same_work(const Item& a, const Item& b, std::uint32_t events, std::int64_t issue) {
  if (a.op != b.op || a.whole != b.whole || b.issue - a.issue != issue) return false;
  if (a.whole) return a.index == b.index && b.first_event - a.first_event == events;
  if (a.op == Opcode::host) return false;   // the end of a step
  return names_event(a) ? b.index - a.index == events : a.index == b.index;
}

}  // namespace

void TimingRun::expect_rhythm() {
  rhythm_.emplace(program(0));
  const Repeat& stretch = rhythm_->stretch();
  if (!stretch.any()) return rhythm_.reset();
  for (std::size_t c = stretch.first; c < stretch.first + stretch.period && !notes_uses_; ++c)
    for (const plan::Instruction& i : plan_.blocks[program(0).step[c].block].timing) notes_uses_ = notes_uses_ || i.op == Opcode::host_sync || i.op == Opcode::host_wait;
  if (notes_uses_) uses_.resize(classes());
}

void TimingRun::look_for_rhythm(std::int64_t now) {
  const RankState& first = ranks_[0];
  const StreamState& compute = first.streams[0];
  const auto at_call = [&] { return compute.head < compute.fifo.size() ? compute.fifo[compute.head].call : first.call; };
  if (compute.head == compute.fifo.size() && !notes_uses_) return;
  const Repeat& stretch = rhythm_->stretch();
  if (first.step_end.size() != moments_step_ || next_mark_ == SIZE_MAX) {
    moments_step_ = first.step_end.size();
    moments_.clear();
    next_mark_ = stretch.first;
  }
  const std::size_t call = at_call();
  if (call < next_mark_ || call >= stretch.end) return;
  next_mark_ = stretch.first + ((call - stretch.first) / stretch.period + 1) * stretch.period;
  if (std::exchange(issue_bound_, false)) std::erase_if(moments_, [](const Moment& m) { return !m.in_step; });
  for (std::size_t r = 0; r < classes(); ++r)
    if (const RankState& rank = ranks_[r]; !rank.host_done && rank.host_syncs == 0 && rank.host_waits == UINT32_MAX) return;
  Moment here = moment(now);
  for (auto before = moments_.rbegin(); before != moments_.rend(); ++before) {
    if (before->state != here.state) continue;
    const bool jumped = here.in_step ? jump_in_step(*before, here) : jump(*before, here);
    if (!jumped) break;
    moments_.clear();
    next_mark_ = at_call() + stretch.period;
    return;
  }
  moments_.push_back(std::move(here));
  if (moments_.size() > kMoments) moments_.erase(moments_.begin());
}

TimingRun::Moment TimingRun::moment(std::int64_t now) const {
  Moment m;
  m.time = now;
  m.replayed = replayed_;
  const auto add = [&](std::int64_t word) { m.state.push_back(word); };
  const auto since = [&](std::int64_t t, std::int64_t none) { add(t == none ? kNothing : t - now); };
  for (std::size_t r = 0; r < classes(); ++r) {
    const RankState& rank = ranks_[r];
    Moment::Rank& mine = m.ranks.emplace_back();
    mine.time = rank.result.time;
    mine.busy = rank.result.busy;
    mine.host_works = rank.result.host_works.size();
    add(static_cast<std::int64_t>(rank.step_end.size()));
    // An event as a stream that will wait for it sees it.
    const auto add_event = [&](std::uint32_t e, std::int64_t ready) {
      const Event& event = rank.events[e];
      if (event.time == kUnset || event.time <= ready) return add(event.time == kUnset ? kNothing : kNothing + 1);
      add(event.time - now);
      add(static_cast<std::int64_t>(event.cause));
      since(event.issued, 0);
      since(event.met, 0);
    };
    std::vector<std::uint32_t> opened;   // events of opened blocks, in the order of appearance
    for (std::size_t k = 0; k < rank.streams.size(); ++k) {
      const StreamState& s = rank.streams[k];
      Moment::Stream& stream = mine.streams[k];
      stream.head = s.head;
      stream.ready = s.ready;
      stream.last = s.last;
      stream.last_issued = s.last_issued;
      stream.last_met = s.last_met;
      stream.rests = s.idle() && s.left == 0 && s.opened_head == s.opened.size();
      stream.earliest = s.running ? std::min(s.ready, s.began) : s.ready;
      add(s.running | s.arrived << 1 | s.met << 2 | stream.rests << 3 | s.without_sms << 4 | s.crossed << 5);
      since(s.start, kNever);
      since(s.arrival, kUnset);
      if (s.running) {
        for (const std::int64_t t : {s.began, s.finish, s.updated}) add(t - now);
        since(k > 0 && s.front().issue >= s.ready ? s.front().issue : 0, 0);
        add(std::bit_cast<std::int64_t>(s.remaining));
        add(std::bit_cast<std::int64_t>(s.tail));
        add(s.late);
        add(std::bit_cast<std::int64_t>(s.rate));
        add(std::bit_cast<std::int64_t>(s.work));
      }
      add(s.left);
      for (std::size_t i = s.opened_head; i < s.opened.size(); ++i) {
        const Item& item = s.opened[i];
        add(static_cast<std::int64_t>(item.op));
        if (!names_event(item)) {
          add(item.index);
          continue;
        }
        if (!rank.events[item.index].of_opened) {
          mine.opened_events.push_back(item.index);
        } else {
          auto known = std::find(opened.begin(), opened.end(), item.index);
          if (known == opened.end()) known = opened.insert(known, item.index);
          add(known - opened.begin());
        }
        if (item.op == Opcode::wait) add_event(item.index, s.ready);
      }
      // What has been recorded and will be waited for.
      if (s.head == s.fifo.size()) continue;
      const std::size_t until = s.fifo[s.head].call + kAhead * rhythm_->stretch().period;
      std::size_t i = s.head;
      for (; i < s.fifo.size() && s.fifo[i].call <= until && s.fifo[i].call >= s.fifo[s.head].call; ++i) {
        const Item& item = s.fifo[i];
        if (item.whole || item.op != Opcode::wait) continue;
        const Event& event = rank.events[item.index];
        if (event.time == kUnset || event.time <= s.ready) continue;
        add(static_cast<std::int64_t>(i - s.head));
        add_event(item.index, s.ready);
        stream.last_event = i - s.head;
      }
      stream.searched = i - s.head;
    }
  }
  add_meetings(m);
  m.instructions = instructions_;
  m.in_step = notes_uses_ && add_hosts(m);
  return m;
}

/// Adds who waits for whom.
void TimingRun::add_meetings(Moment& m) const {
  const auto add = [&](const auto& waiting) {
    m.state.push_back(static_cast<std::int64_t>(waiting.size()));
    for (const auto& [rank, stream] : waiting) m.state.push_back(static_cast<std::int64_t>(rank) << 8 | stream);
  };
  for (const auto& [key, meeting] : messages_)
    for (const auto* side : {&meeting.senders, &meeting.receivers}) add(*side);
  for (const auto& waiting : meetings_) add(waiting);
}

bool TimingRun::goes_on(std::size_t r, std::size_t stream, const Moment& a, const Moment& b) const {
  const Moment::Stream &before = a.ranks[r].streams[stream], &now = b.ranks[r].streams[stream];
  const std::int64_t passed = b.time - a.time, measured_from = ranks_[r].measured_from;
  if (before.last != now.last) return false;
  // One that takes no part does nothing, and time does not matter to it.
  if (now.head == before.head) return now.rests && before.ready == now.ready && before.last_issued == now.last_issued && before.last_met == now.last_met;
  const auto came_along = [&](std::int64_t was, std::int64_t is) { return (was == 0) == (is == 0) && (is == 0 || is - was == passed); };
  if (now.ready - before.ready != passed || !came_along(before.last_issued, now.last_issued) || !came_along(before.last_met, now.last_met)) return false;
  return measured_from == kNever || before.earliest >= measured_from;   // accounts must not be cut off within the stretch
}

/// How much one rank's queues go on between the moments, and how often that comes again. Nothing: not the same at all.
std::optional<TimingRun::Stride> TimingRun::stride(std::size_t r, const Moment& a, const Moment& b) const {
  const RankState& rank = ranks_[r];
  const Moment::Rank &was = a.ranks[r], &is = b.ranks[r];
  const std::int64_t passed = b.time - a.time;
  Stride out;
  const StreamState& compute = rank.streams[0];
  const std::size_t from = was.streams[0].head, to = is.streams[0].head;
  if (from == to || to >= compute.fifo.size() || was.host_works != is.host_works) return std::nullopt;
  out.issue = compute.fifo[to].issue - compute.fifo[from].issue;
  out.calls = compute.fifo[to].call - compute.fifo[from].call;
  if (out.issue > passed) return std::nullopt;   // the host falls back
  for (std::size_t i = from, step = to - from; i < to && i + step < compute.fifo.size(); ++i)
    if (const Item &item = compute.fifo[i], &next = compute.fifo[i + step]; item.whole || names_event(item)) {
      out.events = item.whole ? next.first_event - item.first_event : next.index - item.index;
      break;
    }
  if (was.opened_events.size() != is.opened_events.size()) return std::nullopt;
  for (std::size_t i = 0; i < is.opened_events.size(); ++i)
    if (is.opened_events[i] - was.opened_events[i] != out.events) return std::nullopt;
  for (std::size_t k = 0; k < rank.streams.size(); ++k) {
    const Moment::Stream &before = was.streams[k], &now = is.streams[k];
    const StreamState& s = rank.streams[k];
    if (!goes_on(r, k, a, b)) return std::nullopt;
    const std::size_t step = now.head - before.head;
    if (step == 0) continue;
    // No event that matters may lie beyond what was searched for them.
    if (now.last_event + step >= now.searched) return std::nullopt;
    std::size_t same = 0;
    while (before.head + same + step < s.fifo.size() && same_work(s.fifo[before.head + same], s.fifo[before.head + same + step], out.events, out.issue)) ++same;
    out.times = std::min(out.times, same < 2 ? 0 : (same - 2) / step);   // a stream looks at one entry past its head
  }
  return out;
}

/// Carries everything as many times the stretch from `a` to `b` further as it comes again. False: it does not.
bool TimingRun::jump(const Moment& a, const Moment& b) {
  std::vector<Stride> strides;
  std::size_t times = SIZE_MAX;
  for (std::size_t r = 0; r < classes(); ++r) {
    const std::optional<Stride> one = stride(r, a, b);
    if (!one || one->times == 0) return false;
    strides.push_back(*one);
    times = std::min(times, one->times);
  }
  std::vector<std::vector<std::uint32_t>> examples;
  for (std::size_t r = 0; r < classes(); ++r) {
    std::optional<std::vector<std::uint32_t>> events = repeated_events(r, a, b, strides[r], times);
    if (!events) return false;
    examples.push_back(std::move(*events));
  }
  const std::int64_t passed = b.time - a.time;
  for (std::size_t r = 0; r < classes(); ++r)
    for (const std::uint32_t e : examples[r])
      for (std::size_t j = 1; j <= times; ++j) ranks_[r].events[e + j * strides[r].events] = later(ranks_[r].events[e], static_cast<std::int64_t>(j) * passed);
  const auto n = static_cast<std::int64_t>(times), by = n * passed;
  for (std::size_t r = 0; r < classes(); ++r) {
    RankState& rank = ranks_[r];
    const Stride& stride = strides[r];
    std::vector<std::uint32_t> recorded;   // in opened blocks, where somebody still waits
    for (std::size_t k = 0; k < rank.streams.size(); ++k) {
      StreamState& s = rank.streams[k];
      const std::size_t step = b.ranks[r].streams[k].head - a.ranks[r].streams[k].head;
      if (step == 0) continue;
      s.head += times * step;
      for (std::size_t i = s.opened_head; i < s.opened.size(); ++i) {
        Item& item = s.opened[i];
        item.issue += n * stride.issue;
        item.call += static_cast<std::uint32_t>(times) * stride.calls;
        if (!names_event(item)) continue;
        if (!rank.events[item.index].of_opened) item.index += static_cast<std::uint32_t>(times) * stride.events;
        else if (rank.events[item.index].time != kUnset) recorded.push_back(item.index);
      }
    }
    std::sort(recorded.begin(), recorded.end());
    recorded.erase(std::unique(recorded.begin(), recorded.end()), recorded.end());
    for (const std::uint32_t e : recorded) rank.events[e] = later(rank.events[e], by);
    move_on(r, a, b, times);
  }
  replayed_ += n * (b.replayed - a.replayed);
  again_ += n;
  for (std::size_t r = 0; r < classes(); ++r) set_next(r, next(r));
  return true;
}

/// A rank's streams and accounts, `times` stretches later; not what is queued.
void TimingRun::move_on(std::size_t r, const Moment& a, const Moment& b, std::size_t times) {
  RankState& rank = ranks_[r];
  const Moment::Rank &was = a.ranks[r], &is = b.ranks[r];
  const auto n = static_cast<std::int64_t>(times), by = n * (b.time - a.time);
  for (std::size_t k = 0; k < rank.streams.size(); ++k) {
    StreamState& s = rank.streams[k];
    if (is.streams[k].head == was.streams[k].head) continue;
    s.ready += by;
    if (s.start != kNever) s.start += by;
    if (s.arrival != kUnset) s.arrival += by;
    if (s.last_issued != 0) s.last_issued += by;
    if (s.last_met != 0) s.last_met += by;
    if (s.running)
      for (std::int64_t* t : {&s.began, &s.finish, &s.updated}) *t += by;
  }
  for (std::size_t c = 0; c < kCauses; ++c) rank.result.time[c] += n * (is.time[c] - was.time[c]);
  for (std::size_t k = 0; k < plan::kStreams; ++k) rank.result.busy[k] += n * (is.busy[k] - was.busy[k]);
}

/// Whatever comes later may wait for any event of the stretches that are left out, so all of them get their times: these
/// are their examples, one each. Nothing: some example is missing, or a stream that takes no part waits for one of them.
std::optional<std::vector<std::uint32_t>> TimingRun::repeated_events(std::size_t r, const Moment& a, const Moment& b, const Stride& stride, std::size_t times) const {
  const RankState& rank = ranks_[r];
  std::vector<std::uint32_t> examples;
  // Of a block that was opened and is not through yet, the one before it is the example.
  const auto add = [&](std::uint32_t e) { examples.push_back(rank.events[e].time == kUnset ? e - stride.events : e); };
  for (std::size_t k = 0; k < rank.streams.size(); ++k) {
    const StreamState& s = rank.streams[k];
    for (std::size_t i = a.ranks[r].streams[k].head; i < b.ranks[r].streams[k].head; ++i) {
      const Item& item = s.fifo[i];
      if (item.whole && k == 0)
        for (std::uint32_t e = 0; e < replays_[item.index].records.size(); ++e) add(item.first_event + e);
      else if (!item.whole && item.op == Opcode::record)
        add(item.index);
    }
  }
  std::sort(examples.begin(), examples.end());
  if (examples.empty()) return examples;
  if (stride.events == 0 || examples.back() + times * stride.events >= rank.events.size()) return std::nullopt;
  for (const std::uint32_t e : examples)
    if (rank.events[e].time == kUnset) return std::nullopt;
  const auto is_repeated = [&](std::uint32_t e) {
    for (std::size_t j = 1; j <= times && examples.front() + j * stride.events <= e; ++j)
      if (std::binary_search(examples.begin(), examples.end(), static_cast<std::uint32_t>(e - j * stride.events))) return true;
    return false;
  };
  if (rank.host_waits != UINT32_MAX && is_repeated(rank.host_waits)) return std::nullopt;
  for (std::size_t k = 0; k < rank.streams.size(); ++k) {
    const StreamState& s = rank.streams[k];
    const bool rests = b.ranks[r].streams[k].head == a.ranks[r].streams[k].head;
    if (rests && !s.empty() && !s.front().whole && s.front().op == Opcode::wait && is_repeated(s.front().index)) return std::nullopt;
  }
  return examples;
}

}  // namespace rehearse::executor
