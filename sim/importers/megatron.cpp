// Megatron-LM: whichever of its forms the arguments come in, one table reads them.
#include "sim/importers/megatron.h"

#include <fmt/core.h>

#include "sim/config/document.h"
#include "sim/config/units.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/megatron_parts.h"
#include "sim/importers/readers.h"
#include "sim/importers/shell_commands.h"

namespace rehearse::importers {
namespace {

using config::between;
using config::positive;

class Megatron {
 public:
  Megatron(const config::Value& arguments, const Context& context)
      : layer_(megatron_layer(arguments)), dump_(arguments.find("consumed_train_samples") != nullptr || arguments.find("world_size") != nullptr), in_(arguments, context, megatron_vocabulary(dump_)) {}

  Imported read() {
    const bool deepspeed = in_.has("deepspeed_config"), bridge = in_.has(kSections);
    const char* early = deepspeed || bridge ? nullptr : early_argument();
    if (bridge) in_.set("training.framework", "megatron-bridge", kSections, "sections of Megatron-Bridge: " + in_.word(kSections).value_or(""));
    else if (early != nullptr) in_.assume("training.framework", "megatron-2021", fmt::format("{} is an argument of Megatron-LM before Megatron-Core", early));
    else in_.assume("training.framework", deepspeed ? "megatron-deepspeed" : "megatron-core", "the arguments are Megatron's");
    read_program();
    read_sourced();
    take("seq_length", "training.sequence_length", between(1, 1 << 26));
    read_batch();
    read_precision();
    read_optimizer();
    read_layer_options();
    if (!deepspeed) read_megatron_kernels(in_, layer_);
    read_recomputation();
    read_megatron_parallelism(in_);
    read_instances();
    read_megatron_environment(in_);
    assume_global_batch();
    read_megatron_model(in_, layer_);
    if (deepspeed) add_deepspeed();
    return in_.finish("megatron");
  }

 private:
  /// Arguments that left Megatron-LM when it took its layers from Megatron-Core, in 2023.
  const char* early_argument() {
    for (const char* name : {"DDP_impl", "activations_checkpoint_method", "checkpoint_activations", "scatter_gather_tensors_in_pipeline", "no_scatter_gather_tensors_in_pipeline"})
      if (in_.has(name)) return name;
    return nullptr;
  }

  /// The script's name alone tells an encoder's arguments from a decoder's.
  void read_program() {
    for (const char* picture : {"img_h", "patch_dim"})   // the dump of a decoder has their defaults
      if (in_.has(picture) && !dump_) in_.refuse(picture, "an encoder of pictures");
    const auto program = in_.word(kProgram);
    if (!program) return;
    if (!program->starts_with("pretrain") && !program->starts_with("train") && !program->starts_with("finetune"))
      return in_.refuse(kProgram, fmt::format("what {} does, which by its name is no training,", *program));
    std::string word;
    for (const char c : *program + "_") {
      if (c != '_' && c != '.') {
        word += c;
        continue;
      }
      for (const std::string_view other : {"bert", "t5", "retro", "ict", "vision", "vl", "vlm", "llava", "omni", "mimo"})
        if (word == other) return in_.refuse(kProgram, fmt::format("what {} trains, which is no decoder of text alone,", *program));
      word.clear();
    }
    in_.use(kProgram, "trains a decoder of text");
  }

  /// What a file that cannot be read would have set is missing.
  void read_sourced() {
    for (const std::string& key : in_.keys_below(kSourced)) {
      const std::string problem = in_.find(key)->text();
      if (problem.empty()) in_.use(key, "read where it is sourced");
      else if (prepares_shell(key)) in_.ignore(key, "prepares the shell");
      else in_.leave(key, "sourced file not read: " + problem);
    }
  }

  void read_batch() {
    const char* micro = in_.has("micro_batch_size") ? "micro_batch_size" : "batch_size";
    take(micro, "training.micro_batch_size", between(1, 1e12));
    take("global_batch_size", "training.global_batch_size", between(1, 1e12));
  }

