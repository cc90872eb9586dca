// torchtitan: TOML as of job_config.py before pytorch/torchtitan#2386, JSON as its trainer writes it in August 2026.
#include "sim/importers/readers.h"
#include "tests/unit/importers/helpers.h"

namespace rehearse::importers::torchtitan_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const char* const kToml = R"(# Llama 3 8B on 8 GPUs
[job]
description = "our job"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[training]
local_batch_size = 2
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
components = ["model", "loss"]

[checkpoint]
enable = false
)";

Imported toml(const std::string& text, const Context& context = eight_gpus()) { return import_text(text, "job.toml", "torchtitan", context); }

TEST(TorchtitanToml, ReadsWhatDecidesTimeAndMemory) {
  const Imported i = import_text(kToml, "job.toml", "", eight_gpus());
  EXPECT_EQ(i.framework, "torchtitan");
  EXPECT_EQ(key(i, "model"), "llama-3-8b");
  EXPECT_EQ(key(i, "training.framework"), "torchtitan-2025-compile");   // files were TOML until 2026-02
  EXPECT_EQ(key(i, "training.sequence_length"), "8192");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "2");
  EXPECT_EQ(key(i, "training.global_batch_size"), "8");  // 2 samples on 8 / 2 ranks
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(key(i, "parallelism.tensor"), "2");
  EXPECT_EQ(key(i, "parallelism.sequence_parallel"), "true");
  EXPECT_EQ(key(i, "data_parallel.kind"), "fsdp2");
  EXPECT_EQ(key(i, "data_parallel.reshard_after_forward"), "true");
  EXPECT_EQ(key(i, "memory.recompute"), "selective");
  EXPECT_EQ(to_string(find_dotted(i.keys, "training.sequence_length")->at()), "job.toml:16:11");
  EXPECT_TRUE(i.report.not_understood.empty());
  expect_complete(i, parse_torchtitan(kToml, "job.toml"));
}

