// The documented rules one by one: sizes, pools, splitting, best fit, merging, streams, giving back, out of
// memory.
#include "hwmodels/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include "sim/core/contract.h"

namespace rehearse::hwmodels::caching_allocator_test {
namespace {

constexpr StreamId kMain{0};
constexpr StreamId kSide{1};

BlockId take(CachingAllocator& a, Bytes bytes, StreamId stream = kMain) {
  const Allocation allocation = a.allocate(bytes, stream);
  EXPECT_TRUE(bool(allocation));
  return allocation.block;
}

TEST(SizeRules, RequestsAreMultiplesOf512Bytes) {
  const CachingAllocator a({.limit = 1_GiB});
  EXPECT_EQ(a.round_size(Bytes{1}).value, 512);
  EXPECT_EQ(a.round_size(Bytes{512}).value, 512);
  EXPECT_EQ(a.round_size(Bytes{513}).value, 1024);
  EXPECT_EQ(a.round_size(Bytes{1'000'000}).value, 1'000'448);  // 1954 x 512
}

TEST(SizeRules, SegmentsAreSmallLargeOrOfTheRequestsOwnSize) {
  const CachingAllocator a({.limit = 1_GiB});
  EXPECT_EQ(a.segment_size(Bytes{512}), 2_MiB);
  EXPECT_EQ(a.segment_size(1_MiB), 2_MiB);  // 1 MiB is still small
  EXPECT_EQ(a.segment_size(1_MiB + Bytes{512}), 20_MiB);
  EXPECT_EQ(a.segment_size(10_MiB - Bytes{512}), 20_MiB);
  EXPECT_EQ(a.segment_size(10_MiB), 10_MiB);  // from 10 MiB on: the next multiple of 2 MiB
  EXPECT_EQ(a.segment_size(10_MiB + Bytes{512}), 12_MiB);
}

TEST(SizeRules, PowerOfTwoDivisionsAreChosenByTheRequestsMagnitude) {
  AllocatorSettings settings{.limit = 1_GiB};
  settings.roundup_power2_divisions.fill(4);
  settings.roundup_power2_divisions[2] = 2;  // 4 to 8 MiB
  const CachingAllocator a(settings);
  // PyTorch's own example, in units of 1 KiB: 1200 lies between 1024 and 2048, four divisions 256 apart:
  // 1280.
  EXPECT_EQ(a.round_size(1200_KiB), 1280_KiB);
  EXPECT_EQ(a.round_size(1280_KiB), 1280_KiB);
  EXPECT_EQ(a.round_size(1200_MiB), 1280_MiB);
  EXPECT_EQ(a.round_size(5_MiB), 6_MiB);             // divisions 2 MiB apart
  EXPECT_EQ(a.round_size(Bytes{2048}).value, 2048);  // up to 512 x 4 the plain rule holds
  EXPECT_EQ(a.round_size(Bytes{1025}).value, 1536);
  EXPECT_EQ(a.round_size(Bytes{2561}).value, 3072);  // divisions of 2048/4 = 512
}

TEST(SizeRules, AnEmptyTensorTakesNothing) {
  CachingAllocator a({.limit = 1_GiB});
  const Allocation empty = a.allocate(Bytes{0}, kMain);
  EXPECT_TRUE(bool(empty));
  EXPECT_EQ(a.free(empty.block), std::nullopt);
  EXPECT_EQ(a.statistics().device_allocs, 0);
}

TEST(Splitting, SmallPoolSplitsEveryGranule) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId first = take(a, Bytes{100});
  const BlockId second = take(a, 1_MiB);
  EXPECT_EQ(a.address_of(second), a.address_of(first) + 512);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 2_MiB);
  EXPECT_EQ(a.statistics().allocated_bytes.current.value, 512 + (1 << 20));
  EXPECT_EQ(a.statistics().requested_bytes.current.value, 100 + (1 << 20));
  EXPECT_EQ(a.statistics().inactive_split_bytes.current.value, (2 << 20) - (1 << 20) - 512);
  EXPECT_EQ(a.statistics().inactive_splits.current, 1);
}

