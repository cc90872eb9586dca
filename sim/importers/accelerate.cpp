// What `accelerate config` writes. Source: huggingface/accelerate of July 2026: commands/config/config_args.py and cluster.py,
// commands/launch.py, utils/dataclasses.py.
#include <fmt/core.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/config/units.h"
#include "sim/importers/accelerate_keys.h"
#include "sim/importers/importer.h"
#include "sim/importers/readers.h"

namespace rehearse::importers {
namespace {

using config::between;

class Accelerate {
 public:
  Accelerate(const config::Value& root, const Context& context) : in_(root, context, accelerate_vocabulary()) {}

  Imported read() {
    type_ = in_.word("distributed_type").value_or("NO");
    if (type_ == "False" || type_ == "false" || type_ == "no") type_ = "NO";  // unquoted NO is false in YAML 1.1
    read_machines();
    read_precision();
    const bool known = type_ == "NO" || type_ == "MULTI_GPU" || type_ == "FSDP" || type_ == "DEEPSPEED" || type_ == "MEGATRON_LM";
    if (!known) in_.complain("distributed_type", fmt::format("'{}' runs on other devices than GPUs", type_), "NO, MULTI_GPU, FSDP, DEEPSPEED and MEGATRON_LM can be simulated");
    else in_.use("distributed_type", type_);
    read_degrees();
    if (type_ == "FSDP") read_fsdp();
    else if (type_ == "DEEPSPEED") read_deepspeed_section(), assume_threads();
    else if (type_ == "MEGATRON_LM") read_megatron_section();
    else read_plain();
    for (const char* section : {"fsdp_config", "deepspeed_config", "megatron_lm_config"})
      for (const std::string& key : in_.keys_below(section))
        if (!std::string(key).starts_with(active_section())) in_.ignore(key, fmt::format("distributed_type is {}", type_));
    read_batch();
    return in_.finish("accelerate");
  }

 private:
  std::string active_section() const { return type_ == "FSDP" ? "fsdp_config" : type_ == "DEEPSPEED" ? "deepspeed_config" : type_ == "MEGATRON_LM" ? "megatron_lm_config" : "-"; }

  void read_machines() {
    const auto processes = in_.integer("num_processes", between(1, 1 << 24)), machines = in_.integer("num_machines", between(1, 100000));
    if (type_ == "NO" && in_.has("distributed_type")) return read_one_process();
    world_ = in_.context().gpus;
    if (in_.stated("cluster.nodes") || in_.stated("cluster.gpus_per_node")) {
      for (const char* key : {"num_processes", "num_machines"})
        if (in_.has(key)) in_.use(key, "the scenario states its cluster");
      return;
    }
    machines_ = machines.value_or(1);
    if (machines) in_.set("cluster.nodes", std::to_string(*machines), "num_machines");
    if (!processes) return;
    if (*processes % machines.value_or(1) != 0) return in_.complain("num_processes", fmt::format("{} processes do not divide over {} machines", *processes, *machines));
    const std::int64_t each = *processes / machines.value_or(1);
    if (each > 72) return in_.complain("num_processes", fmt::format("{} processes on one machine are more GPUs than any has", each), "num_processes counts all machines: is num_machines right?");
    in_.set("cluster.gpus_per_node", std::to_string(each), "num_processes", fmt::format("{} on {} machines", *processes, machines.value_or(1)));
    world_ = *processes;
  }

  /// Whatever num_processes says. Source: accelerate commands/launch.py, launch_command: simple_launcher, which starts the script once.
  void read_one_process() {
    for (const char* key : {"num_processes", "num_machines"})
      if (in_.has(key)) in_.use(key, "distributed_type NO starts one process on one GPU");
    in_.assume("cluster.nodes", "1", "distributed_type is NO: one process");
    in_.assume("cluster.gpus_per_node", "1", "distributed_type is NO: one process on one GPU");
    const auto nodes = in_.stated_integer("cluster.nodes"), gpus = in_.stated_integer("cluster.gpus_per_node");
    if (nodes.value_or(1) != 1 || gpus.value_or(1) != 1) in_.complain("distributed_type", "NO starts one process on one GPU, but the scenario states more of them", "Use MULTI_GPU, or leave out cluster.nodes and cluster.gpus_per_node");
    world_ = 1;
  }

