// DeepSpeed's JSON. Keys, defaults and the batch rule: deepspeed.ai/docs/config-json and runtime/config.py of 0.19.5.
#include "sim/config/document.h"
#include "sim/importers/readers.h"
#include "tests/unit/importers/helpers.h"

namespace rehearse::importers::deepspeed_test {
namespace {

Imported read(const std::string& text, const Context& context = eight_gpus()) { return import_text(text, "ds.json", "deepspeed", context); }
std::string refused(const std::string& text, const Context& context = eight_gpus()) {
  return error_of([&] { read(text, context); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Every class of keys of the documentation in one file, in our own words.
const char* const kLarge = R"({
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "steps_per_print": 100, "wall_clock_breakdown": false, "dump_state": false,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 2000}},
  "gradient_clipping": 1.0, "prescale_gradients": false, "gradient_predivide_factor": 1.0,
  "communication_data_type": "bfp16", "data_types": {"grad_accum_dtype": "fp32"},
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1},
  "zero_optimization": {
    "stage": 2, "contiguous_gradients": true, "overlap_comm": true, "reduce_scatter": true, "reduce_bucket_size": 2e8,
    "allgather_partitions": true, "allgather_bucket_size": 200000000, "round_robin_gradients": true, "sub_group_size": 1e9,
    "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none", "pin_memory": true},
    "zero_hpz_partition_size": 1, "zero_quantized_weights": false, "mics_shard_size": -1, "ignore_unused_parameters": true
  },
  "activation_checkpointing": {"partition_activations": false, "cpu_checkpointing": false, "contiguous_memory_optimization": false, "number_checkpoints": null, "synchronize_checkpoint_boundary": false, "profile": false},
  "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": false, "overlap_events": true},
  "flops_profiler": {"enabled": false, "profile_step": 1}, "tensorboard": {"enabled": true, "output_path": "runs"}, "comms_logger": {"enabled": false},
  "zero_allow_untested_optimizer": true, "checkpoint": {"use_node_local_storage": true}, "sparse_gradients": false, "elasticity": {"enabled": false}
})";

TEST(DeepSpeed, ReadsWhatDecidesTimeAndMemory) {
  const Imported i = read(kLarge);
  EXPECT_EQ(key(i, "training.framework"), "deepspeed");
  EXPECT_EQ(key(i, "training.global_batch_size"), "256");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "4");
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(key(i, "training.optimizer"), "adamw");
  EXPECT_EQ(key(i, "training.clip_gradients"), "true");
  EXPECT_EQ(key(i, "data_parallel.kind"), "zero2");
  EXPECT_EQ(key(i, "data_parallel.overlap_gradient_reduce"), "true");
  EXPECT_EQ(key(i, "data_parallel.reduce_dtype"), "bf16");
  EXPECT_EQ(key(i, "data_parallel.gradient_dtype"), "fp32");
  EXPECT_EQ(key(i, "data_parallel.bucket"), "400000000 B");  // 2e8 elements of 2 bytes, as sent
  EXPECT_EQ(key(i, "memory.recompute"), "-");
  EXPECT_TRUE(i.unsimulated.empty());
  EXPECT_TRUE(i.report.not_understood.empty());
}

TEST(DeepSpeed, MasterWeightsGradientsAndMomentsMayBeNarrow) {
  const auto with = [](const char* precision) { return read(std::string("{\"train_batch_size\": 64, \"zero_optimization\": {\"stage\": 3}, ") + precision + "}"); };
  const Imported i = with("\"bf16\": {\"enabled\": true, \"bf16_master_weights_and_grads\": true, \"bf16_optimizer_states\": true}");
  EXPECT_EQ(key(i, "profile.master_parameter"), "bf16");
  EXPECT_EQ(key(i, "data_parallel.gradient_dtype"), "bf16");
  EXPECT_EQ(key(i, "training.optimizer_state_dtype"), "bf16");
  EXPECT_TRUE(i.unsimulated.empty());
  EXPECT_EQ(key(with("\"bf16\": {\"enabled\": true}"), "profile.master_parameter"), "-");
}

TEST(DeepSpeed, EveryKeyOfTheFileStandsInTheReportOnce) {
  expect_complete(read(kLarge), parse_deepspeed(kLarge, "ds.json"));
}

