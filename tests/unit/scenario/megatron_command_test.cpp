#include "sim/scenario/megatron_command.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/model/shapes.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::megatron_command_test {
namespace {

/// Llama's layers, two of them, on one GPU, as Megatron's arguments have it; `more` arguments in place of these, and `environment`, as JSON.
Scenario job(const std::string& more = "{}", const std::string& environment = "", const char* node = "dgx-h100", int gpus = 1) {
  auto arguments = nlohmann::json::parse(R"({"num-layers": 2, "hidden-size": 512, "num-attention-heads": 8, "ffn-hidden-size": 1024, "seq-length": 256, "max-position-embeddings": 256, "vocab-size": 4096,
      "micro-batch-size": 1, "bf16": true, "swiglu": true, "normalization": "RMSNorm", "position-embedding-type": "rope", "disable-bias-linear": true, "untie-embeddings-and-output-weights": true})");
  arguments.merge_patch(nlohmann::json::parse(more));
  if (!arguments.contains("global-batch-size")) arguments["global-batch-size"] = gpus;
  const std::string cluster = std::string("cluster: {node: ") + node + ", gpus_per_node: " + std::to_string(gpus) + "}";
  return scenario_of_command(command_of(arguments.dump()), environment, config::parse_document(cluster, "cluster.yaml").root);
}

std::string refused(const std::string& more, int gpus = 1) {
  try {
    job(more, "", "dgx-h100", gpus);
  } catch (const ConfigError& error) {
    return to_string(error.diagnostics().front());
  }
  return "";
}

std::int64_t peak(const Scenario& s) { return simulate(s, {}).classes.front().memory.peak_allocated.value; }

TEST(MegatronCommand, NameWhatCannotBeSimulated) {
  EXPECT_NE(refused(R"({"use-megatron-fsdp": true, "data-parallel-sharding-strategy": "optim_params"})").find("'optim_params' is no strategy of Megatron-FSDP"), std::string::npos);
  EXPECT_NE(refused(R"({"export-kd-cfg": "teacher.yaml"})").find("learning from another model"), std::string::npos);
  EXPECT_EQ(refused("{}"), "");
  EXPECT_THROW(command_of("[1"), ConfigError);
}

TEST(MegatronCommand, HybridPatternsGiveLayersTheirPartsAndStages) {
  const Scenario s = job(R"({"hybrid-layer-pattern": "M-M*-|M-M*-", "mamba-num-groups": 4, "pipeline-model-parallel-size": 2, "num-layers": null, "position-embedding-type": "none"})", "", "dgx-h100", 2);
  EXPECT_EQ(model::layer_pattern_of(s.model), "M-M*-M-M*-");
  EXPECT_EQ(s.model.state_space.groups, 4);
  EXPECT_EQ(s.model.state_space.inner(), 2 * s.model.hidden);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{5, 5}));
}

TEST(MegatronCommand, LocalLayersHaveUnfusedAttentionAndNoTransformerEngine) {
  const Scenario s = job(R"({"transformer-impl": "local"})");
  EXPECT_EQ(s.strategy.training.attention, "unfused");
  EXPECT_FALSE(s.profile.transformer_engine);
}

// megatron/legacy/model/transformer.py: ParallelAttention reads --use-flash-attn, Megatron-Core's local layers do not. SwiGLU, rotary embedding
// and RMSNorm are operators of PyTorch there; FlagScale's flag for RMSNorm is Apex's kernel.
TEST(MegatronCommand, ModelsFromBeforeMegatronCoreHaveAFlashAttentionOfTheirOwn) {
  using strategies::Fusion;
  const std::string common = R"({"transformer-impl": "local", "use-flash-attn": true, )";
  const Scenario legacy = job(common + R"("use-legacy-models": true})");
  EXPECT_NE(legacy.strategy.training.attention.value_or("flash"), "unfused");
  EXPECT_EQ(legacy.profile.cudnn_attention_from, 0);
  EXPECT_EQ(legacy.profile.rope, Fusion::eager);
  EXPECT_EQ(legacy.profile.activation, Fusion::native);
  EXPECT_EQ(legacy.profile.norm, Fusion::eager);
  const Scenario fork = job(common + R"("use-mcore-models": false, "normalization": null, "apply-layernorm-rms": true})");
  EXPECT_EQ(fork.model.norm, model::Norm::rms_norm);
  EXPECT_EQ(fork.profile.norm, Fusion::fused);
  const Scenario core = job(common + R"("use-mcore-models": true})");
  EXPECT_EQ(core.strategy.training.attention, "unfused");
  EXPECT_EQ(core.profile.rope, Fusion::fused);
}

