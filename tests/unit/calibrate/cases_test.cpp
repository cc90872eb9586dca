#include "calibrate/probe/cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "calibrate/operations.h"
#include "calibrate/probe/rotation.h"

namespace rehearse::calibrate::cases_test {
namespace {

std::int64_t whole(const Case& c, const char* key) { return std::get<std::int64_t>(c.parameters.at(key)); }

std::vector<MachineShape> machines() {
  MachineShape one, eight, cluster, old, host;
  one.directory = true;
  eight.ranks = eight.ranks_per_node = 8;
  eight.compute_capability = 90;
  eight.gpu_bytes = std::int64_t{79} << 30;
  eight.cores = 96;
  cluster = eight;
  cluster.ranks = 24;
  old.compute_capability = 70;
  old.gpu_bytes = std::int64_t{3} << 30;
  host.gpu = false;
  return {one, eight, cluster, old, host};
}

/// The reader knows every operation, key and word that the plan uses; nothing stands twice.
TEST(Cases, EveryPlannedCaseIsADocumentedOne) {
  for (const MachineShape& m : machines()) {
    Measurements all;
    std::set<std::string> names;
    for (const Case& c : planned_cases(m)) {
      EXPECT_TRUE(names.insert(identity(c.operation, c.parameters)).second) << identity(c.operation, c.parameters);
      all.skipped.push_back({c.operation, c.parameters, "test"});
      EXPECT_LE(gpus_of(c), m.ranks) << identity(c.operation, c.parameters);
    }
    EXPECT_FALSE(all.skipped.empty());
    EXPECT_EQ(measurements_from_json(to_json(all), "plan"), all);
  }
}

TEST(Cases, AQuickRunHasSomethingOfEveryOperationFromItsBeginning) {
  const MachineShape m = machines()[1];
  const std::vector<Case> plan = planned_cases(m);
  EXPECT_TRUE(std::is_sorted(plan.begin(), plan.end(), [](const Case& a, const Case& b) { return a.tier < b.tier; }));
  std::set<std::string> early, quick;
  const auto count = std::count_if(plan.begin(), plan.end(), [](const Case& c) { return c.tier == 0; });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    quick.insert(plan[i].operation);
    if (i < count / 3) early.insert(plan[i].operation);
  }
  for (const Operation& o : operations())
    if (o.name != "file") {
      EXPECT_TRUE(quick.contains(o.name)) << o.name;
      EXPECT_TRUE(early.contains(o.name)) << o.name;
    }
}

TEST(Cases, WithoutAGpuOnlyTheHostIsMeasured) {
  for (const Case& c : planned_cases(machines()[4])) EXPECT_EQ(gpus_of(c), 0) << c.operation;
}

TEST(Cases, OldGpusAreNotAskedForFormatsTheyLack) {
  for (const Case& c : planned_cases(machines()[3]))
    if (c.operation == "gemm") {
      const auto& dtype = std::get<std::string>(c.parameters.at("dtype"));
      EXPECT_TRUE(dtype == "fp16" || dtype == "fp32") << dtype;
      EXPECT_LT(2 * (whole(c, "m") * whole(c, "k") + whole(c, "k") * whole(c, "n") + whole(c, "m") * whole(c, "n")), std::int64_t{3} << 30);
    }
}

/// A layer of `in` and `out` features over T tokens does the same work in all three of its GEMMs: T * in * out.
TEST(Cases, TheThreeRolesOfALayerDoTheSameWork) {
  std::map<std::string, std::set<std::int64_t>> work;
  std::map<std::string, int> roles;
  for (const Case& c : gemm_cases(machines()[1])) {
    if (c.operation != "gemm") continue;
    const auto& origin = std::get<std::string>(c.parameters.at("origin"));
    if (c.tier != 0 || origin.find("gpt2 ") == std::string::npos) continue;
    work[origin].insert(whole(c, "m") * whole(c, "n") * whole(c, "k"));
    ++roles[origin];
  }
  EXPECT_EQ(work.size(), 5u);
  for (const auto& [origin, sizes] : work) {
    EXPECT_EQ(sizes.size(), 1u) << origin;
    EXPECT_EQ(roles[origin], 3) << origin;
  }
}

/// First points of the sequence as in Halton's paper, and evenness: any 8 consecutive points in base 2 hit all eighths.
TEST(Cases, TheGridFillsTheSpace) {
  EXPECT_DOUBLE_EQ(halton(1, 2), 1 / 2.0);
  EXPECT_DOUBLE_EQ(halton(3, 2), 3 / 4.0);
  EXPECT_DOUBLE_EQ(halton(4, 3), 1 / 9.0 + 1 / 3.0);
  for (std::int64_t start : {0, 8, 80}) {
    std::set<int> eighths;
    for (std::int64_t i = start; i < start + 8; ++i) eighths.insert(static_cast<int>(8 * halton(i, 2)));
    EXPECT_EQ(eighths.size(), 8u);
  }
}

Facts shape(std::int64_t ranks, std::int64_t nodes, std::int64_t stride) { return {{"ranks", ranks}, {"nodes", nodes}, {"stride", stride}}; }

TEST(Cases, GroupsLieOnNodesAsTheirShapeSays) {
  EXPECT_EQ(group_members(shape(4, 1, 1), 1, 8), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group_members(shape(4, 1, 2), 1, 8), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(group_members(shape(2, 2, 1), 3, 8), (std::vector<int>{3, 11}));       // GPU 3 of both nodes
  EXPECT_EQ(group_members(shape(16, 2, 1), 0, 8).back(), 15);
  EXPECT_EQ(group_members(shape(2, 1, 1), 5, 8), (std::vector<int>{10, 11}));      // the fifth pair is on the second node
  EXPECT_EQ(group_members(shape(4, 2, 1), 2, 8), (std::vector<int>{4, 5, 12, 13}));
}

TEST(Cases, GroupsThatRunAtOnceShareNoGpu) {
  for (const MachineShape& m : {machines()[1], machines()[2]})
    for (const Case& c : collective_cases(m)) {
      std::set<int> used;
      const std::int64_t groups = c.parameters.contains("groups") ? whole(c, "groups") : 1;
      for (int g = 0; g < groups; ++g)
        for (int r : group_members(c.parameters, g, m.ranks_per_node)) {
          EXPECT_TRUE(used.insert(r).second) << identity(c.operation, c.parameters);
          EXPECT_LT(r, m.ranks);
        }
      EXPECT_EQ(whole(c, "bytes") % (2 * whole(c, "ranks")), 0) << "shares must be whole elements";
    }
}

// Whatever the operands' size: between two turns of a set, three L2 caches of other operands are touched, or all there is room for.
TEST(Rotation, NothingIsLeftInL2) {
  constexpr std::int64_t kL2 = std::int64_t{60} << 20, kRoom = std::int64_t{30} << 30;  // H200
  for (std::int64_t bytes = 1 << 10; bytes <= std::int64_t{4} << 30; bytes = bytes * 3 / 2) {
    const std::int64_t sets = rotating_sets(bytes, kL2, kRoom);
    EXPECT_GE((sets - 1) * bytes, 3 * kL2) << bytes;
    EXPECT_LT((sets - 2) * bytes, 3 * kL2) << bytes;
  }
  EXPECT_EQ(rotating_sets(kRoom, kL2, kRoom), 1);
  EXPECT_EQ(rotating_sets(2 * kRoom, kL2, kRoom), 1);  // more than the room: the allocation says so
  EXPECT_EQ(rotating_sets(1 << 20, kL2, 10 << 20), 10);
}

TEST(Cases, PatternsChooseByName) {
  const Case c{"gemm", {{"m", std::int64_t{64}}, {"n", std::int64_t{8}}, {"k", std::int64_t{16}}, {"dtype", std::string("bf16")}}, 0};
  EXPECT_TRUE(matches(c, "gemm"));
  EXPECT_TRUE(matches(c, "nothing,m=64"));
  EXPECT_TRUE(matches(c, "gemm*dtype=bf16*"));
  EXPECT_FALSE(matches(c, "gemm*dtype"));
  EXPECT_FALSE(matches(c, "fp8"));
  EXPECT_FALSE(matches(c, ","));
}

}  // namespace
}  // namespace rehearse::calibrate::cases_test