  void take(const char* name, const char* ours, const config::Limits& limits) {
    if (const auto v = in_.integer_or_stated(name, ours, limits); v && !in_.is_open(name)) in_.set(ours, std::to_string(*v), name);
  }

  std::optional<std::int64_t> known(const char* ours) {
    const config::Value* v = find_dotted(in_.context().scenario, ours);
    if (v == nullptr) v = in_.fragment().find(ours);
    return v != nullptr && v->is_scalar() ? config::parse_integer(v->text()).value : std::nullopt;
  }

  /// Data-parallel ranks of the machines that are known by now.
  std::optional<std::int64_t> data_ranks() {
    if (const auto stated = known("parallelism.data")) return stated;
    const std::int64_t model = bounded_product({known("parallelism.tensor").value_or(1), known("parallelism.pipeline").value_or(1), known("parallelism.context").value_or(1)});
    const auto nodes = known("cluster.nodes"), per_node = known("cluster.gpus_per_node");
    auto gpus = in_.context().gpus;
    if (nodes && (per_node || in_.context().gpus_per_node)) gpus = bounded_product({*nodes, per_node.value_or(in_.context().gpus_per_node.value_or(1))});
    return gpus && model > 0 && *gpus % model == 0 ? std::optional(*gpus / model) : std::nullopt;
  }

  /// Several instances of the distributed optimizer: states are shared within each, gradients reduced over all (megatron/core/parallel_state.py).
  void read_instances() {
    constexpr const char* key = "num_distributed_optimizer_instances";
    const std::int64_t instances = in_.integer(key, positive).value_or(1);
    if (instances == 1) return in_.has(key) ? in_.use(key, "one instance") : void();
    const auto ranks = data_ranks();
    if (!ranks || *ranks % instances != 0) return in_.complain(key, ranks ? fmt::format("{} data-parallel ranks are not as many for each of {} instances", *ranks, instances) : "how many ranks share the states follows from the number of GPUs, which is not known", "Set parallelism.data_shard");
    in_.set("parallelism.data_shard", std::to_string(*ranks / instances), key);
  }

  /// Without --global-batch-size there is no accumulation. Source: megatron/training/arguments.py, validate_args.
  void assume_global_batch() {
    if (in_.has("global_batch_size") || in_.stated("training.global_batch_size")) return;
    const auto ranks = data_ranks(), micro = known("training.micro_batch_size");
    if (micro.value_or(0) < 1 || ranks.value_or(0) < 1) return in_.complain("global_batch_size", "is not among the arguments (it would be micro-batch x data-parallel ranks)", "Set training.global_batch_size");
    in_.assume("training.global_batch_size", std::to_string(bounded_product({*micro, *ranks})), fmt::format("{} samples on {} data-parallel ranks, no accumulation", *micro, *ranks));
  }

  /// mixed_precision by its name. Source: NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/common.py, _pretrain_common and _sft_common;
  /// training/mixed_precision.py.
  void read_bridge_precision() {
    constexpr const char *kRecipe = "mixed_precision", *kWide = "grad_reduce_in_fp32";
    const std::string word = in_.word(kRecipe).value_or("bf16_mixed");
    const auto says = [&](const char* part) { return word.find(part) != std::string::npos; };
    const char* format = says("nvfp4") ? "nvfp4" : says("mxfp8") ? "mxfp8" : says("fp8") ? "fp8" : word.starts_with("bf16") ? "bf16" : word.starts_with("fp16") ? "fp16" : nullptr;
    if (format == nullptr) return in_.complain(kRecipe, fmt::format("'{}' is no recipe that is known here", word), "Use bf16_mixed, fp16_mixed, bf16_with_fp8_current_scaling_mixed, bf16_with_mxfp8_mixed or bf16_with_nvfp4_mixed");
    in_.set("training.precision", format, kRecipe, in_.has(kRecipe) ? "" : "Megatron-Bridge's recipes train in bf16_mixed");
    const char* sum = in_.flag(kWide).value_or(true) ? "fp32" : "bf16";
    in_.set("data_parallel.gradient_dtype", sum, kWide, in_.has(kWide) ? "" : "grad_reduce_in_fp32 is true in Megatron-Bridge's recipes");
    in_.fragment().set("data_parallel.reduce_dtype", sum, in_.root().place());
  }