TEST(MegatronCommand, SwitchFusedKernelsOff) {
  using strategies::Fusion;
  const Scenario s = job(R"({"no-rope-fusion": true, "no-bias-swiglu-fusion": true})"), fused = job();
  EXPECT_EQ(s.profile.rope, Fusion::eager);
  EXPECT_EQ(s.profile.rope_form, strategies::RopeForm::angles);
  EXPECT_EQ(s.profile.activation, Fusion::native);
  EXPECT_EQ(fused.profile.rope, Fusion::fused);
  EXPECT_EQ(fused.profile.activation, Fusion::fused);
}

TEST(MegatronCommand, SaysHowManyStepsItTrains) {
  EXPECT_EQ(steps_of_command(R"({"train-iters": 1, "x": 5})"), 1);
  EXPECT_EQ(steps_of_command(R"({"x": 5, "train-iters":1})"), 1);   // the last key too
  EXPECT_EQ(steps_of_command(R"({"train-iters": 100})"), 100);
  EXPECT_EQ(steps_of_command(R"({"train-samples": 1})"), 0);
}

TEST(MegatronCommand, SayHowOftenGarbageIsCollected) {
  EXPECT_EQ(job(R"({"manual-gc": true, "manual-gc-interval": 5})").strategy.training.collection_interval, 5);
  EXPECT_EQ(job(R"({"manual-gc-interval": 5})").strategy.training.collection_interval, 0);   // without --manual-gc Python decides
}

// Only a router that has no loss, no bias and no forced choice is left to itself.
TEST(MegatronCommand, ARouterThatNothingBalancesHasPopularExperts) {
  using strategies::RoutingKind;
  const auto routing = [](const std::string& more) { return job("{" + more + R"("num-experts": 8, "moe-grouped-gemm": true})").strategy.experts.routing.distribution; };
  const std::string none = R"("moe-router-load-balancing-type": "none", )";
  EXPECT_EQ(routing(none), RoutingKind::zipf);
  EXPECT_EQ(routing(none + R"("moe-router-force-load-balancing": true, )"), RoutingKind::balanced);
  EXPECT_EQ(routing(none + R"("moe-router-enable-expert-bias": true, )"), RoutingKind::balanced);
  EXPECT_EQ(routing(R"("moe-router-load-balancing-type": "aux_loss", )"), RoutingKind::balanced);
  EXPECT_EQ(routing(""), RoutingKind::balanced);
}

TEST(MegatronCommand, NameFormatsOfGradientsAndMoments) {
  const Scenario s = job(R"({"grad-reduce-in-bf16": true, "exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"})");
  EXPECT_EQ(s.profile.gradient, DType::bf16);
  EXPECT_EQ(s.strategy.data_parallel.reduce_dtype, DType::bf16);
  EXPECT_EQ(s.profile.optimizer_state, DType::bf16);
  EXPECT_EQ(job().profile.gradient, DType::fp32);
  EXPECT_NE(refused(R"({"exp-avg-dtype": "bf16"})").find("moments in different"), std::string::npos);
}

// fp32 gradients are a habit of bf16 runs.
TEST(MegatronCommand, GradientsOfFp16RunsAreNarrow) {
  EXPECT_EQ(job(R"({"bf16": false, "fp16": true})").profile.gradient, DType::fp16);
  EXPECT_EQ(job(R"({"bf16": false, "fp16": true, "accumulate-allreduce-grads-in-fp32": true})").profile.gradient, DType::fp32);
}

