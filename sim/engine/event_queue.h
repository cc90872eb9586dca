// What happens next: a priority queue of (time, phase, insertion order) -> payload, with every tie pinned.
// Leaves out what a payload means, and cancelling an event (its owner ignores it when it comes out).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/contract.h"
#include "sim/core/units.h"

namespace rehearse::engine {

/// Order of events at the same instant; smaller first. Append only with a reason.
enum class Phase : std::uint8_t {
  completion,  // first: what ends at t frees its resources for whatever starts at t
  arrival,     // then members reach their collectives and flows their links, so one re-share serves them all
  stream,      // then streams look for their next operation, seeing all ends and arrivals of this instant
  host,        // last: the host thread polls events, and must see all that the devices did up to t
};

/// 4-ary heap of 24-byte entries: half the levels of a binary heap, four children within two cache lines.
/// push and pop are O(log n); nothing allocates once the vector has grown.
class EventQueue {
 public:
  struct Event {
    TimePoint time;
    Phase phase;
    std::uint64_t payload;
  };

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  void reserve(std::size_t events) { heap_.reserve(events); }

  /// Precondition: fewer than 2^56 events over the life of the queue.
  void push(TimePoint time, Phase phase, std::uint64_t payload) {
    const std::uint64_t order = (static_cast<std::uint64_t>(phase) << 56) | next_++;
    const Entry entry{time.time_since_epoch().count(), order, payload};
    heap_.push_back(entry);
    sift_up(heap_.size() - 1, entry);
  }

  /// Precondition of both: not empty.
  Event top() const { return event_of(heap_.front()); }
  Event pop() {
    EXPECTS(!heap_.empty());
    const Event out = event_of(heap_.front());
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sift_down(last);
    return out;
  }

 private:
  struct Entry {
    std::int64_t time;
    std::uint64_t order;  // phase in the top byte, then insertion order
    std::uint64_t payload;
  };

  static bool before(const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time < b.time : a.order < b.order;
  }
  static Event event_of(const Entry& e) {
    return {TimePoint{Duration{e.time}}, static_cast<Phase>(e.order >> 56), e.payload};
  }

  void sift_up(std::size_t i, const Entry& entry) {
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (!before(entry, heap_[parent])) break;
      heap_[i] = heap_[parent];
      i = parent;
    }
    heap_[i] = entry;
  }

  // The hole goes down to a leaf first and `entry` climbs from there: it came from a leaf, so it rarely
  // climbs far, and the way down needs no comparison with it.
  void sift_down(const Entry& entry) {
    const std::size_t n = heap_.size();
    std::size_t i = 0;
    while (4 * i + 4 < n) {
      const std::size_t c = 4 * i + 1;
      const std::size_t left = before(heap_[c + 1], heap_[c]) ? c + 1 : c;
      const std::size_t right = before(heap_[c + 3], heap_[c + 2]) ? c + 3 : c + 2;
      const std::size_t best = before(heap_[right], heap_[left]) ? right : left;
      heap_[i] = heap_[best];
      i = best;
    }
    if (std::size_t c = 4 * i + 1; c < n) {
      std::size_t best = c;
      for (++c; c < n; ++c)
        if (before(heap_[c], heap_[best])) best = c;
      heap_[i] = heap_[best];
      i = best;
    }
    sift_up(i, entry);
  }

  std::vector<Entry> heap_;
  std::uint64_t next_ = 0;
};

}  // namespace rehearse::engine
