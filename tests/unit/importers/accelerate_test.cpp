// accelerate's YAML: keys as `accelerate config` of July 2026 writes them, older spellings where files have them.
#include <filesystem>
#include <fstream>

#include "sim/config/document.h"
#include "sim/importers/readers.h"
#include "tests/unit/importers/helpers.h"

namespace rehearse::importers::accelerate_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// No cluster is known; the script's micro-batch is.
Context only_batch() {
  Context c;
  Fragment stated;
  stated.set("training.micro_batch_size", "2", {});
  c.scenario = stated.tree({});
  return c;
}
Imported read(const std::string& text, const Context& context = only_batch()) { return import_text(text, "default_config.yaml", "", context); }
std::string refused(const std::string& text, const Context& context = only_batch()) {
  return error_of([&] { read(text, context); });
}

const std::string kHead = "compute_environment: LOCAL_MACHINE\ndebug: false\nmachine_rank: 0\nmain_training_function: main\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nrdzv_backend: static\nsame_network: true\nuse_cpu: false\n";

const std::string kFsdp = kHead + "distributed_type: FSDP\ndowncast_bf16: 'no'\nfsdp_config:\n  fsdp_activation_checkpointing: true\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
                          "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_forward_prefetch: false\n  fsdp_offload_params: false\n  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                          "  fsdp_sync_module_states: true\n  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n  fsdp_use_orig_params: true\n";

TEST(AccelerateFsdp, ReadsTheFirstVersion) {
  const Imported i = read(kFsdp);
  EXPECT_EQ(i.framework, "accelerate");
  EXPECT_EQ(key(i, "training.framework"), "huggingface-mixed");  // trained weights are kept in fp32 under mixed precision
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(key(i, "cluster.nodes"), "2");
  EXPECT_EQ(key(i, "cluster.gpus_per_node"), "8");
  EXPECT_EQ(key(i, "data_parallel.kind"), "fsdp1");
  EXPECT_EQ(key(i, "data_parallel.reshard_after_forward"), "true");
  EXPECT_EQ(key(i, "parallelism.data_shard"), "8");  // sharded inside a node
  EXPECT_EQ(key(i, "data_parallel.reduce_dtype"), "bf16");
  EXPECT_EQ(key(i, "memory.recompute"), "full");
  EXPECT_EQ(key(i, "training.global_batch_size"), "32");  // 2 on each of 16 GPUs
  EXPECT_TRUE(i.report.not_understood.empty());
  EXPECT_TRUE(i.unsimulated.empty());
  expect_complete(i, parse_accelerate(kFsdp, "default_config.yaml"));
}