  void read_precision() {
    std::string word = in_.word("mixed_precision").value_or("");
    if (upper(word) == "BF16" || upper(word) == "FP16" || upper(word) == "FP8") std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (word == "bf16" || word == "fp16" || word == "fp8") precision_ = word;
    else if (word == "no" || word == "NO" || word == "False" || word == "false") precision_ = "fp32";
    else if (!word.empty()) return in_.complain("mixed_precision", fmt::format("'{}' is no precision", word), "Use no, fp16, bf16 or fp8");
    if (!precision_.empty()) in_.set("training.precision", precision_, "mixed_precision", precision_ == "fp32" ? "PyTorch's default multiplies in fp32; set training.precision: tf32 if the script allows it" : "");
    else if (type_ != "DEEPSPEED" && !in_.stated("training.precision")) in_.assume("training.precision", "fp32", "mixed_precision is not given");
  }

  void read_degrees() {
    const std::string at = "parallelism_config.parallelism_config_";
    const auto take = [&](const char* name, const char* ours) {
      const auto v = in_.integer(at + name, between(1, 1 << 20));
      if (v && ours != nullptr) in_.set(ours, std::to_string(*v), at + name);
      return v.value_or(1);
    };
    others_ *= take("tp_size", "parallelism.tensor");
    const std::int64_t context = take("cp_size", "parallelism.context"), sequence = take("sp_size", nullptr);
    read_context(at, context, sequence);
    others_ *= std::max(context, sequence);
    const std::int64_t replicate = take("dp_replicate_size", nullptr), shard = take("dp_shard_size", nullptr);
    if (in_.has(at + "dp_shard_size")) in_.set("parallelism.data", std::to_string(bounded_product({shard, replicate})), at + "dp_shard_size", fmt::format("{} shards x {} replicas", shard, replicate));
    if (replicate > 1 && shard > 1) in_.set("parallelism.data_shard", std::to_string(shard), at + "dp_replicate_size");
    else if (in_.has(at + "dp_replicate_size")) in_.use(at + "dp_replicate_size", replicate > 1 ? "every rank holds a replica" : "no replicas");
  }

  /// cp: PyTorch's rotations; sp: DeepSpeed's Ulysses.
  void read_context(const std::string& at, std::int64_t context, std::int64_t sequence) {
    const std::string strategy = at + "cp_comm_strategy", size = at + "sp_size";
    const auto word = in_.word(strategy);
    if (word && *word != "allgather" && *word != "alltoall") return in_.complain(strategy, fmt::format("'{}' is no strategy", *word), "Use allgather or alltoall");
    if (context > 1 && sequence > 1) return in_.complain(size, "context and sequence parallelism together", "Set cp_size or sp_size to 1");
    if (context > 1 && word) in_.set("parallelism.context_kind", *word == "allgather" ? "all-gather" : "ring", strategy);
    else if (context > 1) in_.assume("parallelism.context_kind", "all-gather", "cp_comm_strategy is allgather unless given");
    else if (word) in_.use(strategy, "one context-parallel rank: nothing to exchange");
    if (sequence > 1) {
      in_.set("parallelism.context", std::to_string(sequence), size, "Ulysses sequence parallelism");
      in_.fragment().set("parallelism.context_kind", "ulysses", in_.find(size)->place());
    } else if (in_.has(size)) {
      in_.use(size, "one rank: the sequence is whole");
    }
  }

  void reduced_formats() {
    const std::string format = precision_ == "fp8" ? "bf16" : precision_;
    if (format != "bf16" && format != "fp16") return;
    in_.fragment().set("data_parallel.parameter_dtype", format, in_.find("mixed_precision")->place());
    in_.fragment().set("data_parallel.reduce_dtype", format, in_.find("mixed_precision")->place());
    in_.remark("data_parallel.reduce_dtype", format + " (accelerate's mixed-precision policy for FSDP)");
  }

  void read_fsdp() {
    // Frozen weights stay as they were loaded; trained ones are kept in fp32. Source: accelerator.py, prepare_model.
    const bool trains_all = in_.stated("tuning.kind").value_or("full") == "full", mixed = !precision_.empty() && precision_ != "fp32";
    if (trains_all && mixed) in_.assume("training.framework", "huggingface-mixed", "accelerate keeps trained weights in fp32 under mixed precision and FSDP");
    else in_.assume("training.framework", "huggingface", "accelerate with Hugging Face's models");
    const auto version = in_.integer("fsdp_config.fsdp_version", between(1, 2));
    if (version) in_.set("data_parallel.kind", fmt::format("fsdp{}", *version), "fsdp_config.fsdp_version");
    else in_.assume("data_parallel.kind", "fsdp1", "fsdp_version is 1 unless given");
    reduced_formats();
    if (version.value_or(1) == 2) read_second_resharding();
    else read_first_resharding();
    if (!in_.has("fsdp_config.fsdp_auto_wrap_policy")) in_.remark("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP (not given: accelerate alone would gather the model as one unit)");
    if (in_.flag("fsdp_config.fsdp_offload_params").value_or(false)) {
      in_.set("memory.offload.parameters", "cpu", "fsdp_config.fsdp_offload_params");
      in_.set("memory.offload.optimizer", "cpu", "fsdp_config.fsdp_offload_params");
    }
    if (in_.flag("fsdp_config.fsdp_activation_checkpointing").value_or(false)) in_.set("memory.recompute", "full", "fsdp_config.fsdp_activation_checkpointing");
  }

