#include "reference_allocator.h"

#include <algorithm>

namespace rehearse::hwmodels::test {

std::int64_t ReferenceAllocator::round(std::int64_t bytes) const {
  if (bytes < 512) return 512;
  std::size_t interval = 0;  // 0: below 2 MiB, 1: below 4 MiB, ...
  while (interval < 15 && bytes >= (2 * kMi) << interval) ++interval;
  const std::int64_t divisions = settings_.roundup_power2_divisions[interval];
  if (divisions <= 1 || bytes <= 512 * divisions) return up(bytes, 512);
  std::int64_t power = 1;
  while (power * 2 <= bytes) power *= 2;
  std::int64_t size = power;
  while (size < bytes) size += power / divisions;
  return size;
}

bool ReferenceAllocator::first_of_segment(Blocks::iterator b) const {
  return b == blocks_.begin() || std::prev(b)->second.segment != b->second.segment;
}
bool ReferenceAllocator::last_of_segment(Blocks::iterator b) const {
  return std::next(b) == blocks_.end() || std::next(b)->second.segment != b->second.segment;
}

// inactive_split: the free blocks of segments that are not one single block. Counted by taking a whole
// segment's share away before an operation on it and adding it again afterwards.
void ReferenceAllocator::account_segment(int segment, int sign) {
  if (segments_.at(segment).expandable) return;
  if (sign < 0) pending_split_bytes_ = pending_splits_ = 0;
  auto b = blocks_.lower_bound(segments_.at(segment).base);
  if (!alone(b)) {
    for (; b != blocks_.end() && b->second.segment == segment; ++b) {
      if (b->second.state != State::free) continue;
      pending_split_bytes_ += sign * b->second.size;
      pending_splits_ += sign;
    }
  }
  if (sign > 0) {
    statistics.inactive_split_bytes.add(Bytes{pending_split_bytes_});
    statistics.inactive_splits.add(pending_splits_);
  }
}

void ReferenceAllocator::make_free(Blocks::iterator b) {
  b->second.state = State::free;
  b->second.requested = 0;
  b->second.born = searches_[segments_.at(b->second.segment).pool.small];
  free_.insert(key(b));
}

// Joins b with neighbours of the same segment and state; free ones leave the free set. b itself is not in the
// set.
ReferenceAllocator::Blocks::iterator ReferenceAllocator::merge(Blocks::iterator b) {
  if (!last_of_segment(b) && std::next(b)->second.state == b->second.state) {
    free_.erase(key(std::next(b)));
    b->second.size += std::next(b)->second.size;
    blocks_.erase(std::next(b));
  }
  if (!first_of_segment(b) && std::prev(b)->second.state == b->second.state) {
    const auto left = std::prev(b);
    free_.erase(key(left));
    left->second.size += b->second.size;
    blocks_.erase(b);
    return left;
  }
  return b;
}

// b keeps the first `size` bytes; returns the rest, of the same state. Neither is put into the free set.
ReferenceAllocator::Blocks::iterator ReferenceAllocator::split(Blocks::iterator b, std::int64_t size) {
  Block rest = b->second;
  rest.size -= size;
  b->second.size = size;
  return blocks_.emplace(b->first + static_cast<std::uint64_t>(size), rest).first;
}

ReferenceAllocator::Blocks::iterator ReferenceAllocator::find_fit(PoolKey pool, std::int64_t size) {
  auto it = free_.lower_bound(FreeKey{pool, size, 0});
  const auto in_pool = [&](auto i) { return i != free_.end() && std::get<0>(*i) == pool; };
  if (!in_pool(it)) return blocks_.end();
  const auto block_of = [&](auto i) { return blocks_.find(std::get<2>(*i)); };
  if (settings_.expandable_segments) {
    const auto expandable_size = [&](Blocks::iterator b) {
      std::int64_t n = b->second.size;
      if (!last_of_segment(b) && std::next(b)->second.state == State::unmapped)
        n += std::next(b)->second.size;
      return n;
    };
    while (in_pool(std::next(it)) && expandable_size(block_of(std::next(it))) < expandable_size(block_of(it)))
      ++it;
  }
  const std::int64_t found = std::get<1>(*it);
  if (size < max_split() && found >= max_split()) return blocks_.end();
  if (size >= max_split() && found >= size + settings_.max_non_split_rounding.value) return blocks_.end();
  const auto b = block_of(it);
  free_.erase(it);
  return b;
}

std::optional<std::uint64_t> ReferenceAllocator::allocate(std::int64_t bytes, int stream) {
  for (auto& [s, queue] : events_) {
    while (!queue.empty() && queue.front().first <= completed_[s]) {
      const std::uint64_t address = queue.front().second;
      queue.erase(queue.begin());
      if (--blocks_.at(address).events == 0) finish_free(address);
    }
  }
  const std::int64_t size = round(bytes);
  const PoolKey pool{stream, size <= kMi};
  const bool gc = settings_.memory_fraction && settings_.garbage_collection_threshold > 0;
  if (gc) ++searches_[pool.small];
  auto b = find_fit(pool, size);
  if (b == blocks_.end()) {
    const std::int64_t segment = size <= kMi       ? 2 * kMi
                                 : size < 10 * kMi ? settings_.large_segment_size.value
                                                   : up(size, 2 * kMi);
    if (gc) garbage_collect();
    b = new_block(pool, size, segment);
    if (b == blocks_.end() && release_oversize(pool, size)) b = new_block(pool, size, segment);
    if (b == blocks_.end()) {
      empty_cache();
      ++statistics.retries;
      b = new_block(pool, size, segment);
    }
    if (b == blocks_.end()) {
      ++statistics.ooms;
      return std::nullopt;
    }
  }
  free_.insert(key(b));  // taken out again below; here so that the segment's share is counted with it
  account_segment(b->second.segment, -1);
  free_.erase(key(b));
  const std::int64_t rest = b->second.size - size;
  if (pool.small || settings_.expandable_segments ? rest >= 512 : (size < max_split() && rest > kMi)) {
    make_free(split(b, size));
  }
  b->second.state = State::allocated;
  b->second.requested = bytes;
  account_segment(b->second.segment, +1);
  statistics.allocations.add(1);
  statistics.active_blocks.add(1);
  statistics.allocated_bytes.add(Bytes{b->second.size});
  statistics.active_bytes.add(Bytes{b->second.size});
  statistics.requested_bytes.add(Bytes{bytes});
  return b->first;
}

std::uint64_t ReferenceAllocator::free(std::uint64_t address) {
  Block& b = blocks_.at(address);
  statistics.allocations.subtract(1);
  statistics.allocated_bytes.subtract(Bytes{b.size});
  b.state = State::pending;
  if (b.streams.empty()) {
    finish_free(address);
    return 0;
  }
  ++token_;
  for (int stream : b.streams) {
    events_[stream].push_back({token_, address});
    ++b.events;
  }
  b.streams.clear();
  return token_;
}

void ReferenceAllocator::finish_free(std::uint64_t address) {
  auto b = blocks_.find(address);
  statistics.active_blocks.subtract(1);
  statistics.active_bytes.subtract(Bytes{b->second.size});
  statistics.requested_bytes.subtract(Bytes{b->second.requested});
  const int segment = b->second.segment;
  account_segment(segment, -1);
  b->second.state = State::free;
  make_free(merge(b));
  account_segment(segment, +1);
}

void ReferenceAllocator::record_stream(std::uint64_t address, int stream) {
  Block& b = blocks_.at(address);
  if (segments_.at(b.segment).pool.stream != stream) b.streams.insert(stream);
}

void ReferenceAllocator::complete_events(int stream, std::uint64_t token) {
  completed_[stream] = std::max(completed_[stream], token);
}

void ReferenceAllocator::reset_peak() {
  const auto reset = [](auto& gauge) { gauge.peak = gauge.current; };
  reset(statistics.allocated_bytes), reset(statistics.active_bytes), reset(statistics.reserved_bytes);
  reset(statistics.inactive_split_bytes), reset(statistics.requested_bytes), reset(statistics.allocations);
  reset(statistics.active_blocks), reset(statistics.inactive_splits), reset(statistics.segments);
}

}  // namespace rehearse::hwmodels::test
