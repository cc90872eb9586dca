// What the allocator says about itself: peaks, the largest free block, the snapshot.
#include <algorithm>

#include "hwmodels/memory/caching_allocator.h"

namespace rehearse::hwmodels {

Bytes CachingAllocator::largest_free_block() const {
  std::int64_t largest = 0;
  for (const Pool& pool : pools_) {
    if (!pool.free.empty())
      largest = std::max(largest, pool.free.at(pool.free.previous(pool.free.end())).size());
  }
  return Bytes{largest};
}

void CachingAllocator::reset_peak() {
  const auto reset = [](auto&... gauges) { ((gauges.peak = gauges.current), ...); };
  AllocatorStatistics& s = statistics_;
  reset(s.allocated_bytes, s.active_bytes, s.reserved_bytes, s.inactive_split_bytes, s.requested_bytes,
        s.allocations, s.active_blocks, s.inactive_splits, s.segments);
}

std::vector<SegmentSnapshot> CachingAllocator::snapshot() const {
  const auto mapped = [this](std::uint32_t index) {
    return blocks_[index].state != State::unused && blocks_[index].state != State::unmapped;
  };
  std::vector<SegmentSnapshot> segments;
  for (std::uint32_t head = 1; head < blocks_.size(); ++head) {
    if (!mapped(head) || (blocks_[head].previous != 0 && mapped(blocks_[head].previous))) continue;
    SegmentSnapshot segment;
    segment.address = blocks_[head].address;
    segment.stream = stream_of(blocks_[head].pool);
    segment.small_pool = is_small(blocks_[head].pool);
    segment.expandable = blocks_[head].range != 0;
    for (std::uint32_t b = head; b != 0 && mapped(b); b = blocks_[b].next) {
      const Block& block = blocks_[b];
      const BlockState state = block.state == State::allocated ? BlockState::active_allocated
                               : block.state == State::pending ? BlockState::active_pending_free
                                                               : BlockState::inactive;
      segment.blocks.push_back({block.address, Bytes{block.size}, Bytes{block.requested}, state});
      segment.total += Bytes{block.size};
      if (state == BlockState::active_allocated) segment.allocated += Bytes{block.size};
      if (state != BlockState::inactive) segment.active += Bytes{block.size};
      segment.requested += Bytes{block.requested};
    }
    segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentSnapshot& a, const SegmentSnapshot& b) { return a.address < b.address; });
  return segments;
}

}  // namespace rehearse::hwmodels
