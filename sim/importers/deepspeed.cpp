// DeepSpeed's configuration file. Source: deepspeedai/DeepSpeed 0.19.5 (runtime/config.py, runtime/zero/config.py), and for
// "auto" huggingface/transformers integrations/deepspeed.py.
#include <fmt/core.h>

#include <cmath>

#include "sim/config/units.h"
#include "sim/importers/deepspeed_keys.h"
#include "sim/importers/importer.h"
#include "sim/importers/readers.h"
#include "sim/importers/version.h"

namespace rehearse::importers {
namespace {

using config::positive;

/// DeepSpeed's and PyTorch's names of number formats in ours; others as they are, for the scenario to refuse.
std::string our_format(const std::string& name) {
  return name == "bfp16" || name == "bfloat16" ? "bf16" : name == "float16" || name == "half" ? "fp16" : name == "float32" ? "fp32" : name;
}

class DeepSpeed {
 public:
  DeepSpeed(const config::Value& root, const Context& context) : in_(root, context, deepspeed_vocabulary()) {}

  Imported read() {
    in_.assume("training.framework", "deepspeed", "the file is DeepSpeed's");
    check_sections();
    read_precision();
    read_zero();
    read_parallelism();
    read_batch();
    read_optimizer();
    read_checkpointing();
    return in_.finish("deepspeed");
  }

 private:
  bool is_auto(std::string_view key) {
    const config::Value* v = in_.find(key);
    return v != nullptr && v->is_scalar() && v->text() == "auto";
  }
  /// nullopt for "auto" too.
  std::optional<std::int64_t> integer(std::string_view key, const config::Limits& limits) { return is_auto(key) ? std::nullopt : in_.integer(key, limits); }

  /// What DeepSpeed reads keys of.
  void check_sections() {
    for (const char* section : {"bf16", "bfloat16", "fp16", "zero_optimization", "optimizer", "scheduler", "activation_checkpointing", "data_types", "tensor_parallel", "pipeline", "aio"}) {
      const config::Value* v = in_.root().find(section);
      const bool switched = v != nullptr && v->is_scalar() && section == std::string_view("zero_optimization");   // true or false, before ZeRO had stages
      if (v != nullptr && !v->is_map() && !v->is_null() && !switched && in_.has(section)) in_.complain(section, "needs keys with values", "Write {\"enabled\": true}, say, or leave it out");
    }
  }

  void read_precision() {
    const std::string bf16 = in_.has("bfloat16.enabled") ? "bfloat16.enabled" : "bf16.enabled", fp16 = "fp16.enabled";
    const bool open = is_auto(bf16) || is_auto(fp16);
    const bool use_bf16 = !is_auto(bf16) && in_.flag(bf16).value_or(false), use_fp16 = !is_auto(fp16) && in_.flag(fp16).value_or(false);
    if (use_bf16 && use_fp16) in_.complain("bf16.enabled", "fp16 and bf16 are both enabled", "DeepSpeed takes one of them: set the other to false");
    if (use_bf16 || use_fp16) {
      precision_ = use_bf16 ? "bf16" : "fp16";
      in_.set("training.precision", precision_, use_bf16 ? bf16 : fp16);
    } else if (const auto stated = in_.stated("training.precision")) {
      precision_ = *stated;
    } else if (open) {
      in_.complain(is_auto(bf16) ? bf16 : fp16, "\"auto\" is filled in by the Trainer's --bf16 or --fp16, which this file does not tell", "Set training.precision: bf16 (or fp16, fp32)");
    } else {
      precision_ = "fp32";
      in_.assume("training.precision", "fp32", "neither fp16 nor bf16 is enabled");
    }
    for (const std::string& key : {bf16, fp16})
      if (is_auto(key)) in_.use(key, "auto: training.precision of the scenario");
    if (precision_ == "bf16") read_narrow_states();
    read_reduced_format();
    for (const char* key : {"data_types.param_dtype", "data_types.buffer_dtype"})
      if (const auto type = in_.word(key)) {
        if (our_format(*type) == precision_) in_.use(key, "the format of training.precision");
        else in_.refuse(key, "a number format of its own for parameters or buffers");
      }
  }