// Of Megatron's own attention without its fused softmax the fp32 result is kept: 2 layers x 8 heads x 256 x 256 x 4 bytes, where there were 2.
TEST(MegatronCommand, UnfusedSoftmaxKeepsItsWideResult) {
  auto kept = [](const char* arguments) {
    Scenario s = job(arguments, "", "dgx-a100");
    s.model.vocab = 64 * 1024;   // the loss is the peak
    s.profile.states_at_first_step = false;
    return peak(s);
  };
  const std::int64_t fused = kept(R"({"transformer-impl": "local", "apply-query-key-layer-scaling": true})");
  const std::int64_t unfused = kept(R"({"transformer-impl": "local", "apply-query-key-layer-scaling": true, "no-masked-softmax-fusion": true})");
  EXPECT_EQ(unfused - fused, 2 * 8 * 256 * 256 * 2);
}

// Layers from before Megatron-Core; optimizer, messages and data parallelism are those of the release that has them.
TEST(MegatronCommand, LegacyModelsRunUnderTheProfileOfTheirRelease) {
  EXPECT_EQ(job(R"({"use-legacy-models": true})").strategy.training.framework, "megatron-core");
  EXPECT_EQ(job(R"({"DDP-impl": "local"})").strategy.training.framework, "megatron-2021");
}

TEST(MegatronCommand, NamesSinksAndLimitsOfActivations) {
  const Scenario plain = job(R"({"softmax-type": "vanilla"})"), gpt_oss = job(R"({"softmax-type": "learnable", "activation-func-clamp-value": 7.0})");
  EXPECT_FALSE(plain.model.attention_sinks || plain.model.clamped_activation);
  EXPECT_TRUE(gpt_oss.model.attention_sinks && gpt_oss.model.clamped_activation);
  EXPECT_NE(refused(R"({"softmax-type": "sharp"})").find("no softmax of Megatron's"), std::string::npos);
}

// A dispatch back may start before the weights' gradients: their place inside a merged pass is not simulated, and they are no reason to refuse a job.
TEST(MegatronCommand, TakesDelayedWeightGradients) {
  const std::string overlapped = R"("num-experts": 8, "expert-model-parallel-size": 2, "moe-grouped-gemm": true, "moe-token-dispatcher-type": "alltoall", "overlap-moe-expert-parallel-comm": true)";
  EXPECT_EQ(refused("{" + overlapped + R"(, "delay-wgrad-compute": true})", 2), "");
}

// A row's columns stand for the arguments that it does not state: the job is the one of the whole command.
TEST(CompletedCommand, IsTheCommandThatColumnsStandFor) {
  const std::string all = R"({"num-experts": 8, "moe-router-topk": 2, "moe-ffn-hidden-size": 256, "moe-layer-freq": "[0,1]", "window-size": "127,0", "softmax-type": "learnable", "qk-layernorm": true,
      "group-query-attention": true, "num-query-groups": 2, "kv-channels": 96, "tensor-model-parallel-size": 2, "sequence-parallel": true, "expert-model-parallel-size": 2, "expert-tensor-parallel-size": 1, "use-distributed-optimizer": true,
      "recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": 1, "hidden-dropout": 0, "attention-dropout": 0, "moe-grouped-gemm": true})";
  const Scenario whole = job(all, "", "dgx-h100", 4);
  const config::Value completed = completed_command(command_of(R"({"hidden-dropout": 0, "attention-dropout": 0, "moe-grouped-gemm": true})"), whole);
  EXPECT_TRUE(is_whole_command(completed));
  const Scenario same = scenario_of_command(completed, "", config::parse_document("cluster: {node: dgx-h100, gpus_per_node: 4}", "cluster.yaml").root);
  EXPECT_EQ(same.model, whole.model);
  EXPECT_EQ(simulate(same, {}).step_time, simulate(whole, {}).step_time);
  EXPECT_EQ(peak(same), peak(whole));
}

