// What the allocator does when no cached block fits: new segments, giving the cache back, garbage collection,
// failing.
#include <algorithm>

#include "hwmodels/memory/caching_allocator.h"

namespace rehearse::hwmodels {

/// A free block outside the lists that is large enough, or 0. The order of attempts is PyTorch's: ask the
/// device; give back just enough unsplittable blocks and ask again; give everything back and ask a last time.
std::uint32_t CachingAllocator::obtain(const Request& request) {
  if (collects_garbage_) collect_garbage();
  if (const std::uint32_t index = new_segment(request)) return index;
  if (release_oversize(request)) {
    if (const std::uint32_t index = new_segment(request)) return index;
  }
  release_cached();
  ++statistics_.retries;
  return new_segment(request);
}

std::int64_t CachingAllocator::allowed() const {
  if (!settings_.memory_fraction) return kUnlimited;
  return static_cast<std::int64_t>(
      *settings_.memory_fraction *
      static_cast<double>(settings_.device_total.value_or(settings_.limit).value));
}

std::uint32_t CachingAllocator::new_segment(const Request& request) {
  const std::int64_t reserved = statistics_.reserved_bytes.current.value;
  // The fraction is tested with the cudaMalloc size even for expandable segments, which would map less.
  if (settings_.memory_fraction && reserved + request.segment > allowed()) return 0;
  if (settings_.expandable_segments) return expand(request);
  if (reserved + request.segment > settings_.limit.value) return 0;

  const std::uint32_t index = new_record();
  Block& block = blocks_[index];
  block.address = take_addresses(request.segment);
  block.size = request.segment;
  block.previous = block.next = 0;
  block.range = 0;
  block.pool = request.pool;
  block.state = State::free;
  statistics_.segments.add(1);
  statistics_.reserved_bytes.add(Bytes{request.segment});
  ++statistics_.device_allocs;
  statistics_.taken += Bytes{request.segment};
  tell(AllocatorAction::segment_alloc, block.address, block.size, block.pool);
  return index;
}

/// Only with max_split_size: gives back one unsplittable block of this pool that is at least as large as the
/// request, or else several from the largest down. True if enough was given back for a new attempt to make
/// sense.
bool CachingAllocator::release_oversize(const Request& request) {
  if (max_split_size_ == kUnlimited || settings_.expandable_segments) return false;
  FreeList& list = pools_[request.pool].free;
  const std::int64_t wanted = std::max(request.size, max_split_size_);
  const FreeList::Place place = list.first_fit(wanted);
  if (place != list.end()) {
    release_segment(list.at(place).block());
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && !list.empty()) {
    const std::uint32_t largest = list.at(list.previous(list.end())).block();
    if (blocks_[largest].size < max_split_size_) break;
    released += blocks_[largest].size;
    release_segment(largest);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached() {
  synchronize_events();
  release_pools(/*small=*/false);
  release_pools(/*small=*/true);
}

void CachingAllocator::release_pools(bool small) {
  for (std::uint16_t pool = small ? 1 : 0; pool < pools_.size();
       pool = static_cast<std::uint16_t>(pool + 2)) {
    const FreeList& list = pools_[pool].free;
    std::vector<std::uint32_t> victims;
    for (FreeList::Place p = list.begin(); p != list.end(); p = list.next(p)) {
      const std::uint32_t index = list.at(p).block();
      if (blocks_[index].range != 0 || !blocks_[index].is_split()) victims.push_back(index);
    }
    for (std::uint32_t index : victims) {
      if (blocks_[index].range != 0) {
        unmap(index);
      } else {
        release_segment(index);
      }
    }
  }
}

void CachingAllocator::release_segment(std::uint32_t index) {
  const Block& block = blocks_[index];
  FreeList& list = pools_[block.pool].free;
  list.erase(list.find(block.entry(index)));
  ++statistics_.device_frees;
  statistics_.segments.subtract(1);
  statistics_.reserved_bytes.subtract(Bytes{block.size});
  tell(AllocatorAction::segment_free, block.address, block.size, block.pool);
  recycle(index);
}

void CachingAllocator::empty_cache() { release_cached(); }

/// Above the threshold, gives back unsplit large blocks that were not used for longer than the average of
/// those left, round after round until the excess is gone. Age counts searches of the large pool.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * static_cast<double>(allowed()));
  const std::int64_t excess = statistics_.reserved_bytes.current.value - threshold;
  if (excess <= 0) return;
  std::vector<std::uint32_t> candidates;
  std::int64_t total_age = 0;
  for (std::size_t pool = 0; pool < pools_.size(); pool += 2) {
    const FreeList& list = pools_[pool].free;
    for (FreeList::Place p = list.begin(); p != list.end(); p = list.next(p)) {
      const std::uint32_t index = list.at(p).block();
      if (blocks_[index].is_split() || blocks_[index].range != 0) continue;
      candidates.push_back(index);
      total_age += searches_[0] - blocks_[index].gc_base;
    }
  }
  std::int64_t reclaimed = 0;
  while (reclaimed < excess && !candidates.empty()) {
    const double average = static_cast<double>(total_age) / static_cast<double>(candidates.size());
    std::vector<std::uint32_t> younger;
    for (std::uint32_t index : candidates) {
      const std::int64_t age = searches_[0] - blocks_[index].gc_base;
      if (static_cast<double>(age) < average) {
        younger.push_back(index);
        continue;
      }
      reclaimed += blocks_[index].size;
      total_age -= age;
      release_segment(index);
    }
    candidates.swap(younger);
  }
}

const OutOfMemory* CachingAllocator::fail(Bytes asked, const Request& request) {
  ++statistics_.ooms;
  const std::int64_t reserved = statistics_.reserved_bytes.current.value;
  out_of_memory_ = {.asked = asked,
                    .segment = Bytes{request.segment},
                    .allocated = statistics_.allocated_bytes.current,
                    .reserved = Bytes{reserved},
                    .limit = Bytes{std::min(settings_.limit.value, allowed())},
                    .largest_free_block = largest_free_block(),
                    .stream = stream_of(request.pool)};
  tell(AllocatorAction::oom,
       static_cast<std::uint64_t>(std::max<std::int64_t>(settings_.limit.value - reserved, 0)), request.size,
       request.pool);
  return &out_of_memory_;
}

std::uint64_t CachingAllocator::take_addresses(std::int64_t size) {
  constexpr std::uint64_t kAlignment = 2 << 20;
  const std::uint64_t address = next_address_;
  next_address_ += (static_cast<std::uint64_t>(size) + kAlignment - 1) / kAlignment * kAlignment;
  return address;
}

}  // namespace rehearse::hwmodels