  void read_precision() {
    if (in_.has(kSections) && !in_.has("bf16") && !in_.has("fp16")) return read_bridge_precision();
    std::string eight = in_.word("fp8_format").value_or(in_.word("fp8").value_or(""));
    const char* first_spelling = in_.flag("fp8_hybrid").value_or(false) ? "fp8_hybrid" : in_.flag("fp8_e4m3").value_or(false) ? "fp8_e4m3" : nullptr;   // Megatron of 2023
    if (first_spelling != nullptr && eight.empty()) eight = "hybrid";
    const std::string four = in_.word("fp4_format").value_or(in_.word("fp4").value_or(""));
    const std::string recipe = in_.word("fp8_recipe").value_or("delayed");
    const bool bf16 = in_.flag("bf16").value_or(false), fp16 = in_.flag("fp16").value_or(false);
    const bool use8 = !eight.empty() && eight != "False" && eight != "false", use4 = !four.empty() && four != "False" && four != "false";
    if (use4) {
      in_.set("training.precision", "nvfp4", in_.has("fp4_format") ? "fp4_format" : "fp4");
    } else if (use8) {
      const char* by = in_.has("fp8_format") ? "fp8_format" : in_.has("fp8") ? "fp8" : first_spelling;
      if (recipe == "mxfp8") in_.set("training.precision", "mxfp8", "fp8_recipe");
      else if (recipe == "delayed" || recipe == "tensorwise") in_.set("training.precision", "fp8", by);
      else if (recipe == "blockwise") in_.set("training.precision", "fp8", by, "scales of blocks are not simulated: operands are cast in one pass, as with delayed scaling");
      else in_.refuse("fp8_recipe", "the recipe " + recipe, "Set training.precision, and " + how_to_leave_out("fp8_recipe"));
      if (in_.has("fp8_recipe") && recipe != "mxfp8" && !in_.has("deepspeed_config")) in_.set("profile.current_scaling", recipe == "tensorwise" ? "true" : "false", "fp8_recipe", recipe == "tensorwise" ? "scales are found by a pass over the tensor itself" : "");
    } else if (bf16) {
      in_.set("training.precision", "bf16", "bf16");
    } else if (fp16) {
      in_.set("training.precision", "fp16", "fp16");
    } else {
      in_.assume("training.precision", "fp32", "neither bf16 nor fp16 is set");
    }
    const auto first = in_.integer("num_layers_at_start_in_bf16", between(0, 10000)), last = in_.integer("num_layers_at_end_in_bf16", between(0, 10000));
    if (in_.flag("first_last_layers_bf16").value_or(false) && (use8 || use4)) {
      in_.set("training.first_layers_16bit", std::to_string(first.value_or(1)), first ? "num_layers_at_start_in_bf16" : "first_last_layers_bf16");
      in_.set("training.last_layers_16bit", std::to_string(last.value_or(1)), last ? "num_layers_at_end_in_bf16" : "first_last_layers_bf16");
    }
    if (in_.flag("grad_reduce_in_bf16").value_or(false)) {
      in_.set("data_parallel.reduce_dtype", "bf16", "grad_reduce_in_bf16");
      in_.set("data_parallel.gradient_dtype", "bf16", "grad_reduce_in_bf16");
    }
    read_gradient_format(fp16 && !bf16, bf16);
    if (const auto bucket = in_.integer("ddp_bucket_size", between(1, 1e15))) in_.set("data_parallel.bucket", fmt::format("{} B", *bucket * reduce_bytes_), "ddp_bucket_size", fmt::format("{} elements of {} bytes", *bucket, reduce_bytes_));
  }