TEST(Splitting, LargePoolKeepsATailOfUpToOneMebibyte) {
  CachingAllocator a({.limit = 1_GiB});
  // 20 MiB segment: 9 MiB leave 11 MiB, cut off; again 9 MiB leave 2 MiB, cut off.
  const BlockId first = take(a, 9_MiB);
  const BlockId second = take(a, 9_MiB);
  EXPECT_EQ(a.statistics().inactive_split_bytes.current, 2_MiB);
  // 1.5 MiB in the 2 MiB rest: 0.5 MiB is no more than 1 MiB, so the block is 2 MiB.
  const BlockId third = take(a, 1_MiB + 512_KiB);
  EXPECT_EQ(a.size_of(third), 2_MiB);
  EXPECT_EQ(a.statistics().allocated_bytes.current, 20_MiB);
  EXPECT_EQ(a.statistics().inactive_split_bytes.current, Bytes{0});
  // 11 MiB + 512 B rounds to a 12 MiB segment: less than 1 MiB stays over, allocated counts all 12.
  EXPECT_EQ(a.size_of(take(a, 11_MiB + Bytes{512})), 12_MiB);
  // exactly 1 MiB stays over: kept as well ("> 1 MiB", not ">=")
  EXPECT_EQ(a.size_of(take(a, 13_MiB)), 14_MiB);
  a.free(first);
  a.free(second);
}

TEST(Splitting, BlocksFromMaxSplitSizeOnStayWhole) {
  CachingAllocator a({.limit = 1_GiB, .max_split_size = 40_MiB});
  a.free(take(a, 100_MiB));
  // 39 MiB is below the limit: may not use the oversize block, gets a segment of 40 MiB.
  take(a, 39_MiB);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 140_MiB);
  // 80 MiB: the block is not below 80 + 20, so it is too large. 80 MiB + 512 B: it is, and it is not split.
  const BlockId apart = take(a, 80_MiB);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 220_MiB);
  EXPECT_EQ(a.size_of(take(a, 80_MiB + Bytes{512})), 100_MiB);
  a.free(apart);
}

TEST(BestFit, TakesTheSmallestThenTheLowestBlock) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId b30 = take(a, 30_MiB);
  const BlockId first20 = take(a, 20_MiB);
  const BlockId second20 = take(a, 20_MiB);
  const std::uint64_t lower = a.address_of(first20);
  const std::uint64_t upper = a.address_of(second20);
  a.free(second20);
  a.free(b30);
  a.free(first20);
  EXPECT_EQ(a.address_of(take(a, 19_MiB)), lower);
  EXPECT_EQ(a.address_of(take(a, 19_MiB)), upper);
}

TEST(BestFit, PoolsAndStreamsNeverShare) {
  CachingAllocator a({.limit = 1_GiB});
  a.free(take(a, 20_MiB));
  take(a, 1_MiB);  // small pool: 2 MiB of its own although 20 are free
  EXPECT_EQ(a.statistics().reserved_bytes.current, 22_MiB);
  take(a, 20_MiB, kSide);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 42_MiB);
}

TEST(Merging, FreeNeighboursOfASegmentBecomeOne) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId b[] = {take(a, 5_MiB), take(a, 5_MiB), take(a, 5_MiB), take(a, 5_MiB)};  // one 20 MiB segment
  EXPECT_EQ(a.statistics().segments.current, 1);
  a.free(b[0]);
  a.free(b[2]);
  EXPECT_EQ(a.statistics().inactive_splits.current, 2);
  EXPECT_EQ(a.largest_free_block(), 5_MiB);
  a.free(b[1]);  // joins both sides
  EXPECT_EQ(a.statistics().inactive_splits.current, 1);
  EXPECT_EQ(a.largest_free_block(), 15_MiB);
  a.free(b[3]);  // the segment is whole: nothing is split any more
  EXPECT_EQ(a.statistics().inactive_splits.current, 0);
  EXPECT_EQ(a.statistics().inactive_split_bytes.current, Bytes{0});
  EXPECT_EQ(a.largest_free_block(), 20_MiB);
  EXPECT_EQ(a.statistics().inactive_split_bytes.peak, 15_MiB);
}

