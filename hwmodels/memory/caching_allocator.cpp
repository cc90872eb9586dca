#include "hwmodels/memory/caching_allocator.h"

#include <algorithm>
#include <bit>

#include "hwmodels/memory/caching_allocator_quick.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;
constexpr std::int64_t kGranule = 512;        // every block is a multiple
constexpr std::int64_t kSmallRequest = kMebibyte;  // largest request of the small pool
constexpr std::int64_t kSmallSegment = 2 * kMebibyte;
constexpr std::int64_t kLargeRequest = 10 * kMebibyte;  // from here a request gets a segment of its own
constexpr std::int64_t kSegmentRounding = 2 * kMebibyte;

// Looks like a CUDA address in snapshots; any multiple of 2 MiB would do.
constexpr std::uint64_t kFirstAddress = 0x7f0000000000;

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, StatisticsKept statistics)
    : settings_(settings), counts_all_(statistics == StatisticsKept::all), next_address_(kFirstAddress) {
  EXPECTS(settings.limit < 1024_GiB && settings.device_total.value_or(Bytes{}) < 1024_GiB);
  EXPECTS(settings.large_segment_size.value % kSegmentRounding == 0 && settings.large_segment_size >= 20_MiB);
  if (settings.max_split_size) max_split_size_ = settings.max_split_size->value;
  // Whole MiB, as the option is given; then no piece of a split segment can count as unsplittable.
  EXPECTS(max_split_size_ >= 20 * kMebibyte && (max_split_size_ == kUnlimited || max_split_size_ % kMebibyte == 0));
  for (std::int32_t divisions : settings.roundup_power2_divisions) {
    EXPECTS(divisions >= 0 && (divisions == 0 || std::has_single_bit(static_cast<std::uint32_t>(divisions))));
    rounds_to_divisions_ |= divisions > 1;
  }
  collects_garbage_ = settings.memory_fraction.has_value() && settings.garbage_collection_threshold > 0;
  takes_best_ = !settings.expandable_segments && max_split_size_ == kUnlimited;
  quick_ = !counts_all_ && !collects_garbage_ && max_split_size_ == kUnlimited;
  blocks_.resize(1);
}

Bytes CachingAllocator::round_size(Bytes bytes) const {
  const std::int64_t size = bytes.value;
  if (size < kGranule) return Bytes{kGranule};
  if (rounds_to_divisions_) [[unlikely]] {
    // One setting per power of two from 1 MiB on; smaller requests use the first, larger than 64 GiB the
    // last.
    const int magnitude = 63 - std::countl_zero(static_cast<std::uint64_t>(size));
    const std::int64_t divisions = settings_.roundup_power2_divisions[std::clamp(magnitude - 20, 0, 15)];
    if (divisions > 1 && size > kGranule * divisions) {
      const std::int64_t step = (std::int64_t{1} << magnitude) / divisions;
      return Bytes{(size + step - 1) / step * step};
    }
  }
  return Bytes{(size + kGranule - 1) & ~(kGranule - 1)};
}

Bytes CachingAllocator::segment_size(Bytes rounded) const {
  const std::int64_t size = rounded.value;
  if (size <= kSmallRequest) return Bytes{kSmallSegment};
  if (size < kLargeRequest) return settings_.large_segment_size;
  return Bytes{(size + kSegmentRounding - 1) / kSegmentRounding * kSegmentRounding};
}

bool CachingAllocator::splits(const Block& block, std::int64_t size) const {
  const std::int64_t remainder = block.size - size;
  if (is_small(block.pool) || settings_.expandable_segments) return remainder >= kGranule;
  return size < max_split_size_ && remainder > kSmallRequest;
}

FreeList::Place CachingAllocator::best_fit(std::uint16_t pool, std::int64_t size, FreeList::SizeHint& hint) const {
  const FreeList& list = pools_[pool].free;
  FreeList::Place place = list.first_fit(size, hint);
  if (takes_best_ || place == list.end()) return place;
  // A block that can grow counts with the room behind it, so a closed gap is used up first. One that cannot is the best:
  // all behind it in the list are at least as large.
  if (can_grow(list.at(place).block())) {
    const auto expandable_size = [this](std::uint32_t index) {
      const Block& block = blocks_[index];
      const Block& next = blocks_[block.next];
      return block.size + (next.state == State::unmapped ? next.size : 0);
    };
    for (FreeList::Place next = list.next(place);
         next != list.end() &&
         expandable_size(list.at(next).block()) < expandable_size(list.at(place).block());
         next = list.next(next)) {
      place = next;
    }
  }
  const std::int64_t found = list.at(place).size();
  if (size < max_split_size_) return found >= max_split_size_ ? list.end() : place;
  return found >= size + settings_.max_non_split_rounding.value ? list.end() : place;
}