  /// bf16 switches fp32 on, fp16 does not. Source: megatron/training/arguments.py, validate_args; distributed_data_parallel.py: buffers of
  /// param.dtype otherwise. Under DeepSpeed its own file decides.
  /// The main gradients of bf16 training in bf16 leave the buffers as they are, and the optimizer reads them there.
  void read_gradient_format(bool fp16, bool bf16) {
    constexpr const char *key = "accumulate_allreduce_grads_in_fp32", *kMain = "main_grads_dtype";
    const auto wide = in_.flag(key);
    const std::string main = dtype_of(kMain);
    const bool sixteen = main == "bf16" && bf16;
    if (main != "fp32" && !sixteen) in_.refuse(kMain, "main gradients in " + main, "Use fp32, or bf16 with bf16 training");
    else if (sixteen && wide.value_or(false)) in_.refuse(kMain, "main gradients in bf16 of buffers in fp32, which Megatron refuses", "Leave out accumulate_allreduce_grads_in_fp32");
    else if (sixteen && !in_.flag("use_precision_aware_optimizer").value_or(false)) in_.refuse(kMain, "main gradients in bf16 without the precision-aware optimizer, which Megatron refuses", "Add use_precision_aware_optimizer");
    else if (sixteen) {
      in_.set("data_parallel.gradient_dtype", "bf16", kMain);
      in_.fragment().set("data_parallel.reduce_dtype", "bf16", in_.root().place());
    }
    const bool narrow = sixteen || in_.flag("grad_reduce_in_bf16").value_or(false) || (fp16 && !wide.value_or(false));
    reduce_bytes_ = narrow ? 2 : 4;
    if (!fp16 || in_.has("deepspeed_config")) {
      if (wide) in_.use(key, *wide ? "gradients are kept and reduced in fp32" : "the default with bf16 is fp32 all the same");
      return;
    }
    const char* format = narrow ? "fp16" : "fp32";
    in_.set("data_parallel.gradient_dtype", format, key, narrow ? "with fp16 gradients are summed in fp16 unless accumulate_allreduce_grads_in_fp32 says otherwise" : "");
    in_.fragment().set("data_parallel.reduce_dtype", format, in_.root().place());
  }

  /// Megatron's words and PyTorch's for a format; fp32 where none is given.
  std::string dtype_of(const char* name) {
    std::string word = in_.word(name).value_or("fp32");
    if (const std::size_t dot = word.rfind('.'); dot != std::string::npos) word.erase(0, dot + 1);
    return word == "float32" ? "fp32" : word == "bfloat16" ? "bf16" : word == "float16" ? "fp16" : word;
  }

  void read_optimizer() {
    const std::string name = in_.word("optimizer").value_or("adam");
    if (name == "adam" || name == "adamw") in_.set("training.optimizer", "adamw", "optimizer");
    else if (name == "sgd") in_.set("training.optimizer", "momentum", "optimizer", "sgd_momentum is 0.9 unless changed");
    else if (name == "lion" || name == "muon") in_.set("training.optimizer", name, "optimizer");
    else if (name == "dist_muon") in_.set("training.optimizer", "muon", "optimizer");
    else if (in_.stated("training.optimizer")) in_.use("optimizer", "training.optimizer of the scenario stands in its place");
    else in_.refuse("optimizer", "the optimizer " + name, "Set training.optimizer to the nearest one");
    if (const auto clip = in_.number("clip_grad")) in_.set("training.clip_gradients", *clip > 0 ? "true" : "false", "clip_grad");
    else in_.assume("training.clip_gradients", "true", "clip_grad is 1.0 unless given");
    read_state_formats();
    if (in_.flag("optimizer_cpu_offload").value_or(false)) {
      in_.set("memory.offload.optimizer", "cpu", "optimizer_cpu_offload");
      if (const auto part = in_.number("optimizer_offload_fraction"); part && *part < 1) in_.set("memory.offload.ratio", config::number_text(*part), "optimizer_offload_fraction");
      if (in_.flag("no_pin_cpu_params").value_or(false) || !in_.flag("pin_cpu_params").value_or(true)) in_.set("memory.offload.pinned", "false", in_.has("no_pin_cpu_params") ? "no_pin_cpu_params" : "pin_cpu_params");
    }
  }