// toml++ takes nested tables apart by recursion and bounds dotted keys in no way: such a file ended the program.
TEST(TorchtitanToml, KeysOfAnyDepthAreRefused) {
  const auto refused_at = [](const std::string& text) {
    try {
      toml(text);
    } catch (const ConfigError& e) {
      EXPECT_NE(e.diagnostics().front().problem.find("nested deeper than 64 levels"), std::string::npos) << e.what();
      return e.diagnostics().front().at.line;
    }
    ADD_FAILURE() << "taken";
    return 0;
  };
  std::string dots, brackets(100'000, '[');
  for (int i = 0; i < 100'000; ++i) dots += "a.";
  EXPECT_EQ(refused_at("# " + dots + "\n" + dots + "b = 1\n"), 2);
  EXPECT_EQ(refused_at("[" + dots + "b]\n"), 1);
  EXPECT_EQ(refused_at("a = 1\nb = {" + dots + "b = 1}\n"), 2);
  EXPECT_EQ(refused_at("a = \"\"\"\nx\\\\\"\"\"\"\"\nb." + dots + "b = 1\n"), 3);   // a string of lines that ends in two quotes
  EXPECT_EQ(refused_at("a = " + brackets), 1);
  std::string nested = "a = ";
  for (int i = 0; i < 200; ++i) nested += "{a.a.a.a.a = ";
  EXPECT_EQ(refused_at(nested), 1);
  // Dots in strings, comments and numbers are no levels.
  std::string fine = "[profiling]\n# " + dots + "\nsave_traces_folder = \"" + dots + "\"\n[model]\nflavor = \"\"\"" + dots + "\n\"" + dots + "\"\"\"\nname = '" + dots + "'\nx = [";
  for (int i = 0; i < 1000; ++i) fine += "0.5, ";
  EXPECT_NO_THROW(parse_torchtitan(fine + "0.5]\n", "job.toml"));
}

TEST(TorchtitanToml, RecipesOfFloat8) {
  const auto with_recipe = [](const std::string& recipe) {
    std::string text = kToml;
    text.replace(text.find("[optimizer]"), 0, "converters = [\"float8\"]\n\n[float8]\nrecipe_name = \"" + recipe + "\"\n\n");
    return toml(text);
  };
  EXPECT_EQ(key(with_recipe("tensorwise"), "training.precision"), "fp8");
  EXPECT_EQ(key(with_recipe("rowwise"), "training.precision"), "fp8-rowwise");
  EXPECT_EQ(fate(with_recipe("rowwise_with_gw_hp"), "float8.recipe_name"), "not simulated");
}

// Both switches are off in most files; in 16 bits they do nothing.
TEST(TorchtitanToml, WeightsGatheredIn8Bits) {
  const auto with_gather = [](bool eight, const char* gather, const char* ahead) {
    std::string text = kToml;
    text.replace(text.find("[optimizer]"), 0, std::string(eight ? "converters = [\"float8\"]\n\n" : "\n") + "[float8]\nenable_fsdp_float8_all_gather = " + gather + "\nprecompute_float8_dynamic_scale_for_fsdp = " + ahead + "\n\n");
    return toml(text);
  };
  EXPECT_EQ(key(with_gather(true, "true", "true"), "data_parallel.fp8_gather"), "scaled-ahead");
  EXPECT_EQ(key(with_gather(true, "true", "false"), "data_parallel.fp8_gather"), "scaled-by-weight");
  EXPECT_EQ(key(with_gather(true, "false", "true"), "data_parallel.fp8_gather"), "-");
  EXPECT_EQ(key(with_gather(false, "true", "true"), "data_parallel.fp8_gather"), "-");
  EXPECT_EQ(fate(with_gather(true, "true", "true"), "float8.precompute_float8_dynamic_scale_for_fsdp"), "used");
}

// Spellings of the files that torchtitan shipped in 2024 and 2025.
TEST(TorchtitanToml, ConvertersMayBeWordsBetweenCommas) {
  const auto with_converters = [](const std::string& words) {
    std::string text = kToml;
    text.replace(text.find("[optimizer]"), 0, "converters = \"" + words + "\"\n\n");
    return toml(text);
  };
  EXPECT_EQ(key(with_converters("float8"), "training.precision"), "fp8");
  EXPECT_EQ(key(with_converters("mx"), "training.precision"), "mxfp8");
  EXPECT_EQ(key(with_converters(""), "training.precision"), "bf16");
  EXPECT_FALSE(with_converters("float8, own").unsimulated.empty());
}

TEST(TorchtitanToml, FirstKeysOfFloat8AndNorms) {
  const auto with = [](const std::string& training, const std::string& model = "") {
    return toml("[model]\nname = \"llama2\"\nflavor = \"7B\"\n" + model + "[training]\nseq_len = 2048\nlocal_batch_size = 1\n" + training);
  };
  EXPECT_EQ(key(with(""), "model"), "llama-2-7b");
  EXPECT_EQ(key(with("fp8_linear = \"dynamic\"\n"), "training.precision"), "fp8");
  EXPECT_EQ(key(with("fp8_linear = \"\"\n"), "training.precision"), "bf16");
  EXPECT_EQ(key(with("enable_float8_linear = true\n"), "training.precision"), "fp8");
  EXPECT_EQ(fate(with("fp8_linear = \"delayed\"\n"), "training.fp8_linear"), "not simulated");
  EXPECT_EQ(fate(with("", "norm_type = \"fused_rmsnorm\"\n"), "model.norm_type"), "used");
  EXPECT_EQ(fate(with("", "norm_type = \"np_layernorm\"\n"), "model.norm_type"), "not simulated");
}

TEST(TorchtitanToml, OneStageNeedsNoSchedule) {
  std::string text = kToml;
  text.replace(text.find("tensor_parallel_degree"), 0, "pipeline_parallel_degree = 1\npipeline_parallel_schedule = \"1F1B\"\npipeline_parallel_first_stage_less_layers = 1\n");
  const Imported i = toml(text);
  EXPECT_EQ(fate(i, "parallelism.pipeline_parallel_schedule"), "used");
  EXPECT_TRUE(i.report.not_understood.empty());
  EXPECT_EQ(key(i, "pipeline.schedule"), "-");
}

TEST(TorchtitanToml, SelectiveByLayersIsFullEveryNthLayer) {
  std::string text = kToml;
  text.replace(text.find("\"op\""), 4, "\"2\"");
  EXPECT_EQ(key(toml(text), "memory.recompute"), "full");
  EXPECT_EQ(key(toml(text), "memory.recompute_every"), "2");
}

TEST(TorchtitanToml, WhereARecomputationEndsIsRead) {
  const auto with = [](const std::string& value, bool compiled) {
    std::string text = kToml;
    text.insert(text.find("[activation_checkpoint]") + std::string("[activation_checkpoint]").size(), "\nearly_stop = " + value);
    if (!compiled) text.replace(text.find("enable = true", text.find("[compile]")), 13, "enable = false");
    return toml(text);
  };
  EXPECT_EQ(key(with("true", false), "profile.early_stop_recompute"), "true");
  EXPECT_EQ(key(with("false", false), "profile.early_stop_recompute"), "false");
  EXPECT_EQ(key(with("true", true), "profile.early_stop_recompute"), "-");   // of what is compiled nothing runs that nobody reads
  EXPECT_EQ(fate(with("true", true), "activation_checkpoint.early_stop"), "used");
}

TEST(TorchtitanToml, HybridShardingAndReplicas) {
  std::string text = kToml;
  text.replace(text.find("replicate_degree = 1"), 20, "replicate_degree = 2");
  const Imported i = toml(text);
  EXPECT_EQ(key(i, "parallelism.data_shard"), "2");  // 8 GPUs / 2 tensor ranks / 2 replicas
  text.replace(text.find("shard_degree = -1"), 17, "shard_degree = 1 ");
  EXPECT_EQ(key(toml(text), "data_parallel.kind"), "ddp");
}

// 32 layers, embedding and head counted as one each: 34 over 4 stages are 9, 9, 8, 8, less one at either end.
TEST(TorchtitanToml, PipelineStagesCountEmbeddingAndHeadAsLayers) {
  std::string text = kToml;
  text.replace(text.find("tensor_parallel_degree = 2"), 26, "pipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 1");
  const Imported i = toml(text);
  EXPECT_EQ(key(i, "pipeline.layers_per_stage"), "[8, 9, 8, 7]");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "1");
  EXPECT_EQ(key(i, "training.global_batch_size"), "4");
  EXPECT_EQ(key(i, "data_parallel.reshard_after_forward"), "false");
  text.replace(text.find("pipeline_parallel_degree = 4"), 28, "pipeline_parallel_degree = 4\npipeline_parallel_schedule = \"Interleaved1F1B\"");
  EXPECT_EQ(key(toml(text), "pipeline.virtual_stages"), "2");
  EXPECT_FALSE(find_dotted(toml(text).keys, "pipeline.accumulation_steps"));
  text.replace(text.find("[training]\n"), 11, "[training]\nglobal_batch_size = 12\n");   // 4 in each run of the schedule
  EXPECT_EQ(key(toml(text), "pipeline.accumulation_steps"), "3");
}

TEST(TorchtitanToml, OldSpellingsAreRead) {
  const Imported i = toml("[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nbatch_size = 1\nseq_len = 4096\ntensor_parallel_degree = 1\ndata_parallel_shard_degree = -1\ncompile = false\n[experimental]\npipeline_parallel_degree = 1\n");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "1");
  EXPECT_EQ(key(i, "training.framework"), "torchtitan-2025");
}

TEST(TorchtitanToml, AsynchronousTensorParallelismIsOverlap) {
  std::string text = kToml;
  text.replace(text.find("tensor_parallel_degree = 2"), 26, "tensor_parallel_degree = 2\nenable_async_tensor_parallel = true");
  EXPECT_EQ(key(toml(text), "parallelism.overlap_tensor"), "true");
}

TEST(TorchtitanToml, KeysAndValuesAreGatheredUnlessRotated) {
  const auto with = [](const std::string& more) {
    std::string text = kToml;
    text.replace(text.find("tensor_parallel_degree = 2"), 26, "context_parallel_degree = 2\n" + more);
    return toml(text);
  };
  EXPECT_EQ(key(with(""), "parallelism.context_kind"), "all-gather");
  EXPECT_EQ(key(with("context_parallel_rotate_method = \"alltoall\""), "parallelism.context_kind"), "ring");
  EXPECT_EQ(key(with("context_parallel_rotate_method = \"allgather\""), "parallelism.context_kind"), "all-gather");
  EXPECT_TRUE(has(error_of([&] { with("context_parallel_rotate_method = \"ring\""); }), "'ring' is no rotate method"));
}

TEST(TorchtitanToml, WhatWouldChangeTheAnswerIsRefused) {
  std::string text = kToml;
  text.replace(text.find("steps = 1000"), 12, "enable_cpu_offload = true");
  EXPECT_FALSE(fate(toml(text), "training.enable_cpu_offload") == "ignored");
}

TEST(TorchtitanToml, MistakesNameTheirPlace) {
  EXPECT_TRUE(has(error_of([] { toml("[training]\nseq_len = 4096\nseq_len = 1\n"); }), "job.toml:3:"));
  EXPECT_TRUE(has(error_of([] { toml("[training\nseq_len = 4096\n"); }), "job.toml:1:"));
  EXPECT_TRUE(has(error_of([] { toml("[[,a"); }), "not readable as TOML"));  // found by the fuzzer: an assertion of toml++
  // Letters that its tables of characters know nothing of, and called unreachable: where a key should be, and where a string
  // goes on after a break.
  for (const std::string letter : {"\u00a1", "\u00e9", "\u0416", "\u0499", "\u2c5e", "\u3042", "\ufb26", "\ufec6", "\ufefe"}) {
    EXPECT_TRUE(has(error_of([&] { toml("a = 1\n" + letter + " = 1\n"); }), "job.toml:2:1: not readable as TOML")) << letter;
    const config::Value read = parse_torchtitan("a = \"\"\"\\\n  " + letter + " \"\"\"\n", "job.toml");
    ASSERT_NE(read.find("a"), nullptr);
    EXPECT_EQ(read.find("a")->text(), letter + " ");
  }
  EXPECT_TRUE(has(error_of([] { toml("[model]\nname = \"llama3\"\nflavor = \"9B\"\n[training]\nseq_len = 4096\n"); }), "job.toml:3:10: model.flavor: the flavor '9B' of 'llama3' is no bundled model"));
  EXPECT_TRUE(has(error_of([] { toml("[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = \"long\"\n"); }), "training.seq_len: needs a whole number, not 'long'"));
}

// The batch counts tokens: 16384 tokens of sequences of 8192 are two samples; a step of 131072 tokens are 16.
const char* const kJson = R"([rank0]: 2026-08-20 INFO Running with configs: {
  "model_spec": {"name": "llama3", "flavor": "8B", "model": {"dim": 4096, "n_layers": 32, "vocab_size": 128256}},
  "dump_folder": "./outputs",
  "optimizer": {"name": "AdamW", "lr": 0.0003},
  "training": {"num_tokens_per_microbatch_per_dp_rank": 16384, "num_tokens_per_train_step": 131072, "max_context_length": 8192, "max_norm": 1.0, "steps": 1000, "enable_cpu_offload": false,
    "dtype": "float32", "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32", "gc_freq": 50},
  "parallelism": {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "default", "tensor_parallel_degree": 1, "pipeline_parallel_degree": 1, "context_parallel_degree": 1},
  "activation_checkpoint": {"preserve_rng_state": true, "determinism_check": "default", "debug": false, "force_recompute_mm_shapes_by_fqns": ["moe.router.gate"]},
  "compile": {"enable": true, "components": ["model"], "backend": "inductor"},
  "debug": {"seed": null, "print_config": true}
}
[rank0]: step: 1 loss: 12.2 {"not": "ours"}
)";