TEST(DeepSpeed, ValuesKeepTheirPlaceInTheUsersFile) {
  const Imported i = read("{\n  \"train_batch_size\": 64,\n  \"zero_optimization\": {\"stage\": 1}\n}");
  EXPECT_EQ(to_string(find_dotted(i.keys, "training.global_batch_size")->at()), "ds.json:2:23");
  EXPECT_EQ(to_string(find_dotted(i.keys, "data_parallel.kind")->at()), "ds.json:3:34");
}

// train = micro x accumulation x ranks: two of them give the third, one of them leaves accumulation at 1.
TEST(DeepSpeedBatch, TwoNumbersGiveTheThird) {
  EXPECT_EQ(key(read(R"({"train_batch_size": 256, "gradient_accumulation_steps": 8})"), "training.micro_batch_size"), "4");
  EXPECT_EQ(key(read(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16})"), "training.global_batch_size"), "256");
  EXPECT_EQ(key(read(R"({"train_batch_size": 32})"), "training.micro_batch_size"), "4");
  EXPECT_EQ(key(read(R"({"train_micro_batch_size_per_gpu": 3})"), "training.global_batch_size"), "24");
  EXPECT_EQ(key(read(R"({"train_batch_size": 2.56e2, "train_micro_batch_size_per_gpu": 4})"), "training.global_batch_size"), "256");
}

TEST(DeepSpeedBatch, ContradictionsAreRefusedWithTheArithmetic) {
  const std::string text = refused(R"({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})");
  EXPECT_TRUE(has(text, "ds.json:1:22")) << text;
  EXPECT_TRUE(has(text, "100 is not 4 per GPU x 8 accumulation steps x 8 data-parallel ranks")) << text;
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 100, "gradient_accumulation_steps": 8})"), "cannot be split over 8 data-parallel ranks x 8 accumulation steps"));
  EXPECT_TRUE(has(refused(R"({"zero_optimization": {"stage": 1}})"), "neither train_batch_size nor train_micro_batch_size_per_gpu"));
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 0})"), "0 is out of range"));
  Context unknown = eight_gpus();
  unknown.gpus.reset();
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 64})", unknown), "Give the scenario a cluster"));
}

TEST(DeepSpeedBatch, ModelParallelRanksHoldNoSamplesOfTheirOwn) {
  EXPECT_EQ(key(read(R"({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 4}})"), "training.micro_batch_size"), "32");
  Context c = eight_gpus();
  c.scenario = Fragment().tree({});
  Fragment stated;
  stated.set("parallelism.pipeline", "2", {});
  c.scenario = stated.tree({});
  EXPECT_EQ(key(read(R"({"train_batch_size": 64})", c), "training.micro_batch_size"), "16");
}

// What is no number of ranks is told where the scenario is read; here nothing is divided by it, and no product is beyond 64 bits.
TEST(DeepSpeedBatch, ADegreeThatIsNoneIsNotCountedWith) {
  for (const char* data : {"0", "-4", "9223372036854775807"}) {
    Fragment stated;
    stated.set("parallelism.data", data, {});
    Context c = eight_gpus();
    c.scenario = stated.tree({});
    EXPECT_TRUE(has(refused(R"({"train_batch_size": 64})", c), "which is not known")) << data;
    EXPECT_EQ(key(read(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})", c), "training.micro_batch_size"), "4") << data;
  }
}

TEST(DeepSpeedBatch, TheScenarioWinsOverTheFile) {
  Fragment stated;
  stated.set("training.micro_batch_size", "2", {});
  Context c = eight_gpus();
  c.scenario = stated.tree({});
  const Imported i = read(R"({"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})", c);
  EXPECT_EQ(key(i, "training.global_batch_size"), "256");
  EXPECT_EQ(fate(i, "gradient_accumulation_steps"), "used");
}