  /// Adam's moments in 16 bits: the simulation has one format for both.
  void read_state_formats() {
    read_master_format();
    const std::string first = dtype_of("exp_avg_dtype"), second = dtype_of("exp_avg_sq_dtype");
    if (first == "fp32" && second == "fp32") return;
    if (first != second || (first != "bf16" && first != "fp16")) return in_.refuse(first == "fp32" ? "exp_avg_sq_dtype" : "exp_avg_dtype", "moments in different or 8-bit formats");
    in_.set("training.optimizer_state_dtype", first, "exp_avg_dtype");
  }

  /// Transformer Engine's Adam, where it and not Megatron holds the fp32 copies, stores of them only the 16 bits that bf16 weights lack.
  /// Source: megatron/core/optimizer/optimizer_config.py (use_precision_aware_optimizer_no_fp8_or_ds_fp8, store_param_remainders), Transformer Engine from 2.1 on.
  void read_master_format() {
    constexpr const char *kAware = "use_precision_aware_optimizer", *kFormat = "main_params_dtype";
    const bool aware = in_.flag(kAware).value_or(false), eight = in_.has("fp8_format") || in_.has("fp8");
    const std::string master = dtype_of(kFormat);
    if (master == "fp16" && aware) return in_.set("profile.master_parameter", "fp16", kFormat);
    if (master != "fp32") return in_.refuse(kFormat, "master parameters in " + master + (aware ? "" : " without the precision-aware optimizer"), "Use fp32, or fp16 with use_precision_aware_optimizer");
    const bool own_copies = !aware || in_.flag("optimizer_cpu_offload").value_or(false) || (eight && in_.word("fp8_recipe").value_or("delayed") != "delayed");
    if (!own_copies && in_.flag("bf16").value_or(false)) in_.set("profile.parameter_remainders", "true", kAware);
  }