TEST(TorchtitanJson, ReadsTheResolvedConfigurationOutOfALog) {
  const Imported i = import_text(kJson, "train.log", "", eight_gpus());
  EXPECT_EQ(i.framework, "torchtitan");
  EXPECT_EQ(key(i, "model"), "llama-3-8b");
  EXPECT_EQ(key(i, "training.sequence_length"), "8192");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "2");
  EXPECT_EQ(key(i, "training.global_batch_size"), "16");
  EXPECT_EQ(key(i, "training.framework"), "torchtitan-compile-2024");  // the loss is not compiled
  EXPECT_EQ(key(i, "memory.recompute"), "selective");
  EXPECT_EQ(to_string(find_dotted(i.keys, "model")->at()), "train.log:2:46");
  EXPECT_TRUE(i.unsimulated.empty());
  expect_complete(i, parse_torchtitan(kJson, "train.log"));
}

/// The file above with one piece of it replaced.
std::string json_with(const std::string& piece, const std::string& other) {
  std::string text = kJson;
  text.replace(text.find(piece), piece.size(), other);
  return text;
}

Imported read_json(const std::string& text, const Context& context = eight_gpus()) { return import_text(text, "train.log", "torchtitan", context); }

// Source: pytorch/torchtitan components/optimizer/optimizer.py of August 2026, ParamGroupConfig.
TEST(TorchtitanJson, OptimizersOfGroupsOfParameters) {
  const std::string one = R"({"pattern": ".*", "optimizer_name": ")", rest = R"(", "optimizer_kwargs": {"lr": 0.0003}})", old = R"({"name": "AdamW", "lr": 0.0003})";
  const auto with = [&](const std::string& groups) { return read_json(json_with(old, R"({"implementation": "fused_opt_states_bf16", "optimizer_factory_kwargs_by_name": {}, "param_groups": [)" + groups + "]}")); };
  const Imported adam = with(one + "AdamW" + rest);
  EXPECT_EQ(key(adam, "training.optimizer"), "adamw");
  EXPECT_EQ(key(adam, "training.optimizer_state_dtype"), "bf16");
  EXPECT_EQ(fate(adam, "optimizer.param_groups"), "used");
  EXPECT_TRUE(adam.report.not_understood.empty());
  EXPECT_EQ(fate(with(one + "DistMuon" + rest + "," + one + "AdamW" + rest), "optimizer.param_groups"), "not simulated");
  EXPECT_EQ(key(read_json(json_with(old, R"({"implementation": "foreach"})")), "profile.fused_optimizer"), "false");
  EXPECT_EQ(fate(read_json(json_with(old, R"({"implementation": "for-loop"})")), "optimizer.implementation"), "not simulated");
}