// What ZeRO-3 keeps gathered, and the Trainer's rules for it: 0.9 of the width squared ahead, ten times the width for good.
TEST(DeepSpeed, ZeroThreesLimitsAreRead) {
  Context c = eight_gpus();
  c.hidden = 1000;
  const Imported i = read(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e6, "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 2e8, "max_reuse_distance": 3e8}})", c);
  EXPECT_EQ(key(i, "data_parallel.bucket"), "10000000 B");
  EXPECT_EQ(key(i, "data_parallel.prefetch_bucket"), "900000");
  EXPECT_EQ(key(i, "data_parallel.persistence_threshold"), "10000");
  EXPECT_EQ(key(i, "data_parallel.max_live_parameters"), "200000000");
  EXPECT_EQ(key(i, "data_parallel.max_reuse_distance"), "300000000");
}

// The Trainer's rules: reduce_bucket_size = hidden x hidden.
TEST(DeepSpeedAuto, IsFilledInFromModelAndScenario) {
  Fragment stated;
  stated.set("training.global_batch_size", "64", {});
  stated.set("training.micro_batch_size", "1", {});
  stated.set("training.precision", "bf16", {});
  Context c = eight_gpus();
  c.scenario = stated.tree({});
  const Imported i = read(R"({"bf16": {"enabled": "auto"}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": true}})", c);
  EXPECT_EQ(key(i, "data_parallel.bucket"), std::to_string(4096 * 4096 * 2) + " B");
  EXPECT_EQ(key(i, "training.clip_gradients"), "true");
  EXPECT_EQ(key(i, "training.precision"), "-");
}

TEST(DeepSpeedAuto, IsRefusedWhereNothingTellsTheValue) {
  const std::string text = refused(R"({"fp16": {"enabled": "auto"}, "train_batch_size": "auto"})");
  EXPECT_TRUE(has(text, "Set training.precision")) << text;
  EXPECT_TRUE(has(text, "Set training.global_batch_size")) << text;
  Context c = eight_gpus();
  c.hidden.reset();
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})", c), "Give the scenario a model"));
}

TEST(DeepSpeedDefaults, FollowTheVersion) {
  Context c = eight_gpus();
  EXPECT_EQ(key(read(R"({"train_batch_size": 8})", c), "training.clip_gradients"), "true");
  c.version = "0.16.4";
  EXPECT_EQ(key(read(R"({"train_batch_size": 8})", c), "training.clip_gradients"), "false");
  c.version = "v0.19.3";
  EXPECT_EQ(key(read(R"({"train_batch_size": 8})", c), "training.clip_gradients"), "true");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}})"), "data_parallel.overlap_gradient_reduce"), "true");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})"), "data_parallel.overlap_gradient_reduce"), "false");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8})"), "data_parallel.kind"), "ddp");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8})"), "training.precision"), "fp32");
}

TEST(DeepSpeed, CommentsAndTrailingCommasAreReadAsItsParserReadsThem) {
  const Imported i = read("{\n  // the batch\n  \"train_batch_size\": 8, /* and\n  more */ \"bf16\": {\"enabled\": true}, # a note\n  \"tensorboard\": {\"output_path\": \"http://x/*y*/#z\"},\n}");
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(to_string(find_dotted(i.keys, "training.precision")->at()), "ds.json:4:31");
}

TEST(DeepSpeed, MistakesNameTheirPlace) {
  EXPECT_TRUE(has(refused("{\n  \"train_batch_size\": 8\n  \"bf16\": {}\n}"), "ds.json:3:"));
  EXPECT_TRUE(has(refused("{\"train_batch_size\": 8, \"train_batch_size\": 9}"), "ds.json:1:"));
  EXPECT_TRUE(has(refused("[1, 2]"), "needs keys with values"));
  const std::string text = refused("{\n  \"train_batch_size\": \"many\",\n  \"bf16\": {\"enabled\": 3},\n  \"zero_optimization\": {\"stage\": 4, \"reduce_bucket_size\": [1]}\n}");
  EXPECT_TRUE(has(text, "ds.json:2:23: train_batch_size: needs a whole number, not 'many'")) << text;
  EXPECT_TRUE(has(text, "bf16.enabled: needs true or false")) << text;
  EXPECT_TRUE(has(text, "zero_optimization.stage: 4 is out of range")) << text;
  EXPECT_TRUE(has(text, "reduce_bucket_size: needs a whole number, not a list of 1")) << text;
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}})"), "both enabled"));
}

