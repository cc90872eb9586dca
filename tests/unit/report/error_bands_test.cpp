#include "sim/report/error_bands.h"

#include <gtest/gtest.h>

namespace rehearse::report::error_bands_test {
namespace {

/// A source whose errors are 1 %, 2 %, ... n %, times `scale`.
void add_source(Accuracy& a, const std::string& source, const std::string& profile, const std::string& architecture, int n, double scale) {
  for (int i = 1; i <= n; ++i) {
    RowOutcome r{.source = source, .profile = profile, .architecture = architecture, .simulated = true};
    r.measured_time = 1.0;
    r.predicted_time = 1.0 - 0.01 * i * scale;
    a.rows.push_back(r);
  }
}

std::vector<const RowOutcome*> pointers(const Accuracy& a) {
  std::vector<const RowOutcome*> out;
  for (const RowOutcome& r : a.rows) out.push_back(&r);
  return out;
}

TEST(ErrorBand, HoldsFourFifthsOfTheRows) {
  Accuracy a;
  add_source(a, "one", "megatron-core", "hopper", 10, 1);
  add_source(a, "two", "megatron-core", "hopper", 10, 1);
  EXPECT_NEAR(*band_for(pointers(a), "megatron-core", "hopper").step_time, 0.08, 1e-9);
}

// 1000 rows of one source weigh as much as 10 of the other: half of the weight lies below 1 %, and 0.6 of the other's (6 %).
TEST(ErrorBand, SourcesWeighTheSame) {
  Accuracy a;
  add_source(a, "few", "megatron-core", "hopper", 10, 1);
  add_source(a, "many", "megatron-core", "hopper", 1000, 0.001);
  EXPECT_NEAR(*band_for(pointers(a), "megatron-core", "hopper").step_time, 0.06, 1e-9);
}

// A job shares the mistakes of its framework and of its GPU: 16 % on Hopper where a framework's own runs are 8 % off, and the other way.
TEST(ErrorBand, IsTheWiderOfTheFrameworksAndTheArchitectures) {
  Accuracy a;
  add_source(a, "one", "megatron-core", "ampere", 10, 1);
  add_source(a, "two", "megatron-core", "ampere", 10, 1);
  add_source(a, "three", "nanotron", "hopper", 10, 2);
  add_source(a, "four", "deepspeed", "hopper", 10, 2);
  const std::vector<const RowOutcome*> rows = pointers(a);
  EXPECT_NEAR(*band_for(rows, "megatron-core", "hopper").step_time, 0.16, 1e-9);
  EXPECT_NE(band_for(rows, "megatron-core", "hopper").basis.find("20 rows of 2 sources (any framework on hopper)"), std::string::npos);
  EXPECT_NEAR(*band_for(rows, "megatron-core", "ampere").step_time, 0.08, 1e-9);
  EXPECT_NE(band_for(rows, "megatron-core", "volta").basis.find("megatron-core on NVIDIA GPUs"), std::string::npos);
  EXPECT_NE(band_for(rows, "deepspeed", "volta").basis.find("all runs"), std::string::npos);   // one source of it agrees with nobody
  EXPECT_FALSE(band_for({}, "deepspeed", "volta").step_time);

  // AMD's libraries are others: what is wrong there says nothing of NVIDIA's GPUs, and the other way.
  for (const char* name : {"five", "six"}) add_source(a, name, "megatron-core", "cdna4", 10, 5);
  EXPECT_NEAR(*band_for(pointers(a), "megatron-core", "ampere").step_time, 0.08, 1e-9);
  EXPECT_NEAR(*band_for(pointers(a), "megatron-core", "cdna3").step_time, 0.40, 1e-9);
}

// The third source is ten times as wrong as the other two: none of its rows beyond 8 % lies in their band.
TEST(Coverage, LeavesTheJudgedSourceOut) {
  Accuracy a;
  for (const char* name : {"one", "two"}) add_source(a, name, "megatron-core", "hopper", 10, 1);
  add_source(a, "three", "megatron-core", "hopper", 10, 10);
  const auto coverage = band_coverage(a);
  ASSERT_EQ(coverage.size(), 3u);
  for (const Coverage& c : coverage) EXPECT_NEAR(c.inside, c.source == "three" ? 0.0 : 1.0, 1e-9) << c.source;
}

TEST(StoredBand, IsTheWiderOfTheFrameworksAndTheArchitectures) {
  EXPECT_FALSE(stored_band("megatron-core", "hopper").basis.empty());
  // Neither framework nor GPU has measured runs: those of all.
  EXPECT_NE(stored_band("nobody", "nowhere").basis.find("(all runs)"), std::string::npos);
  // At least as wide as either alone, where it has runs of its own.
  for (const char* profile : {"megatron-core", "torchtitan-compile", "huggingface", "deepspeed"}) {
    const Band both = stored_band(profile, "blackwell");
    for (const Band& one : {stored_band(profile, "nowhere"), stored_band("nobody", "blackwell")}) {
      ASSERT_EQ(one.basis.find("(all runs)"), std::string::npos) << profile << ": " << one.basis;
      EXPECT_GE(*both.step_time, *one.step_time) << profile;
      EXPECT_GE(*both.peak_memory, *one.peak_memory) << profile;
    }
  }
}

// A table alone has no other sources to make bands from: what answers state is asked.
TEST(StoredBand, JudgesATableAlone) {
  Accuracy a;
  add_source(a, "one", "torchtitan", "hopper", 3, 1);      // 1, 2 and 3 % off
  add_source(a, "one", "torchtitan", "hopper", 1, 90);     // 90 % off
  EXPECT_EQ(band_beside(a, a.rows[0]).step_time, stored_band("torchtitan", "hopper").step_time);
  const StatedCoverage stated = stated_coverage(a);
  EXPECT_EQ(stated.times, 4);
  EXPECT_EQ(stated.times_inside, 3);
  EXPECT_EQ(stated.memory, 0);
}

}  // namespace
}  // namespace rehearse::report::error_bands_test