TEST(RecordStream, DelaysReuseUntilAnAllocationAfterTheEvent) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId block = take(a, 20_MiB);
  a.record_stream(block, kSide);
  const std::optional<EventToken> token = a.free(block);
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(a.statistics().allocated_bytes.current, Bytes{0});
  EXPECT_EQ(a.statistics().active_bytes.current, 20_MiB);
  take(a, 20_MiB);  // the event is not done: a second segment
  EXPECT_EQ(a.statistics().reserved_bytes.current, 40_MiB);
  a.complete_events(kSide, *token);
  EXPECT_EQ(a.statistics().active_bytes.current, 40_MiB);  // nobody has looked yet
  take(a, 20_MiB);                                         // looks first, then reuses
  EXPECT_EQ(a.statistics().reserved_bytes.current, 40_MiB);
}

TEST(RecordStream, WaitsForEveryStreamAndIgnoresTheOwnOne) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId own = take(a, 20_MiB);
  a.record_stream(own, kMain);
  EXPECT_EQ(a.free(own), std::nullopt);
  const BlockId block = take(a, 20_MiB);
  a.record_stream(block, kSide);
  a.record_stream(block, StreamId{2});
  const EventToken token = a.free(block).value();
  a.complete_events(kSide, token);
  take(a, Bytes{512});
  EXPECT_EQ(a.statistics().active_bytes.current, 20_MiB + Bytes{512});
  a.complete_events(StreamId{2}, token);
  take(a, Bytes{512});
  EXPECT_EQ(a.statistics().active_bytes.current, Bytes{1024});
}

TEST(GivingBack, OnlyWholeSegmentsReturnToTheDevice) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId kept = take(a, 5_MiB);
  a.free(take(a, 5_MiB));   // a piece of the same segment
  a.free(take(a, 30_MiB));  // a whole segment
  a.empty_cache();
  EXPECT_EQ(a.statistics().reserved_bytes.current, 20_MiB);
  EXPECT_EQ(a.statistics().inactive_split_bytes.current, 15_MiB);
  a.free(kept);
  a.empty_cache();
  EXPECT_EQ(a.statistics().reserved_bytes.current, Bytes{0});
  EXPECT_EQ(a.statistics().device_frees, 2);
}

TEST(GivingBack, ARetrySynchronisesAndFreesTheCacheOfEveryStream) {
  CachingAllocator a({.limit = 100_MiB});
  a.free(take(a, 40_MiB, kSide));
  const BlockId shared = take(a, 40_MiB);
  a.record_stream(shared, kSide);
  a.free(shared);
  take(a, 60_MiB);  // 80 + 60 > 100: waits for the event, gives back both, then fits
  EXPECT_EQ(a.statistics().retries, 1);
  EXPECT_EQ(a.statistics().synchronizations, 1);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 60_MiB);
  EXPECT_EQ(a.statistics().ooms, 0);
}

TEST(GivingBack, OversizeBlocksGoFirstAndOnlyAsManyAsNeeded) {
  CachingAllocator a({.limit = 200_MiB, .max_split_size = 30_MiB});
  const BlockId b[] = {take(a, 40_MiB), take(a, 50_MiB), take(a, 60_MiB)};
  for (BlockId block : b) a.free(block);
  take(a, 100_MiB);  // none is large enough: 60, then 50 go (110 >= 100), 40 stays cached
  EXPECT_EQ(a.statistics().reserved_bytes.current, 140_MiB);
  EXPECT_EQ(a.statistics().retries, 0);
}

TEST(OutOfMemory, SaysWhatWasAskedAndWhatIsThere) {
  CachingAllocator a({.limit = 64_MiB});
  const BlockId kept = take(a, 5_MiB);
  const Allocation failed = a.allocate(45_MiB + Bytes{1}, kSide);
  ASSERT_FALSE(bool(failed));
  EXPECT_EQ(failed.out_of_memory->asked, 45_MiB + Bytes{1});
  EXPECT_EQ(failed.out_of_memory->segment, 46_MiB);
  EXPECT_EQ(failed.out_of_memory->reserved, 20_MiB);
  EXPECT_EQ(failed.out_of_memory->allocated, 5_MiB);
  EXPECT_EQ(failed.out_of_memory->largest_free_block, 15_MiB);
  EXPECT_EQ(failed.out_of_memory->limit, 64_MiB);
  EXPECT_EQ(failed.out_of_memory->stream, kSide);
  // tight: 44 MiB are there, to the byte
  EXPECT_TRUE(bool(a.allocate(44_MiB, kSide)));
  EXPECT_FALSE(bool(a.allocate(Bytes{512}, kMain)));
  EXPECT_EQ(a.statistics().ooms, 2);
  a.free(kept);
}

