#include "sim/report/accuracy.h"

#include <cmath>

#include <gtest/gtest.h>

namespace rehearse::report::accuracy_test {
namespace {

RowOutcome row(const std::string& kind, double measured, double predicted) {
  RowOutcome r{.source = "one", .profile = "torchtitan", .simulated = true};
  r.facets = {{"profile", r.profile}, {"memory-kind", kind}};
  r.memory_kind = kind;
  r.measured_memory = measured;
  r.predicted_memory = predicted;
  return r;
}

// 50 of 50 and 51 of 50 allocated: 1 %. 44 of 40 reserved: 10 %. Together (0 + 2 + 10) / 3 = 4 %. What nobody names is not scored.
TEST(Accuracy, KindsOfMemoryAreSummedUpApart) {
  Accuracy a;
  a.rows = {row("allocated", 50, 50), row("allocated", 50, 51), row("reserved", 40, 44), row("unstated", 40, 80)};
  const std::vector<SourceSummary> groups = grouped(a, {"profile"});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_NEAR(groups[0].memory.mape, 0.04, 1e-12);
  ASSERT_EQ(groups[0].memory_by_kind.size(), 2u);
  EXPECT_EQ(groups[0].memory_by_kind.at("allocated").rows, 2);
  EXPECT_NEAR(groups[0].memory_by_kind.at("allocated").mape, 0.01, 1e-12);
  EXPECT_NEAR(groups[0].memory_by_kind.at("reserved").bias, 0.10, 1e-12);

  a.sources = groups;
  EXPECT_NE(profiles_markdown(a).find("| torchtitan | 1 | 0 | - | - | - | 2 | 1.0 | 1 | 10.0 | 0 | - | - |"), std::string::npos) << profiles_markdown(a);
  EXPECT_NE(accuracy_text(a, 0).find("memory, reserved: 1 row, MAPE 10.0 %"), std::string::npos) << accuracy_text(a, 0);
}

// A reason is of use where it says of which rows.
TEST(Accuracy, ReasonsNameTheirRows) {
  Accuracy a;
  a.sources = {{.name = "all"}};
  for (const char* id : {"a", "b", "c", "d"}) a.rows.push_back({.row_id = id, .source = "one", .simulated = false, .reason = "no data"});
  a.rows.push_back({.row_id = "e", .source = "one", .simulated = true, .cell_notes = {"recompute 'selctive' is no word"}});
  EXPECT_NE(accuracy_text(a, 0).find("     4  no data (a, b, c, ...)\n"), std::string::npos);
  EXPECT_NE(accuracy_text(a, 0).find("     1  recompute 'selctive' is no word (e)\n"), std::string::npos);
}

RowOutcome timed(double measured, double predicted) {
  RowOutcome r{.source = "one", .simulated = true};
  r.facets = {{"profile", "plain"}};
  r.measured_time = measured;
  r.predicted_time = predicted;
  return r;
}

// Measured 1 2 3 4 has ranks 0 1 2 3, predicted 5 7 7 9 ranks 0 1.5 1.5 3. About their mean 1.5: products 2.25 + 0 + 0 + 2.25 = 4.5, squares
// 5 and 4.5: rho = 4.5 / sqrt(22.5) = 0.9487, whatever order the equal ones are written in.
TEST(Accuracy, EqualTimesShareTheirRank) {
  const double expected = 4.5 / std::sqrt(22.5);
  for (const bool swapped : {false, true}) {
    Accuracy a;
    a.rows = {timed(1, 5), timed(swapped ? 3 : 2, 7), timed(swapped ? 2 : 3, 7), timed(4, 9)};
    EXPECT_NEAR(grouped(a, {"profile"}).at(0).time.rank_correlation, expected, 1e-12);
  }
  // Nothing to rank: no number.
  Accuracy equal;
  equal.rows = {timed(1, 7), timed(2, 7), timed(3, 7)};
  EXPECT_TRUE(std::isnan(grouped(equal, {"profile"}).at(0).time.rank_correlation));
  // A reversed order is -1, an equal one 1.
  Accuracy reversed;
  reversed.rows = {timed(1, 9), timed(2, 8), timed(3, 7)};
  EXPECT_NEAR(grouped(reversed, {"profile"}).at(0).time.rank_correlation, -1, 1e-12);
}

TEST(Accuracy, RowsCanBeGroupedByKindOfMemory) {
  Accuracy a;
  a.rows = {row("allocated", 50, 51), row("reserved", 40, 44)};
  const std::vector<SourceSummary> groups = grouped(a, {"memory-kind"});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "allocated");
  EXPECT_NEAR(groups[1].memory.mape, 0.10, 1e-12);
}

}  // namespace
}  // namespace rehearse::report::accuracy_test
