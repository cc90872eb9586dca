// When running activities end: an indexed 4-ary heap of (time, start sequence) by activity slot.
// Leaves out what a finishing time is worth: the owner may keep one too early and correct it at the top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rehearse::engine {

class FinishHeap {
 public:
  /// Start sequence above, slot below: ties fire in the order of starting.
  static constexpr int kSlotBits = 24;
  struct Entry {
    std::int64_t time;
    std::uint64_t order;
    std::uint32_t slot() const { return static_cast<std::uint32_t>(order & ((1ULL << kSlotBits) - 1)); }
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.time != b.time ? a.time < b.time : a.order < b.order;
    }
  };

  bool empty() const { return heap_.empty(); }
  const Entry& top() const { return heap_.front(); }
  std::int64_t time_of(std::uint32_t slot) const { return heap_[where_[slot]].time; }

  /// Preconditions: slot < 2^24 and not inside; sequence < 2^40.
  void insert(std::int64_t time, std::uint64_t sequence, std::uint32_t slot) {
    if (slot >= where_.size()) where_.resize(slot + 1);
    heap_.push_back({time, (sequence << kSlotBits) | slot});
    sift_up(heap_.size() - 1, heap_.back());
  }

  /// Precondition: `time` is not later than the slot's present one.
  void move_earlier(std::uint32_t slot, std::int64_t time) {
    const std::size_t i = where_[slot];
    sift_up(i, {time, heap_[i].order});
  }

  /// Precondition: `time` is not earlier than the top's present one.
  void move_top_later(std::int64_t time) { sift_down({time, heap_.front().order}); }

  void pop() {
    const Entry last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sift_down(last);
  }

 private:
  void put(std::size_t i, const Entry& entry) {
    heap_[i] = entry;
    where_[entry.slot()] = static_cast<std::uint32_t>(i);
  }
  void sift_up(std::size_t i, const Entry entry) {
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (!(entry < heap_[parent])) break;
      put(i, heap_[parent]);
      i = parent;
    }
    put(i, entry);
  }
  void sift_down(const Entry entry) {
    const std::size_t n = heap_.size();
    std::size_t i = 0;
    for (std::size_t c = 1; c < n; c = 4 * i + 1) {
      const std::size_t end = c + 4 < n ? c + 4 : n;
      std::size_t best = c;
      for (++c; c < end; ++c)
        if (heap_[c] < heap_[best]) best = c;
      if (!(heap_[best] < entry)) break;
      put(i, heap_[best]);
      i = best;
    }
    put(i, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> where_;  // by slot: index into heap_
};

}  // namespace rehearse::engine
