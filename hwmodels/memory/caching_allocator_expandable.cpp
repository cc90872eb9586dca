// Expandable segments: one virtual address range per pool and stream, whose pages are mapped as it grows and
// unmapped again when the cache is given back.
#include <algorithm>

#include "hwmodels/memory/caching_allocator_quick.h"

namespace rehearse::hwmodels {
namespace {

constexpr std::int64_t kSmallPage = 2 << 20;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

void CachingAllocator::add_unmapped(std::uint32_t index) {
  std::vector<std::uint32_t>& list = pools_[blocks_[index].pool].unmapped;
  const auto below = [this](std::uint32_t a, std::uint32_t b) {
    return blocks_[a].address < blocks_[b].address;
  };
  list.insert(std::lower_bound(list.begin(), list.end(), index, below), index);
}

void CachingAllocator::remove_unmapped(std::uint32_t index) {
  std::vector<std::uint32_t>& list = pools_[blocks_[index].pool].unmapped;
  list.erase(std::find(list.begin(), list.end(), index));
}

/// The lowest place where free and unmapped neighbours together have room; a new range if there is none.
std::uint32_t CachingAllocator::expandable_candidate(const Request& request) {
  const auto usable = [this](std::uint32_t index) {
    return blocks_[index].state == State::free || blocks_[index].state == State::unmapped;
  };
  for (std::uint32_t start : pools_[request.pool].unmapped) {
    if (usable(blocks_[start].previous)) start = blocks_[start].previous;
    std::int64_t room = 0;
    for (std::uint32_t b = start; room < request.size && usable(b); b = blocks_[b].next)
      room += blocks_[b].size;
    if (room >= request.size) return start;
  }
  // An eighth more addresses than memory: pages may have to move to the end when earlier ones were unmapped.
  const std::int64_t total = settings_.device_total.value_or(settings_.limit).value;
  const std::int64_t page = is_small(request.pool) ? kSmallPage : settings_.large_segment_size.value;
  const std::int64_t size = round_up(total + total / 8, page);
  ranges_.push_back({take_addresses(size), size, page});

  const std::uint32_t index = new_record();
  Block& block = blocks_[index];
  block.address = ranges_.back().address;
  block.size = size;
  block.previous = block.next = 0;
  block.pool = request.pool;
  block.range = static_cast<std::uint32_t>(ranges_.size());
  block.state = State::unmapped;
  add_unmapped(index);
  return index;
}

/// Backs the first `size` bytes of an unmapped block with pages. The free block that then contains them, or 0
/// when the device has too few left.
std::uint32_t CachingAllocator::map(std::uint32_t index, std::int64_t size) {
  const std::int64_t mapped = round_up(size, ranges_[blocks_[index].range - 1].page);
  if (statistics_.reserved_bytes.current.value + mapped > settings_.limit.value) return 0;
  remove_unmapped(index);
  const std::uint64_t address = blocks_[index].address;
  if (mapped < blocks_[index].size) {
    const std::uint32_t rest = index;
    index = cut(rest, mapped);
    add_unmapped(rest);
  }
  FreeList& list = pools_[blocks_[index].pool].free;
  const std::uint32_t right = blocks_[index].next;
  if (blocks_[right].state == State::free) {
    list.erase(list.find(blocks_[right].entry(right)));
    merge_into_left(index, right);
  }
  const std::uint32_t left = blocks_[index].previous;
  if (blocks_[left].state == State::free) {
    list.erase(list.find(blocks_[left].entry(left)));
    merge_into_left(left, index);
    index = left;
  }
  insert_free(index);
  statistics_.reserved_bytes.add(Bytes{mapped});
  ++statistics_.device_allocs;
  statistics_.taken += Bytes{mapped};
  tell(AllocatorAction::segment_map, address, mapped, blocks_[index].pool);
  return index;
}

std::uint32_t CachingAllocator::expand(const Request& request) {
  std::uint32_t index = expandable_candidate(request);
  if (blocks_[index].state == State::unmapped) {
    index = map(index, std::min(blocks_[index].size, request.size));
    if (index == 0) return 0;
  }
  while (blocks_[index].size < request.size) {  // free, with unmapped room behind it
    const std::uint32_t behind = blocks_[index].next;
    const std::int64_t missing = request.size - blocks_[index].size;
    index = map(behind, std::min(missing, blocks_[behind].size));
    if (index == 0) return 0;  // what was mapped so far stays in the cache
  }
  FreeList& list = pools_[request.pool].free;
  list.erase(list.find(blocks_[index].entry(index)));
  return index;
}

/// Gives back the whole pages inside a free block; the range itself once nothing of it is mapped.
void CachingAllocator::unmap(std::uint32_t index) {
  const ExpandableRange range = ranges_[blocks_[index].range - 1];
  const std::uint16_t pool = blocks_[index].pool;
  const auto offset = static_cast<std::int64_t>(blocks_[index].address - range.address);
  const std::int64_t begin = round_up(offset, range.page);
  const std::int64_t end = (offset + blocks_[index].size) / range.page * range.page;
  if (begin >= end) return;

  FreeList& list = pools_[pool].free;
  list.erase(list.find(blocks_[index].entry(index)));
  if (begin > offset) insert_free(cut(index, begin - offset));
  if (end - begin < blocks_[index].size) {
    const std::uint32_t after = index;
    index = cut(after, end - begin);
    insert_free(after);
  }
  blocks_[index].state = State::unmapped;
  const std::uint64_t address = blocks_[index].address;
  const std::uint32_t left = blocks_[index].previous;
  if (blocks_[left].state == State::unmapped) {
    remove_unmapped(left);
    merge_into_left(left, index);
    index = left;
  }
  const std::uint32_t right = blocks_[index].next;
  if (blocks_[right].state == State::unmapped) {
    remove_unmapped(right);
    merge_into_left(index, right);
  }
  statistics_.reserved_bytes.subtract(Bytes{end - begin});
  ++statistics_.device_frees;
  tell(AllocatorAction::segment_unmap, address, end - begin, pool);
  if (blocks_[index].is_split()) {
    add_unmapped(index);
  } else {
    recycle(index);  // ranges_ keeps its entry: other blocks hold indices into it
  }
}

}  // namespace rehearse::hwmodels
