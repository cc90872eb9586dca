// A framework's own file inside a scenario: `training: {from: ..., path: ...}`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/scenario/simulate.h"
#include "tests/support/source_dir.h"

namespace rehearse::scenario::import_test {
namespace {

namespace fs = std::filesystem;
namespace st = strategies;

class Import : public testing::Test {
 protected:
  Import() : folder_(fs::path(testing::TempDir()) / (std::string("import_") + testing::UnitTest::GetInstance()->current_test_info()->name())) { fs::create_directories(folder_); }
  ~Import() override { fs::remove_all(folder_); }
  void file(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  Scenario load(const std::string& yaml, const std::vector<std::string>& overrides = {}) const {
    file("job.yaml", yaml);
    return load_scenario((folder_ / "job.yaml").string(), overrides);
  }
  std::string refused(const std::string& yaml, const std::vector<std::string>& overrides = {}) const {
    try {
      load(yaml, overrides);
    } catch (const ConfigError& e) {
      std::string text = e.what();
      for (std::size_t at; (at = text.find(folder_.string() + "/")) != std::string::npos;) text.erase(at, folder_.string().size() + 1);
      return text;
    }
    return {};
  }
  fs::path folder_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string kHead = "model: llama-2-7b\ncluster: {node: dgx-a100}\ntraining: {from: deepspeed, path: ds.json, sequence_length: 2048}\n";
const char* const kDeepSpeed = "{\n  \"train_batch_size\": 64,\n  \"train_micro_batch_size_per_gpu\": 2,\n  \"bf16\": {\"enabled\": true},\n  \"zero_optimization\": {\"stage\": 2}\n}\n";

TEST_F(Import, SuppliesWhatTheScenarioDoesNotSay) {
  file("ds.json", kDeepSpeed);
  const Scenario s = load(kHead);
  EXPECT_EQ(s.strategy.training.global_batch_size, 64);
  EXPECT_EQ(s.strategy.training.micro_batch_size, 2);
  EXPECT_EQ(s.strategy.data_parallel.kind, st::DataParallelKind::zero2);
  EXPECT_EQ(s.profile.name, "deepspeed");
  bool told = false;
  for (const std::string& note : s.notes) told = told || has(note, "ds.json: 4 keys used");
  EXPECT_TRUE(told);
}

TEST_F(Import, WrittenKeysAndOverridesWin) {
  file("ds.json", kDeepSpeed);
  const Scenario s = load(kHead + "data_parallel: {kind: zero1}\n", {"training.micro_batch_size=4"});
  EXPECT_EQ(s.strategy.data_parallel.kind, st::DataParallelKind::zero1);
  EXPECT_EQ(s.strategy.training.micro_batch_size, 4);
  EXPECT_EQ(s.strategy.training.global_batch_size, 64);
}

// A launch script states shapes, torchtitan's file a name.
TEST_F(Import, ItsModelIsChangedOrReplaced) {
  file("run.sh", "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
                 "--micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000 --train-iters 10\n");
  const std::string megatron = "cluster: {node: dgx-h100}\ntraining: {from: megatron, path: run.sh}\n";
  EXPECT_EQ(load(megatron).model.layer_count(), 4);
  EXPECT_EQ(load(megatron, {"model.layers=6"}).model.hidden, 1024);
  const Scenario preset = load(megatron + "model: {preset: llama-3-8b, layers: 8}\n");
  EXPECT_EQ(preset.model.name, "llama-3-8b with layers 8");
  EXPECT_EQ(preset.model.hidden, 4096);
  file("run.toml", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n");
  const std::string titan = "cluster: {node: dgx-h100}\ntraining: {from: torchtitan, path: run.toml}\n";
  EXPECT_EQ(load(titan).model.layer_count(), 32);
  EXPECT_EQ(load(titan, {"model.layers=8"}).model.layer_count(), 8);
  EXPECT_EQ(load(titan, {"model.layers=8"}).model.hidden, 4096);
  const Scenario stages = load(titan, {"model.layers=8", "parallelism.pipeline=2"});
  EXPECT_EQ(stages.model.layer_count(), 8);
}

TEST_F(Import, LaterMistakesPointIntoTheUsersFile) {
  file("ds.json", "{\n  \"train_batch_size\": 60,\n  \"train_micro_batch_size_per_gpu\": 7,\n  \"bf16\": {\"enabled\": true}\n}\n");
  const std::string text = refused(kHead);
  EXPECT_TRUE(has(text, "ds.json:2:23: training.global_batch_size: 60 is not a multiple")) << text;
}

TEST_F(Import, RefusesWhatCannotBeSimulatedUntilItIsLeftOut) {
  file("ds.json", "{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 3, \"zero_quantized_nontrainable_weights\": true}, \"my_key\": 1}");
  EXPECT_TRUE(has(refused(kHead), "ds.json:1:99: zero_optimization.zero_quantized_nontrainable_weights"));
  EXPECT_EQ(refused(kHead, {"training.without=[zero_optimization.zero_quantized_nontrainable_weights]"}), "");
  EXPECT_TRUE(has(refused(kHead, {"training.without=[zero_optimization.zero_quantized_nontrainable_weights]", "training.strict=true"}), "my_key"));
}

// torchtitan's own schedule lies beside its file.
TEST_F(Import, ASchedulesCsvIsReadBesideTheFileThatNamesIt) {
  file("schedule.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  file("run.toml", "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 2\nglobal_batch_size = 8\nseq_len = 2048\n[parallelism]\npipeline_parallel_degree = 2\n"
                   "pipeline_parallel_schedule = \"PipelineScheduleSingle\"\npipeline_parallel_microbatch_size = 1\npipeline_parallel_schedule_csv = \"schedule.csv\"\n");
  const Scenario s = load("cluster: {node: dgx-h100, nodes: 1}\ntraining: {from: torchtitan, path: run.toml}\n");
  EXPECT_EQ(s.strategy.pipeline.schedule, "table");
  EXPECT_TRUE(has(s.strategy.pipeline.table_file, "schedule.csv"));
  EXPECT_EQ(s.strategy.micro_batches(), 2);
}

TEST_F(Import, MistakesOfTheSectionItself) {
  file("ds.json", kDeepSpeed);
  EXPECT_TRUE(has(refused("model: gpt2\ncluster: {node: dgx-a100}\ntraining: {from: deepspead, path: ds.json}\n"), "job.yaml:3:18: training.from: files of 'deepspead' cannot be imported. Did you mean deepspeed?"));
  EXPECT_TRUE(has(refused("model: gpt2\ncluster: {node: dgx-a100}\ntraining: {from: deepspeed}\n"), "job.yaml:3:18: training.from: an import needs the path"));
  EXPECT_TRUE(has(refused("model: gpt2\ncluster: {node: dgx-a100}\ntraining: {from: deepspeed, path: dss.json}\n"), "job.yaml:3:35: training.path: "));
  EXPECT_TRUE(has(refused("model: gpt2\ncluster: {node: dgx-a100}\ntraining: {path: ds.json}\n"), "belongs to training.from"));
  EXPECT_TRUE(has(refused("model: gpt2\ncluster: {node: dgx-a100}\ntraining: {from: deepspeed, path: ds.json}\n"), "training.sequence_length: missing"));
  EXPECT_TRUE(has(refused("cluster: {node: dgx-a100}\ntraining: {from: deepspeed, path: ds.json, sequence_length: 128}\n"), "model: missing"));
}

TEST_F(Import, MegatronsArgumentsBringTheModel) {
  file("run.sh", "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size 1 --global-batch-size 16 --bf16 \\\n"
                 "  --tensor-model-parallel-size 2 --use-distributed-optimizer --no-gradient-accumulation-fusion --grad-reduce-in-bf16\n");
  const Scenario s = load("cluster: {node: dgx-a100}\ntraining: {from: megatron, path: run.sh}\nmodel: {dropout: 0}\n");
  EXPECT_EQ(s.model.layer_count(), 8);
  EXPECT_EQ(s.model.ffn_hidden, 4096);
  EXPECT_EQ(s.model.dropout, 0);
  EXPECT_EQ(s.model.attention_dropout, 0.1);
  EXPECT_FALSE(s.profile.fused_gradient_accumulation);
  EXPECT_EQ(s.profile.gradient, DType::bf16);
  EXPECT_EQ(s.strategy.parallelism.degrees.data, 4);
  EXPECT_TRUE(simulate(s).fits);
}

// Gradients kept in 16 bit halve Megatron's gradient buffer.
TEST_F(Import, GradientFormatDecidesTheGradientBuffer) {
  file("run.sh", "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50304 --micro-batch-size 1 --global-batch-size 8 --bf16");
  const std::string job = "cluster: {node: dgx-a100}\ntraining: {from: megatron, path: run.sh}\n";
  const auto gradients = [&](const std::vector<std::string>& overrides) {
    const Result r = simulate(load(job, overrides), {.time = false});
    return r.classes.front().memory.at_peak[static_cast<std::size_t>(plan::Category::gradient)];
  };
  const auto wide = gradients({});
  EXPECT_NEAR(static_cast<double>(gradients({"data_parallel.gradient_dtype=bf16"})) / static_cast<double>(wide), 0.5, 0.02);
}

TEST_F(Import, TheNotesDeepSpeedFileIsReadAsItIs) {
  const Scenario s = load_scenario((source_dir() / "scenarios" / "notes" / "b12_deepspeed_13b.yaml").string());
  EXPECT_EQ(s.strategy.training.global_batch_size, 256);
  EXPECT_EQ(s.strategy.training.micro_batch_size, 4);  // 256 / 8 GPUs / 8 accumulation steps
  EXPECT_EQ(s.strategy.training.precision, st::Precision::fp16);
  EXPECT_EQ(s.strategy.data_parallel.kind, st::DataParallelKind::zero3);
  EXPECT_EQ(s.strategy.memory.recompute, st::Recompute::full);
  EXPECT_EQ(s.strategy.memory.offload.optimizer, st::MemoryTier::cpu);
  EXPECT_EQ(s.strategy.memory.offload.activations, st::MemoryTier::cpu);
  EXPECT_TRUE(s.strategy.memory.offload.pinned);
}

}  // namespace
}  // namespace rehearse::scenario::import_test
