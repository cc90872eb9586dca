#include "sim/scenario/megatron_arguments.h"

#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/model/shapes.h"
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

// megatron/legacy/model/transformer.py: ParallelAttention reads --use-flash-attn, Megatron-Core's local layers do not. SwiGLU, rotary embedding
// and RMSNorm are operators of PyTorch there; FlagScale's flag for RMSNorm is Apex's kernel.
TEST(MegatronArguments, ModelsFromBeforeMegatronCoreHaveAFlashAttentionOfTheirOwn) {
  using strategies::Fusion;
  const std::string common = R"("transformer-impl": "local", "use-flash-attn": true, "swiglu": true, )";
  Scenario legacy = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments("{" + common + R"("use-legacy-models": true, "normalization": "RMSNorm"})", "", legacy));
  EXPECT_NE(legacy.strategy.training.attention.value_or("flash"), "unfused");
  EXPECT_EQ(legacy.profile.cudnn_attention_from, 0);
  EXPECT_EQ(legacy.profile.rope, Fusion::eager);
  EXPECT_EQ(legacy.profile.activation, Fusion::native);
  EXPECT_EQ(legacy.profile.norm, Fusion::eager);
  Scenario fork = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments("{" + common + R"("use-mcore-models": false, "apply-layernorm-rms": true})", "", fork));
  EXPECT_EQ(fork.model.norm, model::Norm::rms_norm);
  EXPECT_EQ(fork.profile.norm, Fusion::fused);
  Scenario core = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments("{" + common + R"("normalization": "RMSNorm"})", "", core));
  EXPECT_EQ(core.strategy.training.attention, "unfused");
  EXPECT_EQ(core.profile.rope, Fusion::fused);
}

TEST(MegatronArguments, SwitchFusedKernelsOff) {
  using strategies::Fusion;
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"swiglu": true, "no-rope-fusion": true, "no-bias-swiglu-fusion": true})", "", s));
  EXPECT_EQ(s.profile.rope, Fusion::eager);
  EXPECT_EQ(s.profile.rope_form, strategies::RopeForm::angles);
  EXPECT_EQ(s.profile.activation, Fusion::native);
  Scenario fused = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"swiglu": true})", "", fused));
  EXPECT_EQ(fused.profile.rope, Fusion::fused);
  EXPECT_EQ(fused.profile.activation, Fusion::fused);
}

TEST(MegatronArguments, SayHowOftenGarbageIsCollected) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"manual-gc": true, "manual-gc-interval": 5})", "", s));
  EXPECT_EQ(s.strategy.training.collection_interval, 5);
  Scenario other = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"manual-gc-interval": 5})", "", other));   // without --manual-gc Python decides
  EXPECT_EQ(other.strategy.training.collection_interval, 0);
}

// A small job waits for its host: a collection of 200 ms every fifth step is 40 ms of each, one every hundredth 2 ms.
TEST(GarbageCollection, HoldsTheHostOnceInSoManySteps) {
  const auto step = [](std::int64_t interval) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.profile.collection_host = seconds(0.2);
    s.strategy.training.collection_interval = interval;
    return simulate(s, {}).step_time;
  };
  EXPECT_NEAR(step(5) - step(0), 0.040, 1e-6);
  EXPECT_NEAR(step(100) - step(0), 0.002, 1e-6);
}

// A small job waits for its host: twice as long per parameter takes twice. What comes before the norm takes as long, but for what it hides under the
// last of the device's work (within 4 %).
TEST(DistributedOptimizer, HoldsTheHostForEachParameterOfItsShare) {
  const auto step = [](int norm, int update) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.profile.norm_host = microseconds(norm);
    s.profile.update_host = microseconds(update);
    return simulate(s, {}).step_time;
  };
  const double once = step(0, 10) - step(0, 0);
  EXPECT_GT(once, 2 * 4 * 10e-6);   // two layers of at least four weights
  EXPECT_NEAR(step(0, 20) - step(0, 0), 2 * once, 1e-9);
  EXPECT_NEAR(step(10, 10) - step(0, 0), 2 * once, 0.04 * once);
}

