// The fast allocator against the slow one: after each random operation the same address and the same
// statistics, now and then the same map of every block. And against what PyTorch's own library did with the
// same operations (random_cases.h).
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "hwmodels/memory/caching_allocator_quick.h"
#include "random_cases.h"
#include "random_program.h"
#include "reference_allocator.h"

namespace rehearse::hwmodels::caching_allocator_random_test {
namespace {

std::string differences(const AllocatorStatistics& a, const AllocatorStatistics& b) {
  std::string out;
  const auto gauge = [&out](const char* name, const auto& x, const auto& y) {
    if (x.current != y.current || x.peak != y.peak) out += std::string(" ") + name;
  };
  const auto number = [&out](const char* name, std::int64_t x, std::int64_t y) {
    if (x != y) out += std::string(" ") + name;
  };
  gauge("allocated_bytes", a.allocated_bytes, b.allocated_bytes);
  gauge("active_bytes", a.active_bytes, b.active_bytes);
  gauge("reserved_bytes", a.reserved_bytes, b.reserved_bytes);
  gauge("inactive_split_bytes", a.inactive_split_bytes, b.inactive_split_bytes);
  gauge("requested_bytes", a.requested_bytes, b.requested_bytes);
  gauge("allocations", a.allocations, b.allocations);
  gauge("active_blocks", a.active_blocks, b.active_blocks);
  gauge("inactive_splits", a.inactive_splits, b.inactive_splits);
  gauge("segments", a.segments, b.segments);
  number("device_allocs", a.device_allocs, b.device_allocs);
  number("device_frees", a.device_frees, b.device_frees);
  number("retries", a.retries, b.retries);
  number("ooms", a.ooms, b.ooms);
  number("synchronizations", a.synchronizations, b.synchronizations);
  return out;
}

std::vector<BlockSnapshot> mapped_blocks(const test::ReferenceAllocator& reference) {
  using State = test::ReferenceAllocator::State;
  std::vector<BlockSnapshot> out;
  for (const auto& [address, b] : reference.blocks()) {
    if (b.state == State::unmapped) continue;
    out.push_back({address, Bytes{b.size}, Bytes{b.requested},
                   b.state == State::free        ? BlockState::inactive
                   : b.state == State::allocated ? BlockState::active_allocated
                                                 : BlockState::active_pending_free});
  }
  return out;
}

void expect_same_blocks(const CachingAllocator& fast, const test::ReferenceAllocator& slow) {
  const std::vector<BlockSnapshot> expected = mapped_blocks(slow);
  std::size_t i = 0;
  for (const SegmentSnapshot& segment : fast.snapshot()) {
    std::uint64_t address = segment.address;  // blocks tile their segment
    for (const BlockSnapshot& b : segment.blocks) {
      ASSERT_LT(i, expected.size());
      ASSERT_EQ(b.address, address);
      ASSERT_EQ(b.address, expected[i].address);
      ASSERT_EQ(b.size.value, expected[i].size.value);
      ASSERT_EQ(b.requested.value, expected[i].requested.value);
      ASSERT_EQ(b.state, expected[i].state);
      address += static_cast<std::uint64_t>(b.size.value);
      ++i;
    }
    ASSERT_EQ(address, segment.address + static_cast<std::uint64_t>(segment.total.value));
  }
  ASSERT_EQ(i, expected.size());
}

class RandomAllocations : public ::testing::TestWithParam<test::RandomCase> {};

TEST_P(RandomAllocations, AgreeWithTheReference) {
  const test::RandomCase& c = GetParam();
  CachingAllocator fast(c.settings);
  test::ReferenceAllocator slow(c.settings);
  test::RandomProgram program(c.settings.limit, c.moves_limit);
  struct Live {
    BlockId block;
    std::uint64_t address;
  };
  std::vector<Live> live;
  int failures = 0;
  for (int i = 0; i < c.operations; ++i) {
    using Kind = test::RandomOperation::Kind;
    const test::RandomOperation o = program.next(live.size());
    switch (o.kind) {
      case Kind::allocate: {
        const Allocation a = fast.allocate(o.bytes, o.stream);
        const std::optional<std::uint64_t> expected = slow.allocate(o.bytes.value, o.stream.value);
        ASSERT_EQ(bool(a), expected.has_value()) << "operation " << i;
        if (a) {
          ASSERT_EQ(fast.address_of(a.block), *expected) << "operation " << i;
          live.push_back({a.block, *expected});
        } else {
          ++failures;
          ASSERT_EQ(a.out_of_memory->asked, o.bytes);
          ASSERT_EQ(a.out_of_memory->reserved, slow.statistics.reserved_bytes.current);
        }
        break;
      }
      case Kind::free: {
        const std::optional<EventToken> t = fast.free(live[o.which].block);
        ASSERT_EQ(t.value_or(EventToken{}).value, slow.free(live[o.which].address)) << "operation " << i;
        program.freed(t);
        live[o.which] = live.back();
        live.pop_back();
        break;
      }
      case Kind::record_stream:
        fast.record_stream(live[o.which].block, o.stream),
            slow.record_stream(live[o.which].address, o.stream.value);
        break;
      case Kind::complete_events:
        fast.complete_events(o.stream, o.token), slow.complete_events(o.stream.value, o.token.value);
        break;
      case Kind::empty_cache:
        fast.empty_cache(), slow.empty_cache();
        break;
      case Kind::reset_peak:
        fast.reset_peak(), slow.reset_peak();
        break;
      case Kind::set_limit:
        fast.set_limit(o.bytes), slow.set_limit(o.bytes);
        break;
      case Kind::nothing:
        break;
    }
    const std::string different = differences(fast.statistics(), slow.statistics);
    ASSERT_EQ(different, "") << "operation " << i;
    if (i % 20'000 == 0) {
      ASSERT_NO_FATAL_FAILURE(expect_same_blocks(fast, slow));
    }
  }
  RecordProperty("out_of_memory", failures);
  RecordProperty("retries", static_cast<int>(fast.statistics().retries));
  if (c.settings.limit < 8_GiB) {
    EXPECT_GT(failures, 0);  // these settings are here to reach the retry path
    EXPECT_GT(fast.statistics().retries, failures);
  }
}

TEST_P(RandomAllocations, AgreeWithTheRecordedRunOfPyTorch) {
  const test::RandomCase& c = GetParam();
  if (!c.recorded) GTEST_SKIP() << "the option is younger than the recorded library";
  CachingAllocator fast(c.settings);
  test::RandomProgram program(c.settings.limit, c.moves_limit);
  std::vector<BlockId> live;
  std::uint64_t hash =
      1469598103934665603;  // FNV-1a over 64-bit words: each address handed out, 0 when out of memory
  for (int i = 0; i < c.operations; ++i) {
    using Kind = test::RandomOperation::Kind;
    const test::RandomOperation o = program.next(live.size());
    switch (o.kind) {
      case Kind::allocate: {
        const Allocation a = fast.allocate(o.bytes, o.stream);
        hash = (hash ^ (a ? fast.address_of(a.block) : 0)) * 1099511628211;
        if (a) live.push_back(a.block);
        break;
      }
      case Kind::free:
        program.freed(fast.free(live[o.which]));
        live[o.which] = live.back();
        live.pop_back();
        break;
      case Kind::record_stream:
        fast.record_stream(live[o.which], o.stream);
        break;
      case Kind::complete_events:
        fast.complete_events(o.stream, o.token);
        break;
      case Kind::empty_cache:
        fast.empty_cache();
        break;
      case Kind::reset_peak:
        fast.reset_peak();
        break;
      case Kind::set_limit:
        fast.set_limit(o.bytes);
        break;
      case Kind::nothing:
        break;
    }
  }
  const AllocatorStatistics& s = fast.statistics();
  EXPECT_EQ(hash, c.recorded->addresses);
  EXPECT_EQ(s.reserved_bytes.current.value, c.recorded->reserved);
  EXPECT_EQ(s.reserved_bytes.peak.value, c.recorded->reserved_peak);
  EXPECT_EQ(s.allocated_bytes.peak.value, c.recorded->allocated_peak);
  EXPECT_EQ(s.retries, c.recorded->retries);
  EXPECT_EQ(s.ooms, c.recorded->ooms);
  EXPECT_EQ(s.device_allocs, c.recorded->device_allocs);
  EXPECT_EQ(s.device_frees, c.recorded->device_frees);
}

// Counting bytes alone changes no block and no byte; a block that is lent leaves what allocating and freeing it leaves; and
// the quick way, with hints that grow old, takes and puts back what the long one does.
TEST_P(RandomAllocations, LendingTakingAndCountingLessChangeNothing) {
  const test::RandomCase& c = GetParam();
  CachingAllocator all(c.settings), lean(c.settings, StatisticsKept::bytes);
  test::RandomProgram program(c.settings.limit, c.moves_limit);
  std::map<std::pair<Bytes, StreamId>, CachingAllocator::Prepared> prepared;
  struct Live {
    BlockId all, lean;
  };
  std::vector<Live> live;
  int lent = 0, taken = 0, put_back = 0;
  for (int i = 0; i < c.operations / 4; ++i) {
    using Kind = test::RandomOperation::Kind;
    const test::RandomOperation o = program.next(live.size());
    if (o.kind == Kind::allocate && o.bytes > Bytes{0}) {
      CachingAllocator::Prepared& request = prepared.try_emplace({o.bytes, o.stream}, lean.prepare(o.bytes, o.stream)).first->second;
      if (const CachingAllocator::Loan loan = lean.lend(request); loan.size > 0) {
        ++lent;
        const Allocation a = all.allocate(o.bytes, o.stream);
        ASSERT_TRUE(bool(a)) << "operation " << i;
        ASSERT_EQ(all.address_of(a.block), loan.address) << "operation " << i;
        ASSERT_EQ(all.size_of(a.block).value, loan.size) << "operation " << i;
        ASSERT_FALSE(all.free(a.block).has_value());
      }
      const auto [quick, address] = lean.take(request);
      taken += quick != BlockId{};
      const Allocation a = all.allocate(o.bytes, o.stream), b = quick == BlockId{} ? lean.allocate(o.bytes, o.stream) : Allocation{quick};
      if (quick != BlockId{}) {
        ASSERT_EQ(lean.address_of(quick), address) << "operation " << i;
      }
      ASSERT_EQ(bool(a), bool(b)) << "operation " << i;
      if (a) {
        ASSERT_EQ(all.address_of(a.block), lean.address_of(b.block)) << "operation " << i;
        live.push_back({a.block, b.block});
      }
    } else if (o.kind == Kind::free) {
      const Live victim = live[o.which];
      const std::optional<EventToken> t = all.free(victim.all);
      if (victim.lean != BlockId{} && lean.put_back(victim.lean)) {
        ++put_back;
        ASSERT_FALSE(t.has_value()) << "operation " << i;
      } else {
        ASSERT_EQ(lean.free(victim.lean), t) << "operation " << i;
      }
      program.freed(t);
      live[o.which] = live.back();
      live.pop_back();
    } else if (o.kind == Kind::record_stream) {
      all.record_stream(live[o.which].all, o.stream), lean.record_stream(live[o.which].lean, o.stream);
    } else if (o.kind == Kind::complete_events) {
      all.complete_events(o.stream, o.token), lean.complete_events(o.stream, o.token);
    } else if (o.kind == Kind::empty_cache) {
      all.empty_cache(), lean.empty_cache();
    } else if (o.kind == Kind::reset_peak) {
      all.reset_peak(), lean.reset_peak();
    } else if (o.kind == Kind::set_limit) {
      all.set_limit(o.bytes), lean.set_limit(o.bytes);
    }
    const AllocatorStatistics &x = all.statistics(), &y = lean.statistics();
    ASSERT_EQ(x.allocated_bytes.current, y.allocated_bytes.current) << "operation " << i;
    ASSERT_EQ(x.allocated_bytes.peak, y.allocated_bytes.peak) << "operation " << i;
    ASSERT_EQ(x.reserved_bytes.current, y.reserved_bytes.current) << "operation " << i;
    ASSERT_EQ(x.reserved_bytes.peak, y.reserved_bytes.peak) << "operation " << i;
    ASSERT_EQ(x.device_frees, y.device_frees) << "operation " << i;
    ASSERT_EQ(x.retries, y.retries) << "operation " << i;
    if (i % 2000 != 0) continue;
    AllocatorCondition a = all.condition(), b = lean.condition();
    a.comparable = b.comparable = true;
    ASSERT_TRUE(a.equals(b)) << "operation " << i;
  }
  const bool simple = !c.settings.max_split_size && !(c.settings.memory_fraction && c.settings.garbage_collection_threshold > 0);
  EXPECT_EQ(lent > 0, simple);   // elsewhere the long way is the only one
  EXPECT_EQ(taken > 0, simple);
  EXPECT_EQ(put_back > 0, simple);
}

// Where it is said that there is room, what comes and goes in any order is served from the cache, rises no further than
// its sizes say, and leaves the allocator as it was.
TEST_P(RandomAllocations, WhatHasRoomIsServedAndLeavesNothing) {
  const test::RandomCase& c = GetParam();
  CachingAllocator allocator(c.settings, StatisticsKept::bytes);
  test::RandomProgram program(c.settings.limit, c.moves_limit);
  Random random{5};
  std::vector<BlockId> live;
  int passages = 0;
  for (int i = 0; i < c.operations / 8; ++i) {
    using Kind = test::RandomOperation::Kind;
    const test::RandomOperation o = program.next(live.size());
    if (o.kind == Kind::allocate) {
      if (const Allocation a = allocator.allocate(o.bytes, o.stream)) live.push_back(a.block);
    } else if (o.kind == Kind::free) {
      program.freed(allocator.free(live[o.which]));
      live[o.which] = live.back();
      live.pop_back();
    } else if (o.kind == Kind::complete_events) {
      allocator.complete_events(o.stream, o.token);
    } else if (o.kind == Kind::empty_cache) {
      allocator.empty_cache();
    }
    if (i % 16 != 0) continue;
    // A passage of some tensors of one pool.
    const bool small = test::below(random, 2) == 0;
    std::vector<CachingAllocator::Prepared> wanted;
    std::int64_t bytes = 0;
    for (int k = 0; k < 6; ++k) {
      wanted.push_back(allocator.prepare(Bytes{1 + (small ? test::below(random, 1 << 20) : (1 << 20) + test::below(random, 24 << 20))}, StreamId{0}));
      bytes += wanted.back().size;
    }
    if (!allocator.has_room(wanted[0], bytes)) continue;
    ++passages;
    AllocatorCondition before = allocator.condition();
    const Bytes reserved = allocator.statistics().reserved_bytes.current, allocated = allocator.statistics().allocated_bytes.current;
    std::vector<std::pair<BlockId, std::int64_t>> now;
    std::int64_t rise = 0;
    const auto drop = [&] {
      const auto k = static_cast<std::size_t>(test::below(random, static_cast<std::int64_t>(now.size())));
      allocator.free(now[k].first);
      rise -= now[k].second;
      now.erase(now.begin() + static_cast<std::ptrdiff_t>(k));
    };
    for (const CachingAllocator::Prepared& r : wanted) {
      while (!now.empty() && test::below(random, 3) == 0) drop();
      const Allocation a = allocator.allocate(Bytes{r.bytes}, r.stream);
      ASSERT_TRUE(bool(a)) << "operation " << i;
      now.emplace_back(a.block, r.size + (r.least_rest - 1) / 512 * 512);
      rise += now.back().second;
      ASSERT_LE((allocator.statistics().allocated_bytes.current - allocated).value, rise) << "operation " << i;
    }
    while (!now.empty()) drop();
    ASSERT_EQ(allocator.statistics().reserved_bytes.current, reserved) << "operation " << i;
    ASSERT_EQ(allocator.statistics().allocated_bytes.current, allocated) << "operation " << i;
    AllocatorCondition after = allocator.condition();
    before.comparable = after.comparable = true;
    ASSERT_TRUE(before.equals(after)) << "operation " << i;
  }
  const bool simple = !c.settings.max_split_size && !(c.settings.memory_fraction && c.settings.garbage_collection_threshold > 0);
  EXPECT_EQ(passages > 0, simple);
}

INSTANTIATE_TEST_SUITE_P(Settings, RandomAllocations, ::testing::ValuesIn(test::kRandomCases),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace rehearse::hwmodels::caching_allocator_random_test
