#include "sim/scenario/megatron_arguments.h"

#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::megatron_arguments_test {
namespace {

Scenario megatron_job(const std::string& gpu, const std::string& node) {
  Scenario s;
  s.model = small_llama(2);
  s.strategy = small_job(1);
  s.profile = strategies::load_profile("megatron-core");
  s.cluster = hwmodels::load_cluster(node, 1, "rail-fat-tree", gpu);
  s.cluster.gpus_per_node = 1;
  return s;
}

std::int64_t peak(const Scenario& s) { return simulate(s, {}).classes.front().memory.peak_allocated.value; }

TEST(CublasWorkspaceConfig, AddsUpPairsOfSizeAndCount) {
  EXPECT_EQ(cublas_workspace_of(":4096:8"), 32_MiB);
  EXPECT_EQ(cublas_workspace_of(":4096:2:16:8"), 8320_KiB);
  EXPECT_EQ(cublas_workspace_of(""), Bytes{0});
  EXPECT_EQ(cublas_workspace_of("none"), Bytes{0});
}

TEST(MegatronArguments, NameWhatCannotBeSimulated) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  EXPECT_TRUE(apply_megatron_arguments(R"({"use-megatron-fsdp": true, "data-parallel-sharding-strategy": "optim"})", "", s));
  EXPECT_FALSE(apply_megatron_arguments(R"({"swiglu": true})", "", s));
  EXPECT_THROW(apply_megatron_arguments("[1", "", s), ConfigError);
}

TEST(MegatronArguments, LocalLayersHaveUnfusedAttentionAndNoTransformerEngine) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"transformer-impl": "local"})", "", s));
  EXPECT_EQ(s.strategy.training.attention, "unfused");
  EXPECT_FALSE(s.profile.transformer_engine);
}

// Two PyTorch handles (main thread, autograd thread) of 32 instead of 8320 KiB; Transformer Engine 4 MiB either way.
TEST(Workspaces, OneForEachThreadsHandle) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  s.profile.states_at_first_step = false;   // no blocks of odd sizes where activations were
  const std::int64_t usual = peak(s);
  ASSERT_FALSE(apply_megatron_arguments(R"({"hidden-dropout": 0, "attention-dropout": 0})", R"({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})", s));
  s.profile.fused_gradient_accumulation = s.profile.dummy_weight_gradients = true;
  EXPECT_EQ(peak(s) - usual, 2 * (32_MiB - 8320_KiB).value);
}

// The compiled loss writes exponentials beside the fp32 logits: tokens x vocabulary x 4 bytes more at the peak.
TEST(CompiledVocabularyParallelLoss, HoldsOneMoreCopyOfTheLogits) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model.vocab = 64 * 1024;
  s.profile.loss = strategies::LossKind::vocab_parallel;
  const std::int64_t in_place = peak(s);
  s.profile.loss = strategies::LossKind::vocab_parallel_compiled;
  EXPECT_NEAR(static_cast<double>(peak(s) - in_place), 256 * 64 * 1024 * 4, 2 * 256 * 4);  // and a row of statistics
}

TEST(MegatronLayout, FirstAndLastStageMayHoldFewerLayers) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model = small_llama(12);
  s.strategy = small_job(1, 4, 4);
  apply_megatron_layout(R"({"decoder-first-pipeline-num-layers": 2, "decoder-last-pipeline-num-layers": 2})", s);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{2, 4, 4, 2}));
}

// 6 layers, embedding and loss: one for each of 8 chunks, none left for the first and the last.
TEST(MegatronLayout, EmbeddingAndLossMayCountAsLayers) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model = small_llama(6);
  s.strategy = small_job(1, 4, 4);
  s.strategy.pipeline.virtual_stages = 2;
  apply_megatron_layout(R"({"account-for-embedding-in-pipeline-split": true, "account-for-loss-in-pipeline-split": true})", s);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{0, 1, 1, 1, 1, 1, 1, 0}));
}

// Megatron merges a forward and a backward of one stage, or of interleaved ones.
TEST(MegatronLayout, TheExchangeOfExpertsOverlapsWhereMegatronCan) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  const char* arguments = R"({"overlap-moe-expert-parallel-comm": true})";
  apply_megatron_layout(arguments, s);
  EXPECT_TRUE(s.strategy.experts.overlap_exchange);
  s.strategy = small_job(1, 4, 4);
  apply_megatron_layout(arguments, s);
  EXPECT_FALSE(s.strategy.experts.overlap_exchange);
  s.strategy.pipeline.virtual_stages = 2;
  apply_megatron_layout(arguments, s);
  EXPECT_TRUE(s.strategy.experts.overlap_exchange);
}

TEST(MegatronArguments, NameDispatchersAndGraphs) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model.experts.experts = 8;
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "hybridep", "cuda-graph-scope": "[attn moe_router]", "recompute-modules": "moe_act layernorm"})", "", s));
  EXPECT_EQ(s.profile.dispatcher, strategies::Dispatcher::hybridep);
  EXPECT_EQ(s.strategy.training.cuda_graph_modules, (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_EQ(s.strategy.memory.recompute_modules, (std::vector<std::string>{"moe_act", "layernorm"}));
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex"})", "", s));
  EXPECT_EQ(s.profile.dispatcher, strategies::Dispatcher::deepep);
  EXPECT_FALSE(s.profile.fused_index_map);
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex", "enable-experimental": true})", "", s));
  EXPECT_TRUE(s.profile.fused_index_map);
}

}  // namespace
}  // namespace rehearse::scenario::megatron_arguments_test