// Only a router that has no loss, no bias and no forced choice is left to itself.
TEST(MegatronArguments, ARouterThatNothingBalancesHasPopularExperts) {
  using strategies::RoutingKind;
  const auto routing = [](const std::string& more) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.model.experts.experts = 8;
    s.model.experts.top_k = 2;
    EXPECT_FALSE(apply_megatron_arguments("{" + more + R"("moe-grouped-gemm": true})", "", s));
    return s.strategy.experts.routing.distribution;
  };
  const std::string none = R"("moe-router-load-balancing-type": "none", )";
  EXPECT_EQ(routing(none), RoutingKind::zipf);
  EXPECT_EQ(routing(none + R"("moe-router-force-load-balancing": true, )"), RoutingKind::balanced);
  EXPECT_EQ(routing(none + R"("moe-router-enable-expert-bias": true, )"), RoutingKind::balanced);
  EXPECT_EQ(routing(R"("moe-router-load-balancing-type": "aux_loss", )"), RoutingKind::balanced);
  EXPECT_EQ(routing(""), RoutingKind::balanced);
}

TEST(MegatronArguments, NameFormatsOfGradientsAndMoments) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"bf16": true, "grad-reduce-in-bf16": true, "exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"})", "", s));
  EXPECT_EQ(s.profile.gradient, DType::bf16);
  EXPECT_EQ(s.strategy.data_parallel.reduce_dtype, DType::bf16);
  EXPECT_EQ(s.profile.optimizer_state, DType::bf16);
  Scenario wide = megatron_job("h100-sxm", "dgx-h100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"bf16": true, "exp-avg-dtype": "bf16"})", "", wide));
  EXPECT_EQ(wide.profile.gradient, DType::fp32);
  EXPECT_FALSE(wide.strategy.training.optimizer_state_dtype);
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

// Scores of one layer stay: 1 sample x 8 heads x 256 x 256 x 2 bytes. Only Megatron's own attention writes into the buffer.
TEST(MemoryBuffer, HoldsTheScoresOfOneLayer) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"transformer-impl": "local"})", "", s));
  s.profile.states_at_first_step = false;
  ASSERT_TRUE(s.profile.memory_buffer);
  const std::int64_t with = peak(s);
  s.profile.memory_buffer = false;
  EXPECT_EQ(with - peak(s), 8 * 256 * 256 * 2);
  s.profile.transformer_engine = true;   // whose unfused attention makes its scores anew
  s.strategy.training.transformer_engine.reset();
  s.profile.memory_buffer = false;
  const std::int64_t without = peak(s);
  s.profile.memory_buffer = true;
  EXPECT_EQ(peak(s), without);
}

// Two handles of PyTorch, Transformer Engine's, and four more where experts are grouped; beside Megatron's own layers the router's product has one.
TEST(Workspaces, GroupedExpertsHaveOneForEachStream) {
  strategies::FrameworkProfile p = strategies::load_profile("megatron-core");
  auto sizes = [&](bool experts) { return strategies::with_workspaces(p, 8_MiB, 32_MiB, experts).workspaces; };
  EXPECT_EQ(sizes(false), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB, 32_MiB, 32_MiB, 32_MiB, 32_MiB}));
  p.grouped_experts = false;
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  p.transformer_engine = false;
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  EXPECT_EQ(sizes(false), (std::vector<Bytes>{8_MiB, 8_MiB}));
}

// On Blackwell cuDNN cannot add up in a fixed order with dropout. FlashAttention's output is copied for the next product, and
// both are kept: 2 layers x 256 tokens x 512 x 2 bytes.
TEST(DeterministicAttention, IsFlashAttentionOnBlackwell) {
  auto kept = [](const char* node, const char* gpu, const char* arguments) {
    Scenario s = megatron_job(gpu, node);
    s.model.vocab = 64 * 1024;   // the loss is the peak
    EXPECT_FALSE(apply_megatron_arguments(arguments, "", s));
    s.profile.states_at_first_step = false;
    return peak(s);
  };
  const char* free = R"({"swiglu": false})";
  const char* fixed = R"({"deterministic-mode": true})";
  EXPECT_EQ(kept("dgx-b200", "b200-sxm", fixed) - kept("dgx-b200", "b200-sxm", free), 2 * 256 * 512 * 2);
  EXPECT_EQ(kept("dgx-h100", "h100-sxm", fixed), kept("dgx-h100", "h100-sxm", free));
  EXPECT_EQ(kept("dgx-b200", "b200-sxm", R"({"deterministic-mode": true, "attention-dropout": 0})"), kept("dgx-b200", "b200-sxm", R"({"attention-dropout": 0})"));
}