TEST(GarbageCollection, FreesBlocksOlderThanAverageAboveTheThreshold) {
  // 0.5 x 400 MiB allowed; collection above 0.5 x 200 = 100 MiB.
  AllocatorSettings settings{.limit = 400_MiB, .memory_fraction = 0.5, .garbage_collection_threshold = 0.5};
  CachingAllocator a(settings);
  const BlockId old = take(a, 60_MiB);    // search 1 of the large pool
  const BlockId young = take(a, 50_MiB);  // 2
  a.free(old);
  a.free(young);
  for (int i = 0; i < 3; ++i) a.free(take(a, 50_MiB));  // 3, 4, 5
  // Search 6, reserved 110 MiB, 10 too many. Ages: 6 - 2 = 4 and 6 - 5 = 1, average 2.5: only the old block
  // goes.
  take(a, 70_MiB);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 120_MiB);
  EXPECT_EQ(a.statistics().retries, 0);
  // The fraction is a limit of its own: 70 + 132 > 200 even with the cache given back.
  EXPECT_FALSE(bool(a.allocate(132_MiB, kMain)));
}

TEST(ExpandableSegments, ReservePagesNotSegments) {
  CachingAllocator a({.limit = 1_GiB, .expandable_segments = true});
  const BlockId first = take(a, 30_MiB);
  EXPECT_EQ(a.statistics().reserved_bytes.current, 40_MiB);  // two pages of 20 MiB
  const BlockId second = take(a, 30_MiB);                    // 10 MiB are there, one page more
  EXPECT_EQ(a.statistics().reserved_bytes.current, 60_MiB);
  EXPECT_EQ(a.address_of(second), a.address_of(first) + (30 << 20));
  take(a, Bytes{512});  // the small pool's range has pages of 2 MiB
  EXPECT_EQ(a.statistics().reserved_bytes.current, 62_MiB);
  EXPECT_EQ(a.statistics().segments.current, 0);
  EXPECT_EQ(a.statistics().inactive_split_bytes.peak, Bytes{0});
  EXPECT_EQ(a.statistics().device_allocs, 3);
}

TEST(ExpandableSegments, UnmapWholePagesInsideFreeBlocks) {
  CachingAllocator a({.limit = 1_GiB, .expandable_segments = true});
  const BlockId first = take(a, 50_MiB);
  const BlockId second = take(a, 30_MiB);  // 80 MiB: four pages, all used
  a.free(first);
  a.empty_cache();  // pages 0-20 and 20-40 go; 40-50 shares its page with the second block
  EXPECT_EQ(a.statistics().reserved_bytes.current, 40_MiB);
  EXPECT_EQ(a.largest_free_block(), 10_MiB);
  // The hole is the lowest address with room: 35 MiB at 0, mapping two pages.
  const BlockId third = take(a, 35_MiB);
  EXPECT_LT(a.address_of(third), a.address_of(second));
  EXPECT_EQ(a.statistics().reserved_bytes.current, 80_MiB);
}

TEST(ExpandableSegments, ClosedGapsAreUsedBeforeTheGrowingEnd) {
  CachingAllocator a({.limit = 1_GiB, .expandable_segments = true});
  const BlockId gap = take(a, 12_MiB);
  take(a, 2_MiB);  // 6 MiB of the page stay free at the end, where the range can grow
  const std::uint64_t address = a.address_of(gap);
  a.free(gap);
  // Best fit for 5 MiB is the 6 MiB end, but that could grow to the whole range: the 12 MiB gap counts as
  // smaller.
  EXPECT_EQ(a.address_of(take(a, 5_MiB)), address);
}