  /// Source: runtime/zero/stage3.py and stage_1_and_2.py (0.18.3 on): master weights and gradients in bf16, and with them, where asked for, moments.
  void read_narrow_states() {
    constexpr const char *kMaster = "bf16.bf16_master_weights_and_grads", *kMoments = "bf16.bf16_optimizer_states";
    if (in_.flag(kMaster).value_or(false)) {
      in_.set("profile.master_parameter", "bf16", kMaster);
      if (!in_.has("data_types.grad_accum_dtype") && !in_.stated("data_parallel.gradient_dtype")) in_.set("data_parallel.gradient_dtype", "bf16", kMaster);
    }
    if (in_.flag(kMoments).value_or(false)) in_.set("training.optimizer_state_dtype", "bf16", kMoments);
  }

  /// Under sequence parallelism gradients are reduced in a format of its own, fp32 unless given. Source: runtime/engine.py, _configure_distributed_model.
  void read_reduced_format() {
    constexpr const char *kUsual = "communication_data_type", *kSequence = "seq_parallel_communication_data_type";
    sequence_ = in_.integer("sequence_parallel_size", positive).value_or(1);
    const bool split = sequence_ > 1 || in_.stated("parallelism.context_kind").value_or("") == "ulysses";
    const char* by = split ? kSequence : kUsual;
    if (const auto type = in_.word(by)) {
      reduce_ = our_format(*type);
      in_.set("data_parallel.reduce_dtype", reduce_, by);
    } else if (split && !in_.stated("data_parallel.reduce_dtype")) {
      reduce_ = "fp32";
      in_.assume("data_parallel.reduce_dtype", reduce_, "seq_parallel_communication_data_type is fp32 unless given");
    }
    if (split && in_.has(kUsual)) in_.use(kUsual, "under sequence parallelism seq_parallel_communication_data_type decides");
  }

  void read_zero() {
    if (const config::Value* all = in_.find("zero_optimization"); all != nullptr && all->is_scalar()) {
      stage_ = in_.flag("zero_optimization").value_or(false) ? 1 : 0;  // how ZeRO was switched on before it had stages
    } else if (is_auto("zero_optimization.stage")) {
      in_.complain("zero_optimization.stage", "\"auto\" is filled in by the launcher, which this file does not tell", "Set data_parallel.kind: zero1, zero2 or zero3 in the file: write its stage");
    } else {
      stage_ = in_.integer("zero_optimization.stage", config::between(0, 3)).value_or(0);
    }
    const std::string kind = stage_ == 0 ? "ddp" : fmt::format("zero{}", stage_);
    if (!in_.has("zero_optimization.stage") && !in_.has("zero_optimization")) in_.assume("data_parallel.kind", kind, "ZeRO is off when the file does not speak of it");
    else in_.set("data_parallel.kind", kind, in_.has("zero_optimization.stage") ? "zero_optimization.stage" : "zero_optimization");

    const auto overlap = is_auto("zero_optimization.overlap_comm") ? std::nullopt : in_.flag("zero_optimization.overlap_comm");
    if (overlap) in_.set("data_parallel.overlap_gradient_reduce", *overlap ? "true" : "false", "zero_optimization.overlap_comm");
    else in_.assume("data_parallel.overlap_gradient_reduce", stage_ == 3 ? "true" : "false", "overlap_comm is true for stage 3 alone");
    if (const auto type = in_.word("data_types.grad_accum_dtype")) {
      if (stage_ == 3 && our_format(*type) != precision_) in_.refuse("data_types.grad_accum_dtype", "accumulating ZeRO-3's gradient shards in " + *type);
      else in_.set("data_parallel.gradient_dtype", our_format(*type), "data_types.grad_accum_dtype");
    }
    read_bucket();
    if (const auto shard = in_.integer("zero_optimization.mics_shard_size"); shard && *shard > 0) in_.set("parallelism.data_shard", std::to_string(*shard), "zero_optimization.mics_shard_size");
    if (stage_ == 3) read_zeropp();
    read_offload();
  }