TEST(DeepSpeed, WhatWouldChangeTheAnswerIsNeverDropped) {
  for (const char* feature : {R"("zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": true})", R"("zero_optimization": {"stage": 3, "mics_hierarchical_params_gather": true})",
                              R"("sparse_attention": {"mode": "fixed"})", R"("optimizer": {"type": "OneBitAdam"})", R"("elasticity": {"enabled": true})", R"("amp": {"enabled": true})",
                              R"("progressive_layer_drop": {"enabled": true})", R"("zero_optimization": {"stage": 2, "reduce_scatter": false})"}) {
    const Imported i = read(std::string("{\"train_batch_size\": 8, ") + feature + "}");
    EXPECT_FALSE(i.unsimulated.empty()) << feature;
    EXPECT_FALSE(refusals(i, false).empty()) << feature;
  }
}

TEST(DeepSpeed, ASectionThatIsNotSimulatedIsOneMistake) {
  const Imported i = read(R"({"train_batch_size": 8, "compression_training": {"layer_reduction": {"enabled": true, "keep_number_layer": 5}, "weight_quantization": {"shared_parameters": {"enabled": true}}}})");
  EXPECT_EQ(i.unsimulated.size(), 3u);
  const std::vector<Diagnostic> told = refusals(i, false);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].key, "compression_training");
  EXPECT_EQ(told[0].fix, "Simulate without it: leave it out with training.without: [compression_training] (import: --without compression_training)");
  EXPECT_EQ(told[0].at.line, 1);
}

TEST(DeepSpeed, ZeroPlusPlusAndSubGroups) {
  const Imported i = read(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": true, "zero_quantized_gradients": true, "sub_group_size": 2e8}})");
  EXPECT_EQ(key(i, "data_parallel.secondary_partition"), "8");
  EXPECT_EQ(key(i, "data_parallel.quantized_weights"), "true");
  EXPECT_EQ(key(i, "data_parallel.quantized_gradients"), "true");
  EXPECT_EQ(key(i, "data_parallel.sub_group"), "200000000");
  EXPECT_TRUE(i.unsimulated.empty());
  // deepspeed/runtime/zero/config.py takes 0 too, and closes a sub-group after each parameter then.
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "sub_group_size": 0}})"), "data_parallel.sub_group"), "1");
  EXPECT_EQ(key(i, "data_parallel.memory_efficient_linear"), "-");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "memory_efficient_linear": false}})"), "data_parallel.memory_efficient_linear"), "false");
  EXPECT_EQ(fate(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "memory_efficient_linear": false}})"), "zero_optimization.memory_efficient_linear"), "ignored");
  // They are ZeRO-3's: elsewhere DeepSpeed reads over them.
  const Imported two = read(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8, "zero_quantized_weights": true, "sub_group_size": 2e8}})");
  EXPECT_EQ(key(two, "data_parallel.secondary_partition"), "-");
  EXPECT_EQ(fate(two, "zero_optimization.zero_quantized_weights"), "ignored");
  EXPECT_EQ(fate(two, "zero_optimization.sub_group_size"), "ignored");
}

TEST(DeepSpeed, SequenceParallelismIsUlysses) {
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "sequence_parallel_size": 2})"), "parallelism.context"), "2");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "sequence_parallel_size": 1})"), "parallelism.context"), "-");
}

// Source: deepspeedai/DeepSpeed runtime/engine.py: with a sequence-parallel group, communication_data_type is seq_parallel_communication_data_type.
TEST(DeepSpeed, SequenceParallelGradientsHaveTheirOwnFormat) {
  const std::string head = R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "communication_data_type": "bf16", "seq_parallel_communication_data_type": "fp16", "sequence_parallel_size": )";
  const Imported whole = read(head + "1}"), split = read(head + "4}");
  EXPECT_EQ(key(whole, "data_parallel.reduce_dtype"), "bf16");
  EXPECT_EQ(fate(whole, "seq_parallel_communication_data_type"), "ignored");
  EXPECT_EQ(key(split, "data_parallel.reduce_dtype"), "fp16");
  EXPECT_EQ(fate(split, "communication_data_type"), "used");
  const std::string silent = R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "sequence_parallel_size": 2})";
  EXPECT_EQ(key(read(silent), "data_parallel.reduce_dtype"), "fp32");
}

