// Two moments of an allocator that are equal cannot be told apart afterwards; those that differ can.
#include <gtest/gtest.h>

#include "hwmodels/memory/caching_allocator.h"

namespace rehearse::hwmodels::allocator_condition_test {
namespace {

constexpr StreamId kStream{0};
CachingAllocator allocator() { return CachingAllocator({.limit = 10_GiB}); }
BlockId take(CachingAllocator& a, Bytes bytes) { return a.allocate(bytes, kStream).block; }
bool equal(AllocatorCondition a, AllocatorCondition b) { return a.equals(b); }

// 3 MiB and 5 MiB of one 20 MiB segment, taken and given back: the records have changed places, the layout has not.
TEST(AllocatorCondition, TakingAndGivingBackLeadsBack) {
  CachingAllocator a = allocator();
  const BlockId kept = take(a, 2_MiB);
  a.free(take(a, 3_MiB));
  const AllocatorCondition before = a.condition();
  for (int i = 0; i < 5; ++i) {
    const BlockId x = take(a, 3_MiB), y = take(a, 5_MiB);
    EXPECT_FALSE(equal(before, a.condition()));
    a.free(i % 2 == 0 ? x : y);
    a.free(i % 2 == 0 ? y : x);
    EXPECT_TRUE(equal(before, a.condition())) << i;
  }
  a.free(kept);
  EXPECT_FALSE(equal(before, a.condition()));
}

// Equal bytes are not enough: 2 then 4 MiB lie otherwise than 4 then 2.
TEST(AllocatorCondition, WhereBlocksLieMatters) {
  CachingAllocator a = allocator(), b = allocator();
  take(a, 2_MiB), take(a, 4_MiB);
  take(b, 4_MiB), take(b, 2_MiB);
  EXPECT_EQ(a.statistics().allocated_bytes.current, b.statistics().allocated_bytes.current);
  EXPECT_FALSE(equal(a.condition(), b.condition()));
}

// What was asked for decides nothing but statistics, yet counts; and new segments lie above all earlier ones.
TEST(AllocatorCondition, RequestsAndNewAddressesMatter) {
  CachingAllocator a = allocator(), b = allocator();
  take(a, Bytes{2'000'000}), take(b, Bytes{2'000'100});
  EXPECT_FALSE(equal(a.condition(), b.condition()));
  CachingAllocator c = allocator();
  const AllocatorCondition before = c.condition();
  c.free(take(c, 100_MiB));
  c.empty_cache();
  EXPECT_FALSE(equal(before, c.condition()));
}

// A free that waits for another stream depends on more than the blocks.
TEST(AllocatorCondition, DelayedFreesAreNotCompared) {
  CachingAllocator a = allocator();
  const BlockId x = take(a, 2_MiB);
  a.record_stream(x, {1});
  a.free(x);
  EXPECT_FALSE(equal(a.condition(), a.condition()));
}

}  // namespace
}  // namespace rehearse::hwmodels::allocator_condition_test