Allocation CachingAllocator::allocate(Bytes bytes, StreamId stream) {
  EXPECTS(bytes.value >= 0 && stream.value < kMaxStreams);
  if (events_completed_) process_events();
  if (bytes.value == 0) return {};

  const std::int64_t size = round_size(bytes).value;
  const bool small = size <= kSmallRequest;
  const std::uint16_t pool = pool_of(stream, small);
  if (pool >= pools_.size()) pools_.resize((pool | 1) + 1);
  searches_[small] += collects_garbage_;

  FreeList& list = pools_[pool].free;
  FreeList::SizeHint hint = FreeList::kNone;
  const FreeList::Place place = best_fit(pool, size, hint);
  std::uint32_t index;
  bool was_split;
  std::int64_t remainder = 0;
  if (place != list.end()) [[likely]] {
    index = list.at(place).block();
    list.erase(place);
    was_split = counts_all_ && blocks_[index].is_split();
    if (splits(blocks_[index], size)) {
      const std::uint32_t rest = index;
      index = cut(rest, size);
      blocks_[index].size_hint = hint;
      Block& left_over = blocks_[rest];
      left_over.size_hint = list.insert(left_over.entry(rest));
      left_over.gc_base = searches_[small];
      remainder = left_over.size;
    }
  } else {
    const Request request{size, segment_size(Bytes{size}).value, pool};
    index = obtain(request);
    if (index == 0) return {{}, fail(bytes, request)};
    was_split = blocks_[index].is_split();
    if (splits(blocks_[index], size)) {
      const std::uint32_t rest = index;
      index = cut(rest, size);
      insert_free(rest);
      remainder = blocks_[rest].size;
    }
  }
  return {hand_out(index, bytes.value, was_split, remainder)};
}

CachingAllocator::Prepared CachingAllocator::prepare(Bytes bytes, StreamId stream) {
  EXPECTS(bytes.value >= 0 && stream.value < kMaxStreams);
  const std::int64_t size = round_size(bytes).value;
  const bool small = size <= kSmallRequest;
  const std::uint16_t pool = pool_of(stream, small);
  if (pool >= pools_.size()) pools_.resize((pool | 1) + 1);
  return {.bytes = bytes.value, .size = size, .least_rest = small || settings_.expandable_segments ? kGranule : kSmallRequest + 1, .stream = stream, .pool = pool};
}

BlockId CachingAllocator::hand_out(std::uint32_t index, std::int64_t requested, bool was_split,
                                   std::int64_t remainder) {
  Block& block = blocks_[index];
  block.state = State::allocated;
  block.requested = requested;
  block.other_streams = 0;
  const BlockId id{index, ++block.generation};
  statistics_.allocated_bytes.add(Bytes{block.size});
  if (counts_all_) count_handed_out(block, was_split, remainder);
  tell(AllocatorAction::alloc, block.address, requested, block.pool, id);
  return id;
}

void CachingAllocator::count_handed_out(const Block& block, bool was_split, std::int64_t remainder) {
  AllocatorStatistics& s = statistics_;
  if (block.range == 0) {
    if (was_split) {
      s.inactive_split_bytes.subtract(Bytes{block.size});
      if (remainder == 0) s.inactive_splits.subtract(1);
    } else if (remainder > 0) {
      s.inactive_split_bytes.add(Bytes{remainder});
      s.inactive_splits.add(1);
    }
  }
  s.allocations.add(1);
  s.active_blocks.add(1);
  s.active_bytes.add(Bytes{block.size});
  s.requested_bytes.add(Bytes{block.requested});
}

EventToken CachingAllocator::give_back(BlockId id) {
  if (id == BlockId{}) return {};
  checked(id);
  Block& block = blocks_[id.index];
  if (counts_all_) statistics_.allocations.subtract(1);
  statistics_.allocated_bytes.subtract(Bytes{block.size});
  tell(AllocatorAction::free_requested, block.address, block.requested, block.pool, id);
  if (block.other_streams == 0) [[likely]] {
    return_to_pool(id.index);
    return {};
  }
  block.state = State::pending;
  ++last_token_.value;
  for (std::uint64_t left = block.other_streams; left != 0; left &= left - 1) {
    const auto stream = static_cast<std::size_t>(std::countr_zero(left));
    if (stream >= queues_.size()) queues_.resize(stream + 1);
    queues_[stream].events.push_back({last_token_, id.index});
    ++block.events;
  }
  block.other_streams = 0;
  return last_token_;
}

/// The free completes: merges with free neighbours and joins the free list.
void CachingAllocator::return_to_pool(std::uint32_t index) {
  Block& freed = blocks_[index];
  AllocatorStatistics& s = statistics_;
  tell(AllocatorAction::free_completed, freed.address, freed.requested, freed.pool,
       {index, freed.generation});
  if (counts_all_) {
    s.active_blocks.subtract(1);
    s.active_bytes.subtract(Bytes{freed.size});
    s.requested_bytes.subtract(Bytes{freed.requested});
  }
  const Joined joined = join_neighbours(index);
  Block& block = blocks_[joined.whole];
  block.gc_base = searches_[is_small(block.pool)];
  if (!counts_all_ || block.range != 0) return;
  // Free bytes in partly used segments, and the pieces that they are in.
  s.inactive_split_bytes.add(Bytes{(block.is_split() ? block.size : 0) - joined.bytes});
  s.inactive_splits.add((block.is_split() ? 1 : 0) - joined.neighbours);
}

void CachingAllocator::insert_free(std::uint32_t index) {
  Block& block = blocks_[index];
  block.state = State::free;
  block.gc_base = searches_[is_small(block.pool)];
  block.size_hint = pools_[block.pool].free.insert(block.entry(index));
}

}  // namespace rehearse::hwmodels
