// Rows as calibrate/ground_truth/measure.py writes them for each of its cases (times made up): all can be judged by `validate`.
#include <gtest/gtest.h>

#include "sim/scenario/measured_run.h"
#include "tests/support/source_dir.h"

namespace rehearse::calibrate::ground_truth_rows_test {
namespace {

TEST(GroundTruthRows, EveryOneIsSimulated) {
  const auto runs = scenario::read_measured_runs((source_dir() / "tests/oracles/data/ground_truth_rows.csv").string());
  EXPECT_GE(runs.size(), 30u);
  for (const scenario::MeasuredRun& run : runs) {
    EXPECT_TRUE(run.scenario.has_value()) << run.row_id << ": " << run.reason;
    EXPECT_TRUE(run.step_time_s.has_value() && run.peak_mem_gib.has_value()) << run.row_id;
    EXPECT_EQ(run.peak_mem_kind, "allocated");
  }
}

}  // namespace
}  // namespace rehearse::calibrate::ground_truth_rows_test