  void read_layer_options() {
    using Loss = MegatronLayer::Loss;
    const char* loss = layer_.loss == Loss::own ? "vocab-parallel" : layer_.loss == Loss::own_compiled ? "vocab-parallel-compiled" : "fused";
    if (in_.flag("cross_entropy_loss_fusion")) in_.set("training.cross_entropy", loss, "cross_entropy_loss_fusion");
    const char* fusion = in_.has("no_gradient_accumulation_fusion") ? "no_gradient_accumulation_fusion" : "gradient_accumulation_fusion";
    if (in_.flag(fusion)) in_.set("training.fused_gradient_accumulation", layer_.fused_gradient_accumulation ? "true" : "false", fusion);
    for (const char* key : {"fp8_param_gather", "fp8_param"})
      if (const auto kept = in_.flag(key)) {
        if (*kept && (in_.has("fp8_format") || in_.has("fp8"))) in_.set("training.fp8_parameters", "true", key);
        else in_.use(key, *kept ? "no products of 8 bits" : "weights of 16 bits");
      }
    // megatron/core/distributed/param_and_grad_buffer.py: weights in MXFP8 have no buffer of 16-bit ones beside the gradients'; they come in there and are cast.
    constexpr const char* kShared = "reuse_grad_buf_for_mxfp8_param_ag";
    if (const auto shared = in_.flag(kShared)) in_.use(kShared, *shared ? "gathered weights lie among the gradients until they are cast, as simulated" : "no buffer is shared");
    for (const auto& [key, ours] : {std::pair{"fp8_dot_product_attention", "training.fp8_attention"}, {"fp8_output_proj", "training.fp8_head"}})
      if (const auto narrow = in_.flag(key)) {
        if (*narrow && (in_.has("fp8_format") || in_.has("fp8"))) in_.set(ours, "true", key);
        else in_.use(key, *narrow ? "no products of 8 bits" : "products of 16 bits");
      }
    if (in_.flag("no_rope_fusion").value_or(false)) in_.set("training.fused_rope", "false", "no_rope_fusion");
    if (in_.flag("manual_gc").value_or(false))
      if (const auto steps = in_.integer("manual_gc_interval", positive)) in_.set("training.collection_interval", std::to_string(*steps), "manual_gc_interval");
    if (in_.has("transformer_impl")) in_.set("training.transformer_engine", layer_.local ? "false" : "true", "transformer_impl");
    const bool backend = in_.has("attention_backend"), flash = in_.flag("use_flash_attn").value_or(false);
    const char* by = backend ? "attention_backend" : flash ? "use_flash_attn" : "transformer_impl";
    if (layer_.unfused_attention) in_.set("training.attention", "unfused", by);
    else if (backend) in_.use(by, "a fused kernel, as the framework profile has it");
    else if (flash) in_.set("training.attention", "flash", by);
  }

  void read_recomputation() {
    // Megatron of 2021 (v2.6) switched it on by the method alone: --activations-checkpoint-method.
    const char* method_key = in_.has("activations_checkpoint_method") ? "activations_checkpoint_method" : "recompute_method";
    const char* layers_key = in_.has("activations_checkpoint_num_layers") ? "activations_checkpoint_num_layers" : in_.has("checkpoint_num_layers") ? "checkpoint_num_layers" : "recompute_num_layers";
    const bool by_method = in_.has("activations_checkpoint_method");
    const bool old = in_.flag("checkpoint_activations").value_or(false) || by_method, selective = in_.flag("recompute_activations").value_or(false);
    const std::string granularity = in_.word("recompute_granularity").value_or(old ? "full" : selective ? "selective" : "none");
    const char* by = in_.has("recompute_granularity") ? "recompute_granularity" : by_method ? method_key : old ? "checkpoint_activations" : "recompute_activations";
    if (granularity != "none" && granularity != "full" && granularity != "selective") return in_.complain(by, fmt::format("'{}' is no granularity", granularity), "Use full or selective");
    if (in_.has(by)) in_.set("memory.recompute", granularity, by);
    else in_.assume("memory.recompute", "none", "recompute_granularity is not given");
    const std::string method = in_.word(method_key).value_or(granularity == "full" ? "uniform" : "");
    const auto layers = in_.integer(layers_key, config::non_negative);
    if (layers == 0 && granularity == "full" && method != "block") return in_.complain(layers_key, "0 layers under one checkpoint", "Use 1, or the method block, which then makes none again");
    if (granularity == "full") {
      if (method == "block" && layers == 0) in_.set("memory.recompute", "none", layers_key, "the method block makes no layer again");
      else if (method == "block" && layers) in_.set("memory.recompute_layers", std::to_string(*layers), layers_key);
      else if (method == "uniform" && layers.value_or(1) > 1) in_.set("memory.recompute_span", std::to_string(*layers), layers_key);
      else if (method != "uniform" && method != "block") in_.complain(method_key, fmt::format("'{}' is no method", method), "Use uniform or block");
    }
    if (in_.flag("activation_func_fp8_input_store").value_or(false)) in_.set("memory.fp8_activation_inputs", "true", "activation_func_fp8_input_store");
    if (in_.flag("distribute_saved_activations").value_or(false)) in_.set("memory.partition_activations", "true", "distribute_saved_activations");
    read_modules(granularity);
    read_activation_offload();
    read_module_offload();
  }

