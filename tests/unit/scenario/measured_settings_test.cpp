// Settings of Megatron and NeMo that a row's note names.
#include "sim/scenario/measured_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "sim/scenario/measured_run.h"

namespace rehearse::scenario {
namespace {

using strategies::Dispatcher;
using Row = std::map<std::string, std::string>;

/// One row of a table, as `validate` would read it: Grok-1 under NeMo on 64 H100, unless told otherwise.
Scenario scenario(const Row& cells) {
  Row row{{"row_id", "r-1"}, {"task", "pretrain"}, {"framework", "nemo"}, {"model", "grok-1"}, {"seq_len", "4096"}, {"gpu", "h100-sxm"}, {"n_gpus", "64"}, {"ep", "8"},
          {"tp", "4"}, {"micro_batch", "1"}, {"global_batch", "64"}, {"precision", "bf16"}, {"outcome", "ok"}, {"source", "NeMo 25.04"}};
  for (const auto& [column, text] : cells) row[column] = text;
  const std::string path = testing::TempDir() + "measured_settings_test.csv";
  std::string header, values;
  for (const auto& [column, text] : row) header += (header.empty() ? "" : ",") + column, values += (values.empty() ? "" : ",") + ("\"" + text + "\"");
  std::ofstream(path) << header << "\n" << values << "\n";
  std::vector<MeasuredRun> runs = read_measured_runs(path);
  std::remove(path.c_str());
  EXPECT_TRUE(runs.at(0).scenario.has_value()) << runs.at(0).reason;
  return runs.at(0).scenario.value_or(Scenario{});
}

TEST(MeasuredSettings, ExpertsAsTheNoteSays) {
  const Scenario plain = scenario({{"source", "NeMo 25.07"}});
  EXPECT_EQ(plain.profile.dispatcher, Dispatcher::deepep);
  EXPECT_EQ(plain.strategy.experts.capacity_factor, 0);
  EXPECT_TRUE(plain.profile.grouped_experts);
  const Scenario said = scenario({{"source", "NeMo 25.07"}, {"note", "alltoall dispatcher; capacity factor 1.25; moe_grouped_gemm false"}});
  EXPECT_EQ(said.strategy.experts.dispatcher, Dispatcher::all_to_all);
  EXPECT_EQ(said.strategy.experts.capacity_factor, 1.25);
  EXPECT_FALSE(said.strategy.experts.pad_to_capacity);
  EXPECT_FALSE(said.profile.grouped_experts);
  EXPECT_TRUE(scenario({{"note", "capacity factor 1.0, padded to capacity"}}).strategy.experts.pad_to_capacity);
  // A dense model has none of it.
  EXPECT_EQ(scenario({{"model", "llama-3-8b"}, {"ep", ""}, {"note", "capacity factor 1.0, padded"}}).strategy.experts.capacity_factor, 0);
}

// MLPerf Training 6.0's mixtures of experts: what their scripts switch on.
TEST(MeasuredSettings, ExpertsOfMlperf60) {
  const Row job{{"framework", "megatron-bridge"}, {"gpu", "gb300-nvl72"}, {"gpus_per_node", "4"}, {"n_gpus", "8"}, {"model", "gpt-oss-20b"}, {"vocab", "128256"}, {"tp", "1"}, {"cp", "1"}, {"ep", "4"},
                {"etp", "1"}, {"sharding", "zero1"}, {"precision", "mxfp8"}, {"cuda_graph", "y"}, {"source", ""}};
  Row told = job;
  told["note"] = "dispatcher: HybridEP (moe_hybridep_num_sms 32); one CUDA graph of the whole step; fused grouped MLP (CuTe DSL); experts padded to 1.5 times their share and moe_paged_stash; moe_router_fusion false; exchanges of experts overlapped; nothing balances the router; fp8 attention (FP8_DPA); fp8 output layer";
  const strategies::Strategy said = scenario(told).strategy;
  EXPECT_EQ(said.experts.dispatcher, Dispatcher::hybridep);
  EXPECT_TRUE(said.experts.fused_mlp);
  EXPECT_TRUE(said.experts.overlap_exchange);
  EXPECT_EQ(said.experts.dispatch_sms, 32);
  EXPECT_TRUE(said.experts.paged_stash);
  EXPECT_EQ(said.experts.rank_capacity_factor, 1.5);
  EXPECT_EQ(said.experts.fused_router, false);
  EXPECT_EQ(said.experts.routing.distribution, strategies::RoutingKind::zipf);
  EXPECT_EQ(said.training.cuda_graph, true);
  EXPECT_TRUE(said.training.cuda_graph_modules.empty());
  EXPECT_TRUE(said.training.fp8_attention);
  EXPECT_TRUE(said.training.fp8_head);
  // Nothing of it is said: layers are replayed piece by piece. A fused MLP that is not simulated has another name.
  told["note"] = "fused grouped MLP of another kind";
  const strategies::Strategy silent = scenario(told).strategy;
  EXPECT_FALSE(silent.experts.fused_mlp);
  EXPECT_EQ(silent.training.cuda_graph_modules, (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_FALSE(silent.training.fp8_attention);
  EXPECT_FALSE(silent.training.fp8_head);
  // A size of buckets that is given does not grow with the group.
  told["note"] = "buckets of 768 M elements";
  EXPECT_EQ(scenario(told).profile.bucket_elements, 768'000'000);
  EXPECT_EQ(scenario(told).profile.bucket_elements_per_rank, 0);
  // Attention over a sequence that is split computes as it did.
  told["note"] = "fp8 attention (FP8_DPA); cp_comm_type a2a", told["cp"] = "2";
  EXPECT_FALSE(scenario(told).strategy.training.fp8_attention);
}

// Eight V100 with 16 GB are a DGX-1; Jean Zay's nodes have four.
TEST(MeasuredSettings, NodesOfV100) {
  const Row job{{"framework", "megatron-lm"}, {"model", "llama-2-7b"}, {"ep", ""}, {"gpu", "v100-16gb-sxm2"}, {"gpus_per_node", "8"}, {"n_gpus", "16"}, {"precision", "fp16"}, {"source", ""}};
  EXPECT_EQ(scenario(job).cluster.gpus_per_node, 8);
  Row idris = job;
  idris["interconnect"] = "NVLink2 in node; Omni-Path (Jean Zay)";
  EXPECT_EQ(scenario(idris).cluster.gpus_per_node, 4);
}

TEST(MeasuredSettings, FrameworksByTheirSource) {
  const Row megatron{{"framework", "deepspeed"}, {"model", "gpt2"}, {"ep", ""}, {"tp", "1"}, {"gpu", "v100-16gb-sxm2"}, {"n_gpus", "8"}, {"precision", "fp16"}, {"source", "DeepSpeedExamples Megatron-LM a79272c"}};
  EXPECT_EQ(scenario(megatron).profile.name, "deepspeed-2020");
  const Row kempner{{"framework", "kempnerforge"}, {"model", "llama-3-8b"}, {"ep", ""}, {"tp", "1"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"torch_compile", "y"}, {"source", ""}};
  EXPECT_EQ(scenario(kempner).profile.name, "kempnerforge-compile");
  EXPECT_EQ(scenario(kempner).strategy.data_parallel.kind, strategies::DataParallelKind::fsdp2);
  // Who fine-tunes under FSDP with a program of their own mostly takes the model from transformers; who pretrains writes it.
  Row unknown{{"framework", "our-trainer"}, {"model", "llama-3-8b"}, {"ep", ""}, {"tp", "1"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"task", "lora"}, {"source", ""}};
  EXPECT_EQ(scenario(unknown).profile.name, "huggingface");
  unknown["task"] = "pretrain";
  EXPECT_EQ(scenario(unknown).profile.name, "fms-fsdp");
}

TEST(MeasuredSettings, BloomsJobsAsItsChronicleSays) {
  Row job{{"framework", "megatron-deepspeed"}, {"model", "llama-2-7b"}, {"ep", ""}, {"gpu", "a100-80gb-sxm"}, {"gpus_per_node", "8"}, {"n_gpus", "64"}, {"sharding", "zero1"},
          {"source", "bigscience-workshop/bigscience tr11-176B-ml"}, {"note", "embedding norm, ALiBi; CUDA_LAUNCH_BLOCKING=1, without which 320 GPUs always hung"}};
  const Scenario told = scenario(job);
  EXPECT_EQ(told.profile.name, "megatron-deepspeed");
  EXPECT_TRUE(told.strategy.training.launch_blocking);
  EXPECT_TRUE(told.model.embedding_norm);
  EXPECT_EQ(told.model.position, model::Position::alibi);
  EXPECT_EQ(told.model.dropout, 0.1);
  job["note"] = "CUDA_LAUNCH_BLOCKING not set yet";
  EXPECT_FALSE(scenario(job).strategy.training.launch_blocking);
}

// What Megatron-DeepSpeed has of its libraries' releases: DeepSpeed's buffers and 16-bit gradients, the loss of its fork of 2023, TorchScript's fuser.
TEST(MeasuredSettings, MegatronDeepSpeedByItsLibrariesReleases) {
  const auto profile = [](const std::string& note) {
    return scenario({{"framework", "megatron-deepspeed"}, {"model", "llama-2-7b"}, {"ep", ""}, {"tp", "1"}, {"gpu", "a100-80gb-sxm"}, {"gpus_per_node", "8"}, {"n_gpus", "8"}, {"sharding", "zero1"}, {"precision", "bf16"}, {"source", ""}, {"note", note}}).profile;
  };
  EXPECT_FALSE(profile("").zero1_gradient_buffer);
  EXPECT_FALSE(profile("DeepSpeed 0.12.6").zero1_gradient_buffer);
  EXPECT_TRUE(profile("DeepSpeed 0.13.0").zero1_gradient_buffer);
  EXPECT_FALSE(profile("DeepSpeed 0.12.5").zeroes_narrow_gradients);
  EXPECT_TRUE(profile("DeepSpeed 0.12.6").zeroes_narrow_gradients);
  EXPECT_FALSE(profile("DeepSpeed 0.14.2").zeroes_narrow_gradients);
  EXPECT_FALSE(profile("DeepSpeed 0.16.4").zeroes_narrow_gradients);
  EXPECT_TRUE(profile("DeepSpeed 0.16.5").zeroes_narrow_gradients);
  EXPECT_EQ(profile("DeepSpeed 0.6.5").loss, strategies::LossKind::vocab_parallel);
  EXPECT_EQ(profile("DeepSpeed 0.12.6").loss, strategies::LossKind::sharded);
  EXPECT_EQ(profile("PyTorch 2.1.0").residual, strategies::Fusion::fused);
  EXPECT_EQ(profile("PyTorch 2.2.1").residual, strategies::Fusion::native);
}

// FPDT's baselines have the sizes of Llama and the layers of the script that came with them: Megatron's GPT with rotary positions.
TEST(MeasuredSettings, LayersOfAScriptUnderAnotherModelsName) {
  Row row{{"framework", "deepspeed"}, {"model", "Llama-3-8B"}, {"layers", "32"}, {"hidden", "4096"}, {"heads", "32"}, {"kv_heads", "8"}, {"ffn_hidden", "14336"}, {"gated_mlp", "y"}, {"ep", ""}, {"tp", "8"},
          {"gpu", "a100-80gb-sxm"}, {"gpus_per_node", "8"}, {"n_gpus", "8"}, {"source", "deepspeedai/DeepSpeed@edaa722126 blogs/ulysses-offload figure 5"}};
  const Scenario told = scenario(row);
  EXPECT_FALSE(told.model.gated_mlp);
  EXPECT_EQ(told.model.norm, model::Norm::layer_norm);
  EXPECT_EQ(told.model.position, model::Position::rotary);
  EXPECT_EQ(told.model.rotary_dim, 32);
  row["source"] = "somebody's blog";
  EXPECT_TRUE(scenario(row).model.gated_mlp);
}

TEST(MeasuredSettings, ShardsOfFp32UnderALoopOfOnesOwn) {
  const auto profile = [](const std::string& compiled, const std::string& note) {
    return scenario({{"framework", "hf"}, {"model", "qwen2.5-14b"}, {"ep", ""}, {"tp", "1"}, {"gpus_per_node", "8"}, {"n_gpus", "8"}, {"sharding", "fsdp2"}, {"torch_compile", compiled}, {"task", "sft"}, {"source", ""}, {"note", note}}).profile;
  };
  for (const std::string compiled : {"y", "n"}) {
    const strategies::FrameworkProfile wide = profile(compiled, "own loop over transformers' model; fp32 parameters in shards, computed in bf16, gradients reduced in fp32");
    EXPECT_EQ(wide.stored_parameter, DType::fp32);
    EXPECT_EQ(wide.optimizer_state, DType::fp32);
    EXPECT_FALSE(wide.autocast);
    EXPECT_EQ(profile(compiled, "").stored_parameter, DType::bf16);
  }
}

TEST(MeasuredSettings, LastLayersThatStayIn16Bits) {
  const auto last = [](const std::string& precision, const std::string& note) {
    return scenario({{"framework", "torchtitan"}, {"model", "llama-3-8b"}, {"ep", ""}, {"tp", "1"}, {"gpu", "b200-sxm"}, {"gpus_per_node", "8"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"precision", precision}, {"source", ""}, {"note", note}}).strategy.training.last_layers_16bit;
  };
  EXPECT_EQ(last("nvfp4", "NVFP4 of torchao, its last 5 of the 32 layers (27-31) and the output layer in bf16; a repeat"), 5);
  EXPECT_EQ(last("nvfp4", "its last 5 of the 32 layers are dense; in bf16"), 0);
  EXPECT_EQ(last("bf16", "its last 5 of the 32 layers in bf16"), 0);
}

// Numbers that are none, or that no integer holds, say nothing.
TEST(MeasuredSettings, WordsThatOnlyLookLikeSettings) {
  EXPECT_EQ(scenario({{"source", "NeMo 25.07"}, {"note", "capacity factor ..., see text"}}).strategy.experts.capacity_factor, 0);
  EXPECT_EQ(scenario({{"source", "NeMo 25.07"}, {"note", "99999999999999999999 of 80 layers are recomputed"}}).strategy.memory.recompute_layers, 0);
}

TEST(MeasuredSettings, NemoHasDeepEPFrom2507On) {
  EXPECT_EQ(scenario({{"source", "NeMo 24.12"}}).profile.dispatcher, Dispatcher::all_to_all);
  EXPECT_EQ(scenario({{"source", "NeMo 25.04"}}).profile.dispatcher, Dispatcher::all_to_all);
  EXPECT_EQ(scenario({{"source", "NeMo 25.07"}}).profile.dispatcher, Dispatcher::deepep);
  // Experts split over a tensor group, which DeepEP's dispatch does not know, are therefore simulated.
  EXPECT_EQ(scenario({{"source", "NeMo 24.12"}, {"etp", "4"}}).strategy.parallelism.degrees.expert_tensor, 4);
}

// std::regex recurses for every repetition: none of these may run through a cell of any length.
TEST(MeasuredSettings, CellsMayBeOfAnyLength) {
  const std::string digits(200'000, '1'), letters(200'000, 'a');
  std::string modules = "mlp";
  for (int i = 0; i < 60'000; ++i) modules += ",mlp";
  for (const std::string& note : {"packed samples of " + digits + " documents", "layers 0-" + digits + ") + bf16 tail", "recompute_modules " + modules, digits + " GiB class", digits + "." + digits + " GiB class", letters})
    EXPECT_EQ(scenario({{"note", note}, {"recompute", "selective"}}).model.layer_count(), scenario({}).model.layer_count()) << note.substr(0, 30);
}

TEST(MeasuredSettings, EndsOfThePipelineWithFewerLayers) {
  const Row dense{{"model", "llama-3-8b"}, {"ep", ""}, {"tp", "1"}, {"pp", "4"}};
  const auto layers = [&](const std::string& note, const std::string& chunks) {
    Row row = dense;
    row["note"] = note, row["vpp"] = chunks;
    return scenario(row).strategy.pipeline.layers_per_stage;
  };
  // 32 layers: 32 - 7 - 5 = 20 over the two stages between
  EXPECT_EQ(layers("first stage 7 layers, last 5", ""), (std::vector<std::int64_t>{7, 10, 10, 5}));
  EXPECT_TRUE(layers("first stage 7 layers, last 6", "").empty());     // 19 are not shared by two
  EXPECT_TRUE(layers("first stage 7 layers, last 5", "2").empty());    // chunks are another arrangement
  EXPECT_EQ(layers("layers per stage 7,10,10,5 (by operations)", ""), (std::vector<std::int64_t>{7, 10, 10, 5}));
  EXPECT_EQ(layers("layers per stage 11,11,10,0", ""), (std::vector<std::int64_t>{11, 11, 10, 0}));   // the head alone
  EXPECT_TRUE(layers("layers per stage 7,10,10,6", "").empty());       // are 33
  EXPECT_TRUE(layers("layers per stage 16,16", "").empty());           // two of four stages
  EXPECT_TRUE(layers("layers per stage 7,10,,15", "").empty());
  EXPECT_TRUE(layers("layers per stage 7,10,10,99999999999", "").empty());
  std::string endless = "layers per stage 1";
  for (int i = 0; i < 60'000; ++i) endless += ",1";
  EXPECT_TRUE(layers(endless, "").empty());
  EXPECT_TRUE(layers("layers per stage 7,10,10,5", "2").empty());      // chunks are another arrangement
  Row odd = dense;
  odd["note"] = "layers per stage 16,16";
  EXPECT_TRUE(std::ranges::any_of(scenario(odd).notes, [](const std::string& n) { return n.starts_with("the stated layers per stage"); }));   // not without a word
  EXPECT_EQ(layers("layout Et*7|(t*10|)*2t*5L", ""), (std::vector<std::int64_t>{7, 10, 10, 5}));
  EXPECT_EQ(layers("layout E|(t*5|)*6ttL", "2"), (std::vector<std::int64_t>{0, 5, 5, 5, 5, 5, 5, 2}));
  EXPECT_TRUE(layers("layout Et*7|(t*10|)*2t*6L", "").empty());        // are 33
  Row deferred = dense;
  deferred["note"] = "wgrad_deferral_limit 22";
  EXPECT_EQ(scenario(deferred).strategy.pipeline.deferred_head_gradients, 22);
  deferred["pp"] = "1";
  EXPECT_FALSE(scenario(deferred).strategy.pipeline.deferred_head_gradients.has_value());
}

/// Megatron-Bridge's DeepSeek-V3 trains its prediction layer beside the loss, in the last of 16 chunks with one layer; Kimi K2 has none.
TEST(MeasuredSettings, BridgesPresetsSayWhatStagesHold) {
  const auto preset = [](const char* model) {
    return scenario({{"framework", "megatron-bridge"}, {"model", model}, {"gpu", "gb300-nvl72"}, {"gpus_per_node", "4"}, {"n_gpus", "256"}, {"tp", "1"}, {"pp", "4"}, {"vpp", "4"}, {"dp", "64"}, {"ep", "64"},
                     {"global_batch", "4096"}, {"precision", "mxfp8"}, {"source", "Megatron-Bridge performance summary, 26.06 NeMo Container"}}).strategy;
  };
  std::vector<std::int64_t> chunks(16, 4);
  chunks.back() = 1;
  for (const char* model : {"DeepSeek-V3", "Kimi-K2"}) {
    EXPECT_EQ(preset(model).pipeline.layers_per_stage, chunks) << model;
    EXPECT_EQ(preset(model).training.multi_token_prediction, model == std::string("DeepSeek-V3"));
  }
}

TEST(MeasuredSettings, RecomputedModulesAndTensorOverlap) {
  const Row latent{{"model", "deepseek-v3"}, {"recompute", "selective"}, {"note", "recompute_modules mla_up_proj,moe_act; no tp_comm_overlap"}, {"ep", "64"}};
  const Scenario s = scenario(latent);
  EXPECT_EQ(s.strategy.memory.recompute_modules, (std::vector<std::string>{"mla_up_proj", "moe_act"}));
  EXPECT_FALSE(s.profile.overlap_tensor);
  EXPECT_TRUE(scenario({}).profile.overlap_tensor);
  Row in_words = latent;
  in_words["note"] = "no tensor-parallel overlap; two 400 Gb/s NICs per node";
  EXPECT_FALSE(scenario(in_words).profile.overlap_tensor);
}

TEST(MeasuredSettings, ModulesRecomputedByDefaultAndOffloaded) {
  EXPECT_TRUE(scenario({{"recompute", "selective"}, {"note", "recompute_granularity selective (recompute_modules default: core_attn)"}}).strategy.memory.recompute_modules.empty());
  const Scenario offloaded = scenario({{"model", "deepseek-v3"}, {"ep", "64"}, {"offload", "activation"}, {"note", "offload_modules [expert_fc1, moe_act]"}});
  EXPECT_EQ(offloaded.strategy.memory.offload.modules, (std::vector<std::string>{"expert_fc1", "moe_act"}));
  EXPECT_EQ(offloaded.strategy.memory.offload.activations, strategies::Offload{}.activations);
  EXPECT_EQ(scenario({{"offload", "activation"}}).strategy.memory.offload.activations, strategies::MemoryTier::cpu);
}

// Transformer Engine's Adam holds the fp32 copies, of which bf16 weights are the other half.
TEST(MeasuredSettings, PrecisionAwareOptimizersKeepRemainders) {
  EXPECT_TRUE(scenario({{"note", "moments in bf16 (precision-aware optimizer)"}}).profile.parameter_remainders);
  EXPECT_FALSE(scenario({{"note", "moments in bf16"}}).profile.parameter_remainders);
}

TEST(MeasuredSettings, NvidiasRecipesHaveNoNvlinkSharp) {
  const auto nvls = [](const Row& cells) { return scenario(cells).communication.nvls; };
  EXPECT_FALSE(nvls({}));
  EXPECT_FALSE(nvls({{"framework", "megatron-bridge"}, {"source", ""}}));
  EXPECT_TRUE(nvls({{"note", "NCCL_NVLS_ENABLE=1"}}));
  EXPECT_TRUE(nvls({{"source", "mlcommons/training_results_v4.1, NeMo 24.09"}}));
  EXPECT_FALSE(nvls({{"source", "mlcommons/training_results_v4.1, NeMo 24.09"}, {"note", "NCCL_NVLS_ENABLE=0"}}));
  EXPECT_TRUE(nvls({{"framework", "megatron-lm"}, {"source", ""}, {"tp", "1"}}));
  EXPECT_TRUE(nvls({{"model", "gpt-oss-120b"}, {"tp", "1"}, {"source", "NeMo 25.07"}}));
  EXPECT_TRUE(nvls({{"model", "llama-3-8b"}, {"tp", ""}, {"ep", ""}, {"sharding", "fsdp"}}));
}

TEST(MeasuredSettings, PowerLimits) {
  const auto watts = [](const std::string& note) { return scenario({{"note", note}}).cluster.gpu.limit_watts; };
  EXPECT_EQ(watts(""), 0);
  EXPECT_EQ(watts("GPUs limited to 500 W"), 500);
  EXPECT_EQ(watts("power limit of 900 W"), 700);   // no H100 draws more
}

// Profiles by what a row says of its release: torchtitan's loss came in chunks in April 2026, Megatron with Transformer Engine may have unfused
// attention, and MaxText's weight_dtype is that of the optimizer's states as well.
TEST(MeasuredSettings, ReleasesAndFormatsAsTheNoteSays) {
  const auto profile = [](const Row& cells) { return scenario(cells).profile; };
  const Row dense{{"model", "llama-3-8b"}, {"tp", ""}, {"ep", ""}, {"sharding", "fsdp"}, {"source", ""}};
  const auto with = [&](Row more) { more.insert(dense.begin(), dense.end()); return more; };
  EXPECT_EQ(profile(with({{"framework", "torchtitan"}, {"note", "nightly of January 2026"}})).name, "torchtitan-2025");
  EXPECT_EQ(profile(with({{"framework", "torchtitan"}, {"note", "nightly of May 2026"}})).name, "torchtitan");
  EXPECT_EQ(profile(with({{"framework", "megatron-lm"}, {"sharding", ""}, {"attention", "unfused"}})).name, "megatron-2021");
  EXPECT_EQ(profile(with({{"framework", "megatron-lm"}, {"sharding", ""}, {"attention", "unfused"}, {"model_args_json", "{\"\"transformer-impl\"\": \"\"transformer_engine\"\"}"}})).name, "megatron-core");
  EXPECT_EQ(profile(with({{"framework", "maxtext"}})).stored_parameter, DType::fp32);
  const auto narrow = profile(with({{"framework", "maxtext"}, {"note", "weight_dtype bfloat16"}}));
  EXPECT_EQ(narrow.stored_parameter, DType::bf16);
  EXPECT_EQ(narrow.optimizer_state, DType::bf16);
}

TEST(MeasuredSettings, MegatronsOptimizerInPlaceOfApexs) {
  const Row dense{{"model", "llama-3-8b"}, {"ep", ""}, {"source", "NeMo 24.12"}};
  const Scenario apex = scenario(dense);
  EXPECT_TRUE(apex.profile.bucket_by_layer);
  EXPECT_TRUE(apex.profile.parameter_remainders);
  Row said = dense;
  said["note"] = "mcore_distributed_optim";
  const Scenario megatron = scenario(said);
  EXPECT_FALSE(megatron.profile.bucket_by_layer);
  EXPECT_EQ(megatron.profile.bucket_elements_per_rank, 1'000'000);
  EXPECT_FALSE(megatron.profile.parameter_remainders);
}

}  // namespace
}  // namespace rehearse::scenario
