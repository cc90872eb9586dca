// The usual case of the caching allocator, for whoever makes millions of requests: a cached block serves and nobody looks
// (CachingAllocator::take, put_back, lend, has_room), and the steps that it shares with the others. Leaves out the rest.
#pragma once

#include <algorithm>

#include "hwmodels/memory/caching_allocator.h"

namespace rehearse::hwmodels {

/// Cuts the first `size` bytes off a free block into a new record; the given record keeps the rest. Lists are
/// the caller's.
inline std::uint32_t CachingAllocator::cut(std::uint32_t index, std::int64_t size) {
  const std::uint32_t front = new_record();
  Block& rest = blocks_[index];
  Block& block = blocks_[front];
  block.address = rest.address;
  block.size = size;
  block.previous = rest.previous;
  block.next = index;
  block.pool = rest.pool;
  block.range = rest.range;
  blocks_[block.previous].next = front;
  rest.previous = front;
  rest.address += static_cast<std::uint64_t>(size);
  rest.size -= size;
  return front;
}

/// `left` swallows its right neighbour, whose record is then unused. Lists are the caller's.
inline void CachingAllocator::merge_into_left(std::uint32_t left, std::uint32_t right) {
  Block& l = blocks_[left];
  const Block& r = blocks_[right];
  l.size += r.size;
  l.next = r.next;
  blocks_[l.next].previous = left;
  recycle(right);
}

/// A block becomes free, merges with free neighbours and joins the free list.
inline CachingAllocator::Joined CachingAllocator::join_neighbours(std::uint32_t index) {
  Block& freed = blocks_[index];
  freed.state = State::free;
  freed.requested = 0;
  FreeList& list = pools_[freed.pool].free;
  const std::uint32_t left = freed.previous, right = freed.next;
  const bool joins_left = blocks_[left].state == State::free;
  Joined out{.whole = index};
  if (const Block& r = blocks_[right]; r.state == State::free) {
    out.bytes += r.size;
    ++out.neighbours;
    list.erase(r.entry(right), r.size_hint);
    merge_into_left(index, right);
  }
  if (joins_left) {
    const Block& l = blocks_[left];
    out.bytes += l.size;
    ++out.neighbours;
    list.erase(l.entry(left), l.size_hint);
    merge_into_left(left, index);
    out.whole = left;
  }
  Block& whole = blocks_[out.whole];
  whole.size_hint = list.insert(whole.entry(out.whole), whole.size_hint);
  return out;
}

inline CachingAllocator::Taken CachingAllocator::take(Prepared& request) {
  if (!quick_ || events_completed_) [[unlikely]] return {};
  FreeList& list = pools_[request.pool].free;
  const FreeList::Place place = list.first_fit(request.size, request.asked);
  if (place == list.end()) [[unlikely]] return {};
  std::uint32_t index = list.at(place).block();
  if (can_grow(index)) return {};
  list.erase_lowest(place.size_class);
  if (blocks_[index].size - request.size >= request.least_rest) {
    const std::uint32_t rest = index;
    index = cut(rest, request.size);
    blocks_[index].size_hint = request.asked;
    Block& left_over = blocks_[rest];
    left_over.size_hint = request.rest = list.insert(left_over.entry(rest), request.rest);
  }
  Block& block = blocks_[index];
  block.state = State::allocated;
  block.requested = request.bytes;
  block.other_streams = 0;
  statistics_.allocated_bytes.add(Bytes{block.size});
  return {{index, ++block.generation}, block.address};
}

inline bool CachingAllocator::put_back(BlockId id) {
  const Block& block = checked(id);
  if (!quick_ || block.other_streams != 0) [[unlikely]] return false;
  statistics_.allocated_bytes.subtract(Bytes{block.size});
  join_neighbours(id.index);
  return true;
}

inline CachingAllocator::Loan CachingAllocator::lend(Prepared& request) {
  if (!quick_ || events_completed_) [[unlikely]] return {};
  const FreeList& list = pools_[request.pool].free;
  const FreeList::Place place = list.first_fit(request.size, request.asked);
  if (place == list.end()) return {};
  const std::uint32_t index = list.at(place).block();
  if (can_grow(index)) return {};
  const Block& block = blocks_[index];
  const std::int64_t lent = block.size - request.size >= request.least_rest ? request.size : block.size;
  Gauge<Bytes>& allocated = statistics_.allocated_bytes;
  allocated.peak = std::max(allocated.peak, allocated.current + Bytes{lent});
  return {block.address, lent};
}

inline bool CachingAllocator::has_room(const Prepared& any_of_its_pool, std::int64_t bytes) const {
  return quick_ && !events_completed_ && pools_[any_of_its_pool.pool].free.largest() >= bytes + any_of_its_pool.least_rest;
}

}  // namespace rehearse::hwmodels