  /// Transformer Engine's offloading of the first layers' activations. Newer releases have the number of layers alone switch it on.
  void read_activation_offload() {
    const bool asked = in_.flag("cpu_offloading").value_or(false);
    const auto layers = in_.integer("cpu_offloading_num_layers", config::non_negative);
    if (!asked && layers.value_or(0) == 0) return;
    if (layers.value_or(0) == 0) return in_.use("cpu_offloading", "cpu_offloading_num_layers is 0");
    if (in_.flag("cpu_offloading_weights").value_or(false)) return in_.refuse("cpu_offloading_weights", "offloading weights");
    if (!in_.flag("cpu_offloading_activations").value_or(true) || in_.flag("no_cpu_offloading_activations").value_or(false)) return in_.use("cpu_offloading_num_layers", "nothing is offloaded");
    in_.set("memory.offload.activations", "cpu", asked ? "cpu_offloading" : "cpu_offloading_num_layers");
    in_.set("memory.offload.activation_layers", std::to_string(*layers), "cpu_offloading_num_layers");
  }

  /// Offloading by modules. Balance between stages, and of the groups a fraction, are not simulated.
  void read_module_offload() {
    constexpr const char *kOn = "fine_grained_activation_offloading", *kModules = "offload_modules";
    const bool on = in_.flag(kOn).value_or(false);
    const config::Value* v = in_.find(kModules);
    for (const auto& [key, usual] : {std::pair{"delta_offload_bytes_across_pp_ranks", 0.0}, {"activation_offload_fraction", 1.0}})
      if (const auto stated = in_.number(key); stated && on && *stated != usual) in_.refuse(key, "offloading by modules other than whole");
      else if (stated) in_.use(key, on ? "the default" : "nothing is offloaded by modules");
    for (const auto& [key, ours] : {std::pair{"min_offloaded_tensor_size", "memory.offload.least_elements"}, {"fine_grained_offloading_max_inflight_offloads", "memory.offload.in_flight"}})
      if (const auto stated = in_.integer(key, config::non_negative); stated && on) in_.set(ours, std::to_string(*stated), key);
      else if (stated) in_.use(key, "nothing is offloaded by modules");
    if (in_.flag("delay_offload_until_cuda_graph")) in_.ignore("delay_offload_until_cuda_graph", "when copies are launched beside a graph, not how long they take");
    if (!on) {
      if (v != nullptr) in_.use(kModules, "nothing is offloaded by modules");
      return;
    }
    std::string text = v == nullptr ? "" : v->text();
    if (v != nullptr)
      for (const config::Value& item : v->items()) text += " " + item.text();
    const std::vector<std::string> modules = module_names(text);
    if (modules.empty()) return in_.complain(kOn, "no modules are given", "Give offload_modules");
    for (const std::string& m : modules)
      if (m == "gdp_qkv") return in_.refuse(kModules, "offloading " + m);
    in_.set_list("memory.offload.modules", modules, kModules);
    in_.use(kOn, "offload_modules says what");
  }

  void read_modules(const std::string& granularity) {
    const config::Value* v = in_.find("recompute_modules");
    if (v == nullptr || granularity != "selective") return;
    std::string text = v->text();
    for (const config::Value& item : v->items()) text += " " + item.text();
    std::vector<std::string> known;
    for (const std::string& m : module_names(text)) {
      if (m == "core_attn" || m == "layernorm" || m == "mlp" || m == "mla_up_proj" || m == "moe" || m == "moe_act" || m == "shared_experts") known.push_back(m);
      else return in_.refuse("recompute_modules", "recomputing " + m);
    }
    if (!known.empty()) in_.set_list("memory.recompute_modules", known, "recompute_modules");
  }