// fp32 gradients are a habit of bf16 runs.
TEST(MegatronArguments, GradientsOfFp16RunsAreNarrow) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  s.strategy.training.precision = strategies::Precision::fp16;
  ASSERT_FALSE(apply_megatron_arguments(R"({"fp16": true})", "", s));
  EXPECT_EQ(s.profile.gradient, DType::fp16);
  s = megatron_job("a100-80gb-sxm", "dgx-a100");
  ASSERT_FALSE(apply_megatron_arguments(R"({"fp16": true, "accumulate-allreduce-grads-in-fp32": true})", "", s));
  EXPECT_EQ(s.profile.gradient, DType::fp32);
}

// Of Megatron's own attention without its fused softmax the fp32 result is kept: 2 layers x 8 heads x 256 x 256 x 4 bytes, where there were 2.
TEST(MegatronArguments, UnfusedSoftmaxKeepsItsWideResult) {
  auto job = [](const char* arguments) {
    Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
    s.model.vocab = 64 * 1024;   // the loss is the peak
    EXPECT_FALSE(apply_megatron_arguments(arguments, "", s));
    s.profile.states_at_first_step = false;
    return peak(s);
  };
  const std::int64_t fused = job(R"({"transformer-impl": "local", "apply-query-key-layer-scaling": true})");
  const std::int64_t unfused = job(R"({"transformer-impl": "local", "apply-query-key-layer-scaling": true, "no-masked-softmax-fusion": true})");
  EXPECT_EQ(unfused - fused, 2 * 8 * 256 * 256 * 2);
}

TEST(MegatronLayout, LettersSayWhatEachChunkHolds) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model = small_llama(16);
  s.strategy = small_job(1, 2, 4);
  apply_megatron_layout(R"({"pipeline-model-parallel-layout": "Et*3|(tt|)*6tmL", "overlap-moe-expert-parallel-comm": true})", s);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{3, 2, 2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(s.strategy.pipeline.virtual_stages, 4);
  EXPECT_EQ(s.strategy.pipeline.schedule, "interleaved-1f1b");
  EXPECT_TRUE(s.strategy.experts.overlap_exchange);
  for (const char* no_layout : {"(tt", "t)", "*3t", "t*0|t", "((((t*9999)*9999)*9999)*9999)"}) {
    s.strategy = small_job(1, 2, 4);
    apply_megatron_layout((std::string(R"({"pipeline-model-parallel-layout": ")") + no_layout + "\"}").c_str(), s);
    EXPECT_TRUE(s.strategy.pipeline.layers_per_stage.empty()) << no_layout;
  }
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
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "hybridep", "moe-hybridep-num-sms": 24, "moe-deepep-num-sms": 20, "cuda-graph-scope": "[attn moe_router]", "recompute-modules": "moe_act layernorm"})", "", s));
  EXPECT_EQ(s.strategy.experts.dispatch_sms, 24);
  EXPECT_EQ(s.profile.dispatcher, strategies::Dispatcher::hybridep);
  EXPECT_EQ(s.strategy.training.cuda_graph_modules, (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_EQ(s.strategy.memory.recompute_modules, (std::vector<std::string>{"moe_act", "layernorm"}));
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex"})", "", s));
  EXPECT_EQ(s.profile.dispatcher, strategies::Dispatcher::deepep);
  EXPECT_FALSE(s.profile.fused_index_map);
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-token-dispatcher-type": "flex", "enable-experimental": true})", "", s));
  EXPECT_TRUE(s.profile.fused_index_map);
}

TEST(MegatronArguments, NameFusedRoutersAndPermutations) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model.experts.experts = 8;
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-grouped-gemm": true, "moe-router-fusion": true})", "", s));
  EXPECT_TRUE(s.profile.fused_router);
  EXPECT_FALSE(s.profile.fused_permute);   // both are off by default
  ASSERT_FALSE(apply_megatron_arguments(R"({"moe-grouped-gemm": true, "moe-permute-fusion": true})", "", s));
  EXPECT_FALSE(s.profile.fused_router);
  EXPECT_TRUE(s.profile.fused_permute);
}

}  // namespace
}  // namespace rehearse::scenario::megatron_arguments_test