TEST(DeepSpeed, PyTorchsOwnAdamIsAnotherKernel) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": )";
  EXPECT_EQ(fate(read(text + "true}}}"), "optimizer.params.torch_adam"), "used");
  EXPECT_EQ(fate(read(text + "false}}}"), "optimizer.params.torch_adam"), "used");
  const std::string offloaded = R"(}}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})";
  EXPECT_EQ(fate(read(text + "true" + offloaded), "optimizer.params.torch_adam"), "not simulated");
  EXPECT_EQ(fate(read(text + "false" + offloaded), "optimizer.params.torch_adam"), "used");
}

TEST(DeepSpeed, SectionsHaveKeys) {
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "bf16": "yes"})"), "ds.json:1:33: bf16: needs keys with values"));
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "zero_optimization": [3]})"), "zero_optimization: needs keys with values"));
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "zero_optimization": true})"), "data_parallel.kind"), "zero1");
}

TEST(DeepSpeedBatch, ANumberThatCannotBeReadIsOneMistake) {
  const std::string message = refused(R"({"train_batch_size": 1e30})");
  EXPECT_TRUE(has(message, "train_batch_size: needs a whole number, not '1e30'"));
  EXPECT_FALSE(has(message, "auto"));
  EXPECT_TRUE(has(error_of([] { import_text(" \n", "ds.json", "", Context{}); }), "is empty"));
}

TEST(DeepSpeed, EmptySectionsAndCommentsAreNoMystery) {
  const Imported i = read(R"({"train_micro_batch_size_per_gpu": 1, "_comment": "mine", "fp16": {}, "bf16": {"enabled": true, "loss_scale": 0, "hysteresis": 2}, "tensorboard": {}})");
  EXPECT_TRUE(i.report.not_understood.empty());
  EXPECT_EQ(fate(i, "fp16"), "ignored");
}

TEST(DeepSpeed, LeavesOutWhatItIsAskedTo) {
  Context c = eight_gpus();
  c.without = {"sparse_attention", "zero_optimization.zero_quantized_nontrainable_weights"};
  const Imported i = read(R"({"train_batch_size": 8, "sparse_attention": {"mode": "fixed", "block": 16}, "zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": true}})", c);
  EXPECT_TRUE(i.unsimulated.empty());
  EXPECT_EQ(fate(i, "sparse_attention.block"), "ignored");
  c.without = {"sparse_atention"};
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "sparse_attention": {"mode": "fixed"}})", c), "there is no key 'sparse_atention'"));
}

TEST(DeepSpeed, UnknownKeysAreNamedAndStrictnessRefusesThem) {
  const Imported i = read(R"({"train_batch_size": 8, "gradient_cliping": 1.0})");
  ASSERT_EQ(i.report.not_understood.size(), 1u);
  EXPECT_TRUE(has(i.report.not_understood[0].note, "Did you mean gradient_clipping?"));
  EXPECT_TRUE(refusals(i, false).empty());
  EXPECT_EQ(refusals(i, true).size(), 1u);
}

// The notes' configuration (seed case B.12) as it is described: batch 256 on 8 GPUs with 8 accumulation steps is 4 per GPU.
TEST(DeepSpeed, TheNotesFileIsUnderstoodWhole) {
  const char* const text = R"({"train_batch_size": 256, "gradient_accumulation_steps": 8, "fp16": {"enabled": true, "loss_scale": 0},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "allgather_partitions": true, "reduce_scatter": true},
    "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true, "contiguous_memory_optimization": true}})";
  const Imported i = read(text);
  EXPECT_EQ(key(i, "training.micro_batch_size"), "4");
  EXPECT_EQ(key(i, "memory.recompute"), "full");
  EXPECT_EQ(key(i, "memory.offload.optimizer"), "cpu");
  EXPECT_EQ(key(i, "memory.offload.activations"), "cpu");
  EXPECT_EQ(key(i, "memory.offload.pinned"), "true");
  EXPECT_EQ(key(i, "memory.partition_activations"), "true");
  EXPECT_EQ(key(i, "memory.contiguous_checkpoints"), "true");
  EXPECT_EQ(key(i, "memory.number_checkpoints"), "-");  // DeepSpeed asserts that it is given; here: one for each layer
  EXPECT_TRUE(i.unsimulated.empty());
  EXPECT_TRUE(i.report.not_understood.empty());
  expect_complete(i, parse_deepspeed(text, "ds.json"));
}