  /// fully_shard: whether parameters are dropped after forward. Source: utils/dataclasses.py, FullyShardedDataParallelPlugin, which reads
  /// neither the strategy nor the prefetching of FSDP1 here.
  void read_second_resharding() {
    const char* reshard = "fsdp_config.fsdp_reshard_after_forward";
    const auto word = in_.word(reshard);
    const auto drops = parse_flag(word.value_or("true"));
    if (!drops) in_.complain(reshard, fmt::format("'{}' is no answer of FSDP2, which needs true or false", *word), "Write true where FSDP1 has FULL_SHARD, false where it has SHARD_GRAD_OP, or fsdp_version: 1");
    else if (word) in_.set("data_parallel.reshard_after_forward", *drops ? "true" : "false", reshard);
    else in_.assume("data_parallel.reshard_after_forward", "true", "fsdp_reshard_after_forward is true unless given");
    if (in_.has("fsdp_config.fsdp_sharding_strategy")) in_.ignore("fsdp_config.fsdp_sharding_strategy", "FSDP2 goes by fsdp_reshard_after_forward, and by the degrees of parallelism_config");
    for (const char* key : {"fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_backward_prefetch_policy", "fsdp_config.fsdp_forward_prefetch"})
      if (in_.has(key)) in_.ignore(key, "FSDP2 gathers ahead by itself");
  }

  /// A strategy's name, which later versions of `accelerate config` write under the newer key.
  void read_first_resharding() {
    const char *old = "fsdp_config.fsdp_sharding_strategy", *reshard = "fsdp_config.fsdp_reshard_after_forward";
    const bool named = in_.has(reshard) && !parse_flag(in_.word(reshard).value_or("")).has_value();
    if (in_.has(old)) {
      read_strategy(old);
      if (in_.has(reshard)) in_.use(reshard, "the sharding strategy decides");
    } else if (named) {
      read_strategy(reshard);
      if (upper(in_.word(reshard).value_or("")) != "FULL_SHARD") in_.remark("fsdp_sharding_strategy", "as fsdp_reshard_after_forward says (accelerate launch of July 2026 takes FULL_SHARD unless fsdp_sharding_strategy is given)");
    } else {
      if (in_.has(reshard)) in_.ignore(reshard, "FSDP1 goes by fsdp_sharding_strategy");
      in_.assume("data_parallel.reshard_after_forward", "true", "fsdp_sharding_strategy is FULL_SHARD unless given");
    }
    constexpr const char *kAhead = "fsdp_config.fsdp_backward_prefetch", *kFirst = "fsdp_config.fsdp_backward_prefetch_policy";
    if (in_.has(kFirst)) {
      if (upper(in_.word(kFirst).value_or("")) == "BACKWARD_PRE") in_.use(kFirst, "an early name of fsdp_backward_prefetch");
      else in_.refuse(kFirst, "gathering a layer after the one before it (FSDP)");
    } else if (!in_.has(kAhead)) {
      in_.remark("fsdp_backward_prefetch", "BACKWARD_PRE (not given: accelerate alone would gather nothing ahead)");
    }
  }

  static std::string upper(std::string word) {
    for (char& c : word) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return word;
  }

