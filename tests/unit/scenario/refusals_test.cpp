// What cannot be simulated, or not on these machines, is refused with its reason: no silent stand-in, no crash.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "sim/config/layers.h"
#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/pipeline/table.h"

namespace rehearse::scenario::refusals_test {
namespace {

/// The mistakes in the base scenario after overrides; "" when there are none.
std::string mistakes(const std::string& override_text, const std::string& another = "title=refusals") {
  const char* base =
      "model: gpt2-xl\n"
      "cluster: {node: dgx-h100, gpus_per_node: 4}\n"
      "training: {sequence_length: 1024, global_batch_size: 8, precision: bf16, framework: huggingface}\n"
      "parallelism: {pipeline: 4}\n";
  try {
    read_scenario(config::apply_overrides(config::parse_document(base, "refusals.yaml").root, {override_text, another}), "refusals.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// A name that means several programs is not guessed at: the message says which there are.
TEST(Refusals, NamesOfFrameworksThatAreNoProfiles) {
  const std::pair<const char*, const char*> names[] = {{"megatron", "Use megatron-core (Megatron-LM"}, {"Megatron_LM", "megatron-2021 ("}, {"nemo", "Use megatron-bridge ("}, {"hf", "Use huggingface ("},
                                                       {"fsdp2", "data_parallel.kind: fsdp2. Use torchtitan ("}, {"zero3", "Use deepspeed ("}, {"accelerate", "huggingface ("}};
  for (const auto& [name, fix] : names) {
    const std::string text = mistakes("training.framework=" + std::string(name));
    EXPECT_NE(text.find(std::string("there is no framework profile '") + name + "'"), std::string::npos) << text;
    EXPECT_NE(text.find(fix), std::string::npos) << text;
  }
  for (const char* name : {"deepspeed", "torchtitan", "megatron-bridge"}) EXPECT_EQ(mistakes("training.framework=" + std::string(name)).find("no framework profile"), std::string::npos) << name;
  EXPECT_NE(mistakes("training.framework=torchtitn").find("Did you mean torchtitan?"), std::string::npos);
}

TEST(Refusals, TheBaseIsFine) { EXPECT_EQ(mistakes("title=base"), ""); }

TEST(Refusals, PresetsThatAreChanged) {
  EXPECT_EQ(mistakes("model.layers=8"), "");
  EXPECT_EQ(mistakes("model={preset: gpt2-xl, layers: 8}"), "");
  const std::pair<const char*, const char*> wrong[] = {{"{preset: gpt2-xxl, layers: 8}", "there is no preset \"gpt2-xxl\""}, {"{preset: [a]}", "is not a preset's name"},
                                                       {"{name: gpt2-xl, dropout: 0.1}", "Write {preset: gpt2-xl, ...}"}, {"{preset: ./config.json, layers: 8}", "config.json are not changed here"}};
  for (const auto& [model, text] : wrong) EXPECT_NE(mistakes("model=" + std::string(model)).find(text), std::string::npos) << mistakes("model=" + std::string(model));
}

// Ranks of a stage hold its experts together: no stage may lie between them. Models without experts have no such groups.
TEST(Refusals, StagesBetweenRanksThatHoldExpertsTogether) {
  const auto with = [](const std::string& model) {
    const std::string text = "model: " + model + "\ncluster: {node: dgx-h100, nodes: 2}\ntraining: {sequence_length: 4096, global_batch_size: 16, precision: bf16, framework: megatron-core}\n" +
                             "parallelism: {tensor: 2, pipeline: 4, sequence_parallel: true, order: tp-cp-ep-pp-dp}\n";
    try {
      read_scenario(config::parse_document(text, "refusals.yaml").root, "refusals.yaml");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(with("mixtral-8x7b").find("need those ranks side by side"), std::string::npos);
  EXPECT_EQ(with("llama-2-7b"), "");
}

TEST(Refusals, APrecisionThatTheGpuLacks) {
  EXPECT_NE(mistakes("training.precision=nvfp4").find("has no nvfp4 matrix products"), std::string::npos);
  EXPECT_NE(mistakes("cluster.gpu=v100-32gb-sxm2").find("has no bf16 matrix products"), std::string::npos);
}

// Attention in 8 bits has parameters on Blackwell only.
TEST(Refusals, AttentionIn8BitsThatNobodyMeasured) {
  const auto job = [](const char* node) {
    const std::string text = std::string("model: llama-3-8b\ncluster: {node: ") + node + "}\n" +
                             "training: {sequence_length: 4096, global_batch_size: 8, precision: fp8, fp8_attention: true, framework: megatron-core}\nparallelism: {tensor: 8, sequence_parallel: true}\n";
    try {
      read_scenario(config::parse_document(text, "refusals.yaml").root, "refusals.yaml");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(job("dgx-b200"), "");
  EXPECT_NE(job("dgx-h100").find("training.fp8_attention: how fast attention in 8 bits is on"), std::string::npos) << job("dgx-h100");
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
TEST(Refusals, LayersOfStagesThatAreNotThere) {
  EXPECT_NE(mistakes("parallelism={pipeline: 4}", "pipeline={layers_per_stage: [24, 24]}").find("2 entries for 4 stages"), std::string::npos);
  EXPECT_NE(mistakes("parallelism={pipeline: 1}", "pipeline={layers_per_stage: [24, 24]}").find("there is one stage, and it holds all 48 layers"), std::string::npos);
  EXPECT_EQ(mistakes("parallelism={pipeline: 1}", "pipeline={layers_per_stage: [48]}"), "");
}

TEST(Refusals, PartsThatNobodyRecomputes) {
  EXPECT_EQ(mistakes("memory={recompute: selective, recompute_modules: [mlp_act, layernorm]}"), "");
  EXPECT_EQ(mistakes("memory={recompute: selective, recompute_modules: [operators, grouped_products]}"), "");
  EXPECT_NE(mistakes("memory={recompute: selective, recompute_modules: [grouped_products]}").find("does nothing alone"), std::string::npos);
  EXPECT_NE(mistakes("memory={recompute: selective, recompute_modules: [mlp_act, atention]}").find("'atention' is no part of a layer"), std::string::npos);
}

// Two workstations without a network card have nothing to talk over; four GB200 trays of a rack talk over NVLink, whatever their cards.
TEST(Refusals, NodesWithoutANetworkBetweenThem) {
  const std::string text = mistakes("cluster={node: single-gpu, nodes: 4}");
  EXPECT_NE(text.find("cluster.nodes: 4 nodes, but a single-gpu has no network card"), std::string::npos) << text;
  EXPECT_EQ(mistakes("cluster={node: single-gpu, nodes: 1}", "parallelism.pipeline=1"), "");
  EXPECT_EQ(mistakes("cluster={node: gb200-nvl72, nodes: 4}"), "");
}

// State that leaves the GPU needs a place: a node without disks, or that does not say what its host has, is a mistake in the job,
// not a host that is full (or that updates in no time).
TEST(Refusals, PlacesForOffloadThatTheNodeHasNot) {
  const auto job = [](const std::string& design, const std::string& offload) {
    std::ofstream(std::filesystem::path(testing::TempDir()) / "rehearse_node.yaml") << "title: bare\ngpu: h100-sxm\ngpus: 8\nscale_up: nvswitch\ndomain: 8\nsource: none\n" + design;
    const std::string text = "model: gpt2\ncluster: {node: rehearse_node.yaml}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: deepspeed}\ndata_parallel: {kind: zero3}\nmemory: {recompute: full, offload: {" + offload + "}}\n";
    try {
      const std::string file = (std::filesystem::path(testing::TempDir()) / "job.yaml").string();
      read_scenario(config::parse_document(text, file).root, file);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string cpu = "cpu: {vendor: intel, sockets: 2, cores: 112, memory_bandwidth: 600 GB/s, memory: 1 TB, source: none}\n", disks = "nvme: {read: 20 GB/s, write: 10 GB/s, capacity: 15 TB, source: none}\n";
  EXPECT_EQ(job("", "optimizer: none"), "");
  EXPECT_EQ(job(cpu, "optimizer: cpu, parameters: cpu"), "");
  EXPECT_EQ(job(cpu + disks, "optimizer: nvme, parameters: nvme"), "");
  const std::string without = job(cpu, "optimizer: nvme, parameters: nvme");
  EXPECT_NE(without.find("job.yaml:5:48"), std::string::npos) << without;   // where `nvme` stands
  EXPECT_NE(without.find("memory.offload.optimizer: the node design 'bare' has no NVMe disks"), std::string::npos) << without;
  EXPECT_NE(without.find("memory.offload.parameters: the node design 'bare' has no NVMe disks"), std::string::npos) << without;
  EXPECT_NE(job("nvme: {capacity: 15 TB, source: none}\n" + cpu, "optimizer: nvme").find("has no NVMe disks"), std::string::npos);   // of no speed
  EXPECT_NE(job("", "activations: cpu").find("memory.offload.activations: the node design 'bare' does not say how much memory its host has"), std::string::npos);
  EXPECT_NE(job("", "optimizer: cpu").find("does not say how fast its host's memory is"), std::string::npos);
}

TEST(Refusals, ClocksThatTheGpuHasNot) {
  EXPECT_EQ(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_clock: 1500 MHz}"), "");
  EXPECT_NE(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_clock: 2.5 GHz}").find("cluster.gpu_clock: 2500 MHz, but a h100-sxm runs at 1980 MHz at most"), std::string::npos);
  EXPECT_NE(mistakes("cluster={node: dgx-a100, nodes: 4, gpu_clock: 1500 MHz}").find("runs at 1410 MHz at most"), std::string::npos);
  EXPECT_NE(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_clock: 1500}").find("cluster.gpu_clock"), std::string::npos);
}

TEST(Refusals, PowerThatTheGpuDoesNotDraw) {
  EXPECT_EQ(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_power: 500 W}"), "");
  EXPECT_NE(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_power: 0.8 kW}").find("cluster.gpu_power: 800 W, but a h100-sxm draws 700 W at most"), std::string::npos) << mistakes("cluster={node: dgx-h100, nodes: 4, gpu_power: 0.8 kW}");
  EXPECT_NE(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_power: 500}").find("cluster.gpu_power"), std::string::npos);
  EXPECT_NE(mistakes("cluster={node: dgx-h100, nodes: 4, gpu_power: 0 W}").find("cluster.gpu_power"), std::string::npos);
}

// hwmodels/data/gpu/h100-sxm.yaml: long products run at 0.753 of 1,980 MHz. A lock above that is one for short kernels.
TEST(Refusals, ClocksThatThePowerLimitDoesNotAllowAreSaid) {
  const auto notes = [](const std::string& clock, const char* key = "gpu_clock") {
    const config::Document job = config::parse_document("model: gpt2\ncluster: {node: dgx-h100, " + std::string(key) + ": " + clock + "}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: megatron-core}\n", "job.yaml");
    std::string all;
    for (const std::string& n : read_scenario(job.root, "job.yaml").notes) all += n + "\n";
    return all;
  };
  EXPECT_NE(notes("1900 MHz").find("cluster.gpu_clock: 1900 MHz hold back short kernels only: the power limit brings long 16-bit matrix products to 1491 MHz"), std::string::npos) << notes("1900 MHz");
  EXPECT_EQ(notes("1400 MHz").find("gpu_clock"), std::string::npos);
  // An H100 of 350 W is the least that the law of power and clock was read off.
  EXPECT_NE(notes("300 W", "gpu_power").find("cluster.gpu_power: 300 W are less than half of the 700 W"), std::string::npos);
  EXPECT_EQ(notes("400 W", "gpu_power").find("gpu_power"), std::string::npos);
}

TEST(Refusals, AnUnknownFabricHasItsPlace) {
  EXPECT_NE(mistakes("cluster.fabric=rail-fat-tre").find("--set cluster.fabric"), std::string::npos);
  EXPECT_NE(mistakes("cluster.fabric=rail-fat-tre").find("Did you mean rail-fat-tree"), std::string::npos);
}

// A head of 50257 tokens' logits in fp32 for 10^9 samples of 10^3 tokens are 2 x 10^17 bytes; 50 layers of 64 such tensors are more
// than 64 bits hold.
TEST(Refusals, TensorsBeyondSixtyFourBits) {
  EXPECT_EQ(mistakes("training.micro_batch_size=8"), "");
  EXPECT_NE(mistakes("training.micro_batch_size=1000000000", "training.global_batch_size=1000000000").find("training.micro_batch_size: a micro-batch of 1000000000 x 1024 tokens has tensors that cannot be counted"), std::string::npos);
}

// Attention over s = 2^26 tokens, causal: 2 s^2 h operations a layer forwards, 3.5 times as many with backward. Of Llama 3 8B (h 4096, 32
// layers) that is 4 x 10^21 for a sample, 50 days at 10^15 per second, and each GPU has 8 samples.
TEST(Refusals, StepsThatTheClockCannotCount) {
  const auto job = [](const char* sequence) {
    return read_scenario(config::parse_document(std::string("model: llama-3-8b\ncluster: {node: dgx-h100}\ntraining: {global_batch_size: 64, framework: torchtitan, sequence_length: ") + sequence + "}\ndata_parallel: {kind: fsdp2}\n", "long.yaml").root, "long.yaml");
  };
  EXPECT_GT(simulate(job("65536")).step_time, 0);
  try {
    simulate(job("67108864"));
    ADD_FAILURE() << "simulated";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("more than 10 days cannot be simulated"), std::string::npos) << error.what();
  }
}

/// What the base scenario is told about its own keys.
std::string told(const std::string& yaml) {
  std::string text;
  for (const std::string& note : read_scenario(config::parse_document(yaml, "notes.yaml").root, "notes.yaml").notes)
    if (note.find("changes nothing") != std::string::npos) text += note + "\n";
  return text;
}

TEST(UnusedKeys, AreSaid) {
  const std::string base = "model: gpt2-xl\ncluster: {node: dgx-h100}\n";
  const std::string training = "training: {sequence_length: 1024, global_batch_size: 8, framework: torchtitan";
  EXPECT_EQ(told(base + training + "}\ndata_parallel: {kind: fsdp2}\nmemory: {recompute: full, recompute_every: 2}\n"), "");
  EXPECT_EQ(told(base + training + "}\ndata_parallel: {kind: fsdp2, bucket: 25 MiB}\nmemory: {recompute: selective, recompute_every: 2}\n"),
            "data_parallel.bucket changes nothing: parameters that are sharded are reduced layer by layer\n"
            "memory.recompute_every changes nothing: memory.recompute is not full\n");
  EXPECT_EQ(told(base + training + ", optimizer: sgd, optimizer_state_dtype: bf16, transformer_engine: true}\ndata_parallel: {kind: ddp, reshard_after_forward: true}\nexperts: {dispatcher: deepep}\n"),
            "data_parallel.reshard_after_forward changes nothing: parameters are not sharded\n"
            "experts.dispatcher changes nothing: the model has no experts\n"
            "training.transformer_engine changes nothing: the framework profile has no layers of Transformer Engine\n"
            "training.optimizer_state_dtype changes nothing: sgd keeps no states\n");
  // GPT-2 XL has 48 layers.
  EXPECT_EQ(told(base + training + "}\ndata_parallel: {kind: fsdp2}\nmemory: {recompute: full, recompute_layers: 47}\n"), "");
  EXPECT_EQ(told(base + training + "}\ndata_parallel: {kind: fsdp2}\nmemory: {recompute: full, recompute_layers: 500}\n"),
            "memory.recompute_layers changes nothing: the model has no more layers: all of them are made again\n");
  const std::string mixture = "model: mixtral-8x7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 512, global_batch_size: 16, framework: megatron-core}\n";
  EXPECT_EQ(told(mixture + "experts: {dispatcher: deepep, fused_index_map: true}\n"),
            "experts.dispatcher changes nothing: every rank has all experts\n"
            "experts.fused_index_map changes nothing: only DeepEP's dispatch delivers lists of experts\n");
  EXPECT_EQ(told(mixture + "parallelism: {expert: 8}\nexperts: {dispatcher: deepep, fused_index_map: true}\n"), "");
  EXPECT_EQ(told(mixture + "parallelism: {expert: 8}\nexperts: {fused_index_map: true}\n"), "experts.fused_index_map changes nothing: only DeepEP's dispatch delivers lists of experts\n");
  // Values that are the default are no wishes.
  EXPECT_EQ(told(base + training + "}\ndata_parallel: {kind: fsdp2}\nparallelism: {sequence_parallel: false}\nmemory: {recompute_every: 1}\n"), "");
}

// Full recomputation frees little where weight gradients come much later: it is said, for schedules that do so alone.
TEST(UnusedKeys, RecomputationUnderSplitBackwardIsExplained) {
  for (const auto& [keys, is_told] : {std::pair{"pipeline: {schedule: zb-h1}\nmemory: {recompute: full}\n", true}, {"pipeline: {schedule: 1f1b}\nmemory: {recompute: full}\n", false},
                                      {"pipeline: {schedule: zb-h1}\nmemory: {recompute: selective}\n", false}, {"pipeline: {schedule: dualpipev}\nmemory: {recompute: full}\n", true}}) {
    const std::string yaml = "model: gpt2-xl\ncluster: {node: dgx-h100, gpus_per_node: 4}\ntraining: {sequence_length: 1024, global_batch_size: 16, framework: megatron-core}\nparallelism: {pipeline: 4}\n";
    bool told = false;
    for (const std::string& note : read_scenario(config::parse_document(yaml + keys, "notes.yaml").root, "notes.yaml").notes) told = told || note.find("holds weight gradients back") != std::string::npos;
    EXPECT_EQ(told, is_told) << keys;
  }
}

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
  EXPECT_NE(mistakes("pipeline.table=no_such_file.csv").find("pipeline.table: "), std::string::npos);
  EXPECT_NE(mistakes("pipeline.table=no_such_file.csv").find("no_such_file.csv: no such file"), std::string::npos);
}

TEST(Refusals, SchedulesThatTheModelOrTheFrameworkCannotRun) {
  EXPECT_EQ(mistakes("pipeline.schedule=zb-v"), "");
  EXPECT_NE(mistakes("pipeline={schedule: zb-v, virtual_stages: 3}").find("has 2 model chunks per rank"), std::string::npos);
  EXPECT_NE(mistakes("pipeline={schedule: 1f1b, virtual_stages: 2}").find("has 1 model chunk per rank"), std::string::npos);
}

TEST(Refusals, ExpertsThatCannotBeSplitSo) {
  const auto said = [](const std::string& keys) {
    std::string text;
    try {
      read_scenario(config::parse_document("model: mixtral-8x7b\ncluster: {node: dgx-h100, nodes: 2}\ntraining: {sequence_length: 512, global_batch_size: 32, framework: megatron-core}\n" + keys, "s.yaml").root, "s.yaml");
    } catch (const ConfigError& error) {
      for (const Diagnostic& d : error.diagnostics()) text += d.key + ": " + d.problem + ". " + d.fix + "\n";
    }
    return text;
  };
  EXPECT_EQ(said("parallelism: {expert: 8, expert_tensor: 2}\n"), "");
  EXPECT_EQ(said("parallelism: {expert: 8, expert_tensor: 4}\n").find("parallelism.expert_tensor: "), 0u);
  EXPECT_EQ(said("parallelism: {expert: 3}\n").find("parallelism.expert: "), 0u);
  EXPECT_EQ(said("experts: {imbalance: 1.5}\n"), "experts.imbalance: every rank has all experts, so that none is fuller than another. Leave the key out, or set parallelism.expert to 2 or more\n");
  const std::string stages = "parallelism: {expert: 4, pipeline: 2}\nexperts: {overlap_exchange: true}\n";
  EXPECT_EQ(said(stages + "pipeline: {schedule: interleaved-1f1b, virtual_stages: 2}\n"), "");
  EXPECT_EQ(said(stages + "pipeline: {schedule: dualpipe}\n"), "experts.overlap_exchange: 'dualpipe' merges a forward and a backward itself. Leave the key out\n");
  EXPECT_EQ(said(stages + "pipeline: {schedule: zb-h1}\n"),
            "experts.overlap_exchange: only Megatron's 1F1B schedules merge a forward and a backward. Use interleaved-1f1b with pipeline.virtual_stages 2 or more\n");
  EXPECT_EQ(said("parallelism: {expert: 8}\nexperts: {paged_stash: true}\n"), "experts.paged_stash: only what fused experts keep goes into pages. Set experts.fused_mlp, or leave the key out\n");
  EXPECT_EQ(said("parallelism: {expert: 8}\nexperts: {paged_stash: true, fused_mlp: true}\n"), "");
  EXPECT_EQ(said("parallelism: {expert: 8}\nexperts: {rank_capacity_factor: 1.5, fused_mlp: false}\n"), "experts.rank_capacity_factor: only Transformer Engine's operations take buffers that are not full. Set experts.fused_mlp, or leave the key out\n");
  EXPECT_EQ(said("parallelism: {expert: 8}\nexperts: {rank_capacity_factor: 1.5, fused_mlp: true}\n"), "");
}

TEST(Refusals, GraphPartsAndCompiledFormsThatDoNotExist) {
  EXPECT_EQ(mistakes("training.cuda_graph=true"), "");
  EXPECT_NE(mistakes("training.cuda_graph_modules=[attention]").find("is no part of a layer"), std::string::npos);
  EXPECT_NE(mistakes("experts.overlap_exchange=true").find("no tokens travel"), std::string::npos);
  EXPECT_NE(mistakes("data_parallel.memory_efficient_linear=false").find("only ZeRO-3 has a linear layer of its own"), std::string::npos);
  EXPECT_NE(mistakes("data_parallel.max_reuse_distance=0").find("only ZeRO-3 gathers module by module"), std::string::npos);
  EXPECT_NE(mistakes("training.compile=true").find("has no compiled form"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::scenario::refusals_test