TEST(DeepSpeedCheckpoints, AreKeptAsTheFileSays) {
  const Imported i = read(R"({"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true, "contiguous_memory_optimization": true, "number_checkpoints": 48, "synchronize_checkpoint_boundary": true}})");
  EXPECT_EQ(key(i, "memory.contiguous_checkpoints"), "true");
  EXPECT_EQ(key(i, "memory.number_checkpoints"), "48");
  EXPECT_EQ(key(i, "memory.synchronize_checkpoints"), "true");
  // Numbered alone means checkpointing without buffers.
  const Imported numbered = read(R"({"train_batch_size": 8, "activation_checkpointing": {"number_checkpoints": 4}})");
  EXPECT_EQ(key(numbered, "memory.recompute"), "full");
  EXPECT_EQ(key(numbered, "memory.number_checkpoints"), "-");
  EXPECT_EQ(fate(numbered, "activation_checkpointing.number_checkpoints"), "used");
  EXPECT_EQ(key(read(R"({"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true}})"), "memory.partition_activations"), "-");  // one tensor-parallel rank
}

// What NVMe's buffers hold is memory of the host; they are nothing where the same sections offload to the CPU.
TEST(DeepSpeedOffload, BuffersOfNvmeAreRead) {
  const auto file = [](const std::string& place) {
    return read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": ")" + place + R"(", "buffer_count": 12}, "offload_param": {"device": ")" + place + R"(", "max_in_cpu": 5000}}})");
  };
  const auto disks = file("nvme"), host = file("cpu");
  EXPECT_EQ(key(disks, "memory.offload.buffers"), "12");
  EXPECT_EQ(key(disks, "memory.offload.max_in_cpu"), "5000");
  EXPECT_EQ(key(host, "memory.offload.buffers"), "-");
  EXPECT_EQ(key(host, "memory.offload.max_in_cpu"), "-");
}

TEST(DeepSpeedOffload, PlacesPinningAndPipelining) {
  const Imported i = read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk", "buffer_count": 5, "pin_memory": false},
    "offload_optimizer": {"device": "nvme", "nvme_path": "/disk", "pipeline_read": true, "pipeline_write": true, "fast_init": false, "ratio": 0.5}}, "aio": {"queue_depth": 8}})");
  EXPECT_EQ(key(i, "memory.offload.parameters"), "nvme");
  EXPECT_EQ(key(i, "memory.offload.optimizer"), "nvme");
  EXPECT_EQ(key(i, "memory.offload.pipelined"), "true");
  EXPECT_EQ(key(i, "memory.offload.ratio"), "0.5");
  Context old = eight_gpus();
  old.version = "0.18.0";
  const char* const bare = R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}})";
  EXPECT_EQ(key(read(bare, old), "memory.offload.pinned"), "false");  // pin_memory became true with 0.19.5
  EXPECT_EQ(key(read(bare), "memory.offload.pinned"), "true");
  EXPECT_EQ(key(read(bare), "memory.offload.optimizer"), "cpu");
  EXPECT_TRUE(has(refused(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "gpu"}}})"), "'gpu' is no place to offload to"));
}

// DeepSpeed takes it, and keeps the optimizer's states on the GPU.
TEST(DeepSpeed, WeightsAloneInHostMemoryAreNotSimulated) {
  const std::string text = "{\n\"train_batch_size\": 8, \"bf16\": {\"enabled\": true},\n\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}";
  const Imported i = read(text);
  EXPECT_EQ(fate(i, "zero_optimization.offload_param.device"), "not simulated");
  EXPECT_EQ(i.unsimulated.at(0).at.line, 3);
  Context c = eight_gpus();
  c.scenario = config::parse_document("memory: {offload: {optimizer: cpu}}", "s.yaml").root;
  EXPECT_EQ(key(import_text(text, "ds.json", "deepspeed", c), "memory.offload.parameters"), "cpu");
}

}  // namespace
}  // namespace rehearse::importers::deepspeed_test