  /// ZeRO++, and the pieces that ZeRO-3 updates.
  void read_zeropp() {
    const std::string at = "zero_optimization.";
    if (const auto ranks = in_.integer(at + "zero_hpz_partition_size", config::non_negative)) {
      if (*ranks > 1) in_.set("data_parallel.secondary_partition", std::to_string(*ranks), at + "zero_hpz_partition_size");
      else in_.use(at + "zero_hpz_partition_size", "no second partition");
    }
    for (const char* what : {"weights", "gradients"})
      if (const auto is = in_.flag(at + "zero_quantized_" + what)) in_.set(std::string("data_parallel.quantized_") + what, *is ? "true" : "false", at + "zero_quantized_" + what);
    if (const auto is = in_.flag(at + "memory_efficient_linear")) in_.set("data_parallel.memory_efficient_linear", *is ? "true" : "false", at + "memory_efficient_linear");
    if (const auto elements = integer(at + "sub_group_size", config::non_negative))
      in_.set("data_parallel.sub_group", std::to_string(std::max<std::int64_t>(1, *elements)), at + "sub_group_size", *elements == 0 ? "each parameter by itself" : "elements");
    else if (is_auto(at + "sub_group_size")) in_.use(at + "sub_group_size", "auto: DeepSpeed's default, 1e9");
  }

  void read_bucket() {
    constexpr const char* key = "zero_optimization.reduce_bucket_size";
    std::optional<std::int64_t> elements = integer(key, config::non_negative);
    if (is_auto(key)) {
      if (!in_.context().hidden) {
        in_.complain(key, "\"auto\" is the square of the model's width (and so are stage3_prefetch_bucket_size, 0.9 of it, and stage3_param_persistence_threshold, ten times the width), which this file does not tell",
                     "Give the scenario a model");
        return;
      }
      elements = *in_.context().hidden * *in_.context().hidden;
    }
    if (stage_ == 3) read_live_parameters();
    if (!elements) return;
    const std::string format = reduce_.empty() ? precision_ : reduce_;
    const std::int64_t size = format == "fp32" || format == "tf32" ? 4 : 2;
    if (*elements > (std::int64_t{1} << 50)) return in_.complain(key, "is more than any model has parameters");
    if (*elements == 0) return in_.use(key, "0: the framework's default");
    in_.set("data_parallel.bucket", fmt::format("{} B", *elements * size), key, fmt::format("{} elements of {} bytes{}", *elements, size, is_auto(key) ? ", auto: the square of the model's width" : ""));
  }

  /// What ZeRO-3 keeps gathered. `auto` is what transformers makes of it (integrations/deepspeed.py, trainer_config_finalize).
  void read_live_parameters() {
    const std::int64_t width = in_.context().hidden.value_or(0);
    struct Limit {
      const char *ours, *theirs, *old;
      std::int64_t automatic;
    };
    for (const Limit& limit : {Limit{"prefetch_bucket", "stage3_prefetch_bucket_size", "prefetch_bucket_size", width * width * 9 / 10}, Limit{"max_live_parameters", "stage3_max_live_parameters", "max_live_parameters", 0},
                               Limit{"max_reuse_distance", "stage3_max_reuse_distance", "max_reuse_distance", 0}, Limit{"persistence_threshold", "stage3_param_persistence_threshold", "param_persistence_threshold", 10 * width}}) {
      for (const char* name : {limit.theirs, limit.old}) {
        const std::string key = std::string("zero_optimization.") + name;
        if (!in_.has(key)) continue;
        const bool automatic = is_auto(key);
        if (automatic && limit.automatic == 0) break;   // without a model's width the file has been complained about
        const std::optional<std::int64_t> elements = automatic ? std::optional(limit.automatic) : integer(key.c_str(), config::non_negative);
        if (elements) in_.set(std::string("data_parallel.") + limit.ours, std::to_string(*elements), key, fmt::format("elements{}", automatic ? ", auto" : ""));
        break;
      }
    }
  }

