// What cannot be simulated, or not on these machines, is refused with its reason: no silent stand-in, no crash.
#include <gtest/gtest.h>

#include "sim/config/layers.h"
#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {
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

TEST(Refusals, CudaGraphsAndCompiledFormsThatDoNotExist) {
  EXPECT_NE(mistakes("training.cuda_graph=true").find("CUDA graphs cannot be simulated yet"), std::string::npos);
  EXPECT_NE(mistakes("training.compile=true").find("has no compiled form"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::scenario