TEST(AccelerateFsdp, StrategiesByNameAndNumber) {
  const auto with = [](const std::string& strategy) {
    std::string text = kFsdp;
    text.replace(text.find("HYBRID_SHARD"), 12, strategy);
    return read(text);
  };
  EXPECT_EQ(key(with("SHARD_GRAD_OP"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_EQ(key(with("2"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_EQ(key(with("1"), "parallelism.data_shard"), "-");
  EXPECT_EQ(key(with("NO_SHARD"), "data_parallel.kind"), "ddp");
  EXPECT_EQ(key(with("HYBRID_SHARD_ZERO2"), "parallelism.data_shard"), "8");
  EXPECT_TRUE(has(error_of([&] { with("SOME_SHARD"); }), "'SOME_SHARD' is no sharding strategy"));
}

TEST(AccelerateFsdp, SecondVersionAndDeviceMesh) {
  const Imported i = read(kHead + "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nparallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
                              "  parallelism_config_dp_shard_size: 4\n  parallelism_config_tp_size: 2\n  parallelism_config_cp_size: 1\n");
  EXPECT_EQ(key(i, "data_parallel.kind"), "fsdp2");
  EXPECT_EQ(key(i, "data_parallel.reshard_after_forward"), "false");
  EXPECT_EQ(key(i, "parallelism.data"), "8");
  EXPECT_EQ(key(i, "parallelism.data_shard"), "4");
  EXPECT_EQ(key(i, "parallelism.tensor"), "2");
  EXPECT_EQ(key(i, "training.global_batch_size"), "16");
}

// Source: huggingface/accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin: names are taken in either case; FSDP2 reads neither the
// strategy nor the prefetching of FSDP1.
TEST(AccelerateFsdp, TheSecondVersionGoesByReshardingAlone) {
  const std::string two = kHead + "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: transformer_based_wrap\n";
  const Imported i = read(two + "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_backward_prefetch: NO_PREFETCH\n  fsdp_forward_prefetch: true\n");
  EXPECT_EQ(key(i, "data_parallel.reshard_after_forward"), "true");
  for (const char* name : {"fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_forward_prefetch"}) EXPECT_EQ(fate(i, name), "ignored") << name;
  EXPECT_EQ(key(read(two + "  fsdp_reshard_after_forward: false\n"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_TRUE(has(refused(two + "  fsdp_reshard_after_forward: FULL_SHARD\n"), "FULL_SHARD' is no answer of FSDP2"));
  EXPECT_TRUE(i.unsimulated.empty());
}

TEST(AccelerateFsdp, TheFirstVersionGoesByTheStrategy) {
  const std::string one = kHead + "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n";
  EXPECT_EQ(key(read(one + "  fsdp_sharding_strategy: shard_grad_op\n"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_EQ(key(read(one + "  fsdp_reshard_after_forward: SHARD_GRAD_OP\n"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_EQ(key(read(one + "  fsdp_reshard_after_forward: false\n"), "data_parallel.reshard_after_forward"), "true");   // no strategy: FULL_SHARD
  EXPECT_EQ(fate(read(one + "  fsdp_backward_prefetch_policy: BACKWARD_PRE\n"), "fsdp_config.fsdp_backward_prefetch_policy"), "used");
  EXPECT_EQ(fate(read(one + "  fsdp_backward_prefetch_policy: BACKWARD_POST\n"), "fsdp_config.fsdp_backward_prefetch_policy"), "not simulated");
}

/// What the report says of what the file does not.
std::string assumed(const Imported& i, const std::string& name) {
  for (const auto& n : i.report.assumed)
    if (n.key == name) return n.note;
  return "-";
}

TEST(AccelerateFsdp, DefaultsOfAccelerateThatAreNotSimulatedAreTold) {
  const Imported bare = read(kHead + "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"), full = read(kFsdp);
  for (const char* name : {"fsdp_auto_wrap_policy", "fsdp_backward_prefetch"}) {
    EXPECT_TRUE(has(assumed(bare, name), "not given: accelerate alone would")) << name;
    EXPECT_EQ(assumed(full, name), "-") << name;
  }
}

TEST(AccelerateFsdp, ContextAndSequenceParallelism) {
  const auto with = [](const std::string& sizes) {
    return read(kHead + "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nparallelism_config:\n  parallelism_config_dp_shard_size: 8\n" + sizes);
  };
  const Imported rotated = with("  parallelism_config_cp_size: 2\n  parallelism_config_cp_comm_strategy: alltoall\n");
  EXPECT_EQ(key(rotated, "parallelism.context"), "2");
  EXPECT_EQ(key(rotated, "parallelism.context_kind"), "ring");
  EXPECT_EQ(key(with("  parallelism_config_cp_size: 2\n"), "parallelism.context_kind"), "all-gather");
  const Imported ulysses = with("  parallelism_config_sp_size: 2\n  parallelism_config_sp_backend: deepspeed\n");
  EXPECT_EQ(key(ulysses, "parallelism.context"), "2");
  EXPECT_EQ(key(ulysses, "parallelism.context_kind"), "ulysses");
  EXPECT_TRUE(has(error_of([&] { with("  parallelism_config_cp_size: 2\n  parallelism_config_sp_size: 2\n"); }), "context and sequence parallelism together"));
}

// accelerator.py, prepare_model: FSDP's trained parameters are upcast, frozen ones are not, and without mixed precision none are.
TEST(AccelerateFsdp, TrainedWeightsAreKeptInFp32UnderMixedPrecision) {
  Context adapters = only_batch();
  Fragment stated;
  stated.set("training.micro_batch_size", "2", {});
  stated.set("tuning.kind", "lora", {});
  adapters.scenario = stated.tree({});
  EXPECT_EQ(key(read(kFsdp, adapters), "training.framework"), "huggingface");
  std::string whole = kFsdp;
  whole.replace(whole.find("mixed_precision: bf16"), 21, "mixed_precision: 'no'");
  EXPECT_EQ(key(read(whole), "training.framework"), "huggingface");
  EXPECT_EQ(key(read(kHead + "distributed_type: MULTI_GPU\n"), "training.framework"), "huggingface");
}

TEST(AccelerateDeepSpeed, ReadsTheFileThatItNames) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "accelerate_names_a_file";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "zero3.json") << R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}})";
  Context c = only_batch();
  c.beside = folder.string();
  const Imported i = read(kHead + "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: zero3.json\n  zero3_init_flag: true\n", c);
  EXPECT_EQ(key(i, "training.framework"), "deepspeed");
  EXPECT_EQ(key(i, "data_parallel.kind"), "zero3");
  EXPECT_EQ(key(i, "training.precision"), "bf16");  // the file's "auto" is accelerate's mixed_precision
  EXPECT_EQ(key(i, "training.global_batch_size"), "128");
  EXPECT_TRUE(has(find_dotted(i.keys, "data_parallel.kind")->at().file, "zero3.json"));
  c.beside = "/nowhere";
  EXPECT_TRUE(has(refused(kHead + "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: zero3.json\n", c), "default_config.yaml:13:26: deepspeed_config.deepspeed_config_file"));
}

TEST(AccelerateDeepSpeed, ReadsItsOwnKeys) {
  const Imported i = read(kHead + "distributed_type: DEEPSPEED\ngradient_accumulation_steps: 4\ndeepspeed_config:\n  zero_stage: 2\n  gradient_clipping: 1.0\n  offload_optimizer_device: none\n  zero3_init_flag: false\n");
  EXPECT_EQ(key(i, "data_parallel.kind"), "zero2");
  EXPECT_EQ(key(i, "training.global_batch_size"), "128");
  EXPECT_EQ(key(i, "training.clip_gradients"), "true");
}

TEST(AccelerateDeepSpeed, ClippingAndAccumulationMayBeLeftToAccelerate) {
  const std::string two = kHead + "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n";
  EXPECT_EQ(key(read(two), "training.clip_gradients"), "true");   // 1.0 unless given
  const Imported open = read(two + "  gradient_clipping: auto\n  gradient_accumulation_steps: auto\n");
  EXPECT_EQ(key(open, "training.clip_gradients"), "true");
  EXPECT_EQ(key(open, "training.global_batch_size"), "32");
  EXPECT_EQ(key(read(two + "  gradient_clipping: 0\n"), "training.clip_gradients"), "false");
}

TEST(Accelerate, EarlyAndEmptyKeysAreUnderstood) {
  const Imported i = read(kHead + "distributed_type: MULTI_GPU\ndynamo_backend: 'NO'\nfsdp_config: {}\ndeepspeed_config: {}\nmegatron_lm_config: {}\n");
  EXPECT_TRUE(i.report.not_understood.empty());
  EXPECT_TRUE(i.unsimulated.empty());
  EXPECT_EQ(key(read("distributed_type: MULTI_GPU\nmixed_precision: BF16\nnum_processes: 8\nnum_machines: 1\n"), "training.precision"), "bf16");
}

// accelerate starts torch.distributed.run on one machine, DeepSpeed's launcher on several.
TEST(AccelerateDeepSpeed, ItsProcessesHaveOneThread) {
  const std::string offloads = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n", eight = "mixed_precision: bf16\nnum_processes: 8\n";
  EXPECT_EQ(key(read(eight + "num_machines: 1\n" + offloads), "memory.offload.threads"), "1");
  EXPECT_EQ(find_dotted(read(eight + "num_machines: 2\n" + offloads).keys, "memory.offload.threads"), nullptr);
  EXPECT_EQ(find_dotted(read("mixed_precision: bf16\nnum_processes: 1\nnum_machines: 1\n" + offloads).keys, "memory.offload.threads"), nullptr);
  EXPECT_EQ(find_dotted(read(eight + "num_machines: 1\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n").keys, "memory.offload.threads"), nullptr);
}

TEST(AccelerateMegatron, ReadsDegreesAndMicroBatches) {
  const Imported i = read(kHead + "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_gradient_clipping: 1.0\n  megatron_lm_num_micro_batches: 8\n  megatron_lm_pp_degree: 2\n  megatron_lm_recompute_activations: true\n"
                              "  megatron_lm_sequence_parallelism: true\n  megatron_lm_tp_degree: 4\n  megatron_lm_use_distributed_optimizer: true\n");
  EXPECT_EQ(key(i, "training.framework"), "megatron-core");
  EXPECT_EQ(key(i, "parallelism.tensor"), "4");
  EXPECT_EQ(key(i, "parallelism.pipeline"), "2");
  EXPECT_EQ(key(i, "parallelism.sequence_parallel"), "true");
  EXPECT_EQ(key(i, "data_parallel.kind"), "distributed-optimizer");
  EXPECT_EQ(key(i, "memory.recompute"), "selective");
  EXPECT_EQ(key(i, "training.global_batch_size"), "32");  // 2 x 8 micro-batches x 16 / 8 ranks
}

TEST(Accelerate, WhatIsNoGpuTrainingIsRefused) {
  EXPECT_TRUE(has(refused("distributed_type: XLA\nmixed_precision: bf16\n"), "'XLA' runs on other devices"));
  EXPECT_EQ(fate(read(kHead + "distributed_type: MULTI_GPU\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"), "dynamo_config.dynamo_backend"), "not simulated");
  EXPECT_TRUE(has(refused("distributed_type: NO\nmixed_precision: bf15\n"), "'bf15' is no precision"));
  EXPECT_TRUE(has(refused(kHead + "distributed_type: MULTI_GPU\n", Context{}), "the batch is in the training script"));
  EXPECT_TRUE(has(refused("distributed_type: MULTI_GPU\nnum_processes: 7\nnum_machines: 2\n"), "7 processes do not divide over 2 machines"));
}

// Source: accelerate commands/launch.py, simple_launcher, which distributed_type NO ends up in whatever num_processes says.
TEST(Accelerate, WithoutDistributionThereIsOneProcess) {
  Context c = eight_gpus();
  c.scenario = config::parse_document("training: {micro_batch_size: 2}", "s.yaml").root;
  for (const char* word : {"'NO'", "NO"}) {
    const Imported i = import_text(std::string("compute_environment: LOCAL_MACHINE\ndistributed_type: ") + word + "\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n", "a.yaml", "accelerate", c);
    EXPECT_EQ(key(i, "cluster.nodes"), "1");
    EXPECT_EQ(key(i, "cluster.gpus_per_node"), "1");
    EXPECT_EQ(key(i, "training.global_batch_size"), "2");
    EXPECT_EQ(fate(i, "num_processes"), "used");
  }
}

}  // namespace
}  // namespace rehearse::importers::accelerate_test