TEST(TorchtitanJson, LossInChunks) {
  const auto with = [](const std::string& chunks, const Context& context = eight_gpus()) { return fate(read_json(json_with(R"("debug": {"seed")", R"("loss": {"num_chunks": )" + chunks + R"(, "loss_fn": {"global_vocab_size": 128256}}, "debug": {"seed")"), context), "loss.num_chunks"); };
  EXPECT_EQ(with("8"), "used");
  const Imported i = read_json(json_with(R"("debug": {"seed")", R"("loss": {"num_chunks": 4}, "debug": {"seed")"));
  EXPECT_EQ(key(i, "training.cross_entropy"), "chunked-linear");
  EXPECT_EQ(key(i, "training.loss_chunks"), "4");
  Context stated = eight_gpus();
  Fragment scenario;
  scenario.set("training.cross_entropy", "tiled", {});
  stated.scenario = scenario.tree({});
  EXPECT_EQ(with("8", stated), "used");
}

// Since mid-2026 a step is one graph where nothing asks the host for sizes; files from before have no such key.
TEST(TorchtitanJson, StepsAreGraphsUnlessSwitchedOff) {
  const auto graph = [](const std::string& off, const std::string& stages = "1") {
    std::string text = json_with(R"("gc_freq": 50)", R"("gc_freq": 50, "disable_cuda_graphs": )" + off);
    const std::string one = R"("pipeline_parallel_degree": 1)";
    return key(read_json(text.replace(text.find(one), one.size(), R"("pipeline_parallel_degree": )" + stages)), "training.cuda_graph");
  };
  EXPECT_EQ(graph("false"), "true");
  EXPECT_EQ(graph("true"), "false");
  EXPECT_EQ(graph("false", "2"), "-");
  EXPECT_EQ(key(read_json(kJson), "training.cuda_graph"), "-");
}

