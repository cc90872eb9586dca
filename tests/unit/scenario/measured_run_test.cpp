// Rows of measured runs that say little, or say it in other words: which profile, GPU, node and degrees they become.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>

#include "sim/scenario/measured_run.h"
#include "sim/scenario/simulate.h"
#include "strategies/data/catalog.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario::measured_run_test {
namespace {

using strategies::DataParallelKind;
using Row = std::map<std::string, std::string>;

/// A table, as `validate` would read it; rows may leave columns out.
std::vector<MeasuredRun> table(const std::vector<Row>& rows) {
  std::set<std::string> columns;
  for (const Row& row : rows)
    for (const auto& [column, text] : row) columns.insert(column);
  const std::string path = testing::TempDir() + "measured_run_test.csv";
  std::string lines;
  for (const std::string& column : columns) lines += (lines.empty() ? "" : ",") + column;
  for (const Row& row : rows) {
    lines += "\n";
    for (const std::string& column : columns) lines += (column == *columns.begin() ? "\"" : ",\"") + (row.contains(column) ? row.at(column) : "") + "\"";
  }
  std::ofstream(path) << lines << "\n";
  std::vector<MeasuredRun> runs = read_measured_runs(path);
  std::remove(path.c_str());
  return runs;
}

/// Llama-2-7B on eight H100, unless told otherwise.
Row job(const Row& cells) {
  Row row{{"row_id", "r-1"}, {"task", "pretrain"}, {"framework", "various"}, {"model", "Llama-2-7B"}, {"seq_len", "4096"}, {"gpu", "h100-sxm"}, {"n_gpus", "8"},
          {"micro_batch", "1"}, {"global_batch", "8"}, {"precision", "bf16"}, {"outcome", "ok"}};
  for (const auto& [column, text] : cells) row[column] = text;
  return row;
}

MeasuredRun run(const Row& cells) { return table({job(cells)}).at(0); }

Scenario scenario(const Row& cells) {
  MeasuredRun r = run(cells);
  EXPECT_TRUE(r.scenario.has_value()) << r.reason;
  return r.scenario.value_or(Scenario{});
}

bool notes(const Scenario& s, const std::string& words) {
  return std::any_of(s.notes.begin(), s.notes.end(), [&](const std::string& note) { return note.find(words) != std::string::npos; });
}

TEST(MeasuredRun, AnUnknownFrameworkIsWhatItsDegreesPointTo) {
  const auto profile = [](Row cells) {
    cells.emplace("framework", "neverheardof");
    const Scenario s = scenario(cells);
    EXPECT_TRUE(notes(s, "no profile of framework 'neverheardof', simulated as " + s.profile.name));
    return s.profile.name;
  };
  EXPECT_EQ(profile({{"tp", "8"}}), "megatron-core");
  EXPECT_EQ(profile({{"tp", "8"}, {"gpu", "v100-32gb-sxm2"}, {"precision", "fp16"}}), "megatron-2021");
  EXPECT_EQ(profile({{"sharding", "fsdp"}}), "fms-fsdp");
  EXPECT_EQ(profile({{"sharding", "fsdp"}, {"torch_compile", "y"}}), "fms-fsdp-compile");
  EXPECT_EQ(profile({{"sharding", "zero3"}}), "deepspeed");
  EXPECT_EQ(profile({{"task", "lora"}, {"n_gpus", "1"}, {"global_batch", "1"}}), "huggingface");
  EXPECT_EQ(profile({{"n_gpus", "1024"}, {"global_batch", "1024"}}), "megatron-core");
}

// nanotron's messages of December 2024: what the table of the Ultra-Scale Playbook says of a job.
TEST(MeasuredRun, NanotronsMessagesWerePolledBeforeTheFix) {
  const auto poll = [](Row cells) {
    for (const auto& [column, text] : Row{{"framework", "nanotron"}, {"n_gpus", "64"}, {"pp", "2"}, {"tp", "32"}, {"sp", "y"}, {"global_batch", "64"}, {"source", "huggingface_data/bench_final2_mod_add.csv"}}) cells.emplace(column, text);
    return scenario(cells).profile.message_poll;
  };
  EXPECT_EQ(poll({{"after_pp_fix", "n"}}), std::chrono::milliseconds(100));
  EXPECT_EQ(poll({{"after_pp_fix", "n"}, {"pp", "1"}, {"n_gpus", "32"}}), Duration{});
  EXPECT_EQ(poll({{"after_pp_fix", "y"}}), Duration{});
  EXPECT_EQ(poll({}), Duration{});
}

// 16 layers of 67,112,960 parameters under an embedding of 268,435,456: two stages have 10 layers (940 M) where the layer that reaches half of the
// cost ends the first, 11 (1.01 G) where it has to pass it. What rank 0 had tells; else a job before the fix had the public code's.
TEST(MeasuredRun, TheParametersOfRankZeroTellHowNanotronsStagesEnd) {
  const auto passes = [](Row cells) {
    for (const auto& [column, text] : Row{{"framework", "nanotron"}, {"model", "Llama-style"}, {"layers", "16"}, {"hidden", "2048"}, {"heads", "32"}, {"ffn_hidden", "8192"}, {"vocab", "131072"}, {"gated_mlp", "y"},
                                          {"tie_embeddings", "y"}, {"n_gpus", "8"}, {"pp", "2"}, {"tp", "4"}, {"sp", "y"}})
      cells.emplace(column, text);
    return scenario(cells).profile.passes_share;
  };
  EXPECT_FALSE(passes({}));
  EXPECT_FALSE(passes({{"local_params", "235M"}}));
  EXPECT_TRUE(passes({{"local_params", "252M"}}));
  EXPECT_TRUE(passes({{"local_params", "0.252G"}, {"after_pp_fix", "y"}}));
  EXPECT_TRUE(passes({{"after_pp_fix", "n"}}));
  EXPECT_FALSE(passes({{"after_pp_fix", "n"}, {"local_params", "235M"}}));
  EXPECT_NE(run({{"framework", "nanotron"}, {"n_gpus", "8"}, {"pp", "2"}, {"local_params", "many"}}).reason.find("'many' is no number of parameters"), std::string::npos);
}

// Jobs that differ in who keeps the optimizer states cannot differ in time by a factor of two, unless their nanotron was another.
TEST(MeasuredRun, JobsOfAnotherNanotronAreNoRepeats) {
  const auto slow_is_clean = [](const std::string& fixed) {
    const Row fast = job({{"row_id", "fast"}, {"framework", "nanotron"}, {"pp", "2"}, {"sharding", "zero1"}, {"global_batch", "64"}, {"grad_accum", "16"}, {"step_time_s", "1"}, {"after_pp_fix", "y"}});
    Row slow = fast;
    slow["row_id"] = "slow", slow["sharding"] = "none", slow["step_time_s"] = "10", slow["after_pp_fix"] = fixed;
    return table({fast, slow}).at(1).clean;
  };
  EXPECT_FALSE(slow_is_clean("y"));
  EXPECT_TRUE(slow_is_clean("n"));
}

// 8192 tokens of 20 documents: 409.6 each, and 819 where squares over the mean are twice it.
TEST(MeasuredRun, NotesTellHowManyDocumentsASampleHolds) {
  Row row{{"framework", "megatron-lm"}, {"gpu", "h100-sxm"}, {"n_gpus", "8"}, {"seq_len", "8192"}, {"global_batch", "16"}, {"note", "packed samples of 20 documents"}};
  const Scenario packed = scenario(row);
  EXPECT_EQ(packed.strategy.training.documents(), 20);
  EXPECT_EQ(packed.strategy.training.document_length, 819);
  row["note"] = "";
  EXPECT_EQ(scenario(row).strategy.training.document_length, 0);
}

// MLPerf's submissions on AMD's GPUs (tests/accuracy/runs/mlperf_amd.csv): what columns have no room for stands in the note.
TEST(MeasuredRun, NotesTellHowManyLayersAreRecomputedAndThatNothingIsTransposed) {
  const Row lora{{"task", "lora"}, {"framework", "nemo"}, {"model", "Llama-2-70B"}, {"gpu", "mi300x"}, {"precision", "fp8"}, {"sharding", "zero1"}, {"lora_rank", "16"}};
  const auto with = [&](const std::string& note) {
    Row row = lora;
    row["note"] = note;
    return scenario(row);
  };
  const Scenario plain = with("base weights in fp8");
  EXPECT_EQ(plain.strategy.memory.recompute, strategies::Recompute::none);
  EXPECT_TRUE(plain.profile.keeps_transposed_weights);
  const Scenario told = with("base weights in fp8; 21 of 80 layers are recomputed; no transposed weights kept (disable_parameter_transpose_cache)");
  EXPECT_EQ(told.strategy.memory.recompute, strategies::Recompute::full);
  EXPECT_EQ(told.strategy.memory.recompute_layers, 21);
  EXPECT_FALSE(told.profile.keeps_transposed_weights);
  EXPECT_FALSE(notes(told, "recomputation not stated"));
  // NVIDIA's: releases of 2024 have no transposed weights either; inputs of activations wait in 8 bits.
  EXPECT_FALSE(with("NeMo 24.09; base weights in fp8").profile.keeps_transposed_weights);
  EXPECT_TRUE(with("NeMo 25.04; base weights in fp8").profile.keeps_transposed_weights);
  EXPECT_FALSE(plain.profile.narrows_activation_input);
  EXPECT_TRUE(with("base weights in fp8; inputs of activations kept in fp8").profile.narrows_activation_input);
}

TEST(MeasuredRun, AmdsMachines) {
  const auto machine = [](const char* gpu) {
    const Scenario s = scenario({{"framework", "megatron-lm"}, {"gpu", gpu}});
    return std::pair{s.cluster.gpu.name, s.cluster.node.name};
  };
  using Pair = std::pair<std::string, std::string>;
  EXPECT_EQ(machine("MI300X"), (Pair{"mi300x", "mi300x-8"}));
  EXPECT_EQ(machine("AMD Instinct MI325X"), (Pair{"mi325x", "mi300x-8"}));
  EXPECT_EQ(machine("mi350x"), (Pair{"mi350x", "mi355x-8"}));
  EXPECT_EQ(machine("MI355X 288 GB"), (Pair{"mi355x", "mi355x-8"}));
}

TEST(MeasuredRun, BoardsOfFourHaveNoSwitch) {
  Row row{{"framework", "kempnerforge"}, {"gpu", "h200-sxm"}, {"gpus_per_node", "4"}};
  EXPECT_EQ(scenario(row).cluster.node.name, "hgx-h200-4");
  row["gpus_per_node"] = "8";
  EXPECT_EQ(scenario(row).cluster.node.name, "dgx-h200");
  EXPECT_EQ(scenario({{"gpu", "a100-80gb-sxm"}, {"interconnect", "NVLink (4 x A100-SXM4 per node)"}}).cluster.node.name, "hgx-a100-4");
}

// PyTorch's stages of KempnerForge drop parameters after forward where the row says so.
TEST(MeasuredRun, StagesOfFsdp2ReshardWhereStated) {
  Row row{{"framework", "kempnerforge"}, {"gpu", "h200-sxm"}, {"sharding", "fsdp"}, {"pp", "2"}, {"n_gpus", "8"}, {"global_batch", "16"}, {"note", "FSDP2 units are resharded after forward"}};
  EXPECT_EQ(scenario(row).strategy.data_parallel.reshard_after_forward, true);
  EXPECT_EQ(scenario(row).strategy.pipeline.schedule, "pytorch-1f1b");
  row["note"] = "";
  EXPECT_FALSE(scenario(row).strategy.data_parallel.reshard_after_forward);
}

// Words for how the optimizer is sharded name no framework: ZeRO-1 beside stages is Megatron's distributed optimizer.
TEST(MeasuredRun, ZeroOneBesideStagesIsMegatrons) {
  Row row{{"framework", "various"}, {"pp", "4"}, {"n_gpus", "64"}, {"global_batch", "64"}, {"sharding", "zero1"}, {"note", "as stated: sharding: ZeRO-1"}};
  EXPECT_EQ(scenario(row).profile.name, "megatron-core");
  row["pp"] = "1", row["note"] = "DeepSpeed's ZeRO-1";
  EXPECT_EQ(scenario(row).profile.name, "deepspeed");
}

TEST(MeasuredRun, MemoryThatTheNamedGpuHasNotPointsToAnother) {
  const Scenario gb200 = scenario({{"gpu", "b200-sxm"}, {"note", "as stated: gpu: B200 (184 GiB class)"}});
  EXPECT_EQ(gb200.cluster.gpu.name, "gb200-nvl72");
  EXPECT_TRUE(notes(gb200, "GPU taken as gb200-nvl72"));
  EXPECT_EQ(scenario({{"gpu", "b200-sxm"}, {"note", "as stated: gpu: B200 (178 GiB class)"}}).cluster.gpu.name, "b200-sxm");
  EXPECT_EQ(scenario({{"gpu", "b200-sxm"}, {"note", "as stated: gpu: B200 (500 GiB class)"}}).cluster.gpu.name, "b200-sxm");
}

TEST(MeasuredRun, NamesOfTheContractHaveProfilesOfTheirOwn) {
  EXPECT_EQ(scenario({{"framework", "fms-fsdp"}, {"sharding", "hsdp"}}).profile.name, "fms-fsdp");
  EXPECT_EQ(scenario({{"framework", "torchtune"}, {"torch_compile", "y"}}).profile.name, "torchtune-compile");
  EXPECT_EQ(scenario({{"framework", "Axolotl"}}).profile.name, "huggingface");
  EXPECT_EQ(scenario({{"source", "MoE Parallel Folding (arXiv 2504.14960)"}}).profile.name, "megatron-core");
}

TEST(MeasuredRun, WhatIsCompiledIsSimulatedCompiledOrSaysThatItIsNot) {
  const Scenario litgpt = scenario({{"framework", "litgpt"}, {"sharding", "fsdp"}, {"torch_compile", "y"}});
  EXPECT_EQ(litgpt.profile.name, "litgpt-compile");
  EXPECT_FALSE(notes(litgpt, "no compiled form"));
  EXPECT_FALSE(notes(scenario({{"framework", "olmo-core"}, {"sharding", "fsdp"}, {"torch_compile", "y"}}), "no compiled form"));
  const Row foundry{{"framework", "llm-foundry"}, {"sharding", "fsdp"}, {"torch_compile", "y"}};
  EXPECT_TRUE(notes(scenario(foundry), "torch.compile stated, simulated without: the profile llm-foundry has no compiled form"));
  Row eager = foundry;
  eager["torch_compile"] = "n";
  EXPECT_FALSE(notes(scenario(eager), "no compiled form"));
}

// Lightning-AI/litgpt config_hub/finetune/README.md: "All runs are single-GPU experiments", but its full.yaml files have `devices: 4`.
TEST(MeasuredRun, LitGptTunesAllWeightsOnItsFourGpusAndAdaptersOnOne) {
  Row row{{"task", "lora"}, {"framework", "litgpt"}, {"gpu", "a10g"}, {"n_gpus", "4"}, {"sharding", "see note"}, {"note", "README itself says all runs are single-GPU"}};
  const Scenario adapters = scenario(row);
  EXPECT_EQ(adapters.strategy.parallelism.degrees.data, 1);
  EXPECT_TRUE(notes(adapters, "ran on one GPU"));
  row["task"] = "sft";
  const Scenario whole = scenario(row);
  EXPECT_EQ(whole.strategy.parallelism.degrees.data, 4);
  EXPECT_EQ(whole.strategy.data_parallel.kind, DataParallelKind::fsdp1);
  EXPECT_EQ(whole.strategy.memory.recompute, strategies::Recompute::full);
  EXPECT_TRUE(notes(whole, "FSDP with block checkpoints"));
  EXPECT_FALSE(notes(whole, "ran on one GPU") || notes(whole, "recomputation not stated"));
  row["n_gpus"] = "1";
  EXPECT_EQ(scenario(row).strategy.data_parallel.kind, DataParallelKind::none);
}

// Lightning-AI/lightning-thunder thunder/benchmarks/benchmark_litgpt.py at d425fe469.
TEST(MeasuredRun, ThundersBenchmarkTrainsLitGptInALoopOfItsOwn) {
  Row row{{"framework", "litgpt"}, {"sharding", "fsdp"}, {"torch_compile", "n"}};
  const Scenario own = scenario(row);
  EXPECT_EQ(own.profile.loss, strategies::LossKind::chunked);
  EXPECT_TRUE(own.strategy.training.clip_gradients);
  row["source"] = "Lightning-AI/lightning-thunder pull request 940 (2024-08)";
  row["note"] = "benchmark_litgpt.py, FSDP2, shard_mode zero2 (parameters stay gathered after forward)";
  const Scenario second = scenario(row);
  EXPECT_EQ(second.profile.loss, strategies::LossKind::native);
  EXPECT_TRUE(second.profile.fused_optimizer && second.profile.holds_output);
  EXPECT_FALSE(second.strategy.training.clip_gradients);
  EXPECT_EQ(second.strategy.data_parallel.kind, DataParallelKind::fsdp2);
  EXPECT_EQ(second.strategy.data_parallel.reshard_after_forward, false);
  row["note"] = "benchmark_litgpt.py, FSDP1 zero2";
  const Scenario first = scenario(row);
  EXPECT_EQ(first.strategy.data_parallel.kind, DataParallelKind::fsdp1);
  EXPECT_EQ(first.strategy.data_parallel.reshard_after_forward, false);
  row["note"] = "benchmark_litgpt.py, FSDP1 zero3";
  EXPECT_NE(scenario(row).strategy.data_parallel.reshard_after_forward, false);
}

TEST(MeasuredRun, WhatAProfileHasNotIsSimulatedByOneThatHas) {
  EXPECT_EQ(scenario({{"framework", "nemo"}, {"task", "sft"}, {"sharding", "fsdp"}}).profile.name, "torchtitan");
  const Scenario whole = scenario({{"framework", "nemo"}, {"sharding", "fsdp"}});
  EXPECT_EQ(whole.profile.name, "megatron-bridge");
  EXPECT_EQ(whole.strategy.data_parallel.kind, DataParallelKind::megatron_fsdp);
  EXPECT_TRUE(notes(whole, "taken as Megatron-FSDP"));
  const Scenario qlora = scenario({{"framework", "nemo"}, {"task", "qlora"}, {"precision", "nf4"}});
  EXPECT_EQ(qlora.profile.name, "huggingface");
  EXPECT_TRUE(notes(qlora, "4-bit, simulated as huggingface"));
  const Scenario zero3 = scenario({{"framework", "megatron-lm"}, {"sharding", "zero3"}});
  EXPECT_EQ(zero3.profile.name, "deepspeed");
  EXPECT_TRUE(notes(zero3, "the profile megatron-core has none"));
  EXPECT_EQ(run({{"framework", "megatron-lm"}, {"tp", "4"}}).smaller.at(0).strategy.data_parallel.kind, DataParallelKind::distributed_optimizer);
}

TEST(MeasuredRun, GpusAreFoundHoweverTheyAreSpelled) {
  const auto gpu = [](const std::string& stated) { return scenario({{"gpu", stated}, {"precision", "fp16"}}).cluster.gpu.name; };
  for (const auto& [stated, name] : Row{{"H800-80GB", "h800-sxm"}, {"NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"}, {"A100 PCIe 80GB", "a100-80gb-pcie"}, {"H100 NVL", "h100-nvl"}, {"H100-SXM5-80GB", "h100-sxm"},
                                        {"RTX A6000", "rtx-a6000"}, {"RTX 6000 Ada", "rtx-6000-ada"}, {"NVIDIA GeForce RTX 5090", "rtx-5090"}, {"A40", "a40"}, {"A30", "a30"}, {"L40", "l40"}, {"MI325X", "mi325x"}, {"H20", "h20"}, {"L4", "l4"}, {"GB200", "gb200-nvl72"},
                                        {"Tesla T4", "t4"}, {"NVIDIA A10", "a10"}, {"NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"}, {"RTX 3080 Ti", "rtx-3080-ti"}, {"RTX3080", "rtx-3080"}, {"GH200", "gh200-96gb"}, {"GH200 144GB HBM3e", "gh200-144gb"}, {"H800 PCIe", "h800-pcie"}, {"MI250X", "mi250x"}, {"RTX PRO 6000 Blackwell", "rtx-pro-6000"}})
    EXPECT_EQ(gpu(stated), name) << stated;
  EXPECT_EQ(run({{"gpu", "TPUv4"}}).reason, "no data of GPU 'TPUv4'");
  EXPECT_EQ(run({{"gpu", "RTX 4090 Laptop"}}).reason, "no data of GPU 'RTX 4090 Laptop'");
  for (const char* rank : {"0", "-8", "9223372036854775807"}) EXPECT_EQ(run({{"task", "lora"}, {"framework", "hf"}, {"lora_rank", rank}}).reason, "lora_rank is not between 1 and 65536") << rank;
}

TEST(MeasuredRun, EightOfEveryGpuHaveANode) {
  for (const char* name : {"a10g", "rtx-a6000", "rtx-3090", "rtx-4070-ti-super", "rtx-5090", "rtx-6000-ada", "a40", "a30", "l40", "mi325x", "h800-sxm", "h20", "l4", "a100-40gb-pcie", "h100-pcie", "h100-nvl", "t4", "a10", "l20", "rtx-a5000", "rtx-pro-6000", "rtx-2080-ti", "rtx-3080", "rtx-5080", "h800-pcie", "mi210", "mi250x"}) {
    const Scenario s = scenario({{"gpu", name}, {"precision", "fp16"}});
    EXPECT_EQ(s.cluster.gpus_per_node, 8) << name;
    EXPECT_EQ(s.cluster.gpu.name, name);
  }
  EXPECT_EQ(scenario({{"gpu", "a10g"}}).cluster.node.name, "g5");
  EXPECT_EQ(scenario({{"gpu", "GH200"}}).cluster.node.name, "gh200-4");
}

TEST(MeasuredRun, ARatePerNodeTakesThePlaceOfTheDesigns) {
  const auto rate = [](const std::string& net) {
    const hwmodels::NicDesign nic = scenario({{"n_gpus", "16"}, {"global_batch", "16"}, {"interconnect", net}}).cluster.node.nic;
    return nic.count * nic.bandwidth.value * 8 / 1e9;
  };
  EXPECT_DOUBLE_EQ(rate("800 Gbps per node"), 800);
  EXPECT_DOUBLE_EQ(rate("NVSwitch + 1600 Gbps RoCE per node"), 1600);
  EXPECT_DOUBLE_EQ(rate("2x ConnectX-7 InfiniBand 400 Gbps per node"), 800);   // of each card
  EXPECT_DOUBLE_EQ(rate("AWS g5.4xlarge: 25 Gb/s Ethernet at most"), 25);
  EXPECT_DOUBLE_EQ(rate("8x400 Gb NDR IB"), 3200);
  EXPECT_DOUBLE_EQ(rate("400 Gbps per GPU"), 3200);
}

TEST(MeasuredRun, ShardingThatIsNotStatedIsTheFrameworksHabit) {
  const Scenario titan = scenario({{"framework", "torchtitan"}}), tune = scenario({{"framework", "torchtune"}, {"sharding", "fsdp"}});
  EXPECT_EQ(titan.strategy.data_parallel.kind, DataParallelKind::fsdp2);
  EXPECT_TRUE(notes(titan, "sharding not stated, taken as fsdp"));
  EXPECT_EQ(tune.strategy.data_parallel.kind, DataParallelKind::fsdp2);
  const MeasuredRun zero = run({{"framework", "deepspeed"}, {"sharding", "DeepSpeed stage n/s"}});
  ASSERT_TRUE(zero.scenario);
  EXPECT_EQ(zero.scenario->strategy.data_parallel.kind, DataParallelKind::zero1);
  const auto offers = [](const MeasuredRun& r, DataParallelKind kind) {
    return std::any_of(r.smaller.begin(), r.smaller.end(), [&](const Scenario& s) { return s.strategy.data_parallel.kind == kind; });
  };
  EXPECT_TRUE(offers(zero, DataParallelKind::zero2) && offers(zero, DataParallelKind::zero3));
  EXPECT_TRUE(offers(run({{"framework", "hf"}, {"task", "sft"}}), DataParallelKind::fsdp1));
  EXPECT_FALSE(offers(run({{"framework", "hf"}, {"task", "sft"}, {"sharding", "none"}}), DataParallelKind::fsdp1));
}

// fms_fsdp/policies/ac_handler.py: a share of whole blocks; the source does not say which.
TEST(MeasuredRun, SelectiveOfFmsFsdpIsAShareOfWholeBlocks) {
  const MeasuredRun r = run({{"framework", "fms-fsdp"}, {"sharding", "fsdp"}, {"recompute", "selective"}});
  ASSERT_TRUE(r.scenario);
  EXPECT_EQ(r.scenario->strategy.memory.recompute, strategies::Recompute::full);
  EXPECT_EQ(r.scenario->strategy.memory.recompute_every, 4);
  ASSERT_EQ(r.smaller.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(r.smaller[static_cast<std::size_t>(i)].strategy.memory.recompute_every, 3 - i);
}

TEST(MeasuredRun, DegreesThatAreNotStatedGrowInsideTheNodeFirst) {
  const MeasuredRun r = run({{"source", "SC21 paper text"}, {"model", "GPT-3 175B"}, {"gpu", "a100-80gb-sxm"}, {"n_gpus", "1024"}, {"global_batch", "1536"}, {"micro_batch", ""}, {"precision", "fp16"}, {"recompute", "full"}, {"seq_len", "2048"}});
  ASSERT_TRUE(r.scenario) << r.reason;
  EXPECT_EQ(r.scenario->profile.name, "megatron-2021");
  ASSERT_GE(r.smaller.size(), 4u);
  for (std::size_t i = 1; i < r.smaller.size(); ++i) {
    const strategies::Degrees &a = r.smaller[i - 1].strategy.parallelism.degrees, &b = r.smaller[i].strategy.parallelism.degrees;
    EXPECT_LE(a.tensor * a.pipeline, b.tensor * b.pipeline);
    EXPECT_TRUE(b.pipeline == 1 || b.tensor == 8);
    EXPECT_EQ(b.tensor * b.pipeline * b.data, 1024);
  }
}

// The tensor degree alone is stated: stages are added, replicas share the optimizer states.
TEST(MeasuredRun, StagesThatAreNotStatedGrowUntilItFits) {
  const MeasuredRun r = run({{"framework", "megatron-lm"}, {"model", "GPT-3 175B"}, {"n_gpus", "96"}, {"tp", "8"}, {"global_batch", "1152"}, {"micro_batch", ""}, {"sharding", ""}, {"recompute", "full"}});
  ASSERT_TRUE(r.scenario) << r.reason;
  EXPECT_EQ(r.scenario->strategy.parallelism.degrees.pipeline, 1);
  std::vector<int> stages;
  for (const Scenario& other : r.smaller) {
    const strategies::Degrees& d = other.strategy.parallelism.degrees;
    EXPECT_EQ(d.tensor * d.pipeline * d.data, 96);
    if (d.pipeline == 1) continue;
    stages.push_back(d.pipeline);
    EXPECT_EQ(other.strategy.data_parallel.kind, d.data == 1 ? strategies::DataParallelKind::none : strategies::DataParallelKind::distributed_optimizer);
    EXPECT_EQ(other.notes.back(), "pipeline stages not stated, taken as the least that fit: " + std::to_string(d.pipeline));
  }
  EXPECT_EQ(stages, (std::vector<int>{2, 3, 4, 6, 12}));
  // With a stated data-parallel degree there is nothing to choose.
  for (const Scenario& other : run({{"framework", "megatron-lm"}, {"n_gpus", "16"}, {"tp", "8"}, {"dp", "2"}, {"global_batch", "16"}}).smaller) EXPECT_EQ(other.strategy.parallelism.degrees.pipeline, 1);
}

// A schedule that may have been interleaved is as fast as its best number of chunks; one whose chunks are said, or that has no stages, is what it says.
TEST(MeasuredRun, ChunksThatAreNotStatedAreTheFastest) {
  const Row stages{{"framework", "megatron-lm"}, {"model", "GPT-3 175B"}, {"n_gpus", "1536"}, {"tp", "8"}, {"pp", "12"}, {"dp", "16"}, {"global_batch", "1536"}, {"note", "micro batch, VPP, recompute not stated; as stated: H100"}};
  const auto with = [&](const Row& cells) {
    Row row = stages;
    for (const auto& [column, text] : cells) row[column] = text;
    return run(row);
  };
  const MeasuredRun open = with({});
  EXPECT_TRUE(open.chunks_open);
  EXPECT_TRUE(notes(*open.scenario, "chunks per rank not stated"));
  EXPECT_TRUE(with({{"note", "PTD-P; interleaving not stated in the table"}}).chunks_open);
  EXPECT_TRUE(with({{"note", ""}, {"pp_schedule", "interleaved (vpp n/s)"}}).chunks_open);
  EXPECT_FALSE(with({{"note", ""}}).chunks_open);
  EXPECT_FALSE(with({{"note", "VPP 4; recompute not stated"}, {"vpp", "4"}}).chunks_open);
  EXPECT_FALSE(run({{"framework", "megatron-lm"}, {"note", "VPP not stated"}}).chunks_open);
}

// 8 x 4096 tokens of eight GPUs at 8192 tokens/s each.
TEST(MeasuredRun, ARateIsATimeWhereNoTimeIsStated) {
  const Row rate{{"framework", "megatron-lm"}, {"tp", "8"}, {"tokens_per_s_per_gpu", "8192"}};
  const auto with = [&](const Row& cells) {
    Row row = rate;
    for (const auto& [column, text] : cells) row[column] = text;
    return run(row).step_time_s;
  };
  EXPECT_DOUBLE_EQ(with({}).value(), 0.5);
  EXPECT_DOUBLE_EQ(with({{"step_time_s", "0.6"}}).value(), 0.6);
  EXPECT_FALSE(with({{"global_batch", ""}}));
  EXPECT_FALSE(with({{"note", "use memory only"}}));
  EXPECT_FALSE(with({{"tp", ""}}));   // nothing is said of how eight GPUs share the job
  EXPECT_DOUBLE_EQ(with({{"tp", ""}, {"n_gpus", "1"}}).value(), 4);
  EXPECT_THROW(with({{"tokens_per_s_per_gpu", "-3"}}), ConfigError);
}

// Checkpoints follow what is offloaded already, after everything else; what is kept instead of made again stays on the GPU.
TEST(MeasuredRun, WhoeverOffloadsMayOffloadCheckpoints) {
  const Row offloads{{"framework", "deepspeed"}, {"sharding", "zero3"}, {"offload", "optimizer+param"}, {"recompute", "full"}};
  const auto with = [&](const Row& cells) { Row row = offloads; for (const auto& [column, text] : cells) row[column] = text; return run(row).smaller; };
  const auto offloaded = [](const Scenario& s) { return s.strategy.memory.offload.activations == strategies::MemoryTier::cpu; };
  const std::vector<Scenario> last = with({});
  ASSERT_FALSE(last.empty());
  EXPECT_TRUE(offloaded(last.back()));
  EXPECT_EQ(last.back().strategy.memory.recompute, strategies::Recompute::full);
  EXPECT_EQ(std::count_if(last.begin(), last.end(), offloaded), 1);
  for (const std::vector<Scenario>& none : {with({{"recompute", "none"}}), with({{"offload", ""}})}) EXPECT_TRUE(std::none_of(none.begin(), none.end(), offloaded));
}

TEST(MeasuredRun, DeepSeeksOwnRunsAreOfItsFramework) {
  const MeasuredRun r = run({{"framework", "various"}, {"model", "DeepSeek-V3 671B (37B active)"}, {"layers", "61"}, {"gpu", "H800-80GB"}, {"n_gpus", "2048"}, {"pp", "16"}, {"ep", "64"}, {"pp_schedule", "DualPipe"}, {"sharding", "zero1"}, {"global_batch", "15360"},
                            {"micro_batch", ""}, {"precision", "fp8"}, {"recompute", ""}, {"source", "DeepSeek-V3 technical report (arXiv 2412.19437)"}});
  ASSERT_TRUE(r.scenario) << r.reason;
  EXPECT_EQ(r.scenario->profile.name, "deepseek");
  ASSERT_FALSE(r.smaller.empty());
  EXPECT_EQ(r.smaller.front().strategy.memory.recompute, strategies::Recompute::selective);
}

TEST(MeasuredRun, OptimizersAsTheyAreNamed) {
  const Scenario paged = scenario({{"framework", "torchtune"}, {"task", "sft"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"optimizer", "PagedAdamW8bit"}, {"note", "flags: optimizer_in_bwd"}});
  EXPECT_EQ(paged.strategy.training.optimizer, strategies::Optimizer::adamw_8bit);
  EXPECT_TRUE(paged.strategy.memory.paged_optimizer);
  EXPECT_TRUE(paged.strategy.memory.optimizer_in_backward);
  EXPECT_FALSE(paged.strategy.training.clip_gradients);
  // bitsandbytes' moments are fp32 beside 16-bit weights; torch's follow the weights.
  EXPECT_EQ(scenario({{"framework", "torchtune"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"optimizer", "PagedAdamW"}}).profile.optimizer_state, DType::fp32);
  EXPECT_EQ(scenario({{"framework", "torchtune"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"optimizer", "AdamW"}}).profile.optimizer_state, DType::bf16);
  const Row nanochat{{"framework", "nanochat"}, {"model", "nanochat d10"}, {"layers", "10"}, {"hidden", "640"}, {"heads", "5"}, {"ffn_hidden", "2560"}, {"vocab", ""}, {"n_gpus", "1"}, {"global_batch", "8"}};
  const auto with = [&](const Row& cells) { Row row = nanochat; for (const auto& [column, text] : cells) row[column] = text; return scenario(row); };
  EXPECT_EQ(with({}).strategy.training.optimizer, strategies::Optimizer::adamw);
  EXPECT_EQ(with({{"optimizer", "Muon"}}).strategy.training.optimizer, strategies::Optimizer::muon);
  EXPECT_FALSE(with({{"optimizer", "Muon"}}).profile.muon_owners);
  EXPECT_TRUE(with({{"optimizer", "distributed Muon"}, {"n_gpus", "8"}}).profile.muon_owners);
  // Sharded states have no whole matrices.
  EXPECT_EQ(with({{"optimizer", "Muon"}, {"n_gpus", "8"}, {"sharding", "zero1"}}).strategy.training.optimizer, strategies::Optimizer::adamw);
}

// Megatron-Bridge's recipes for pre-training are not those of its performance scripts, which the profile describes.
TEST(MeasuredRun, MegatronBridgeLibraryRecipes) {
  const Scenario scripts = scenario({{"framework", "megatron-bridge"}}), library = scenario({{"framework", "megatron-bridge"}, {"note", "its Qwen3 recipe; library recipe"}});
  EXPECT_FALSE(scripts.strategy.data_parallel.reduce_dtype.has_value());
  EXPECT_EQ(library.strategy.data_parallel.reduce_dtype, DType::fp32);
  EXPECT_EQ(library.strategy.data_parallel.gradient_dtype, DType::fp32);
  EXPECT_EQ(library.strategy.training.cross_entropy, strategies::LossKind::vocab_parallel_compiled);
}

// transformers 5 has grouped products, before it was a loop.
TEST(MeasuredRun, ExpertsOfHuggingFaceByRelease) {
  const auto grouped = [](const std::string& source) { return scenario({{"framework", "hf"}, {"source", source}}).profile.grouped_experts; };
  EXPECT_TRUE(grouped("a table"));
  EXPECT_TRUE(grouped("a table; transformers 5.6.0"));
  EXPECT_FALSE(grouped("a table; transformers 4.51"));
}

TEST(MeasuredRun, HuggingFaceWithFusedKernels) {
  const Scenario plain = scenario({{"framework", "hf"}}), liger = scenario({{"framework", "hf"}, {"note", "with Liger kernels"}});
  EXPECT_EQ(plain.profile.norm, strategies::Fusion::eager);
  EXPECT_EQ(liger.profile.norm, strategies::Fusion::fused);
  EXPECT_EQ(liger.profile.loss, strategies::LossKind::fused_linear);
  EXPECT_GT(liger.profile.fused_operator_host, Duration{});
  EXPECT_EQ(scenario({{"framework", "hf"}, {"note", "no Liger kernels: logits are made"}}).profile.loss, plain.profile.loss);
  // Of which release its loss is.
  const auto form = [](const std::string& note) { return scenario({{"framework", "hf"}, {"note", note}}).profile.linear_loss; };
  EXPECT_EQ(form("Liger's kernels"), strategies::LinearLossForm::widened);
  EXPECT_EQ(form("Liger's kernels (liger-kernel 0.7.0)"), strategies::LinearLossForm::widened);
  EXPECT_EQ(form("Liger's kernels (liger-kernel 0.6.1)"), strategies::LinearLossForm::in_place);
  EXPECT_EQ(form("Liger's kernels (liger-kernel 0.5.2)"), strategies::LinearLossForm::scaled);
  EXPECT_EQ(form("Liger's kernels (liger-kernel 0.4.2)"), strategies::LinearLossForm::fp32);
}

// PyTorch's casts to 16 bits were vectorised in 2.6, its cuDNN attention is preferred where a new enough cuDNN came with it.
TEST(MeasuredRun, KernelsOfPyTorchByRelease) {
  const auto profile = [](const std::string& note) { return scenario({{"framework", "hf"}, {"note", note}}).profile; };
  EXPECT_TRUE(profile("PyTorch 2.4.1").narrows_one_by_one);
  EXPECT_FALSE(profile("PyTorch 2.6.0").narrows_one_by_one);
  EXPECT_EQ(profile("PyTorch 2.10.0 (CUDA 12.8), SDPA").cudnn_attention_from, 0);
  EXPECT_EQ(profile("PyTorch 2.10.0 (CUDA 13.0), SDPA").cudnn_attention_from, 90);
}

// llm-foundry's table: rows with FSDP's mixed precision PURE are of PyTorch 1.13, the others of 2.1, whose checkpoints stop early.
TEST(MeasuredRun, FoundryOfTwoReleases) {
  const auto profile = [](const char* mixed) { return scenario({{"framework", "llm-foundry"}, {"sharding", "fsdp"}, {"note", std::string("precision: amp_bf16 (FSDP mixed_precision=") + mixed + ")"}}).profile; };
  const strategies::FrameworkProfile then = profile("PURE"), later = profile("DEFAULT");
  EXPECT_TRUE(!then.early_stop_recompute && then.reduce == DType::bf16);
  EXPECT_TRUE(later.early_stop_recompute && later.reduce == DType::fp32);
  EXPECT_EQ(then.training_metrics, 2);
}

// Releases that a source names: what transformers, bitsandbytes and TRL did then.
TEST(MeasuredRun, HuggingFaceOfThatTime) {
  const auto profile = [](const std::string& source) { return scenario({{"framework", "hf"}, {"task", "qlora"}, {"precision", "nf4"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"source", source}}).profile; };
  const strategies::FrameworkProfile then = profile("somebody's table (transformers 4.48.1, torch 2.4.1, bitsandbytes 0.43.1)");
  EXPECT_TRUE(then.copies_shifted_logits && then.reentrant_checkpoint && then.keeps_quantised_inputs && !then.early_stop_recompute);
  const strategies::FrameworkProfile later = profile("somebody's table (transformers 4.49.0; bitsandbytes 0.43.2)");
  EXPECT_TRUE(!later.copies_shifted_logits && later.reentrant_checkpoint && !later.keeps_quantised_inputs);
  const strategies::FrameworkProfile now = profile("somebody's table (transformers 5.2)");
  EXPECT_TRUE(!now.copies_shifted_logits && !now.reentrant_checkpoint && now.early_stop_recompute);
  EXPECT_FALSE(profile("somebody's table, transformers of that day").reentrant_checkpoint);

  const Scenario fms = scenario({{"framework", "hf"}, {"task", "qlora"}, {"precision", "nf4"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"source", "fms-acceleration"}, {"note", "fused Triton kernels"}});
  EXPECT_EQ(fms.profile.loss, strategies::LossKind::upcast_fused);
  EXPECT_TRUE(fms.profile.narrows_tables && fms.profile.keeps_logits);
  EXPECT_EQ(fms.strategy.tuning.dropout, 0.1);
}

// Until 4.45 the modelling code upcast the logits, so that nobody had them in 16 bits any more; fms-acceleration's kernels are in that code too, and
// where all weights are trained in fp32 as elsewhere. Of Liger's kernels it has the loss alone.
TEST(MeasuredRun, LogitsOfTransformersBefore446) {
  const auto profile = [](const std::string& framework, const std::string& source, const std::string& note) {
    return scenario({{"framework", framework}, {"task", "sft"}, {"precision", "bf16"}, {"n_gpus", "2"}, {"dp", "2"}, {"sharding", "fsdp"}, {"global_batch", "2"}, {"source", source}, {"note", note}}).profile;
  };
  for (const std::string framework : {"hf", "huggingface-mixed"}) {
    EXPECT_FALSE(profile(framework, "a table (transformers 4.45.2)", "").keeps_logits) << framework;
    EXPECT_TRUE(profile(framework, "a table (transformers 4.46.0)", "").keeps_logits) << framework;
    const strategies::FrameworkProfile then = profile(framework, "fms-acceleration (transformers 4.45.2)", "fused Triton kernels");
    EXPECT_EQ(then.loss, strategies::LossKind::upcast_fused) << framework;
    EXPECT_TRUE(!then.keeps_logits && then.copies_shifted_logits && then.norm == strategies::Fusion::fused) << framework;
    EXPECT_TRUE(profile(framework, "fms-acceleration (transformers 4.48.1)", "fused Triton kernels").keeps_logits) << framework;
    const strategies::FrameworkProfile liger = profile(framework, "fms-acceleration (transformers 4.45.2)", "fused Triton kernels and Liger's loss");
    EXPECT_TRUE(liger.loss == strategies::LossKind::fused_linear && liger.linear_loss == strategies::LinearLossForm::fp32 && liger.activation == strategies::Fusion::native) << framework;
    EXPECT_EQ(profile(framework, "somebody's table", "Liger").activation, strategies::Fusion::fused) << framework;
  }
}

// PEFT gave adapters the format of the weights beside them from 0.7 until 0.12.
TEST(MeasuredRun, AdaptersHaveTheFormatOfTheirRelease) {
  const auto adapter = [](const std::string& source) { return scenario({{"framework", "hf"}, {"task", "lora"}, {"precision", "bf16"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"source", source}}).profile.adapter; };
  EXPECT_EQ(adapter("somebody's table; peft 0.6.2"), DType::fp32);
  EXPECT_EQ(adapter("somebody's table; peft 0.7.1"), DType::bf16);
  EXPECT_EQ(adapter("somebody's table; peft 0.11.1"), DType::bf16);
  EXPECT_EQ(adapter("somebody's table; peft 0.13.2"), DType::fp32);
}

// Qwen's scripts: flash-attn's norm and rotary embedding, logits in the format of the weights where no autocast is; "auto" in ds_config_zero3.json.
TEST(MeasuredRun, QwensScripts) {
  const auto of = [](const std::string& sharding, const std::string& gpus) {
    return scenario({{"framework", "hf"}, {"task", "sft"}, {"precision", "bf16"}, {"n_gpus", gpus}, {"dp", gpus}, {"global_batch", "8"}, {"sharding", sharding}, {"source", "QwenLM/Qwen@2df8e8ac45 README.md"}});
  };
  const Scenario alone = of("none", "1"), sharded = of("zero3", "8");
  EXPECT_EQ(alone.profile.norm, strategies::Fusion::fused);
  EXPECT_EQ(alone.profile.loss, strategies::LossKind::upcast);   // by autocast, inside cross_entropy
  EXPECT_EQ(sharded.profile.loss, strategies::LossKind::native);
  EXPECT_TRUE(alone.profile.copies_shifted_logits && sharded.profile.copies_shifted_logits);
  const std::int64_t square = sharded.model.hidden * sharded.model.hidden;
  EXPECT_EQ(sharded.strategy.data_parallel.bucket->value, 2 * square);
  EXPECT_EQ(sharded.strategy.data_parallel.prefetch_bucket, square * 9 / 10);
  EXPECT_EQ(sharded.strategy.data_parallel.persistence_threshold, 10 * sharded.model.hidden);
}

// Which attention PyTorch has on AMD's GPUs follows its release, or AOTriton's where that is said: 0.11 came with PyTorch 2.9.
TEST(MeasuredRun, AotritonsBackwardIsOfItsRelease) {
  const auto triton = [](const std::string& note) {
    return scenario({{"framework", "torchtitan"}, {"gpu", "mi300x"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"global_batch", "8"}, {"note", note}}).profile.triton_backward;
  };
  EXPECT_TRUE(triton("PyTorch 2.8.0, ROCm 6.4"));
  EXPECT_FALSE(triton("PyTorch 2.9.1, ROCm 7.0"));
  EXPECT_TRUE(triton("PyTorch 2.9.0.dev20250811 (AOTriton 0.10), ROCm 6.4"));
  EXPECT_FALSE(triton("PyTorch 2.8.0 with AOTriton 0.11.1"));
  EXPECT_FALSE(triton(""));
}

// pytorch/torchtitan: loss.item() in every step until 2024-04-05 (5b2bb5232), pred held through backward until 2024-06-12 (e29b6b4d4), logits made fp32 by the
// model and no expandable segments until 2024-10-22 (e10cb9494, a5e57e4a9), foreach AdamW until 2025-02-24 (6e4988550).
TEST(MeasuredRun, TorchtitanIsThatOfTheRowsDate) {
  const auto of = [](const std::string& source) {
    return scenario({{"framework", "torchtitan"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"global_batch", "8"}, {"source", source}}).profile;
  };
  const auto told = [](const strategies::FrameworkProfile& p) { return std::array{p.waits_after_step, p.holds_output, p.keeps_logits, p.expandable_segments, p.fused_optimizer}; };
  using Habits = std::array<bool, 5>;
  EXPECT_EQ(told(of("pytorch/torchtitan pull request 165 (2024-03-26; its numbers are in 116 and 135 too)")), (Habits{true, true, false, false, false}));
  EXPECT_EQ(told(of("pytorch/torchtitan@3faaa1a0d docs/performance.md")), (Habits{false, true, false, false, false}));
  EXPECT_EQ(told(of("pytorch/torchtitan pull request 500 (2024-07)")), (Habits{false, false, false, false, false}));
  EXPECT_EQ(told(of("pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md (run at 9dec370, 2024-12)")), (Habits{false, false, true, true, false}));
  EXPECT_EQ(told(of("pytorch/torchtitan pull request 1690 (2025-09)")), (Habits{false, false, true, true, true}));
  EXPECT_EQ(told(of("somebody's table (2024-03)")), (Habits{false, false, true, true, true}));   // torchtitan's layers, not its loop
}

// PrimeIntellect-ai/prime-rl src/prime_rl/trainer/sft/train.py: `out` keeps the fp32 logits that `del logits` lets go of from 2026-01-05 on (5ad6f62fc).
TEST(MeasuredRun, PrimeRlsTrainerReadsEachLossAndHoldsItsLogits) {
  const auto of = [](const std::string& framework, const std::string& task, const std::string& source) {
    return scenario({{"framework", framework}, {"task", task}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"global_batch", "16"}, {"recompute", "full"}, {"torch_compile", "y"}, {"source", source}});
  };
  const auto now = of("prime-rl", "sft", "PrimeIntellect-ai/prime-rl@d8f290ef0 benchmarks/baselines/a.json (2026-01-15)");
  const strategies::FrameworkProfile& p = now.profile;
  EXPECT_EQ(p.name, "huggingface-mixed");   // its checkpoints run without torch.compile
  EXPECT_EQ(now.strategy.data_parallel.kind, strategies::DataParallelKind::fsdp2);
  EXPECT_TRUE(p.holds_output && p.reads_loss && p.blocking_input && p.waits_after_step && p.expandable_segments && p.stored_parameter == DType::fp32 && p.reduce == DType::fp32);
  EXPECT_FALSE(p.compiled || p.autocast || p.keeps_logits || p.fused_optimizer);
  const strategies::FrameworkProfile before = of("prime-rl", "sft", "PrimeIntellect-ai/prime-rl@0123456 a.json (2026-01-04)").profile;
  EXPECT_TRUE(before.reads_loss && !before.holds_output);
  EXPECT_FALSE(of("torchtitan", "pretrain", "pytorch/torchtitan pull request 1690 (2025-09)").profile.reads_loss);
}

// A note's dropout is both of Megatron's; an adapter's of transformers is neither. Attention's kernels draw where the framework trains with dropout.
TEST(MeasuredRun, DropoutOfMegatronsNotes) {
  const auto of = [](const std::string& framework, const std::string& note) {
    return scenario({{"framework", framework}, {"n_gpus", "8"}, {"global_batch", "8"}, {"note", note}});
  };
  const auto draws = [](const Scenario& s) {
    const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
    return std::any_of(plan.kernels.begin(), plan.kernels.end(), [](const model::KernelSpec& k) { return k.dropout; });
  };
  const Scenario with = of("megatron-lm", "hidden dropout 0.1 and attention dropout 0.1");
  EXPECT_EQ(with.model.dropout, 0.1);
  EXPECT_EQ(with.model.attention_dropout, 0.1);
  EXPECT_TRUE(draws(with));
  EXPECT_FALSE(draws(of("megatron-lm", "no dropout")));
  EXPECT_EQ(of("hf", "dropout 0.1").model.attention_dropout, 0);
}

// Transformers under torch.compile; in a checkpoint FlashAttention's call keeps a layer from it.
TEST(MeasuredRun, TransformersAreCompiledUnlessACheckpointHoldsFlashAttention) {
  const auto profile_of = [](const std::string& recompute, const std::string& attention, const std::string& note = "") {
    return scenario({{"framework", "hf"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"global_batch", "8"}, {"torch_compile", "y"}, {"recompute", recompute}, {"attention", attention}, {"note", note}}).profile;
  };
  EXPECT_EQ(profile_of("full", "sdpa").name, "huggingface-compile");
  EXPECT_EQ(profile_of("none", "flash2").name, "huggingface-compile");
  EXPECT_EQ(profile_of("full", "flash2").name, "huggingface");
  EXPECT_EQ(profile_of("none", "sdpa").loss, strategies::LossKind::compiled);
  EXPECT_EQ(profile_of("none", "sdpa", "cross-entropy of whole logits in a loop of its own").loss, strategies::LossKind::upcast);
}

// torchtitan's releases: grouped keys and loss in chunks in 2026, one kernel for norms from PyTorch 2.8 on; its options, and its pipelines' default.
TEST(MeasuredRun, TorchtitanByRelease) {
  const auto of = [](const std::string& source, const std::string& note, const std::string& pp = "1") {
    return scenario({{"framework", "torchtitan"}, {"n_gpus", "8"}, {"sharding", "fsdp"}, {"pp", pp}, {"global_batch", "64"}, {"micro_batch", ""}, {"source", source}, {"note", note}});
  };
  EXPECT_EQ(of("somebody's table (2026-08)", "").profile.name, "torchtitan");
  EXPECT_EQ(of("somebody's table (2026-01-05)", "").profile.name, "torchtitan-2025");
  EXPECT_EQ(of("somebody's table", "").profile.name, "torchtitan-2025");
  EXPECT_EQ(of("somebody's table", "loss: ChunkedCELoss").profile.name, "torchtitan");
  EXPECT_EQ(of("a table (2025-03)", "").profile.norm, strategies::Fusion::eager);
  EXPECT_EQ(of("a table (2025-12)", "").profile.norm, strategies::Fusion::native);
  const Scenario narrow = of("a table (2026-08)", "training.dtype bfloat16; fsdp_reshard_after_forward never");
  EXPECT_TRUE(narrow.profile.stored_parameter == DType::bf16 && narrow.profile.optimizer_state == DType::bf16 && narrow.profile.reduce == DType::fp32);
  EXPECT_FALSE(narrow.strategy.data_parallel.reshard_after_forward.value_or(true));
  EXPECT_EQ(of("a table (2026-01-05)", "", "2").strategy.training.micro_batch_size, 1);
}

// What other streams hold of half a million tokens is more than the card, but comes back while a layer takes seconds: the allocator waits, and the job fits
// (thunlp/BurstEngine's baselines: Megatron-LM core 0.9 on eight A800, tensor parallel 8). Until PyTorch 2.2 what synchronous collectives use is held as well.
TEST(MeasuredRun, WaitingForOtherStreamsNowAndThenFits) {
  const auto row = [](const std::string& container) {
    return scenario({{"framework", "megatron-lm"}, {"model", "Llama-7B"}, {"gpu", "a800-sxm"}, {"n_gpus", "8"}, {"tp", "8"}, {"sp", "y"}, {"sharding", "zero1"}, {"seq_len", "524288"}, {"vocab", "32768"}, {"micro_batch", "1"},
                     {"global_batch", "1"}, {"recompute", "full"}, {"attention", "flash"}, {"note", "nvcr.io/nvidia/pytorch:" + container}});
  };
  const Scenario s = row("24.07-py3");
  EXPECT_EQ(s.profile.record_streams, strategies::RecordStreams::async);
  EXPECT_EQ(row("23.09-py3").profile.record_streams, strategies::RecordStreams::all);
  const Result result = simulate(s);
  EXPECT_TRUE(result.fits);
  EXPECT_LE(result.classes[0].peak_device(), s.cluster.gpu.memory);
}

// Loops that time each step wait for the device at its end, Hugging Face's Trainer for each loss.
TEST(MeasuredRun, LoopsThatTimeEachStepWaitAtItsEnd) {
  const auto of = [](const std::string& sharding, const std::string& source, const std::string& note) {
    return scenario({{"framework", "hf"}, {"n_gpus", "8"}, {"sharding", sharding}, {"global_batch", "8"}, {"source", source}, {"note", note}}).profile;
  };
  const strategies::FrameworkProfile trainer = of("none", "somebody's table", "");
  EXPECT_TRUE(trainer.reads_loss && !trainer.waits_after_step && !trainer.holds_output);
  for (const char* sharding : {"none", "zero3"}) {
    const strategies::FrameworkProfile bench = of(sharding, "DeepSpeedExamples", "run_bench_lm.py: loss.item() printed in every step, torch AdamW");
    EXPECT_TRUE(bench.waits_after_step && !bench.reads_loss && bench.holds_output) << sharding;
  }
  const strategies::FrameworkProfile own = of("none", "aghilann/bastile@58df379", "a loop of its own, synchronised after every step");
  EXPECT_TRUE(own.waits_after_step && !own.reads_loss && own.holds_output);
}

// Training loops that are no Trainer: foreach AdamW, outputs that live on, checkpoints inside FSDP's units, losses of their own.
TEST(MeasuredRun, FineTuningScriptsOfTheirOwn) {
  const auto of = [](const std::string& source, const std::string& note) {
    return scenario({{"framework", "hf"}, {"task", "lora"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"optimizer", "AdamW"}, {"source", source}, {"note", note}});
  };
  const strategies::FrameworkProfile trainer = of("somebody's table", "").profile;
  EXPECT_TRUE(trainer.fused_optimizer && !trainer.holds_output && !trainer.checkpoints_in_units);
  const strategies::FrameworkProfile peft = of("huggingface/peft method_comparison/MetaMathQA/results/a.json", "").profile;
  EXPECT_TRUE(!peft.fused_optimizer && peft.holds_output && peft.holds_last_graph && !peft.adapter_autocast && peft.repeat_kv);
  EXPECT_EQ(peft.attention, model::AttentionKernel::mem_efficient);   // padded batches have a mask
  EXPECT_TRUE(peft.masked_attention && !trainer.masked_attention);
  const auto linear = [](const std::string& sharding) {
    return scenario({{"framework", "hf"}, {"n_gpus", "8"}, {"global_batch", "8"}, {"sharding", sharding}, {"note", "memory_efficient_linear false, as stated"}}).strategy.data_parallel.memory_efficient_linear;
  };
  EXPECT_TRUE(linear("zero2") && !linear("zero3"));
  const auto attends = [](const std::string& attention) { return scenario({{"framework", "hf"}, {"n_gpus", "1"}, {"global_batch", "1"}, {"attention", attention}}).profile; };
  EXPECT_TRUE(attends("mem-efficient, masked").masked_attention && !attends("mem-efficient").masked_attention);
  EXPECT_EQ(attends("mem-efficient, masked").attention, model::AttentionKernel::mem_efficient);
  const strategies::FrameworkProfile zero =
      scenario({{"framework", "hf"}, {"task", "sft"}, {"n_gpus", "8"}, {"sharding", "zero2"}, {"global_batch", "8"}, {"optimizer", "AdamW"}, {"note", "the output held, shifted logits copied"}}).profile;
  EXPECT_TRUE(zero.name == "deepspeed" && zero.holds_output && zero.copies_shifted_logits && zero.fused_optimizer);
  const Scenario qlora = of("AnswerDotAI/fsdp_qlora train.py; transformers 4.38", "no autocast");
  EXPECT_TRUE(!qlora.profile.fused_optimizer && qlora.profile.holds_output && !qlora.profile.holds_last_graph && qlora.profile.checkpoints_in_units);
  EXPECT_EQ(qlora.strategy.tuning.dropout, 0.1);
  const Scenario universal = of("ljm565/universal-llm-trainer; transformers 4.49.0", "torch.nn.CrossEntropyLoss on 16-bit logits");
  EXPECT_EQ(universal.profile.loss, strategies::LossKind::native);
  EXPECT_TRUE(universal.profile.copies_shifted_logits);
  EXPECT_EQ(universal.strategy.tuning.dropout, 0.05);
  EXPECT_EQ(of("modelscope/ms-swift docs", "").strategy.tuning.dropout, 0.05);
}

// NeMo's releases came before cuDNN 9.13, whether or not we have the model as a preset.
TEST(MeasuredRun, CudnnIsThatOfTheRelease) {
  for (const char* model : {"Llama-2-7B", "GPT3-20B"}) {
    const Row shape{{"model", model}, {"layers", "32"}, {"hidden", "4096"}, {"heads", "32"}, {"ffn_hidden", "11008"}, {"vocab", "32000"}};
    Row nemo = shape, bridge = shape;
    nemo["framework"] = "nemo", bridge["framework"] = "megatron-bridge";
    EXPECT_EQ(scenario(nemo).profile.cudnn_attention, model::AttentionKernel::cudnn) << model;
    EXPECT_EQ(scenario(bridge).profile.cudnn_attention, model::AttentionKernel::cudnn_9_13) << model;
  }
}

// NeMo's DeepSeekConfig and Llama4Config overlap shared experts with the exchange, DeepSeekConfig rotates without a kernel of its own.
TEST(MeasuredRun, NemosModelsSayWhatTheyOverlapAndFuse) {
  const auto of = [](const char* model, const char* framework) {
    return scenario({{"framework", framework}, {"model", model}, {"gpu", "h100-sxm"}, {"n_gpus", "512"}, {"ep", "64"}, {"sharding", "zero1"}, {"global_batch", "512"}, {"source", "README, NeMo 25.04.01"}}).profile;
  };
  EXPECT_TRUE(of("DeepSeek-V3", "nemo").overlap_shared_experts);
  EXPECT_TRUE(of("Llama-4-Maverick", "nemo").overlap_shared_experts);
  EXPECT_FALSE(of("DeepSeek-V3", "megatron-bridge").overlap_shared_experts);
  EXPECT_EQ(of("DeepSeek-V3", "nemo").rope, strategies::Fusion::eager);
  EXPECT_EQ(of("Llama-4-Maverick", "nemo").rope, strategies::Fusion::fused);
}

// EleutherAI/pythia models/12B/pythia-12b.yml, on AWS's p4d.
TEST(MeasuredRun, PythiaIsWhatItsConfigurationsSay) {
  const Row pythia{{"model", "Pythia 12B"}, {"gpu", "a100-40gb-sxm"}, {"n_gpus", "256"}, {"global_batch", "1024"}, {"micro_batch", ""}, {"seq_len", "2048"}, {"precision", "fp16"},
                   {"sharding", "zero1"}, {"source", "Pythia paper (arXiv 2304.01373)"}};
  const Scenario s = scenario(pythia);
  EXPECT_EQ(s.profile.name, "gpt-neox");
  EXPECT_EQ(s.strategy.parallelism.degrees.tensor, 4);
  EXPECT_EQ(s.strategy.parallelism.degrees.data, 64);
  EXPECT_EQ(s.strategy.training.micro_batch_size, 8);
  EXPECT_TRUE(s.strategy.memory.partition_activations && s.strategy.memory.synchronize_checkpoints);
  EXPECT_EQ(s.cluster.node.title, "AWS p4d.24xlarge");
  Row stated = pythia;
  stated["tp"] = "8", stated["micro_batch"] = "2", stated["interconnect"] = "1600 Gbps";
  const Scenario t = scenario(stated);
  EXPECT_EQ(t.strategy.parallelism.degrees.tensor, 8);
  EXPECT_EQ(t.strategy.training.micro_batch_size, 2);
  EXPECT_EQ(t.cluster.node.title, "NVIDIA DGX A100");
}

TEST(MeasuredRun, ZeroRunsAreWhatTheirScriptsSay) {
  Row trial{{"framework", "megatron-deepspeed"}, {"model", "GPT-2-style 52B"}, {"gpu", "v100-32gb-sxm2"}, {"n_gpus", "64"}, {"tp", "4"}, {"micro_batch", "24"}, {"global_batch", "384"}, {"seq_len", "1024"},
            {"precision", "fp16"}, {"sharding", "zero3"}, {"recompute", "full"}, {"interconnect", "Jean Zay"}, {"source", "experiments/gpt2.md (Megatron + Deepspeed ZeRO (old branch) / With full cpu offload)"}, {"note", "ID=15; PA_CPU=Y; "}};
  const Scenario away = scenario(trial);
  EXPECT_TRUE(away.strategy.memory.partition_activations);
  EXPECT_FALSE(away.strategy.memory.contiguous_checkpoints);
  EXPECT_EQ(away.strategy.memory.offload.activations, strategies::MemoryTier::cpu);
  trial["note"] = "ID=14; PA_CPU=N; ";
  EXPECT_EQ(scenario(trial).strategy.memory.offload.activations, strategies::MemoryTier::device);
  trial["note"] = "no trial";
  EXPECT_TRUE(scenario(trial).strategy.memory.contiguous_checkpoints);
  trial["source"] = "experiments/gpt2.md (HF + Deepspeed Zero 3 + Full Offload / Performance)";
  EXPECT_EQ(scenario(trial).profile.name, "deepspeed");
  // BigScience's processes have one thread; its files pin host memory, Hugging Face's users' need not.
  trial["offload"] = "optimizer", trial["source"] = "bigscience-workshop/bigscience experiments/gpt2.md (HF + Deepspeed Zero 3 + Full Offload / Performance)";
  EXPECT_EQ(scenario(trial).strategy.memory.offload.threads, 1);
  EXPECT_TRUE(scenario(trial).strategy.memory.offload.pinned);
  const Scenario hf = scenario({{"framework", "hf"}, {"task", "sft"}, {"sharding", "zero2"}, {"offload", "optimizer"}});
  EXPECT_EQ(hf.strategy.memory.offload.threads, 1);
  EXPECT_FALSE(hf.strategy.memory.offload.pinned);
  const Scenario tutorial = scenario({{"framework", "deepspeed"}, {"gpu", "v100-32gb-sxm2"}, {"precision", "fp16"}, {"sharding", "zero2"}, {"source", "deepspeedai/DeepSpeed docs/_tutorials/zero.md"}});
  EXPECT_EQ(tutorial.profile.name, "deepspeed-2020");
  EXPECT_TRUE(tutorial.strategy.data_parallel.overlap_gradient_reduce.value_or(false));
  EXPECT_EQ(tutorial.model.dropout, 0.1);
  const Scenario old = scenario({{"framework", "megatron-lm"}, {"gpu", "v100-32gb-sxm2"}, {"precision", "fp16"}});
  EXPECT_EQ(old.model.dropout, 0.1);
  EXPECT_EQ(old.model.attention_dropout, 0.1);
}

// What DeepSpeed's configuration overlaps stands in the note; what its releases make of that is the profile's.
TEST(MeasuredRun, ReadsWhatDeepSpeedOverlaps) {
  const auto of = [](const char* stage, const char* note) { return scenario({{"framework", "deepspeed"}, {"sharding", stage}, {"note", note}}); };
  const auto overlaps = [&](const char* stage, const char* note) { return of(stage, note).strategy.data_parallel.overlap_gradient_reduce; };
  EXPECT_EQ(overlaps("zero2", "ZeRO-2 with overlap_comm, buckets of 2e8"), true);
  EXPECT_EQ(overlaps("zero2", "overlap_comm false, buckets of 2e8"), std::nullopt);
  EXPECT_EQ(overlaps("zero2", "no overlap_comm"), std::nullopt);
  EXPECT_EQ(overlaps("zero3", "overlap_comm false, prefetch 0"), false);
  EXPECT_EQ(of("zero3", "overlap_comm false, prefetch 0").strategy.data_parallel.prefetch_bucket, 0);
  EXPECT_EQ(overlaps("zero3", "overlap_comm"), std::nullopt);
  const auto waits = [&](const char* release) { return of("zero2", (std::string("DeepSpeed ") + release + ", overlap_comm").c_str()).profile.bucket_wait; };
  EXPECT_EQ(waits("0.14.2"), strategies::BucketWait::none);
  EXPECT_EQ(waits("0.14.3"), strategies::BucketWait::earlier);
  EXPECT_EQ(waits("0.18.4"), strategies::BucketWait::own);
  EXPECT_EQ(waits("0.19.2"), strategies::BucketWait::earlier);
  EXPECT_TRUE(of("zero2", "DeepSpeed 0.7.2").profile.synchronises_buckets);
  EXPECT_FALSE(of("zero2", "DeepSpeed 0.8.0").profile.synchronises_buckets);
  EXPECT_TRUE(of("zero2", "DeepSpeed 0.18.3").profile.buckets_late);
  EXPECT_FALSE(of("zero2", "DeepSpeed 0.18.2").profile.buckets_late);
  EXPECT_TRUE(of("zero2", "DeepSpeed 0.12.3").profile.reduces_to_owner);
  EXPECT_FALSE(of("zero2", "DeepSpeed 0.12.4").profile.reduces_to_owner);
}

// Until August 2026 torchtitan's tensor parallelism went through DTensor, whatever else its releases changed.
TEST(MeasuredRun, TorchtitanBeforeSpmdTypesPaysForDTensor) {
  const auto host = [](const char* date) { return scenario({{"framework", "torchtitan"}, {"source", std::string("pytorch/torchtitan benchmarks/run.md (") + date + ")"}}).profile; };
  const strategies::FrameworkProfile dtensor = strategies::load_profile("torchtitan-2025"), today = strategies::load_profile("torchtitan"), may = host("2026-05-20"), september = host("2026-09-01");
  EXPECT_EQ(may.name, "torchtitan");
  EXPECT_EQ(may.tensor_host, dtensor.tensor_host);
  EXPECT_EQ(may.tensor_backward_host, dtensor.tensor_backward_host);
  EXPECT_EQ(may.tensor_recompute_host, dtensor.tensor_recompute_host);
  EXPECT_EQ(september.tensor_host, today.tensor_host);
}

TEST(MeasuredRun, OptsAttentionIsThatOfItsRelease) {
  const auto clamps = [](const char* release) { return scenario({{"framework", "hf"}, {"model", "OPT-1.3B"}, {"attention", "eager"}, {"note", std::string("transformers ") + release}}).profile.clamps_scores; };
  EXPECT_TRUE(clamps("4.48.3"));
  EXPECT_FALSE(clamps("4.49.0"));
}

TEST(MeasuredRun, AutocastOverFp32WeightsIsReadOfPlainLoops) {
  const auto stored = [](const char* sharding, const char* note) { return scenario({{"framework", "plain"}, {"sharding", sharding}, {"note", note}}).profile.stored_parameter; };
  EXPECT_EQ(stored("none", "DDP with native AMP (fp32 weights, autocast to fp16, GradScaler)"), DType::fp32);
  EXPECT_EQ(stored("none", "weights in 16 bits"), DType::bf16);
}

// ms-swift 4.0 to 4.3 did not hand on that gradients are to be reduced in fp32.
TEST(MeasuredRun, SwiftsMegatronReducedIn16Bits) {
  const auto gradient = [](const char* note) { return scenario({{"framework", "megatron-lm"}, {"note", note}}).profile.gradient; };
  EXPECT_EQ(gradient("megatron sft of ms-swift 4.1.2"), DType::bf16);
  EXPECT_EQ(gradient("megatron sft of ms-swift 4.4.0"), DType::fp32);
}

TEST(MeasuredRun, TheSxm3CardIsInADgx2) {
  const Scenario s = scenario({{"framework", "megatron-lm"}, {"gpu", "V100-SXM3-32GB"}, {"precision", "fp16"}});
  EXPECT_EQ(s.cluster.gpu.name, "v100-32gb-sxm3");
  EXPECT_EQ(s.cluster.node.name, "dgx-2");
}

TEST(MeasuredRun, TorchsDataParallelReducesUnderMegatronsBackward) {
  const Row own{{"framework", "megatron-lm"}, {"gpu", "a100-40gb-sxm"}, {"precision", "fp16"}, {"source", "NVIDIA/Megatron-LM images/tables.tex"}};
  Row torchs = own;
  torchs["note"] = "weak scaling; --DDP-impl torch";
  EXPECT_TRUE(scenario(own).profile.flattens_gradients);
  EXPECT_FALSE(scenario(own).profile.overlap_gradient_reduce);
  EXPECT_FALSE(scenario(torchs).profile.flattens_gradients);
  EXPECT_TRUE(scenario(torchs).profile.overlap_gradient_reduce);
}

TEST(MeasuredRun, TakesMegatronsFlagsFromTheNote) {
  const Scenario none = scenario({{"framework", "megatron-lm"}, {"tp", "2"}, {"sp", "y"}, {"note", "flags: none"}});
  EXPECT_FALSE(none.strategy.data_parallel.overlap_gradient_reduce.value_or(false));
  const Scenario all = scenario({{"framework", "megatron-lm"}, {"tp", "2"}, {"sp", "y"}, {"note", "flags: --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap"}});
  EXPECT_TRUE(all.strategy.data_parallel.overlap_gradient_reduce.value_or(false));
  EXPECT_TRUE(all.strategy.data_parallel.overlap_parameter_gather.value_or(false));
  EXPECT_TRUE(all.strategy.parallelism.overlap_tensor.value_or(false));
  EXPECT_TRUE(none.strategy.training.fused_gradient_accumulation.value_or(true));
  EXPECT_FALSE(none.profile.untuned_products);
  const Scenario plain = scenario({{"framework", "megatron-lm"}, {"tp", "2"}, {"sp", "y"}, {"note", "--no-gradient-accumulation-fusion, PRIMUS_HIPBLASLT_TUNING unset"}});
  EXPECT_FALSE(plain.strategy.training.fused_gradient_accumulation.value_or(true));
  EXPECT_TRUE(plain.profile.untuned_products);
}

// FPDT's figure calls its baseline tensor parallelism; Megatron-DeepSpeed's sequence parallelism beside it came in September 2024.
TEST(MeasuredRun, MegatronDeepSpeedOfFPDTHasNoSequenceParallelism) {
  Row row{{"framework", "deepspeed"}, {"gpu", "a100-80gb-sxm"}, {"n_gpus", "8"}, {"tp", "8"}, {"sp", "y"}, {"seq_len", "32768"}, {"sharding", "none"}, {"source", "deepspeedai/DeepSpeed blogs/ulysses-offload figure 5"}};
  const Scenario baseline = scenario(row);
  EXPECT_EQ(baseline.profile.name, "megatron-deepspeed");
  EXPECT_FALSE(baseline.strategy.parallelism.sequence_parallel);
  EXPECT_NE(std::find_if(baseline.notes.begin(), baseline.notes.end(), [](const std::string& note) { return note.find("no sequence parallelism") != std::string::npos; }), baseline.notes.end());
  // Its loss of 2024, plain SwiGLU and GPT-2's vocabulary.
  row["vocab"] = "128256";
  EXPECT_EQ(scenario(row).model.vocab, 50257);
  EXPECT_EQ(baseline.profile.loss, strategies::LossKind::sharded);
  EXPECT_EQ(baseline.profile.gated_activation, strategies::Fusion::native);
  row["framework"] = "megatron-lm";
  row["source"] = "a log";
  EXPECT_TRUE(scenario(row).strategy.parallelism.sequence_parallel);
  EXPECT_EQ(scenario(row).model.vocab, 128256);
}

TEST(MeasuredRun, ZeroOfHuggingFaceTrainersIsDeepSpeeds) {
  EXPECT_EQ(scenario({{"framework", "hf"}, {"task", "sft"}, {"sharding", "zero3"}}).profile.name, "deepspeed");
  EXPECT_EQ(scenario({{"framework", "LLaMA-Factory"}, {"task", "lora"}, {"lora_rank", "8"}, {"sharding", "zero2"}}).profile.name, "deepspeed");
  EXPECT_EQ(scenario({{"framework", "hf"}, {"task", "sft"}, {"sharding", "fsdp"}}).profile.name, "huggingface");
  const Scenario liger = scenario({{"framework", "trl"}, {"task", "sft"}, {"sharding", "zero3"}, {"note", "Liger kernels"}});
  EXPECT_EQ(liger.profile.norm, strategies::Fusion::fused);
}

TEST(MeasuredRun, FlashAttentionsScriptsHaveGpt2sDropout) {
  const Scenario s = scenario({{"framework", "flash-attention"}, {"attention", "flash1"}});
  EXPECT_EQ(s.profile.name, "flash-attention");
  EXPECT_EQ(s.profile.attention, model::AttentionKernel::flash1);
  EXPECT_EQ(s.model.dropout, 0.1);
}

TEST(MeasuredRun, NotesSayReleaseScalingAndAttention) {
  const Row nemo{{"framework", "nemo"}, {"precision", "fp8"}};
  const auto with = [&](Row more) {
    more.insert(nemo.begin(), nemo.end());
    return scenario(more);
  };
  EXPECT_EQ(with({{"note", "MLPerf, NeMo 24.09"}}).profile.name, "nemo-2024");
  EXPECT_EQ(with({{"source", "summary, NeMo 25.04"}, {"note", "was slower in NeMo 24.09"}}).profile.name, "megatron-bridge");
  EXPECT_TRUE(with({{"note", "NeMo 25.04"}}).profile.current_scaling);
  EXPECT_FALSE(with({{"note", "NeMo 25.04; FP8, delayed scaling"}}).profile.current_scaling);
  EXPECT_EQ(with({{"cp", "2"}, {"note", "NeMo 25.04; cp_comm_type a2a"}}).profile.context, strategies::ContextKind::ulysses);
  EXPECT_EQ(with({{"attention", "cudnn"}, {"note", "NeMo 24.09"}}).profile.attention, model::AttentionKernel::cudnn);
  EXPECT_EQ(scenario({{"framework", "aleph-alpha-scaling"}, {"attention", "flash1"}}).profile.attention, model::AttentionKernel::flash1);
  EXPECT_EQ(scenario({{"framework", "hf"}, {"attention", "FlashAttention-4"}}).profile.attention, model::AttentionKernel::cudnn_9_13);   // it has no parameters of its own
  EXPECT_EQ(scenario({{"framework", "aleph-alpha-scaling"}, {"note", "kernel: flash_attention2 + RMS kernel"}}).profile.norm, strategies::Fusion::fused);
}

TEST(MeasuredRun, CudaGraphsReplayLayers) {
  EXPECT_EQ(scenario({{"framework", "nemo"}, {"cuda_graph", "y"}}).strategy.training.cuda_graph_modules, (std::vector<std::string>{"attn", "mlp"}));
  EXPECT_EQ(scenario({{"framework", "nemo"}, {"model", "Mixtral-8x7B"}, {"ep", "8"}, {"cuda_graph", "y"}}).strategy.training.cuda_graph_modules,
            (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_TRUE(scenario({{"framework", "nemo"}, {"cuda_graph", "n"}}).strategy.training.cuda_graph_modules.empty());
}

TEST(MeasuredRun, VocabulariesArePaddedAsTheNoteSays) {
  EXPECT_EQ(scenario({{"vocab", "50257"}, {"note", "vocab padded to multiple of 8; dropout 0.1"}}).profile.vocab_multiple, 8);
  EXPECT_EQ(scenario({{"vocab", "50257"}, {"note", "dropout 0.1"}}).profile.vocab_multiple, 1);
}

// Step times on straight lines over the number of layers, to five digits, were composed; runs that were measured scatter.
TEST(MeasuredRun, ComposedStepTimesAreNotClean) {
  const auto runs = [](double scatter, int series) {
    std::vector<Row> rows;
    for (int s = 0; s < series; ++s)
      for (const int layers : {12, 16, 24})
        rows.push_back(job({{"row_id", std::to_string(s) + "-" + std::to_string(layers)}, {"model", "GPT " + std::to_string(layers)}, {"layers", std::to_string(layers)}, {"hidden", "1024"}, {"heads", "16"},
                            {"micro_batch", std::to_string(s + 1)}, {"global_batch", std::to_string(8 * (s + 1))}, {"source", "table 1"},
                            {"step_time_s", std::to_string((0.01 * layers + 0.05) * (layers == 16 ? 1 + scatter : 1))}}));
    return table(rows);
  };
  const auto clean = [](const std::vector<MeasuredRun>& all) { return std::count_if(all.begin(), all.end(), [](const MeasuredRun& r) { return r.clean; }); };
  EXPECT_EQ(clean(runs(0, 5)), 0);
  EXPECT_EQ(clean(runs(0.001, 5)), 15);
  EXPECT_EQ(clean(runs(0, 4)), 12);   // too few to tell
}

// Two tests of different degrees cannot take the same time and the same bytes to the last digit.
TEST(MeasuredRun, CopiesOfOneMeasurementAreNotClean) {
  const auto runs = [](const char* tensor, const char* time) {
    const Row one{{"row_id", "1"}, {"tp", "1"}, {"step_time_s", "0.1722"}, {"max_mem_allocated_bytes", "3912766464"}, {"peak_mem_gib", "3.644"}, {"peak_mem_kind", "allocated"}};
    Row other = one;
    other["row_id"] = "2", other["tp"] = tensor, other["step_time_s"] = time;
    return table({job(one), job(other)});
  };
  EXPECT_FALSE(runs("2", "0.1722")[0].clean);
  EXPECT_FALSE(runs("2", "0.1722")[1].clean);
  EXPECT_TRUE(runs("2", "0.1723")[0].clean);
  EXPECT_TRUE(runs("1", "0.1722")[1].clean);   // a repeat, or a copy of the same test
}

TEST(MeasuredRun, NemoAutomodelHasAProfile) {
  EXPECT_EQ(scenario({{"framework", "NeMo AutoModel"}, {"sharding", "fsdp"}}).profile.name, "nemo-automodel");
  EXPECT_EQ(scenario({{"framework", "automodel"}, {"sharding", "fsdp"}}).profile.name, "nemo-automodel");
  EXPECT_EQ(scenario({{"framework", "automodel"}, {"sharding", "fsdp"}}).strategy.data_parallel.kind, strategies::DataParallelKind::fsdp2);
  EXPECT_EQ(scenario({{"framework", "automodel"}, {"sharding", "fsdp"}, {"torch_compile", "y"}}).profile.name, "nemo-automodel-compile");
}

TEST(MeasuredRun, FrameworksOfFsdp2) {
  const Scenario olmo = scenario({{"framework", "olmo-core"}, {"sharding", "fsdp"}, {"torch_compile", "y"}});
  EXPECT_EQ(olmo.profile.name, "olmo-core");
  EXPECT_EQ(olmo.strategy.data_parallel.kind, DataParallelKind::fsdp2);
  EXPECT_EQ(olmo.profile.loss, strategies::LossKind::compiled);
  EXPECT_EQ(scenario({{"framework", "olmo-core"}, {"sharding", "fsdp"}, {"note", "PyTorch's cross-entropy and logsumexp on 16-bit logits"}}).profile.loss, strategies::LossKind::native);
  EXPECT_EQ(scenario({{"framework", "kempnerforge"}, {"sharding", "fsdp"}}).profile.name, "kempnerforge");
  EXPECT_EQ(scenario({{"framework", "kempnerforge"}, {"sharding", "fsdp"}, {"torch_compile", "y"}}).profile.name, "kempnerforge-compile");
  EXPECT_EQ(scenario({{"framework", "fms-fsdp"}, {"sharding", "fsdp"}}).strategy.data_parallel.kind, DataParallelKind::fsdp1);
}

// PyTorch's scaled_dot_product_attention is cuDNN's on Hopper from 2.11 on.
TEST(MeasuredRun, PyTorchsAttentionIsThatOfTheRelease) {
  const auto from = [](const std::string& note, const std::string& attention = "flash") {
    return scenario({{"framework", "torchtitan"}, {"sharding", "fsdp"}, {"attention", attention}, {"note", note}}).profile.cudnn_attention_from;
  };
  EXPECT_EQ(from("SDPA; PyTorch 2.11"), 90);
  EXPECT_EQ(from("SDPA; PyTorch 2.9.1"), 100);
  EXPECT_EQ(from("PyTorch 2.11"), 90);   // torchtitan of 2026 asks for it by name, as it does from 2025-10-09 on
  EXPECT_EQ(from("torchtitan of 2025-12"), 90);
  EXPECT_EQ(from("torchtitan of 2025-08"), 100);
  EXPECT_EQ(from("SDPA; PyTorch 2.11", "flash2"), 0);
}

// Buffers for gradients came to Megatron-LM in August 2021, kernels for SwiGLU and rotary embedding with Megatron-Core 0.5, cuDNN's attention before
// FlashAttention with Transformer Engine 1.2.
TEST(MeasuredRun, MegatronsKernelsAreThoseOfTheRelease) {
  const Row paper{{"framework", "megatron-lm"}, {"gpu", "v100-16gb-sxm2"}, {"precision", "fp16"}, {"source", "arXiv 2104.04473"}};
  Row later = paper, engine = paper;
  later["source"] = "Megatron-LM b31e129 (2021-10-07)";
  engine["source"] = "experiments", engine["framework"] = "megatron-deepspeed";
  EXPECT_FALSE(scenario(paper).profile.main_gradients);
  EXPECT_TRUE(scenario(later).profile.main_gradients);
  EXPECT_FALSE(scenario(engine).profile.main_gradients);
  later["note"] = "--DDP-impl torch";
  EXPECT_FALSE(scenario(later).profile.main_gradients);

  // Figure 1 of the paper of 2022 has 18 bytes per parameter: 2 of weights, 12 of Adam with fp32 weights, 4 of gradients, which products add into from 2022-02 on.
  Row recomputation = paper;
  recomputation["source"] = "Table 5 of arXiv:2205.05198";
  EXPECT_EQ(scenario(recomputation).profile.gradient, DType::fp32);
  EXPECT_TRUE(scenario(recomputation).profile.fused_gradient_accumulation);
  EXPECT_EQ(scenario(paper).profile.gradient, DType::fp16);
  EXPECT_FALSE(scenario(paper).profile.fused_gradient_accumulation);

  // Input gradients are reduced beside the weight gradient from 2021-09 on, in BigScience's fork never, in Microsoft's after MT-NLG's times were published.
  const Row fork{{"framework", "megatron-deepspeed"}, {"sharding", "zero1"}, {"source", "bigscience-workshop/bigscience"}}, turing{{"framework", "various"}, {"source", "MT-NLG 530B paper"}};
  EXPECT_TRUE(scenario(paper).profile.waits_for_input_gradients);
  EXPECT_TRUE(scenario(fork).profile.waits_for_input_gradients);
  EXPECT_TRUE(scenario(turing).profile.waits_for_input_gradients);
  EXPECT_FALSE(scenario(recomputation).profile.waits_for_input_gradients);
  EXPECT_FALSE(scenario(engine).profile.waits_for_input_gradients);
  // MegaScale's baseline is the commit of 2023-01 that merges FlashAttention: Megatron's own layers still.
  const Scenario baseline = scenario({{"framework", "megatron-lm"}, {"gpu", "a100-80gb-sxm"}, {"n_gpus", "256"}, {"note", "Megatron-LM 285068c8; GPU as stated: NVIDIA Ampere"}});
  EXPECT_EQ(baseline.profile.name, "megatron-2021");
  EXPECT_EQ(baseline.profile.attention, model::AttentionKernel::flash1);
  EXPECT_TRUE(baseline.profile.fused_gradient_accumulation && baseline.profile.message_sync && !baseline.profile.overlap_messages);
  EXPECT_EQ(baseline.model.dropout, 0.1);

  const auto core = [](const std::string& note) { return scenario({{"framework", "megatron-lm"}, {"gpu", "h800-sxm"}, {"precision", "bf16"}, {"note", note}}).profile; };
  EXPECT_EQ(core("Megatron-Core 0.4.0rc0").rope, strategies::Fusion::eager);
  EXPECT_EQ(core("Megatron-Core 0.4.0rc0").activation, strategies::Fusion::native);
  EXPECT_FALSE(core("Megatron-Core 0.4.0rc0").gate_offset);
  EXPECT_EQ(core("Megatron-Core 0.5.0").rope, strategies::Fusion::fused);
  EXPECT_EQ(core("Megatron-Core 0.5.0").activation, strategies::Fusion::fused);
  EXPECT_EQ(core("Transformer Engine 1.1.0").cudnn_attention_from, 0);
  EXPECT_EQ(core("Transformer Engine 1.2").cudnn_attention_from, 90);
  EXPECT_EQ(core("Kuaishou's Megatron-LM (Megatron-Core 0.3)").rope, strategies::Fusion::fused);
  EXPECT_EQ(core("Kuaishou's Megatron-LM (Megatron-Core 0.3)").activation, strategies::Fusion::native);
}

// DeepSpeed's BF16_Optimizer under pipeline stages adds gradients up in fp32.
TEST(MeasuredRun, MegatronDeepSpeedInBf16UnderStages) {
  const auto gradient = [](const std::string& pp, const std::string& precision, const std::string& note = "") {
    return scenario({{"framework", "megatron-deepspeed"}, {"gpu", "a100-80gb-sxm"}, {"pp", pp}, {"sharding", "zero1"}, {"global_batch", "64"}, {"precision", precision}, {"note", note}}).profile.gradient;
  };
  EXPECT_EQ(gradient("2", "bf16"), DType::fp32);
  EXPECT_EQ(gradient("2", "fp16"), DType::fp16);
  EXPECT_EQ(gradient("1", "bf16"), DType::bf16);
  EXPECT_EQ(gradient("2", "bf16", "gradients add up in 16 bit"), DType::bf16);
}

}  // namespace
}  // namespace rehearse::scenario::measured_run_test