TEST(CompletedCommand, KeepsWhatIsStated) {
  const config::Value completed = completed_command(command_of(R"({"num-layers": 3, "fp16": true, "recompute-granularity": "selective"})"), job(R"({"recompute-granularity": "full"})"));
  EXPECT_EQ(completed.find("num_layers")->text(), "3");
  EXPECT_EQ(completed.find("recompute_granularity")->text(), "selective");
  EXPECT_EQ(completed.find("recompute_method"), nullptr);
  EXPECT_EQ(completed.find("hidden_size")->text(), "512");
}

TEST(MegatronCommandLayout, LettersSayWhatEachChunkHolds) {
  const Scenario s = job(R"({"num-layers": 16, "pipeline-model-parallel-size": 2, "mtp-num-layers": 1, "pipeline-model-parallel-layout": "Et*3|(tt|)*6tmL", "global-batch-size": 4})", "", "dgx-h100", 2);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{3, 2, 2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(s.strategy.pipeline.virtual_stages, 4);
  EXPECT_EQ(s.strategy.pipeline.schedule, "interleaved-1f1b");
  for (const char* no_layout : {"(tt", "t)", "*3t", "t*0|t", "((((t*9999)*9999)*9999)*9999)"})
    EXPECT_NE(refused(std::string(R"({"pipeline-model-parallel-size": 2, "pipeline-model-parallel-layout": ")") + no_layout + "\"}", 2).find("is not a pipeline layout"), std::string::npos) << no_layout;
}

TEST(MegatronCommandLayout, FirstAndLastStageMayHoldFewerLayers) {
  const Scenario s = job(R"({"num-layers": 12, "pipeline-model-parallel-size": 4, "decoder-first-pipeline-num-layers": 2, "decoder-last-pipeline-num-layers": 2, "global-batch-size": 4})", "", "dgx-h100", 4);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{2, 4, 4, 2}));
}

// 6 layers, embedding and loss: one for each of 8 chunks, none left for the first and the last.
TEST(MegatronCommandLayout, EmbeddingAndLossMayCountAsLayers) {
  const Scenario s = job(R"({"num-layers": 6, "pipeline-model-parallel-size": 4, "num-virtual-stages-per-pipeline-rank": 2, "account-for-embedding-in-pipeline-split": true, "account-for-loss-in-pipeline-split": true, "global-batch-size": 4})", "", "dgx-h100", 4);
  EXPECT_EQ(s.strategy.pipeline.layers_per_stage, (std::vector<std::int64_t>{0, 1, 1, 1, 1, 1, 1, 0}));
  // They count where chunks are counted by their layers too (megatron/training/arguments.py, validate_args).
  const Scenario by_layers = job(R"({"num-layers": 6, "pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 1, "account-for-embedding-in-pipeline-split": true, "account-for-loss-in-pipeline-split": true, "global-batch-size": 4})", "", "dgx-h100", 4);
  EXPECT_EQ(by_layers.strategy.pipeline.layers_per_stage, s.strategy.pipeline.layers_per_stage);
}

// Megatron merges a forward and a backward of one stage, or of interleaved ones.
TEST(MegatronCommandLayout, TheExchangeOfExpertsOverlapsWhereMegatronCan) {
  const auto overlaps = [](const std::string& more, int gpus) {
    return job(R"({"num-experts": 8, "moe-grouped-gemm": true, "moe-token-dispatcher-type": "alltoall", "expert-model-parallel-size": 2, "num-layers": 16, "global-batch-size": 8, "overlap-moe-expert-parallel-comm": true)" + more + "}", "", "dgx-h100", gpus).strategy.experts.overlap_exchange;
  };
  EXPECT_TRUE(overlaps("", 2));
  EXPECT_FALSE(overlaps(R"(, "pipeline-model-parallel-size": 4)", 8));
  EXPECT_TRUE(overlaps(R"(, "pipeline-model-parallel-size": 4, "num-virtual-stages-per-pipeline-rank": 2)", 8));
}