  /// Megatron-DeepSpeed: a DeepSpeed file stands beside the arguments.
  void add_deepspeed() {
    if (in_.add_file("deepspeed_config", "deepspeed", in_.context())) in_.fragment().set("training.framework", "megatron-deepspeed", {});
  }

  MegatronLayer layer_;
  bool dump_;   // every argument stands there, with its default
  Importer in_;
  std::int64_t reduce_bytes_ = 4;
};

bool looks_like_yaml(const std::string& text) {
  // A YAML file says `name: value` on its first line of content; a script or a command does not.
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    const std::size_t colon = line.find(':', first), space = line.find_first_of(" \t\r", first);
    return colon != std::string::npos && (space == std::string::npos || colon < space) && (colon + 1 == line.size() || line[colon + 1] == ' ' || line[colon + 1] == '\r');
  }
  return false;
}

}  // namespace

namespace {

/// A variable that is given and changes nothing is a mistake; so are arguments that the script takes in a loop.
void check_variables(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  const ShellText script = shell_words(text, file_name, given);
  std::vector<Diagnostic> mistakes;
  const auto is_argument = [](const std::string& name) { return name[0] >= '0' && name[0] <= '9'; };
  for (const auto& [name, value] : given)
    if (!is_argument(name) && !script.used.contains(name))
      mistakes.push_back({{file_name, 0, 0}, "training.variables", fmt::format("'{}' is given, but the script does not use it, or sets it itself", name), "Change it in the script, or leave it out", ""});
  if (script.shifts > 0 && std::any_of(given.begin(), given.end(), [&](const auto& v) { return is_argument(v.first); }))
    mistakes.push_back({{file_name, script.shifts, 1}, "training.variables", "the script takes its arguments one by one (shift), which is not followed", "Give the variables that it sets by name instead: --variable TP=8", ""});
  config::throw_if_any(std::move(mistakes));
}

/// Sections of Megatron-Bridge's ConfigContainer that Megatron-LM's own YAML lacks: train and another one. "" in other files.
std::string bridge_sections(const config::Value& tree) {
  std::string names;
  int others = 0;
  for (const config::Value::Entry& e : tree.entries()) {
    if (!e.value.is_map()) continue;
    for (const char* name : {"checkpoint", "logger", "ddp", "scheduler", "rng", "dataset", "validation"}) others += e.key == name ? 1 : 0;
    names += (names.empty() ? "" : ", ") + e.key;
  }
  const config::Value* train = tree.find("train");
  return train != nullptr && train->is_map() && others > 0 ? names : std::string();
}

}  // namespace

config::Value parse_megatron(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && text[first] == '{';
  const bool script = !has_argument_dump(text) && !json && !looks_like_yaml(text);
  if (script) {
    if (!given.empty()) check_variables(text, file_name, given);
    return parse_command_line(text, file_name, given);
  }
  refuse_variables(file_name, given);
  if (has_argument_dump(text)) return parse_argument_dump(text, file_name);
  const config::Value tree = json ? parse_commented_json(text, file_name) : config::parse_document(text, file_name, config::Dialect::pyyaml).root;
  const config::Value flat = flat_arguments(tree);
  const std::string sections = bridge_sections(tree);
  if (sections.empty()) return flat;
  std::vector<config::Value::Entry> entries = flat.entries();
  const config::Place head = tree.entries().front().key_place;
  entries.push_back({kSections, head, config::Value::scalar(sections, false, head, kSections)});
  return config::Value::map(std::move(entries), flat.place(), "");
}

bool is_megatron(const config::Value& root, const std::string&) {
  int known = 0;
  for (const char* name : {"num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size", "micro_batch_size", "global_batch_size", "seq_length", "pipeline_model_parallel_size", "use_distributed_optimizer"})
    known += root.find(name) != nullptr ? 1 : 0;
  return known >= 3;
}

Imported read_megatron(const config::Value& root, const Context& context) { return Megatron(root, context).read(); }

}  // namespace rehearse::importers