  void read_offload() {
    std::string section;  // whose options decide, where both are offloaded
    const bool states_stay = in_.word("zero_optimization.offload_optimizer.device").value_or("none") == "none" && !in_.flag("zero_optimization.cpu_offload").value_or(false) && !in_.stated("memory.offload.optimizer");
    for (const std::string part : {"param", "optimizer"}) {
      const std::string here = "zero_optimization.offload_" + part, key = here + ".device";
      const std::string old = part == "optimizer" ? "zero_optimization.cpu_offload" : "zero_optimization.cpu_offload_param";
      std::string device = in_.word(key).value_or("none"), by = key;
      if (in_.flag(old).value_or(false) && device == "none") device = "cpu", by = old;
      if (device == "none") continue;
      if (device != "cpu" && device != "nvme") {
        in_.complain(by, fmt::format("'{}' is no place to offload to", device), "Use none, cpu or nvme");
        continue;
      }
      if (part == "param" && states_stay) {
        in_.refuse(by, "weights in host memory while the optimizer's states stay on the GPU", "Add offload_optimizer, or set memory.offload.optimizer: " + device + ", or keep the weights: " + how_to_leave_out("zero_optimization.offload_param"));
        return;
      }
      in_.set(part == "optimizer" ? "memory.offload.optimizer" : "memory.offload.parameters", device, by);
      section = here;
    }
    if (section.empty()) return;
    if (const auto pinned = in_.flag(section + ".pin_memory")) {
      in_.set("memory.offload.pinned", *pinned ? "true" : "false", section + ".pin_memory");
    } else {
      const bool by_default = at_least_version(in_.context().version, 0, 19, 5);
      in_.assume("memory.offload.pinned", by_default ? "true" : "false", by_default ? "pin_memory is true since DeepSpeed 0.19.5" : "pin_memory was false before DeepSpeed 0.19.5");
    }
    const std::string optimizer = "zero_optimization.offload_optimizer.";
    const bool reads = in_.flag(optimizer + "pipeline_read").value_or(false), writes = in_.flag(optimizer + "pipeline_write").value_or(false);
    if (reads || writes) in_.set("memory.offload.pipelined", "true", optimizer + (reads ? "pipeline_read" : "pipeline_write"));
    const std::string buffers = optimizer + "buffer_count", kept = "zero_optimization.offload_param.max_in_cpu";
    if (const auto count = in_.integer(buffers, positive); count && in_.word(optimizer + "device").value_or("none") == "nvme") in_.set("memory.offload.buffers", std::to_string(*count), buffers);
    if (const auto elements = in_.integer(kept, config::non_negative); elements && in_.word("zero_optimization.offload_param.device").value_or("none") == "nvme") in_.set("memory.offload.max_in_cpu", std::to_string(*elements), kept);
    if (const auto ratio = in_.number(optimizer + "ratio"); ratio && *ratio < 1) in_.set("memory.offload.ratio", config::number_text(*ratio), optimizer + "ratio");
  }

  void read_parallelism() {
    if (const auto size = in_.integer("tensor_parallel.autotp_size", config::non_negative); size && *size > 1) in_.set("parallelism.tensor", std::to_string(*size), "tensor_parallel.autotp_size");
    if (in_.has("sequence_parallel_size")) {
      if (sequence_ > 1) in_.set("parallelism.context", std::to_string(sequence_), "sequence_parallel_size", "Ulysses: the framework profile's context parallelism");
      else in_.use("sequence_parallel_size", "one rank: the sequence is whole");
    }
    if (in_.has("pipeline.stages") && !is_auto("pipeline.stages"))
      if (const auto stages = in_.integer("pipeline.stages", positive)) in_.set("parallelism.pipeline", std::to_string(*stages), "pipeline.stages");
    if (const auto interval = in_.integer("pipeline.activation_checkpoint_interval", config::non_negative); interval && *interval > 0) {
      if (*interval == 1) in_.set("memory.recompute", "full", "pipeline.activation_checkpoint_interval");
      else in_.refuse("pipeline.activation_checkpoint_interval", fmt::format("one checkpoint for {} layers", *interval));
    }
  }

  /// Data-parallel ranks, when the cluster is known. A degree that is none is the scenario's mistake, which its own reader tells.
  std::optional<std::int64_t> ranks() {
    constexpr std::int64_t kMost = 1 << 20;   // batches are up to 10^12, so products stay within 64 bits
    if (const auto stated = in_.stated_integer("parallelism.data")) return *stated >= 1 && *stated <= kMost ? stated : std::nullopt;
    if (!in_.context().gpus) return std::nullopt;
    std::int64_t others = 1;
    for (const char* axis : {"parallelism.tensor", "parallelism.pipeline", "parallelism.context"}) {
      std::optional<std::int64_t> degree = in_.stated_integer(axis);
      if (!degree) {
        const auto keys = in_.fragment().tree({});
        if (const config::Value* v = find_dotted(keys, axis)) degree = config::parse_integer(v->text()).value;
      }
      others *= std::max<std::int64_t>(1, std::min<std::int64_t>(degree.value_or(1), kMost));
      if (others > *in_.context().gpus) return std::nullopt;
    }
    return *in_.context().gpus % others == 0 ? std::optional(*in_.context().gpus / others) : std::nullopt;
  }