TEST(MegatronCommand, NameDispatchersAndGraphs) {
  const auto with = [](const std::string& more) { return job(R"({"num-experts": 8, "moe-grouped-gemm": true, "expert-model-parallel-size": 2, "moe-token-dispatcher-type": "flex")" + more + "}", "", "dgx-h100", 2); };
  const Scenario s = with(R"(, "moe-flex-dispatcher-backend": "hybridep", "moe-hybridep-num-sms": 24, "moe-deepep-num-sms": 20, "cuda-graph-impl": "transformer_engine", "cuda-graph-scope": "[attn moe_router]", "recompute-granularity": "selective", "recompute-modules": "moe_act layernorm")");
  EXPECT_EQ(s.strategy.experts.dispatch_sms, 24);
  EXPECT_EQ(s.strategy.experts.dispatcher, strategies::Dispatcher::hybridep);
  EXPECT_EQ(s.strategy.training.cuda_graph_modules, (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_EQ(s.strategy.memory.recompute_modules, (std::vector<std::string>{"moe_act", "layernorm"}));
  EXPECT_EQ(with("").strategy.experts.dispatcher, strategies::Dispatcher::deepep);
  EXPECT_FALSE(with("").strategy.experts.fused_index_map.value_or(false));
  EXPECT_TRUE(with(R"(, "enable-experimental": true)").strategy.experts.fused_index_map.value_or(false));
}

TEST(MegatronCommand, NameFusedRoutersAndPermutations) {
  const auto with = [](const std::string& more) { return job(R"({"num-experts": 8)" + more + "}"); };
  const Scenario router = with(R"(, "moe-grouped-gemm": true, "moe-router-fusion": true)"), permute = with(R"(, "moe-permute-fusion": true)");
  EXPECT_TRUE(router.strategy.experts.fused_router.value_or(router.profile.fused_router));
  EXPECT_FALSE(router.strategy.experts.fused_permute.value_or(router.profile.fused_permute));   // both are off by default
  EXPECT_TRUE(router.profile.grouped_experts);
  EXPECT_FALSE(permute.strategy.experts.fused_router.value_or(permute.profile.fused_router));
  EXPECT_TRUE(permute.strategy.experts.fused_permute.value_or(permute.profile.fused_permute));
  EXPECT_FALSE(permute.profile.grouped_experts);
}

// Instances of the optimizer share states among fewer ranks; whole matrices have an owner each under Muon.
TEST(MegatronCommand, NameWhoSharesOptimizerStates) {
  const Scenario instances = job(R"({"use-distributed-optimizer": true, "num-distributed-optimizer-instances": 2})", "", "dgx-h100", 8);
  EXPECT_EQ(instances.strategy.parallelism.degrees.shard(), 4);
  const Scenario muon = job(R"({"use-distributed-optimizer": true, "optimizer": "muon"})", "", "dgx-h100", 8);
  EXPECT_EQ(muon.strategy.data_parallel.kind, strategies::DataParallelKind::ddp);
  EXPECT_TRUE(muon.profile.muon_owners);
  EXPECT_NE(refused(R"({"use-distributed-optimizer": true, "num-distributed-optimizer-instances": 3})", 8).find("8 data-parallel ranks"), std::string::npos);
}

// Variables that change nothing here, or that other programs read, are not arguments.
TEST(MegatronCommand, AreReadBesideTheEnvironment) {
  const Scenario s = job("{}", R"({"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0, "NVTE_FUSED_ATTN": 0, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_ALGO": "Ring", "SKIP_PYTEST": 1})");
  EXPECT_TRUE(s.profile.deterministic_attention);
  EXPECT_EQ(s.profile.cudnn_attention_from, 0);
  EXPECT_TRUE(s.profile.expandable_segments);
  EXPECT_FALSE(job("{}", R"({"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 1})").profile.deterministic_attention);
}

}  // namespace
}  // namespace rehearse::scenario::megatron_command_test