  void read_strategy(const char* key) {
    static const char* const kNames[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
    const std::string given = in_.word(key).value_or(""), word = upper(given);   // accelerate takes either case
    int chosen = 0;
    for (int i = 1; i <= 5; ++i)
      if (word == kNames[i - 1] || word == std::to_string(i)) chosen = i;
    if (chosen == 0) return in_.complain(key, fmt::format("'{}' is no sharding strategy", given), "Use FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2");
    if (chosen == 3) return in_.set("data_parallel.kind", "ddp", key);
    in_.set("data_parallel.reshard_after_forward", chosen == 1 || chosen == 4 ? "true" : "false", key);
    if (chosen < 4) return;
    // Sharded inside a node, replicated between nodes.
    const auto keys = in_.fragment().tree({});
    std::optional<std::int64_t> node = in_.context().gpus_per_node;
    if (const config::Value* v = find_dotted(keys, "cluster.gpus_per_node")) node = config::parse_integer(v->text()).value;
    if (!node) return in_.complain(key, "shards over the GPUs of a node, whose number is not known", "Give num_processes and num_machines, or the scenario a cluster");
    in_.fragment().set("parallelism.data_shard", std::to_string(*node), in_.find(key)->place());
    in_.remark("parallelism.data_shard", fmt::format("{} (sharded inside a node, replicated between nodes)", *node));
  }

  void read_deepspeed_section() {
    const char* file = "deepspeed_config.deepspeed_config_file";
    if (!in_.has(file)) return read_inline_deepspeed();
    Context inside = in_.context();
    inside.scenario = config::merged(in_.fragment().tree(in_.root().place()), inside.scenario);
    inside.gpus = world_;
    deepspeed_batch_ = in_.add_file(file, "deepspeed", inside);
  }

  /// On one machine accelerate starts torch.distributed.run, on several DeepSpeed's own launcher (accelerate commands/launch.py, deepspeed_launcher).
  void assume_threads() {
    const auto keys = in_.fragment().tree({});
    const config::Value* place = find_dotted(keys, "memory.offload.optimizer");
    if (place == nullptr || machines_ > 1 || world_.value_or(1) < 2 || in_.stated("memory.offload.threads")) return;
    in_.assume("memory.offload.threads", "1", "accelerate launch starts torch.distributed.run, which sets OMP_NUM_THREADS to 1");
  }

  void read_inline_deepspeed() {
    const std::string at = "deepspeed_config.";
    in_.assume("training.framework", "deepspeed", "distributed_type is DEEPSPEED");
    if (precision_.empty() && !in_.stated("training.precision")) in_.assume("training.precision", "fp32", "mixed_precision is not given");
    const std::int64_t stage = in_.integer(at + "zero_stage", between(0, 3)).value_or(2);
    const std::string kind = stage == 0 ? "ddp" : fmt::format("zero{}", stage);
    if (in_.has(at + "zero_stage")) in_.set("data_parallel.kind", kind, at + "zero_stage");
    else in_.assume("data_parallel.kind", kind, "zero_stage is 2 unless given");
    if (in_.word(at + "gradient_clipping").value_or("auto") == "auto") in_.set("training.clip_gradients", "true", at + "gradient_clipping", "gradient_clipping is 1.0 unless given");
    else if (const auto clip = in_.number(at + "gradient_clipping")) in_.set("training.clip_gradients", *clip > 0 ? "true" : "false", at + "gradient_clipping");
    for (const char* part : {"optimizer", "param"}) {
      const std::string key = at + "offload_" + part + "_device", device = in_.word(key).value_or("none");
      if (device == "none") continue;
      if (device != "cpu" && device != "nvme") in_.complain(key, fmt::format("'{}' is no place to offload to", device), "Use none, cpu or nvme");
      else in_.set(std::string_view(part) == "optimizer" ? "memory.offload.optimizer" : "memory.offload.parameters", device, key);
    }
  }

  void read_megatron_section() {
    const std::string at = "megatron_lm_config.megatron_lm_";
    in_.assume("training.framework", "megatron-core", "distributed_type is MEGATRON_LM");
    const auto degree = [&](const char* name, const char* ours) {
      const auto v = in_.integer(at + name, between(1, 1 << 20));
      if (v) in_.set(ours, std::to_string(*v), at + name);
      return v.value_or(1);
    };
    const std::int64_t tensor = degree("tp_degree", "parallelism.tensor"), stages = degree("pp_degree", "parallelism.pipeline");
    others_ = bounded_product({tensor, stages, degree("context_parallel_size", "parallelism.context")});
    degree("expert_model_parallel_size", "parallelism.expert");
    degree("expert_tensor_parallel_size", "parallelism.expert_tensor");
    if (const auto n = in_.integer(at + "num_micro_batches", between(1, 1e9))) {
      accumulation_ = *n;
      in_.use(at + "num_micro_batches", "the micro-batches of a step");
    }
    if (const auto on = in_.flag(at + "sequence_parallelism"); on && tensor > 1) in_.set("parallelism.sequence_parallel", *on ? "true" : "false", at + "sequence_parallelism");
    const auto distributed = in_.flag(at + "use_distributed_optimizer");
    if (distributed) in_.set("data_parallel.kind", *distributed ? "distributed-optimizer" : "ddp", at + "use_distributed_optimizer");
    else in_.assume("data_parallel.kind", "ddp", "use_distributed_optimizer is not given");
    if (const auto clip = in_.number(at + "gradient_clipping")) in_.set("training.clip_gradients", *clip > 0 ? "true" : "false", at + "gradient_clipping");
    if (in_.flag(at + "optimizer_cpu_offload").value_or(false)) in_.set("memory.offload.optimizer", "cpu", at + "optimizer_cpu_offload");
    const auto granularity = in_.word(at + "recompute_granularity");
    if (granularity) {
      if (*granularity != "full" && *granularity != "selective") in_.complain(at + "recompute_granularity", fmt::format("'{}' is no granularity", *granularity), "Use full or selective");
      else in_.set("memory.recompute", *granularity, at + "recompute_granularity");
      const bool block = in_.word(at + "recompute_method").value_or("uniform") == "block" && *granularity == "full";
      const auto layers = in_.integer(at + "recompute_num_layers", config::positive);
      if (block && layers) in_.set("memory.recompute_layers", std::to_string(*layers), at + "recompute_num_layers");
      else if (*granularity == "full" && layers.value_or(1) > 1) in_.set("memory.recompute_span", std::to_string(*layers), at + "recompute_num_layers");
    } else if (in_.flag(at + "recompute_activations").value_or(false)) {
      in_.set("memory.recompute", "selective", at + "recompute_activations");
    }
    for (const auto& [name, ours] : {std::pair{"hidden_dropout", "model.dropout"}, {"attention_dropout", "model.attention_dropout"}})
      if (in_.number(at + name)) in_.ignore(at + name, std::string("the model's own: ") + ours);
    if (in_.has(at + "use_rotary_position_embeddings")) in_.ignore(at + "use_rotary_position_embeddings", "the model's own");
    if (const auto backend = in_.word(at + "attention_backend")) in_.set("training.attention", backend->ends_with("unfused") || backend->ends_with("local") ? "unfused" : "flash", at + "attention_backend");
  }

  void read_plain() {
    const bool mixed = !precision_.empty() && precision_ != "fp32";
    in_.assume("training.framework", "huggingface", mixed ? "accelerate with Hugging Face's models, loaded in 16 bits; where the script loads them in fp32: huggingface-mixed" : "accelerate with Hugging Face's models");
    if (type_ == "MULTI_GPU") in_.assume("data_parallel.kind", "ddp", "distributed_type is MULTI_GPU");
  }

  /// The batch is in the training script; the file may know how often gradients are accumulated.
  void read_batch() {
    for (const char* key : {"gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"})
      if (in_.word(key).value_or("") == "auto") in_.use(key, "auto: from the training script; one unless the scenario's global batch says otherwise");
      else if (const auto v = in_.integer(key, between(1, 1e9))) {
        accumulation_ = *v;
        in_.use(key, fmt::format("{}: a step is micro-batch x this x data-parallel ranks", *v));
      }
    if (deepspeed_batch_ || in_.stated("training.global_batch_size")) return;
    const auto micro = in_.stated_integer("training.micro_batch_size");
    if (!micro || !world_ || *world_ % others_ != 0 || *micro < 1 || *micro > 1'000'000'000) {
      in_.complain("training.global_batch_size", "the batch is in the training script, which this file does not tell", "Set training.micro_batch_size, or training.global_batch_size as well");
      return;
    }
    in_.assume("training.global_batch_size", std::to_string(bounded_product({*micro, accumulation_, *world_ / others_})), fmt::format("micro-batch {} x {} accumulation steps x {} ranks", *micro, accumulation_, *world_ / others_));
  }

  Importer in_;
  std::string type_, precision_;
  std::optional<std::int64_t> world_;
  std::int64_t machines_ = 1;
  std::int64_t others_ = 1, accumulation_ = 1;
  bool deepspeed_batch_ = false;
};

}  // namespace

config::Value parse_accelerate(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  refuse_variables(file_name, given);
  return config::parse_document(text, file_name, config::Dialect::pyyaml).root;
}

bool is_accelerate(const config::Value& root, const std::string&) { return root.find("distributed_type") != nullptr || (root.find("compute_environment") != nullptr && root.find("mixed_precision") != nullptr); }

Imported read_accelerate(const config::Value& root, const Context& context) { return Accelerate(root, context).read(); }

}  // namespace rehearse::importers