  /// train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks; two give the third.
  void read_batch() {
    constexpr const char *kGlobal = "train_batch_size", *kMicro = "train_micro_batch_size_per_gpu", *kSteps = "gradient_accumulation_steps";
    const config::Limits range = config::between(1, 1e12);
    const auto global = integer(kGlobal, range), micro = integer(kMicro, range), steps = integer(kSteps, range);
    const auto stated_global = in_.stated_integer("training.global_batch_size"), stated_micro = in_.stated_integer("training.micro_batch_size");
    for (const char* key : {kGlobal, kMicro, kSteps})
      if (is_auto(key)) in_.use(key, "auto: from the scenario's batch");
    const auto n = ranks();
    const bool overridden = stated_global || stated_micro;
    if (global && micro && steps && n && !overridden && *global / *n / *steps != *micro) contradiction(*global, *micro, *steps, *n);
    else if (global && micro && steps && n && !overridden && *global % (*n * *steps) != 0) contradiction(*global, *micro, *steps, *n);
    if (global) in_.set("training.global_batch_size", std::to_string(*global), kGlobal);
    if (micro) in_.set("training.micro_batch_size", std::to_string(*micro), kMicro);
    const auto t = stated_global ? stated_global : global, m = stated_micro ? stated_micro : micro;
    if (steps) in_.use(kSteps, t && m ? fmt::format("{}{}", *steps, overridden ? ": the scenario's own batch decides" : ": follows from the batch") : std::to_string(*steps));
    if (t && m) return;
    if (!t && !m) {
      if (!in_.has(kGlobal) && !in_.has(kMicro))
        in_.complain(kGlobal, "the file gives neither train_batch_size nor train_micro_batch_size_per_gpu (DeepSpeed needs one of them)", "Set training.global_batch_size and training.micro_batch_size");
      else if (is_auto(kGlobal) || is_auto(kMicro))   // what cannot be read has been complained about
        in_.complain(is_auto(kGlobal) ? kGlobal : kMicro, "\"auto\" is filled in by the Trainer's arguments, which this file does not tell", "Set training.global_batch_size and training.micro_batch_size");
      return;
    }
    if (!n) return in_.complain(t ? kGlobal : kMicro, "the rest of the batch follows from the number of data-parallel ranks, which is not known", "Give the scenario a cluster that the degrees of parallelism fill");
    const std::int64_t accumulation = steps.value_or(1);
    if (t) {
      if (*t / *n / accumulation < 1 || *t % (*n * accumulation) != 0)
        return in_.complain(kGlobal, fmt::format("{} samples cannot be split over {} data-parallel ranks x {} accumulation steps", *t, *n, accumulation), fmt::format("Use a multiple of {}", *n * accumulation));
      in_.assume("training.micro_batch_size", std::to_string(*t / *n / accumulation), fmt::format("{} samples / {} ranks / {} accumulation steps", *t, *n, accumulation));
    } else {
      if (*m > 1'000'000'000'000 / *n / accumulation) return in_.complain(kMicro, "the batch has more than 10^12 samples");
      in_.assume("training.global_batch_size", std::to_string(*m * *n * accumulation), fmt::format("micro-batch {} x {} accumulation steps x {} ranks", *m, accumulation, *n));
    }
  }

  void contradiction(std::int64_t global, std::int64_t micro, std::int64_t steps, std::int64_t n) {
    in_.complain("train_batch_size", fmt::format("{} is not {} per GPU x {} accumulation steps x {} data-parallel ranks", global, micro, steps, n),
                 "Change one of the three, the cluster, or set training.global_batch_size and training.micro_batch_size");
  }