TEST(TorchtitanJson, AModelThatWasChangedIsNoLongerItsFlavor) {
  EXPECT_TRUE(has(error_of([] { read_json(json_with(R"("n_layers": 32)", R"("n_layers": 4)")); }), "model_spec.model.n_layers: the file's model has 4 layers, llama-3-8b has 32"));
  EXPECT_TRUE(has(error_of([] { read_json(json_with(R"("n_layers": 32)", R"("layers": [{}, {}])")); }), "model_spec.model.layers: the file's model has 2 layers"));
  EXPECT_EQ(fate(read_json(json_with(R"("tensor_parallel_degree": 1)", R"("tensor_parallel_degree": 1, "enable_sequence_parallel": true)")), "parallelism.enable_sequence_parallel"), "used");
  EXPECT_TRUE(has(error_of([] { read_json(json_with(R"("dim": 4096)", R"("dim": 2048)")); }), "the file's model is 2048 wide, llama-3-8b is 4096"));
}

// Source: torchtitan models/llama3/infra/parallelize.py: blocks are compiled where "model" is in compile.components.
TEST(TorchtitanToml, ALossAloneThatIsCompiled) {
  std::string text = kToml;
  const std::string both = "components = [\"model\", \"loss\"]";
  text.replace(text.find(both), both.size(), "components = [\"loss\"]");
  const Imported i = toml(text);
  EXPECT_EQ(key(i, "training.framework"), "torchtitan-2025");
  EXPECT_EQ(key(i, "training.cross_entropy"), "compiled");
  EXPECT_EQ(fate(i, "compile.components"), "used");
}

}  // namespace
}  // namespace rehearse::importers::torchtitan_test
