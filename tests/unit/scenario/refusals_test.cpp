// What cannot be simulated, or not on these machines, is refused with its reason: no silent stand-in, no crash.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/config/layers.h"
#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/scenario.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/pipeline/table.h"

namespace rehearse::scenario::refusals_test {
namespace {

/// The mistakes in the base scenario after one override; "" when there are none.
std::string mistakes(const std::string& override_text) {
  const char* base =
      "model: gpt2-xl\n"
      "cluster: {node: dgx-h100, gpus_per_node: 4}\n"
      "training: {sequence_length: 1024, global_batch_size: 8, precision: bf16, framework: huggingface}\n"
      "parallelism: {pipeline: 4}\n";
  try {
    read_scenario(config::apply_override(config::parse_document(base, "refusals.yaml").root, override_text), "refusals.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Refusals, TheBaseIsFine) { EXPECT_EQ(mistakes("title=base"), ""); }

TEST(Refusals, APrecisionThatTheGpuLacks) {
  EXPECT_NE(mistakes("training.precision=nvfp4").find("has no nvfp4 matrix products"), std::string::npos);
  EXPECT_NE(mistakes("cluster.gpu=v100-32gb-sxm2").find("has no bf16 matrix products"), std::string::npos);
}

TEST(Refusals, ASequenceBeyondTheLearnedPositions) {
  EXPECT_NE(mistakes("training.sequence_length=2048").find("the model has 1024 learned positions"), std::string::npos);
}

// 48 layers over 4 stages. The ends may be bare: they hold the embedding and the head.
TEST(Refusals, AStageWithNothingInIt) {
  EXPECT_EQ(mistakes("pipeline.layers_per_stage=[0, 24, 24, 0]"), "");
  EXPECT_NE(mistakes("pipeline.layers_per_stage=[24, 0, 0, 24]").find("would hold no layer"), std::string::npos);
  EXPECT_NE(mistakes("pipeline.layers_per_stage=[24, 24]").find("2 entries for 4 stages"), std::string::npos);
}

/// A file that is gone with the test.
struct TemporaryFile {
  std::filesystem::path path;
  explicit TemporaryFile(const std::string& text) : path(std::filesystem::path(testing::TempDir()) / "rehearse_schedule.csv") { std::ofstream(path) << text; }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

// 8 micro-batches on 4 stages. The table's own mistakes have its lines; what does not fit the job has the job's keys.
TEST(Refusals, SchedulesGivenAsATable) {
  const auto table_for = [](int stages, int micro_batches) {
    return strategies::table_of(strategies::kPipelineSchedules.find("zb-h1")->make({.stages = stages, .micro_batches = micro_batches}));
  };
  const auto with = [](const std::string& table) {
    const TemporaryFile file(table);
    return mistakes("pipeline.table=" + file.path.string());
  };
  EXPECT_EQ(with(table_for(4, 8)), "");
  EXPECT_NE(with(table_for(2, 8)).find("the schedule's table has rows for 2"), std::string::npos);
  EXPECT_NE(with(table_for(4, 6)).find("the schedule's table has 6"), std::string::npos);
  EXPECT_NE(with("0F0,0B0\n1F0,1X0\n").find("rehearse_schedule.csv:2:5"), std::string::npos);
  EXPECT_NE(mistakes("pipeline.table=no_such_file.csv").find("no_such_file.csv"), std::string::npos);
}

TEST(Refusals, SchedulesThatTheModelOrTheFrameworkCannotRun) {
  EXPECT_EQ(mistakes("pipeline.schedule=zb-v"), "");
  EXPECT_NE(mistakes("pipeline={schedule: zb-v, virtual_stages: 3}").find("has 2 model chunks per rank"), std::string::npos);
  EXPECT_NE(mistakes("pipeline={schedule: 1f1b, virtual_stages: 2}").find("has 1 model chunk per rank"), std::string::npos);
}

TEST(Refusals, GraphPartsAndCompiledFormsThatDoNotExist) {
  EXPECT_EQ(mistakes("training.cuda_graph=true"), "");
  EXPECT_NE(mistakes("training.cuda_graph_modules=[attention]").find("is no part of a layer"), std::string::npos);
  EXPECT_NE(mistakes("experts.overlap_exchange=true").find("no tokens travel"), std::string::npos);
  EXPECT_NE(mistakes("data_parallel.max_reuse_distance=0").find("only ZeRO-3 gathers module by module"), std::string::npos);
  EXPECT_NE(mistakes("training.compile=true").find("has no compiled form"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::scenario::refusals_test