  void read_optimizer() {
    const auto type = in_.word("optimizer.type");
    if (!type) {
      if (!in_.stated("training.optimizer")) in_.assume("training.optimizer", "adamw", "the file names none: the training script makes it");
    } else {
      std::string name;
      for (char c : *type) name += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      const double momentum = name == "sgd" && in_.has("optimizer.params.momentum") && !is_auto("optimizer.params.momentum") ? in_.number("optimizer.params.momentum").value_or(0) : 0;
      if (name == "adam" || name == "adamw" || name == "fusedadam" || name == "cpuadam" || name == "deepspeedcpuadam") in_.set("training.optimizer", "adamw", "optimizer.type");
      else if (name == "sgd") in_.set("training.optimizer", momentum > 0 ? "momentum" : "sgd", "optimizer.type");
      else if (name == "lion" || name == "fusedlion" || name == "cpulion") in_.set("training.optimizer", "lion", "optimizer.type");
      else if (name == "muon") in_.set("training.optimizer", "muon", "optimizer.type");
      else if (in_.stated("training.optimizer")) in_.use("optimizer.type", "training.optimizer of the scenario stands in its place");
      else in_.refuse("optimizer.type", "the optimizer " + *type, "Set training.optimizer to the nearest one");
    }
    read_own_adam();
    constexpr const char* key = "gradient_clipping";
    if (is_auto(key)) {
      in_.set("training.clip_gradients", "true", key, "auto: the Trainer's max_grad_norm, 1.0 unless changed");
    } else if (const auto clip = in_.number(key)) {
      in_.set("training.clip_gradients", *clip > 0 ? "true" : "false", key);
    } else {
      const bool by_default = at_least_version(in_.context().version, 0, 19, 3);
      in_.assume("training.clip_gradients", by_default ? "true" : "false", by_default ? "gradient_clipping is 1.0 since DeepSpeed 0.19.3" : "gradient_clipping was 0 before DeepSpeed 0.19.3");
    }
  }

  /// PyTorch's Adam in place of DeepSpeed's kernels: a few more passes on the GPU, several times the time on the CPU.
  void read_own_adam() {
    constexpr const char* key = "optimizer.params.torch_adam";
    if (!in_.has(key) || is_auto(key)) return;
    const bool own = in_.flag(key).value_or(false);
    if (own && in_.fragment().find("memory.offload.optimizer") != nullptr) return in_.refuse(key, "PyTorch's own Adam on the CPU");
    in_.use(key, own ? "DeepSpeed's fused kernel is simulated in place of PyTorch's own" : "DeepSpeed's fused kernel");
  }

  /// The section says how checkpoints are kept; that the model makes them is taken from any of these being on.
  void read_checkpointing() {
    const std::string at = "activation_checkpointing.";
    const bool partition = in_.flag(at + "partition_activations").value_or(false), cpu = in_.flag(at + "cpu_checkpointing").value_or(false);
    const bool contiguous = in_.flag(at + "contiguous_memory_optimization").value_or(false);
    const bool synchronised = in_.flag(at + "synchronize_checkpoint_boundary").value_or(false);
    const std::int64_t number = in_.integer(at + "number_checkpoints", config::non_negative).value_or(0);
    if (!partition && !cpu && !contiguous && number == 0) return;
    in_.assume("memory.recompute", "full", "activation_checkpointing is configured; the model must call it");
    if (partition) {
      std::int64_t tensor = in_.stated_integer("parallelism.tensor").value_or(in_.integer("tensor_parallel.autotp_size").value_or(1));
      if (tensor > 1 || contiguous) in_.set("memory.partition_activations", "true", at + "partition_activations");
      else in_.use(at + "partition_activations", "one tensor-parallel rank: nothing to partition");
    }
    if (cpu) in_.set("memory.offload.activations", "cpu", at + "cpu_checkpointing");
    if (contiguous) in_.set("memory.contiguous_checkpoints", "true", at + "contiguous_memory_optimization");
    if (contiguous && number > 0) in_.set("memory.number_checkpoints", std::to_string(number), at + "number_checkpoints");
    else if (number > 0) in_.use(at + "number_checkpoints", "sizes the buffers of contiguous_memory_optimization, which is off");
    if (synchronised) in_.set("memory.synchronize_checkpoints", "true", at + "synchronize_checkpoint_boundary");
  }

  Importer in_;
  std::int64_t stage_ = 0, sequence_ = 1;
  std::string precision_ = "bf16", reduce_;
};

}  // namespace

config::Value parse_deepspeed(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  refuse_variables(file_name, given);
  return parse_commented_json(text, file_name);
}

bool is_deepspeed(const config::Value& root, const std::string&) {
  for (const char* key : {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu"})
    if (root.find(key) != nullptr) return true;
  return false;
}

Imported read_deepspeed(const config::Value& root, const Context& context) { return DeepSpeed(root, context).read(); }

}  // namespace rehearse::importers
