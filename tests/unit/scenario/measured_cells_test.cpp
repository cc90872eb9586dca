// Cells of tables of measured runs in other people's spellings, and what a row's own text says against a cell.
#include "sim/scenario/measured_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "sim/core/error.h"
#include "sim/scenario/measured_row.h"
#include "sim/scenario/measured_run.h"
#include "sim/scenario/row_rules.h"
#include "tests/support/source_dir.h"

namespace rehearse::scenario::measured_cells_test {
namespace {

/// What `read` makes of a table of that content.
template <typename Read>
auto of_file(const std::string& content, const Read& read) {
  const std::string path = testing::TempDir() + "measured_cells_test.csv";
  std::ofstream(path) << content;
  auto out = read(path);
  std::remove(path.c_str());
  return out;
}

RunTable table(const std::string& content) { return of_file(content, read_run_table); }

/// The error's text; "" where there is none.
std::string refusal(const std::string& content) {
  return of_file(content, [](const std::string& path) {
    try {
      read_run_table(path);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string();
  });
}

/// A table of one row; `cells` beside what every row needs.
std::string one_row(std::map<std::string, std::string> cells) {
  for (const auto& [column, text] : std::map<std::string, std::string>{{"row_id", "r-1"}, {"framework", "various"}, {"gpu", "h100-sxm"}, {"n_gpus", "8"}, {"seq_len", "4096"}, {"model", "Llama-2-7B"}, {"global_batch", "64"}, {"micro_batch", "1"}}) cells.emplace(column, text);
  std::string header, line;
  for (const auto& [column, text] : cells) header += (header.empty() ? "" : ",") + column, line += (line.empty() ? "\"" : ",\"") + text + "\"";
  return header + "\n" + line + "\n";
}

std::string word(const std::string& column, const std::string& stated) { return cell(table(one_row({{column, stated}})).cells.row(0), column); }

TEST(MeasuredCells, OtherSpellingsAreTheContractsWords) {
  const std::map<std::string, std::map<std::string, std::string>> all{
      {"sp", {{"Y", "y"}, {"True", "y"}, {"no", "n"}, {"0", "n"}}},
      {"task", {{"LoRA", "lora"}, {"Q-LoRA", "qlora"}, {"Pre-training", "pretrain"}, {"full fine-tuning", "sft"}}},
      {"recompute", {{"FULL", "full"}, {"yes", "full"}, {"Selective (op)", "selective"}, {"No", "none"}}},
      {"precision", {{"FP8", "fp8"}, {"fp8 hybrid", "fp8"}, {"MXFP8", "mxfp8"}, {"TF32", "tf32"}, {"BF16", "BF16"}}},
      {"attention", {{"FlashAttention-2", "flash2"}, {"FA3", "flash3"}, {"FlashAttention-4", "flash4"}, {"eager", "unfused"}, {"SDPA", "flash"}, {"xformers", "mem-efficient"}}},
      {"offload", {{"optimizer, param", "optimizer+param"}, {"activations", "activation"}}},
      {"sharding", {{"FULL_SHARD", "fsdp"}, {"HYBRID_SHARD", "hsdp"}, {"NO_SHARD", "none"}}},
      {"pp_schedule", {{"AFAB", "gpipe"}, {"ZBH1", "zb-h1"}, {"ZBV", "zb-v"}}},
      {"outcome", {{"OOM", "oom"}, {"Out of memory", "oom"}, {"OK", "ok"}, {"success", "ok"}}},
      {"peak_mem_kind", {{"Reserved", "reserved"}, {"max_memory_allocated", "allocated"}, {"nvidia-smi", "device"}}},
      {"torch_compile", {{"True", "y"}, {"eager", "n"}, {"y (torch.compile)", "y (torch.compile)"}}},
      {"tie_embeddings", {{"True", "y"}, {"FALSE", "n"}}},
  };
  for (const auto& [column, words] : all)
    for (const auto& [stated, ours] : words) EXPECT_EQ(word(column, stated), ours) << column << " '" << stated << "'";
}

TEST(MeasuredCells, UnknownWordsArePassedOverWithANote) {
  for (const auto& [column, left] : std::map<std::string, std::string>{{"recompute", ""}, {"attention", ""}, {"sp", ""}, {"cuda_graph", ""}, {"peak_mem_kind", "unstated"}}) {
    const RunTable read = table(one_row({{column, "whatever"}}));
    EXPECT_EQ(cell(read.cells.row(0), column), left);
    ASSERT_EQ(read.notes[0].size(), 1U) << column;
    EXPECT_EQ(read.notes[0][0].find(column + " 'whatever' is no word that is known here"), 0U) << read.notes[0][0];
  }
  EXPECT_EQ(table(one_row({{"optimizer", "shampoo"}})).notes[0].size(), 1U);
  EXPECT_TRUE(table(one_row({{"optimizer", "AdamW fused"}, {"recompute", ""}})).notes[0].empty());
  const MeasuredRun other = of_file(one_row({{"task", "DPO"}}), read_measured_runs).at(0);
  EXPECT_EQ(other.reason, "task 'DPO' is not simulated: pretrain, sft, lora and qlora are");
  const MeasuredRun schedule = of_file(one_row({{"pp", "2"}, {"pp_schedule", "looped_bfs"}}), read_measured_runs).at(0);
  ASSERT_TRUE(schedule.scenario.has_value()) << schedule.reason;
  EXPECT_NE(std::find(schedule.scenario->notes.begin(), schedule.scenario->notes.end(), "pipeline schedule 'looped_bfs' is none that is known here, taken as 1f1b"), schedule.scenario->notes.end());
}

TEST(MeasuredCells, AFrameworksReleaseIsPartOfTheNote) {
  const config::CsvTable cells = table(one_row({{"framework", "NeMo 25.02"}, {"note", "as stated"}})).cells;
  EXPECT_EQ(cell(cells.row(0), "framework"), "NeMo");
  EXPECT_EQ(cell(cells.row(0), "note"), "as stated; NeMo 25.02");
  EXPECT_EQ(word("framework", "fsdp2"), "fsdp2");
  EXPECT_EQ(word("framework", "nanotron"), "nanotron");
}

TEST(MeasuredCells, ColumnsAreFoundByLettersAndDigits) {
  const RunTable read = table("Row ID, framework ,GPU,N_GPUS,Seq Len,Step Time (s),gpu_hours\nr-1,nemo,h100-sxm, 8 ,4096,2.5,1\n");
  EXPECT_EQ(read.cells.columns(), (std::vector<std::string>{"row_id", "framework", "gpu", "n_gpus", "seq_len", "step_time_s", "gpu_hours"}));
  EXPECT_EQ(read.cells.row(0).integer("n_gpus"), 8);   // blanks around it are no part of it
  // A column of our own name keeps it, and the other its own.
  EXPECT_EQ(table("row_id,framework,gpu,GPU,n_gpus,seq_len\nr-1,nemo,h100-sxm,b,8,4096\n").cells.columns()[3], "GPU");
}

TEST(MeasuredCells, WhatIsNoTableOfRunsIsRefused) {
  EXPECT_NE(refusal("row_id,framework,gpu,n_gpus,seq_len\n").find("has columns, but no rows"), std::string::npos);
  EXPECT_NE(refusal("row_id,gpu,time_us\nr-1,h100-sxm,3\n").find("framework: no such column"), std::string::npos);
}

TEST(MeasuredCells, ANumberThatIsNoneConcernsItsRowAlone) {
  const std::vector<MeasuredRun> runs = of_file("row_id,framework,gpu,n_gpus,seq_len,model,layers,grad_accum,step_time_s,global_batch,micro_batch\n"
                                                "r-1,plain,h100-sxm,1,4096,llama-2-7b,many,1,1,8,1\nr-2,plain,h100-sxm,1,4096,llama-2-7b,,often,1,8,1\nr-3,plain,h100-sxm,1,4096,llama-2-7b,,8,1,8,1\n",
                                                read_measured_runs);
  EXPECT_NE(runs.at(0).reason.find("layers: needs a number"), std::string::npos);
  EXPECT_NE(runs.at(1).reason.find("grad_accum: needs a number"), std::string::npos);
  EXPECT_TRUE(runs.at(2).scenario.has_value()) << runs.at(2).reason;
}

// What is stated twice and differs is said.
TEST(MeasuredCells, CountsThatContradictEachOtherAreNoted) {
  const MeasuredRun run = of_file(one_row({{"dp", "4"}, {"grad_accum", "4"}}), read_measured_runs).at(0);
  ASSERT_TRUE(run.scenario.has_value()) << run.reason;
  const auto said = [&](const std::string& text) { return std::find(run.scenario->notes.begin(), run.scenario->notes.end(), text) != run.scenario->notes.end(); };
  EXPECT_TRUE(said("dp 4 is not what 8 GPUs leave beside tensor, pipeline and context parallelism, taken as 8"));
  EXPECT_TRUE(said("micro_batch, grad_accum and 8 data-parallel ranks make 32 samples per step, not the 64 that are stated: these are taken"));
}

/// Rules with a reason correct a cell by what the row or its source says; each of them, on a row as its source has it.
TEST(MeasuredCells, ARowsOwnTextCorrectsItsCells) {
  const auto note_of = [](const RunTable& read, const std::string& column) {
    for (const std::string& note : read.notes[0])
      if (note.starts_with(column + " ")) return note;
    return std::string();
  };
  const RunTable dgx2 = table(one_row({{"gpu", "v100-32gb-sxm2"}, {"note", "as stated: gpu: V100-32GB (DGX-2)"}}));
  EXPECT_EQ(cell(dgx2.cells.row(0), "gpu"), "v100-32gb-sxm3");
  EXPECT_NE(note_of(dgx2, "gpu").find("gpu v100-32gb-sxm3, not 'v100-32gb-sxm2'"), std::string::npos);
  EXPECT_EQ(word("gpu", "v100-32gb-sxm2"), "v100-32gb-sxm2");

  const RunTable qlora = table(one_row({{"task", "qlora"}, {"framework", "hf"}, {"n_gpus", "1"}, {"sharding", "none"}, {"source", "QwenLM/Qwen@2df8e8ac45 README.md"}}));
  EXPECT_EQ(cell(qlora.cells.row(0), "sharding"), "zero2");
  const RunTable servers = table(one_row({{"task", "lora"}, {"n_gpus", "4"}, {"grad_accum", "8"}, {"global_batch", "32"}, {"source", "QwenLM/Qwen@2df8e8ac45"}, {"note", "method LoRA (multinode); printed"}}));
  EXPECT_EQ(cell(servers.cells.row(0), "micro_batch"), "2");
  EXPECT_EQ(cell(servers.cells.row(0), "global_batch"), "");   // 2 x 8 x 4, as no global batch says
  const RunTable longest = table(one_row({{"seq_len", "768"}, {"source", "huggingface/peft@5d602fdbff method_comparison/MetaMathQA/results/lora.json"}, {"note", "variable-length sequences capped at 768: step time is an average"}}));
  EXPECT_EQ(cell(longest.cells.row(0), "seq_len"), "675");
}

// The table here has the corrected cells; the rules leave them alone.
TEST(MeasuredCells, CorrectedRowsAreReadAsTheyAre) {
  const RunTable here = read_run_table((source_dir() / "tests/accuracy/runs/qwen_lora_memory_speed.csv").string());
  for (const std::vector<std::string>& notes : here.notes) EXPECT_TRUE(notes.empty());
}

TEST(MeasuredCells, RulesWriteColumnsOfTheContract) {
  for (const RowRule& rule : row_rules("cells"))
    for (const config::Value::Entry& entry : rule.keys.cells.entries()) EXPECT_NE(std::find(run_columns().begin(), run_columns().end(), entry.key), run_columns().end()) << entry.key;
}

}  // namespace
}  // namespace rehearse::scenario::measured_cells_test
