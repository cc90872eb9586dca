// Rows of measured tables as scenarios: what is filled in where a row does not say it.
#include "sim/scenario/measured_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace rehearse::scenario::measured_precision_test {
namespace {

namespace st = strategies;

/// The runs of a table with these columns and rows.
std::vector<MeasuredRun> runs_of(const std::string& columns, const std::string& rows) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "measured_runs.csv";
  std::ofstream(path) << columns << "\n" << rows;
  return read_measured_runs(path.string());
}

// DeepSpeed's ZeRO-3 Offload keeps parameters on the host too; its authors measured on DGX-2, with models of 1024 positions.
TEST(MeasuredRun, ZeroOffloadsModelsAndMachineAreKnownByName) {
  const auto runs = runs_of("row_id,framework,model,gpu,n_gpus,gpus_per_node,seq_len,sharding,offload,note",
                            "a,deepspeed,GPT 10B,v100-32gb-sxm2,1,,,zero2,optimizer,sharding: ZeRO-2 Offload | offload: CPU\n"
                            "b,deepspeed,GPT 40B,v100-32gb-sxm2,32,16,,zero3,optimizer,sharding: ZeRO-3 Offload | offload: CPU\n");
  ASSERT_TRUE(runs[0].scenario) << runs[0].reason;
  ASSERT_TRUE(runs[1].scenario) << runs[1].reason;
  const Scenario &two = *runs[0].scenario, &three = *runs[1].scenario;
  EXPECT_EQ(two.model.layer_count(), 50u);
  EXPECT_EQ(two.model.hidden, 4096);
  EXPECT_EQ(two.strategy.training.sequence_length, 1024);
  EXPECT_EQ(two.strategy.memory.offload.optimizer, st::MemoryTier::cpu);
  EXPECT_NE(two.strategy.memory.offload.parameters, st::MemoryTier::cpu);
  EXPECT_EQ(three.strategy.memory.offload.parameters, st::MemoryTier::cpu);
  EXPECT_EQ(three.cluster.gpus_per_node, 16);
  EXPECT_EQ(three.cluster.nodes, 2);
}

// A rotary model has no table of positions that says how long its sequences were.
TEST(MeasuredRun, ASequenceLengthIsNotGuessedFromRotaryPositions) {
  const auto runs = runs_of("row_id,framework,model,gpu,n_gpus,seq_len", "a,deepspeed,Llama-2-7B,a100-80gb-sxm,8,\n");
  EXPECT_FALSE(runs[0].scenario);
  EXPECT_EQ(runs[0].reason, "the sequence length is not stated");
}

// A row that says what its fp8 scales span; tensor-wide ones are nobody's repeat of it.
TEST(MeasuredRun, RowScalesAreAPrecisionOfTheirOwn) {
  const auto runs = runs_of("row_id,framework,model,gpu,n_gpus,gpus_per_node,seq_len,sharding,micro_batch,global_batch,precision,torch_compile,step_time_s,note",
                            "a,torchtitan,Llama-3-8B,h100-sxm,8,8,8192,fsdp,1,8,fp8,y,1.0,precision: float8 tensorwise\n"
                            "b,torchtitan,Llama-3-8B,h100-sxm,8,8,8192,fsdp,1,8,fp8,y,1.5,precision: float8 rowwise\n"
                            "c,torchtitan,Llama-3-8B,h100-sxm,8,8,4096,fsdp,1,8,fp8,y,0.8,torchtitan 0.0.2; per-op checkpointing; float8 rowwise\n");
  ASSERT_TRUE(runs[1].scenario) << runs[1].reason;
  ASSERT_TRUE(runs[2].scenario) << runs[2].reason;
  EXPECT_EQ(runs[0].scenario->strategy.training.precision, st::Precision::fp8);
  EXPECT_EQ(runs[1].scenario->strategy.training.precision, st::Precision::fp8_rowwise);
  EXPECT_EQ(runs[2].scenario->strategy.training.precision, st::Precision::fp8_rowwise);   // wherever in the note it is said
  EXPECT_TRUE(runs[0].clean && runs[1].clean);
}

// Megatron-Bridge's presets in mxfp8 have attention in 8 bits from 26.06 on, where experts are fused; DeepSeek's and GPT-OSS's the output layer too.
TEST(MeasuredRun, PresetsOfAReleaseSayWhatElseIsIn8Bits) {
  const std::string columns = "row_id,framework,model,gpu,n_gpus,gpus_per_node,seq_len,pp,vpp,ep,sharding,micro_batch,global_batch,precision,step_time_s,source";
  const auto row = [](const std::string& id, const std::string& model, const std::string& gpu, const std::string& precision, const std::string& release) {
    return id + ",megatron-bridge," + model + "," + gpu + ",64,4,4096,1,,16,zero1,4,1280," + precision + ",2.5,summary of the " + release + " NeMo Container\n";
  };
  const auto runs = runs_of(columns, row("a", "GPT-OSS-120B", "gb300-nvl72", "mxfp8", "26.06") + row("b", "GPT-OSS-120B", "gb300-nvl72", "mxfp8", "26.04") + row("c", "GPT-OSS-120B", "gb300-nvl72", "bf16", "26.06") +
                                          row("d", "Qwen3-30B-A3B", "gb300-nvl72", "mxfp8", "26.08"));
  const std::vector<std::pair<bool, bool>> expected{{true, true}, {false, false}, {false, false}, {true, false}};   // attention, output layer
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(runs[i].scenario) << runs[i].reason;
    const st::Training& t = runs[i].scenario->strategy.training;
    EXPECT_EQ(std::pair(t.fp8_attention, t.fp8_head), expected[i]) << i;
  }
}

// LitGPT's recipes by their names, 4-bit weights or not; PEFT's DoRA.
TEST(MeasuredRun, KindsOfAdapters) {
  const auto runs = runs_of("row_id,task,framework,model,gpu,n_gpus,seq_len,micro_batch,global_batch,precision,note",
                            "a,lora,litgpt,Llama-2-7B,a100-40gb-sxm,1,512,1,1,bf16,task: finetune adapter | precision: bf16-true\n"
                            "b,lora,litgpt,Llama-2-7B,a100-40gb-sxm,1,512,1,1,nf4,\"task: finetune adapter_v2 | precision: bf16-true, base weights bnb.nf4\"\n"
                            "c,lora,hf,Llama-3-8B,l40s,1,512,1,1,bf16,task: finetune DoRA rank 32\n");
  for (const MeasuredRun& run : runs) ASSERT_TRUE(run.scenario) << run.reason;
  EXPECT_EQ(runs[0].scenario->strategy.tuning.kind, st::TuningKind::adapter);
  EXPECT_FALSE(runs[0].scenario->strategy.tuning.four_bit());
  EXPECT_EQ(runs[1].scenario->strategy.tuning.kind, st::TuningKind::adapter_v2);
  EXPECT_TRUE(runs[1].scenario->strategy.tuning.four_bit());
  EXPECT_FALSE(runs[1].scenario->strategy.tuning.double_quantization);
  EXPECT_TRUE(runs[2].scenario->strategy.tuning.decomposed);
}

}  // namespace
}  // namespace rehearse::scenario::measured_precision_test
