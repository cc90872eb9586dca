#include "hwmodels/memory/free_list.h"

#include <gtest/gtest.h>

#include <set>

#include "random_program.h"

namespace rehearse::hwmodels::free_list_test {
namespace {

FreeEntry entry(std::int64_t granules, std::uint64_t address_granules, std::uint32_t block = 0) {
  return FreeEntry::of(granules * 512, address_granules * 512, block);
}

TEST(FreeEntry, SortsBySizeThenAddressAndKeepsBoth) {
  EXPECT_LT(entry(1, 99), entry(2, 0));
  EXPECT_LT(entry(2, 5), entry(2, 6));
  // 2^32 granules are 2 TiB
  EXPECT_LT(entry(2, 0xffffffff), entry(2, 0x100000000));
  EXPECT_EQ(entry(7, 3, 11).size(), 7 * 512);
  EXPECT_EQ(entry(7, 3, 11).block(), 11U);
}

// A hint is a guess: the numbers of sizes that came, went and were numbered anew lead nowhere wrong.
TEST(FreeEntry, HasRoomForSoManyBlocks) {
  EXPECT_EQ(FreeEntry::of(512, 512, (1U << FreeEntry::kBlockBits) - 1).block(), (1U << FreeEntry::kBlockBits) - 1);
  EXPECT_THROW(FreeEntry::of(512, 512, 1U << FreeEntry::kBlockBits), ContractViolation);
}

TEST(FreeList, WrongHintsCostALookUpOnly) {
  Random random{11};
  FreeList list, plain;
  std::vector<std::pair<FreeEntry, FreeList::SizeHint>> kept;
  for (int i = 0; i < 20'000; ++i) {
    if (kept.size() < 40 || test::below(random, 2) == 0) {
      const FreeEntry e = entry(1 + test::below(random, i < 10'000 ? 20 : 2000), static_cast<std::uint64_t>(i) + 1);
      kept.emplace_back(e, list.insert(e, static_cast<FreeList::SizeHint>(test::below(random, 300))));
      plain.insert(e);
    } else {
      auto& victim = kept[static_cast<std::size_t>(test::below(random, static_cast<std::int64_t>(kept.size())))];
      list.erase(victim.first, victim.second);
      plain.erase(plain.find(victim.first));
      victim = kept.back();
      kept.pop_back();
    }
    ASSERT_EQ(list.size(), kept.size());
    std::int64_t largest = 0;
    for (const auto& [e, hint] : kept) largest = std::max(largest, e.size());
    ASSERT_EQ(list.largest(), largest);
    const std::int64_t size = 512 * (1 + test::below(random, 2000));
    const FreeList::Place got = list.first_fit(size), expected = plain.first_fit(size);
    ASSERT_EQ(got == list.end(), expected == plain.end());
    if (!(got == list.end())) {
      ASSERT_EQ(list.at(got), plain.at(expected));
    }
  }
  EXPECT_THROW(list.erase(entry(5000, 7), 0), ContractViolation);
}

TEST(FreeList, FirstFitIsTheSmallestThenTheLowest) {
  FreeList list;
  EXPECT_EQ(list.first_fit(512), list.end());
  for (const FreeEntry& e : {entry(4, 30), entry(2, 20), entry(4, 10), entry(8, 0)}) list.insert(e);
  EXPECT_EQ(list.at(list.first_fit(1 * 512)), entry(2, 20));
  EXPECT_EQ(list.at(list.first_fit(3 * 512)), entry(4, 10));
  EXPECT_EQ(list.at(list.first_fit(5 * 512)), entry(8, 0));
  EXPECT_EQ(list.first_fit(9 * 512), list.end());
  EXPECT_THROW(list.find(entry(3, 3)), ContractViolation);
}

// Growing to thousands of entries and back, over sizes that come and go; std::set says what the order must be.
TEST(FreeList, IsASortedSetUnderRandomChanges) {
  Random random{3};
  FreeList list;
  std::set<std::pair<std::int64_t, std::int64_t>> expected;  // size and address in granules
  const auto as_entry = [](auto p) { return entry(p.first, static_cast<std::uint64_t>(p.second)); };
  for (int i = 0; i < 60'000; ++i) {
    const bool grow = (i / 6000) % 2 == 0;
    const std::pair<std::int64_t, std::int64_t> fresh{1 + test::below(random, 50),
                                                      test::below(random, std::int64_t{1} << 40)};
    const auto some = [&] {
      auto it = expected.lower_bound({1 + test::below(random, 50), test::below(random, std::int64_t{1} << 40)});
      return it == expected.end() ? expected.begin() : it;
    };
    if (expected.empty() || test::below(random, 100) < (grow ? 60 : 20)) {
      if (expected.insert(fresh).second) list.insert(as_entry(fresh));
    } else if (test::below(random, 2) == 0) {
      const auto victim = some();
      list.erase(list.find(as_entry(*victim)));
      expected.erase(victim);
    } else if (!expected.count(fresh)) {
      const auto victim = some();
      // half of the replacements stay close to the old place, as cutting a block does
      const auto moved = test::below(random, 2) == 0 ? fresh : std::pair{victim->first, victim->second + 1};
      if (expected.count(moved)) continue;
      list.replace(list.find(as_entry(*victim)), as_entry(moved));
      expected.erase(victim);
      expected.insert(moved);
    }
    if (i % 500 != 0) continue;
    ASSERT_EQ(list.size(), expected.size());
    auto e = expected.begin();
    for (FreeList::Place p = list.begin(); p != list.end(); p = list.next(p))
      ASSERT_EQ(list.at(p), as_entry(*e++));
    for (FreeList::Place p = list.end(); p != list.begin();) {
      p = list.previous(p);
      ASSERT_EQ(list.at(p), as_entry(*--e));
    }
    const std::int64_t size = 1 + test::below(random, 55);
    const auto fit = expected.lower_bound({size, 0});
    const FreeList::Place found = list.first_fit(size * 512);
    ASSERT_EQ(found == list.end(), fit == expected.end());
    if (fit != expected.end()) {
      ASSERT_EQ(list.at(found), as_entry(*fit));
    }
  }
}

}  // namespace
}  // namespace rehearse::hwmodels::free_list_test
