// The reference allocator's dealings with the device: segments, pages, giving back.
#include <algorithm>

#include "reference_allocator.h"

namespace rehearse::hwmodels::test {

ReferenceAllocator::Blocks::iterator ReferenceAllocator::new_block(PoolKey pool, std::int64_t size,
                                                                   std::int64_t segment_bytes) {
  const std::int64_t reserved = statistics.reserved_bytes.current.value;
  if (settings_.memory_fraction) {
    const auto most = static_cast<std::int64_t>(*settings_.memory_fraction * static_cast<double>(total()));
    if (reserved + segment_bytes > most) return blocks_.end();
  }
  if (settings_.expandable_segments) return expand(pool, size);
  if (reserved + segment_bytes > settings_.limit.value) return blocks_.end();
  const int id = next_segment_++;
  const std::uint64_t address = next_address_;
  next_address_ += static_cast<std::uint64_t>(up(segment_bytes, 2 * kMi));
  segments_[id] = {pool, false, address, 0};
  statistics.reserved_bytes.add(Bytes{segment_bytes});
  statistics.segments.add(1);
  ++statistics.device_allocs;
  return blocks_.emplace(address, Block{.size = segment_bytes, .segment = id}).first;
}

ReferenceAllocator::Blocks::iterator ReferenceAllocator::expand(PoolKey pool, std::int64_t size) {
  // The lowest run of free and unmapped blocks, with an unmapped one first or second, that has room for the
  // request.
  const auto usable = [](Blocks::iterator b) {
    return b->second.state == State::free || b->second.state == State::unmapped;
  };
  auto start = blocks_.end();
  for (auto b = blocks_.begin(); b != blocks_.end(); ++b) {
    if (b->second.state != State::unmapped || segments_.at(b->second.segment).pool != pool) continue;
    auto from = !first_of_segment(b) && usable(std::prev(b)) ? std::prev(b) : b;
    std::int64_t room = 0;
    for (auto c = from;
         room < size && c != blocks_.end() && c->second.segment == b->second.segment && usable(c); ++c) {
      room += c->second.size;
    }
    if (room >= size) {
      start = from;
      break;
    }
  }
  if (start == blocks_.end()) {
    const std::int64_t page = pool.small ? 2 * kMi : settings_.large_segment_size.value;
    const std::int64_t range = up(total() + total() / 8, page);
    const int id = next_segment_++;
    segments_[id] = {pool, true, next_address_, page};
    start =
        blocks_.emplace(next_address_, Block{.size = range, .segment = id, .state = State::unmapped}).first;
    next_address_ += static_cast<std::uint64_t>(up(range, 2 * kMi));
  }
  if (start->second.state == State::unmapped) start = map(start, std::min(start->second.size, size));
  while (start != blocks_.end() && start->second.size < size) {
    const auto behind = std::next(start);
    start = map(behind, std::min(behind->second.size, size - start->second.size));
  }
  if (start != blocks_.end()) free_.erase(key(start));
  return start;
}

ReferenceAllocator::Blocks::iterator ReferenceAllocator::map(Blocks::iterator b, std::int64_t size) {
  size = up(size, segments_.at(b->second.segment).page);
  if (statistics.reserved_bytes.current.value + size > settings_.limit.value) return blocks_.end();
  if (size < b->second.size) split(b, size);
  b->second.state = State::free;
  b = merge(b);
  make_free(b);
  statistics.reserved_bytes.add(Bytes{size});
  ++statistics.device_allocs;
  return b;
}

void ReferenceAllocator::unmap(std::uint64_t address) {
  auto b = blocks_.find(address);
  const Segment segment = segments_.at(b->second.segment);
  const auto offset = static_cast<std::int64_t>(address - segment.base);
  const std::int64_t begin = up(offset, segment.page) - offset;
  const std::int64_t end = (offset + b->second.size) / segment.page * segment.page - offset;
  if (begin >= end) return;
  free_.erase(key(b));
  if (end < b->second.size) make_free(split(b, end));
  if (begin > 0) {
    const auto front = b;
    b = split(b, begin);
    make_free(front);
  }
  b->second.state = State::unmapped;
  b = merge(b);
  statistics.reserved_bytes.subtract(Bytes{end - begin});
  ++statistics.device_frees;
  if (alone(b)) {
    segments_.erase(b->second.segment);
    blocks_.erase(b);
  }
}

void ReferenceAllocator::release(Blocks::iterator b) {
  free_.erase(key(b));
  statistics.reserved_bytes.subtract(Bytes{b->second.size});
  statistics.segments.subtract(1);
  ++statistics.device_frees;
  segments_.erase(b->second.segment);
  blocks_.erase(b);
}

bool ReferenceAllocator::release_oversize(PoolKey pool, std::int64_t size) {
  if (!settings_.max_split_size || settings_.expandable_segments) return false;
  const std::int64_t wanted = std::max(size, max_split());
  const auto fit = free_.lower_bound(FreeKey{pool, wanted, 0});
  if (fit != free_.end() && std::get<0>(*fit) == pool) {
    release(blocks_.find(std::get<2>(*fit)));
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted) {
    auto largest = free_.lower_bound(FreeKey{pool, INT64_MAX, 0});
    if (largest == free_.begin()) break;
    --largest;
    if (std::get<0>(*largest) != pool || std::get<1>(*largest) < max_split()) break;
    released += std::get<1>(*largest);
    release(blocks_.find(std::get<2>(*largest)));
  }
  return released >= wanted;
}

void ReferenceAllocator::empty_cache() {
  ++statistics.synchronizations;
  for (auto& [stream, queue] : events_) {
    for (const auto& [token, address] : queue) {
      if (--blocks_.at(address).events == 0) finish_free(address);
    }
    queue.clear();
  }
  const std::set<FreeKey> all = free_;
  for (const auto& [pool, size, address] : all) {
    const auto b = blocks_.find(address);
    if (segments_.at(b->second.segment).expandable) {
      unmap(address);
    } else if (alone(b)) {
      release(b);
    }
  }
}

std::int64_t ReferenceAllocator::age(Blocks::iterator b) { return searches_[false] - b->second.born; }

void ReferenceAllocator::garbage_collect() {
  const auto most = static_cast<std::int64_t>(*settings_.memory_fraction * static_cast<double>(total()));
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * static_cast<double>(most));
  if (statistics.reserved_bytes.current.value <= threshold) return;
  const std::int64_t excess = statistics.reserved_bytes.current.value - threshold;
  std::vector<std::uint64_t> freeable;
  std::int64_t reclaimed = 0;
  do {
    freeable.clear();
    std::int64_t ages = 0;
    for (const auto& [pool, size, address] : free_) {
      const auto b = blocks_.find(address);
      if (pool.small || !alone(b) || segments_.at(b->second.segment).expandable) continue;
      freeable.push_back(address);
      ages += age(b);
    }
    for (std::uint64_t address : freeable) {
      const auto b = blocks_.find(address);
      if (static_cast<double>(age(b)) < static_cast<double>(ages) / static_cast<double>(freeable.size()))
        continue;
      reclaimed += b->second.size;
      release(b);
    }
  } while (reclaimed < excess && !freeable.empty());
}

}  // namespace rehearse::hwmodels::test
