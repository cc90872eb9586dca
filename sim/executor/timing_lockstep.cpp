// Rhythm where host threads synchronise with their devices (Megatron's messages, experts' counts): a moment holds the queues
// whole, and the host threads with what they do next.
//
// What was issued before a moment and matters after it, beside the queues, are the events that slots hold. So the strides
// that are left out are gone through as the host threads would, but for events alone: each record gives its slot an event
// at the time that the rhythm says, and each wait must find the event that it found in the stride before, or one that is
// past for the stream as that one was. Where it does not, the rhythm ends.
#include "sim/executor/timing_run.h"

namespace rehearse::executor {

using plan::Opcode;

namespace {

constexpr std::size_t kDeepest = 1024;  // queue entries of a stream, at most: more take longer to compare than a rhythm is likely to save
constexpr std::size_t kToCome = 8;     // strides of which events may be to come, at most

}  // namespace

/// Adds host threads and queues to what is compared. False: a queue is long, or a step ends.
bool TimingRun::add_hosts(Moment& m) const {
  const auto add = [&](std::int64_t word) { m.state.push_back(word); };
  for (std::size_t r = 0; r < classes(); ++r) {
    const RankState& rank = ranks_[r];
    if (rank.host_done || rank.call >= program(r).step.size()) return false;
    Moment::Rank& mine = m.ranks[r];
    mine.call = rank.call;
    mine.position = rank.position;
    mine.host = rank.host;
    mine.uses = uses_[r].size();
    std::vector<std::uint32_t> coming;   // events that have not happened, in the order of appearance
    const auto add_event = [&](std::uint32_t e, std::int64_t ready) {
      const Event& event = rank.events[e];
      if (event.time == kUnset) {
        auto known = std::find(coming.begin(), coming.end(), e);
        if (known == coming.end()) known = coming.insert(known, e);
        return add(known - coming.begin());
      }
      add(event.time <= ready ? -1 : -2);
      if (event.time <= ready) return;
      add(event.time - m.time);
      add(static_cast<std::int64_t>(event.cause));
      add(event.issued == 0 ? INT64_MIN : event.issued - m.time);
      add(event.met == 0 ? INT64_MIN : event.met - m.time);
    };
    const auto add_item = [&](const Item& item, std::int64_t ready) {
      add(static_cast<std::int64_t>(item.op) << 1 | static_cast<std::int64_t>(item.whole));
      add(item.issue - m.time);
      add(static_cast<std::int64_t>(item.call) - static_cast<std::int64_t>(rank.call));
      if (item.whole || !(item.op == Opcode::record || item.op == Opcode::wait)) add(item.index);
      if (!item.whole && (item.op == Opcode::record || item.op == Opcode::wait)) add_event(item.index, ready);
      for (std::uint32_t e = 0; item.whole && e < replays_[item.index].records.size(); ++e) add_event(item.first_event + e, ready);
      return item.whole || item.op != Opcode::host;   // else the end of a step
    };
    for (const StreamState& s : rank.streams) {
      if (s.fifo.size() - s.head > kDeepest) return false;
      add(static_cast<std::int64_t>(s.opened.size() - s.opened_head));
      for (std::size_t i = s.opened_head; i < s.opened.size(); ++i) add_item(s.opened[i], s.ready);
      add(static_cast<std::int64_t>(s.fifo.size() - s.head));
      for (std::size_t i = s.head; i < s.fifo.size(); ++i)
        if (!add_item(s.fifo[i], s.ready)) return false;
    }
    for (const std::int64_t word : {static_cast<std::int64_t>(rank.step), static_cast<std::int64_t>(rank.position), static_cast<std::int64_t>(program(r).step[rank.call].block), rank.host - m.time,
                                    static_cast<std::int64_t>(rank.host_syncs),
                                    rank.result.host_works.empty() ? 0 : std::max<std::int64_t>(0, rank.result.host_works.back().end - rank.streams[0].ready)})
      add(word);
    if (rank.host_waits == UINT32_MAX) add(-1);
    else add_event(rank.host_waits, rank.host);
  }
  return true;
}

/// Carries everything as many times the stretch from `a` to `b` further as host threads find the same to do. False: never.
bool TimingRun::jump_in_step(const Moment& a, const Moment& b) {
  std::size_t times = SIZE_MAX;
  for (std::size_t r = 0; r < classes() && times > 0; ++r) times = std::min(times, strides_of_same_calls(r, a, b));
  std::vector<Strides> strides(times == 0 ? 0 : classes());
  std::vector<std::size_t> events;   // before any stride was gone through
  for (std::size_t r = 0; r < classes(); ++r) events.push_back(ranks_[r].events.size());
  for (std::size_t r = 0; times > 0 && r < classes();) {
    std::optional<Strides> one = use_events(r, a, b, times);
    if (one && one->times == times) {
      strides[r++] = std::move(*one);
      continue;
    }
    // Fewer than hoped for: all from the beginning, with so many.
    times = one ? one->times : 0;
    for (r = 0; r < classes(); ++r) ranks_[r].events.resize(events[r]);
    r = 0;
  }
  if (times == 0) return false;
  const auto n = static_cast<std::int64_t>(times), passed = b.time - a.time, by = n * passed;
  for (std::size_t r = 0; r < classes(); ++r) {
    RankState& rank = ranks_[r];
    const std::size_t stride = b.ranks[r].call - a.ranks[r].call, began = b.ranks[r].position > 0 ? 1 : 0;
    for (std::size_t c = b.ranks[r].call + began; c < b.ranks[r].call + began + times * stride; ++c) rank.result.call_host[c] = rank.result.call_host[c - stride] + passed;
    rank.slot_event = std::move(strides[r].slot_event);
    rank.call += times * stride;
    rank.host += by;
    const auto move_item = [&](Item& item) {
      item.issue += by;
      item.call += static_cast<std::uint32_t>(times * stride);
      if (item.whole || item.op != Opcode::wait || rank.events[item.index].time == kUnset) return;
      rank.events.push_back(later(rank.events[item.index], by));
      item.index = static_cast<std::uint32_t>(rank.events.size() - 1);
    };
    for (StreamState& s : rank.streams) {
      std::for_each(s.opened.begin() + static_cast<std::ptrdiff_t>(s.opened_head), s.opened.end(), move_item);
      std::for_each(s.fifo.begin() + static_cast<std::ptrdiff_t>(s.head), s.fifo.end(), move_item);
    }
    move_on(r, a, b, times);
    uses_[r].clear();
  }
  instructions_ += n * (b.instructions - a.instructions);
  replayed_ += n * (b.replayed - a.replayed);
  again_ += n;
  for (std::size_t r = 0; r < classes(); ++r) set_next(r, next(r));
  return true;
}

/// How many strides after `b` a rank has the same blocks to call, 0 where it does not stand as it stood at `a`.
std::size_t TimingRun::strides_of_same_calls(std::size_t r, const Moment& a, const Moment& b) const {
  const Moment::Rank &was = a.ranks[r], &is = b.ranks[r];
  if (is.call <= was.call || was.host_works != is.host_works) return 0;   // waits for a host at work are told by when it was
  for (std::size_t k = 0; k < is.streams.size(); ++k) {
    if (!goes_on(r, k, a, b)) return 0;
    // A host that waits for all streams may find this one last: it is not, if that has been past before.
    if (is.streams[k].head == was.streams[k].head && is.streams[k].ready > was.host) return 0;
  }
  const auto& calls = program(r).step;
  const std::size_t stride = is.call - was.call;
  std::size_t same = 0;
  while (is.call + same + 1 < calls.size() && calls[is.call + same + 1].block == calls[was.call + same + 1].block) ++same;
  return same / stride;
}

/// Goes through the events of up to `times` strides after `b`. Nothing: an example of an event is missing.
std::optional<TimingRun::Strides> TimingRun::use_events(std::size_t r, const Moment& a, const Moment& b, std::size_t times) {
  RankState& rank = ranks_[r];
  const std::vector<EventUse>& all = uses_[r];
  const std::size_t from = a.ranks[r].uses, count = b.ranks[r].uses - from, stride = b.ranks[r].call - a.ranks[r].call;
  const std::int64_t passed = b.time - a.time;
  const auto& calls = program(r).step;
  const auto slot_of = [&](const EventUse& use, std::size_t strides) { return calls[use.call + strides * stride].frames[static_cast<std::size_t>(use.frame)] + use.slot; };
  const auto give = [&](std::vector<std::uint32_t>& slots, std::uint32_t slot, const Event& event) {
    rank.events.push_back(event);
    return slots[slot] = static_cast<std::uint32_t>(rank.events.size() - 1);
  };

  Strides out{.times = times, .slot_event = rank.slot_event};
  const auto same_use = [&](std::size_t i, std::size_t strides_ago) {
    if (from + i < strides_ago * count) return false;
    const EventUse &before = all[from + i - strides_ago * count], &use = all[from + i];
    return before.kind == use.kind && before.stream == use.stream && before.frame == use.frame && before.slot == use.slot && before.call + strides_ago * stride == use.call;
  };
  // The events of the stretch from a to b. Of one that is still to come, the latest that has come is the example: from the
  // first such one on, uses must be the same a stride ago, and so on for as many strides.
  std::vector<Event> examples(count);
  std::vector<std::uint8_t> ago(count, 0);
  std::size_t most_ago = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const EventUse& use = all[from + i];
    for (std::size_t k = 1; k <= most_ago; ++k)
      if (!same_use(i, k)) return std::nullopt;
    if (use.event == UINT32_MAX) continue;
    examples[i] = rank.events[use.event];
    for (std::size_t k = 1; examples[i].time == kUnset; ++k) {
      if (k > kToCome || !same_use(i, k) || all[from + i - k * count].event == UINT32_MAX) return std::nullopt;
      if (const Event& event = rank.events[all[from + i - k * count].event]; event.time != kUnset) examples[i] = later(event, static_cast<std::int64_t>(k) * passed);
      ago[i] = static_cast<std::uint8_t>(k);
    }
    most_ago = std::max<std::size_t>(most_ago, ago[i]);
    if (use.kind != EventUse::Kind::record) continue;
    for (std::size_t k = 0; k < ago[i]; ++k) {   // by then it has come
      const EventUse& before = all[from + i - k * count];
      if (out.slot_event[slot_of(before, 0)] == before.event) give(out.slot_event, slot_of(before, 0), later(examples[i], -static_cast<std::int64_t>(k) * passed));
    }
  }
  const auto finds = [&](std::size_t i, std::uint32_t found, std::int64_t by) {
    const EventUse& use = all[from + i];
    if (use.event == UINT32_MAX || found == UINT32_MAX) return use.event == found;
    const Event &event = rank.events[found], example = later(examples[i], by);
    if (event.time == kUnset) return false;
    const std::int64_t past = use.kind == EventUse::Kind::host_wait ? a.ranks[r].host : a.ranks[r].streams[static_cast<std::size_t>(use.stream)].ready;
    if (event.time <= past + by && example.time <= past + by) return true;
    return event.time == example.time && event.cause == example.cause && event.issued == example.issued && event.met == example.met;
  };
  std::vector<std::array<std::uint32_t, kToCome>> given(count);   // events of the last strides
  for (std::size_t j = 1; j <= times; ++j)
    for (std::size_t i = 0; i < count; ++i) {
      const EventUse& use = all[from + i];
      const std::int64_t by = static_cast<std::int64_t>(j) * passed;
      if (use.kind == EventUse::Kind::record) {
        given[i][j % kToCome] = give(out.slot_event, slot_of(use, j), later(examples[i], by));
      } else if (!finds(i, out.slot_event[slot_of(use, j)], by)) {
        out.times = j - 1;
        return out;
      }
    }
  // What is still to come in the queues is still to come.
  if (times < most_ago) out.times = 0;
  for (std::size_t i = 0; i < count && out.times > 0; ++i)
    for (std::size_t k = 0; all[from + i].kind == EventUse::Kind::record && k < ago[i]; ++k)
      if (std::uint32_t& event = out.slot_event[slot_of(all[from + i], times - k)]; event == given[i][(times - k) % kToCome]) event = all[from + i - k * count].event;
  return out;
}

}  // namespace rehearse::executor
