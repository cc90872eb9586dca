// Cases with a closed form, each to the picosecond.
#include "sim/engine/sharing.h"

#include <gtest/gtest.h>

#include "sim/core/contract.h"

namespace rehearse::engine::sharing_test {
namespace {

TimePoint at(std::int64_t ps) { return TimePoint{Duration{ps}}; }

void expect_ends_too(SharingSystem& system, std::uint64_t tag, std::int64_t t) {
  EXPECT_EQ(system.next_completion(), at(t));
  const auto done = system.pop_completed(at(t));
  ASSERT_TRUE(done);
  EXPECT_EQ(done->tag, tag);
}

// Done at t, and not at t - 1 ps.
void expect_ends(SharingSystem& system, std::uint64_t tag, std::int64_t t) {
  EXPECT_EQ(system.next_completion(), at(t));
  EXPECT_FALSE(system.pop_completed(at(t - 1)));
  expect_ends_too(system, tag, t);
}

TEST(Sharing, AloneRunsAtFullSpeed) {
  SharingSystem system;
  const Use half{system.add_resource(), kWholeResource / 2};
  system.start({&half, 1}, Duration{1000}, at(0), 1);
  expect_ends(system, 1, 1000);
  EXPECT_EQ(system.running(), 0u);
  EXPECT_EQ(system.next_completion(), std::nullopt);
}

TEST(Sharing, WithRoomForAllNothingIsSolved) {
  SharingSystem system;
  const Use half{system.add_resource(), kWholeResource / 2};
  system.start({&half, 1}, Duration{1000}, at(0), 1);
  system.start({&half, 1}, Duration{1000}, at(1), 2);
  expect_ends(system, 1, 1000);
  expect_ends(system, 2, 1001);
  EXPECT_EQ(system.effort().solves, 0u);
}

TEST(Sharing, TwoOnOneResource) {
  // Both need all of it. Half speed each until the shorter ends at 2 * 300; the longer then has 400 left at
  // full speed.
  SharingSystem system;
  const Use whole{system.add_resource(), kWholeResource};
  system.start({&whole, 1}, Duration{700}, at(0), 1);
  const ActivityId b = system.start({&whole, 1}, Duration{300}, at(0), 2);
  EXPECT_EQ(system.rate_of(b), kFullRate / 2);
  expect_ends(system, 2, 600);
  expect_ends(system, 1, 1000);
}

TEST(Sharing, ThirdsEndOnThePicosecond) {
  // 3 * 1000 ps of whole-resource work end at 3000 exactly, although a third has no exact rate.
  SharingSystem system;
  const Use whole{system.add_resource(), kWholeResource};
  for (std::uint64_t i = 0; i < 3; ++i) system.start({&whole, 1}, Duration{1000}, at(0), i);
  expect_ends(system, 0, 3000);
  expect_ends_too(system, 1, 3000);
  expect_ends_too(system, 2, 3000);
}

TEST(Sharing, LateArrivalSlowsTheFirst) {
  // 1: 400 alone, then half speed for the 600 left: 400 + 1200 = 1600. 2: 600 done by then, 400 more alone:
  // 2000.
  SharingSystem system;
  const Use whole{system.add_resource(), kWholeResource};
  system.start({&whole, 1}, Duration{1000}, at(0), 1);
  system.start({&whole, 1}, Duration{1000}, at(400), 2);
  expect_ends(system, 1, 1600);
  expect_ends(system, 2, 2000);
}

TEST(Sharing, ParkingLot) {
  // A long activity over three resources, one short on each, all weights whole: every rate is 1/2 (max-min),
  // and not the 1/4 : 3/4 of proportional fairness.
  SharingSystem system;
  std::vector<Use> all;
  for (int i = 0; i < 3; ++i) all.push_back({system.add_resource(), kWholeResource});
  const ActivityId through = system.start(all, Duration{1000}, at(0), 9);
  std::vector<ActivityId> locals;
  for (const Use& use : all) locals.push_back(system.start({&use, 1}, Duration{1000}, at(0), 0));
  EXPECT_EQ(system.rate_of(through), kFullRate / 2);
  for (const ActivityId a : locals) EXPECT_EQ(system.rate_of(a), kFullRate / 2);
}

TEST(Sharing, WhatABottleneckElsewhereLeavesIsShared) {
  // Resource 1 carries a, b, c, d; resource 2 carries d, e. d: 1/4 on resource 1; e: the 3/4 that d leaves.
  SharingSystem system;
  const Use one{system.add_resource(), kWholeResource}, two{system.add_resource(), kWholeResource};
  for (int i = 0; i < 3; ++i) system.start({&one, 1}, Duration{1000}, at(0), 0);
  const std::vector<Use> both{one, two};
  const ActivityId d = system.start(both, Duration{1000}, at(0), 0), e = system.start({&two, 1}, Duration{1000}, at(0), 0);
  EXPECT_EQ(system.rate_of(d), kFullRate / 4);
  EXPECT_EQ(system.rate_of(e), kFullRate / 4 * 3);
  EXPECT_DOUBLE_EQ(system.load_of(two.resource), 1.0);
}

TEST(Sharing, CapLeavesTheRestToOthers) {
  SharingSystem system;
  const Use whole{system.add_resource(), kWholeResource};
  const ActivityId capped = system.start({&whole, 1}, Duration{1000}, at(0), 1, kFullRate / 8);
  const ActivityId other = system.start({&whole, 1}, Duration{7000}, at(0), 2);
  EXPECT_EQ(system.rate_of(capped), kFullRate / 8);
  EXPECT_EQ(system.rate_of(other), kFullRate / 8 * 7);
  expect_ends(system, 1, 8000);
  expect_ends_too(system, 2, 8000);
}

TEST(Sharing, WeightsDecideWhatASlotOfRateCosts) {
  // Weights 3/4 and 1/2 at one rate x: 5/4 x = 1, x = 4/5.
  SharingSystem system;
  const ResourceId r = system.add_resource();
  const Use a{r, kWholeResource / 4 * 3}, b{r, kWholeResource / 2};
  const ActivityId first = system.start({&a, 1}, Duration{800}, at(0), 1);
  const ActivityId second = system.start({&b, 1}, Duration{900}, at(0), 2);
  EXPECT_EQ(system.rate_of(first), static_cast<std::uint64_t>(static_cast<unsigned __int128>(kFullRate) * 4 / 5));
  EXPECT_EQ(system.rate_of(first), system.rate_of(second));
}

TEST(Sharing, HeavierThanTheResourceRunsSlowerAlone) {
  SharingSystem system;
  const Use twice{system.add_resource(), 2 * kWholeResource};
  system.start({&twice, 1}, Duration{1000}, at(0), 1);
  expect_ends(system, 1, 2000);
}

TEST(Sharing, NothingToDoAndNothingToUseAreLegal) {
  SharingSystem system;
  const Use whole{system.add_resource(), kWholeResource};
  system.start({&whole, 1}, Duration{10}, at(0), 1);
  system.start({&whole, 1}, Duration{0}, at(5), 2);  // ends at once and slows nobody
  system.start({}, Duration{100}, at(5), 3);
  expect_ends_too(system, 2, 5);
  expect_ends(system, 1, 10);
  expect_ends(system, 3, 105);
}

TEST(Sharing, TiesEndInTheOrderOfStarting) {
  SharingSystem system;
  const Use half{system.add_resource(), kWholeResource / 2};
  system.start({}, Duration{10}, at(0), 1);
  system.start({&half, 1}, Duration{5}, at(5), 2);
  system.start({}, Duration{10}, at(0) + Duration{5}, 3);
  system.start({}, Duration{5}, at(5), 4);
  std::vector<std::uint64_t> order;
  while (const auto t = system.next_completion()) order.push_back(system.pop_completed(*t)->tag);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 2, 4, 3}));
}

