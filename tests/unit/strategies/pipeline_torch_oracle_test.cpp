// Our pytorch-* schedules against PyTorch's own, action by action
// (tests/oracles/torch_pipeline_schedules.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "strategies/pipeline/catalog.h"
#include "strategies/pipeline/messages.h"
#include "strategies/pipeline/sharding.h"
#include "strategies/pipeline/table.h"
#include "tests/support/source_dir.h"

namespace rehearse::strategies::pipeline_torch_oracle_test {
namespace {

std::vector<std::string> rows_of(const PipelineProgram& program) {
  std::vector<std::string> out;
  for (int r = 0; r < program.stages(); ++r) {
    std::string row;
    for (const Action& a : program.ranks[r]) row += (row.empty() ? "" : " ") + cell_of(program, r, a);
    out.push_back(row);
  }
  return out;
}

/// Schedule1F1B's printed order numbers the last rank's forwards from 1, one past the end (its counter starts
/// as if a warm-up forward had run). What it executes (_step_microbatches) counts from 0, so we take one off.
std::vector<std::string> last_rank_mended(std::vector<std::string> rows) {
  std::istringstream in(rows.back());
  rows.back().clear();
  for (std::string cell; in >> cell;) {
    const std::size_t f = cell.find('F');
    if (f != cell.npos) cell = cell.substr(0, f + 1) + std::to_string(std::stoi(cell.substr(f + 1)) - 1);
    rows.back() += (rows.back().empty() ? "" : " ") + cell;
  }
  return rows;
}

TEST(PipelineTorchOracle, SameActionsInTheSameOrder) {
  // Several of ours share PyTorch's order of computations with other messages; each is held to it.
  const std::multimap<std::string, std::string> ours{
      {"gpipe", "gpipe"},
      {"1f1b", "pytorch-1f1b"},
      {"1f1b", "1f1b"},
      {"looped-bfs", "breadth-first"},
      {"interleaved-1f1b", "pytorch-interleaved-1f1b"},
      {"interleaved-zero-bubble", "pytorch-interleaved-zero-bubble"},
      {"zb-v", "zb-v"},
      {"dualpipe-v", "dualpipev"}};
  std::ifstream file(source_dir().string() + "/tests/oracles/data/torch_pipeline_schedules.json");
  ASSERT_TRUE(file) << "tests/oracles/data/torch_pipeline_schedules.json is missing";
  const nlohmann::json oracle = nlohmann::json::parse(file);
  int compared = 0, compared_with_messages = 0;
  for (const auto& row : oracle["cases"]) {
    const PipelineShape shape{
        .stages = row["ranks"], .micro_batches = row["micro_batches"], .chunks = row["stages_per_rank"]};
    const auto [first, last] = ours.equal_range(row["schedule"]);
    ASSERT_NE(first, last) << row["schedule"];
    for (auto it = first; it != last; ++it) {
      const PipelineSchedule& schedule = *kPipelineSchedules.find(it->second);
      ASSERT_TRUE(schedule.problems(shape).empty()) << it->second;
      const PipelineProgram compute = without_messages(schedule.make(shape));
      auto theirs = row["compute"].get<std::vector<std::string>>();
      if (row["schedule"] == "1f1b") theirs = last_rank_mended(theirs);
      EXPECT_EQ(rows_of(compute), theirs) << it->second << row.dump().substr(0, 90);
      ++compared;
      if (!row.contains("with_communication")) continue;
      const PipelineProgram full = with_messages(with_sharded_parameters(compute));
      EXPECT_EQ(rows_of(full), row["with_communication"].get<std::vector<std::string>>())
          << it->second << row.dump().substr(0, 90);
      ++compared_with_messages;
    }
  }
  EXPECT_GE(compared, 100);
  EXPECT_GE(compared_with_messages, 20);
}

// With one chunk the interleaved zero-bubble order is ZB-H1's, so ZB-H1 rests on the same oracle.
TEST(PipelineTorchOracle, ZeroBubbleH1IsTheOneChunkCase) {
  const PipelineShape shape{.stages = 4, .micro_batches = 8};
  EXPECT_EQ(rows_of(make_zero_bubble_h1(shape)), rows_of(make_pytorch_interleaved_zero_bubble(shape)));
}

}  // namespace
}  // namespace rehearse::strategies::pipeline_torch_oracle_test