TEST(ExpandableSegments, AFailedMappingLeavesWhatIsThere) {
  CachingAllocator a({.limit = 50_MiB, .expandable_segments = true});
  take(a, 30_MiB);
  EXPECT_FALSE(bool(a.allocate(11_MiB, kMain)));  // a third page would need 60 MiB
  EXPECT_EQ(a.statistics().reserved_bytes.current, 40_MiB);
  EXPECT_TRUE(bool(a.allocate(10_MiB, kMain)));
}

TEST(Statistics, ResetPeakStartsFromTheCurrentValues) {
  CachingAllocator a({.limit = 1_GiB});
  a.free(take(a, 20_MiB));
  take(a, 10_MiB);
  EXPECT_EQ(a.statistics().allocated_bytes.peak, 20_MiB);
  a.reset_peak();
  EXPECT_EQ(a.statistics().allocated_bytes.peak, 10_MiB);
  EXPECT_EQ(a.statistics().reserved_bytes.peak, 20_MiB);
}

TEST(Contracts, ABlockIsFreedOnce) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId block = take(a, 20_MiB);
  a.free(block);
  EXPECT_THROW(a.free(block), ContractViolation);
  take(a, 20_MiB);  // the same record lives again: the stale handle still does not name it
  EXPECT_THROW(a.free(block), ContractViolation);
}

TEST(Contracts, CopiesAreIndependent) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId block = take(a, 20_MiB);
  CachingAllocator copy = a;
  copy.free(block);
  EXPECT_EQ(a.statistics().allocated_bytes.current, 20_MiB);
  EXPECT_EQ(copy.statistics().allocated_bytes.current, Bytes{0});
}

struct Recorder : AllocatorObserver {
  std::vector<AllocatorEvent> events;
  void on(const AllocatorEvent& e) override { events.push_back(e); }
};

TEST(Observer, SeesPyTorchsTraceInOrder) {
  Recorder recorder;
  CachingAllocator a({.limit = 30_MiB});
  a.set_observer(&recorder);
  const BlockId block = take(a, 5_MiB);
  a.record_stream(block, kSide);
  a.free(block);
  a.empty_cache();
  a.allocate(40_MiB, kMain);
  using A = AllocatorAction;
  const std::vector<std::pair<A, Bytes>> expected{{A::segment_alloc, 20_MiB}, {A::alloc, 5_MiB},
                                                  {A::free_requested, 5_MiB}, {A::free_completed, 5_MiB},
                                                  {A::segment_free, 20_MiB},  {A::oom, 40_MiB}};
  ASSERT_EQ(recorder.events.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(recorder.events[i].action, expected[i].first) << i;
    EXPECT_EQ(recorder.events[i].size, expected[i].second) << i;
  }
  EXPECT_EQ(recorder.events[5].address, std::uint64_t{30} << 20);  // free device bytes
}

TEST(Snapshot, BlocksTileTheirSegments) {
  CachingAllocator a({.limit = 1_GiB});
  const BlockId first = take(a, 5_MiB);
  const BlockId second = take(a, 6_MiB);
  a.record_stream(second, kSide);
  a.free(second);
  const std::vector<SegmentSnapshot> segments = a.snapshot();
  ASSERT_EQ(segments.size(), 1U);
  EXPECT_EQ(segments[0].total, 20_MiB);
  EXPECT_EQ(segments[0].allocated, 5_MiB);
  EXPECT_EQ(segments[0].active, 11_MiB);
  ASSERT_EQ(segments[0].blocks.size(), 3U);
  EXPECT_EQ(segments[0].blocks[0].state, BlockState::active_allocated);
  EXPECT_EQ(segments[0].blocks[1].state, BlockState::active_pending_free);
  EXPECT_EQ(segments[0].blocks[2].state, BlockState::inactive);
  EXPECT_EQ(segments[0].blocks[2].size, 9_MiB);
  EXPECT_EQ(segments[0].blocks[0].address, a.address_of(first));
}

}  // namespace
}  // namespace rehearse::hwmodels::caching_allocator_test