TEST(Sharing, ObserverIntegratesTheLoadAndChangesNothing) {
  for (const bool watched : {false, true}) {
    SharingSystem system;
    if (watched) system.observe_utilisation();
    const ResourceId r = system.add_resource();
    const Use a{r, kWholeResource / 2}, b{r, kWholeResource};
    system.start({&a, 1}, Duration{1000}, at(0), 1);
    system.start({&b, 1}, Duration{1000}, at(1000) - Duration{600}, 2);
    // 400 alone; then 3/2 x = 1 for both: the first needs 600 * 3/2 more; the second has 400 left and full
    // speed.
    expect_ends(system, 1, 1300);
    expect_ends(system, 2, 1700);
    // Work: 1000 * 1/2 + 1000 * 1 of the whole resource, wherever it was done.
    if (watched) {
      EXPECT_NEAR(system.busy_time(r, at(5000)), 1500e-12, 2e-12);
    }
  }
}

TEST(Sharing, TimeDoesNotRunBackwardsNorPastAnEnd) {
  SharingSystem system;
  system.start({}, Duration{10}, at(5), 1);
  EXPECT_THROW(system.start({}, Duration{10}, at(4), 2), ContractViolation);
  EXPECT_THROW(system.pop_completed(at(16)), ContractViolation);
  EXPECT_THROW(system.start({}, Duration{-1}, at(20), 2), ContractViolation);
}

}  // namespace
}  // namespace rehearse::engine::sharing_test
