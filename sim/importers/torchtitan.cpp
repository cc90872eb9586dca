// torchtitan's configuration: TOML up to February 2026 (pytorch/torchtitan#2386), JSON of the trainer since then.
// Source: torchtitan/config/job_config.py before that change, config/configs.py of August 2026.
#include <fmt/core.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/config/units.h"
#include "sim/importers/importer.h"
#include "sim/importers/readers.h"
#include "sim/importers/toml_document.h"
#include "sim/importers/torchtitan_keys.h"
#include "sim/model/model_fields.h"
#include "sim/model/presets.h"

namespace rehearse::importers {
namespace {

using config::between;
using config::positive;

class Torchtitan {
 public:
  Torchtitan(const config::Value& root, const Context& context) : in_(root, context, torchtitan_vocabulary()) {}

  Imported read() {
    read_model();
    read_norm();
    read_parallelism();
    read_batch();
    read_precision();
    read_checkpointing();
    read_rest();
    return in_.finish("torchtitan");
  }

 private:
  /// The first of several spellings that the file has; the first of all when it has none.
  const char* spelling(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (in_.has(name)) return name;
    return *names.begin();
  }

  void read_model() {
    const char *name_key = spelling({"model.name", "model_spec.name"}), *flavor_key = spelling({"model.flavor", "model_spec.flavor"});
    const std::string name = in_.word(name_key).value_or(""), full = in_.word(flavor_key).value_or("");
    // A map without a width only changes what the file names.
    const config::Value* own = in_.context().scenario.find("model");
    const bool changes = own != nullptr && own->is_map() && own->find("preset") == nullptr && own->find("from") == nullptr && own->find("hidden") == nullptr;
    if (own != nullptr && !changes) {
      for (const char* key : {name_key, flavor_key})
        if (in_.has(key)) in_.ignore(key, "the scenario states the model");
      return;
    }
    std::string flavor = full.substr(0, full.find('_'));
    std::transform(flavor.begin(), flavor.end(), flavor.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    static const std::pair<const char*, const char*> kPresets[] = {{"llama 7b", "llama-2-7b"}, {"llama 13b", "llama-2-13b"}, {"llama 70b", "llama-2-70b"}, {"llama2 7b", "llama-2-7b"}, {"llama2 13b", "llama-2-13b"}, {"llama2 70b", "llama-2-70b"},
                                                                   {"llama3 8b", "llama-3-8b"}, {"llama3 70b", "llama-3-70b"}, {"llama3 405b", "llama-3.1-405b"}, {"llama4 17bx16e", "llama-4-scout"}, {"llama4 17bx128e", "llama-4-maverick"},
                                                                   {"deepseek_v3 16b", "deepseek-v2-lite"}, {"deepseek_v3 671b", "deepseek-v3"}, {"gpt_oss 20b", "gpt-oss-20b"}, {"gpt_oss 120b", "gpt-oss-120b"}};
    std::string preset;
    for (const auto& [known, ours] : kPresets)
      if (name + " " + flavor == known) preset = ours;
    if (name == "qwen3" && !flavor.empty() && flavor != "debugmodel") preset = "qwen3-" + flavor;
    if (preset.empty()) preset = model::preset_for(full).value_or("");   // a name of Hugging Face's hub: "deepseek-ai/DeepSeek-V2-Lite"
    constexpr const char* kState = "State it: model: {layers: ..., hidden: ..., ...} in the scenario, or a bundled one (rehearse model list)";
    if (preset.empty()) return in_.complain(flavor_key, full.empty() ? "the model's flavor is not in the file" : fmt::format("the flavor '{}' of '{}' is no bundled model", full, name), kState);
    try {
      layers_ = model::load_preset(preset).layer_count();
    } catch (const ConfigError&) {
      return in_.complain(flavor_key, fmt::format("the flavor '{}' of '{}' is no bundled model", full, name), kState);
    }
    if (const config::Value* own_layers = changes ? own->find("layers") : nullptr) layers_ = model::whole_number(own_layers->text());
    check_model(preset);
    in_.set("model", preset, flavor_key);
    in_.use(name_key, "names the model together with its flavor");
  }

  /// The JSON holds the model itself, which may have been changed after its flavor was chosen. It does not name classes: neither the
  /// quantised linear layers nor the dispatcher of tokens can be told from it (config/configurable.py, to_dict).
  void check_model(const std::string& preset) {
    const model::ModelDescription description = model::load_preset(preset);
    const config::Value* layers = in_.find("model_spec.model.layers");
    const auto count = layers != nullptr && layers->is_list() ? std::optional(static_cast<std::int64_t>(layers->items().size())) : in_.integer("model_spec.model.n_layers", positive);
    const char* by = layers != nullptr ? "model_spec.model.layers" : "model_spec.model.n_layers";
    constexpr const char* kState = "State the model in the scenario: model: {layers: ..., hidden: ..., ...}";
    if (count && *count != description.layer_count()) in_.complain(by, fmt::format("the file's model has {} layers, {} has {}", *count, preset, description.layer_count()), kState);
    const auto width = in_.integer("model_spec.model.dim", positive);
    if (width && *width != description.hidden) in_.complain("model_spec.model.dim", fmt::format("the file's model is {} wide, {} is {}", *width, preset, description.hidden), kState);
    if (in_.has("model_spec.name")) in_.remark("training.precision", "products of 16 bits (the file cannot tell: set training.precision: fp8-rowwise or mxfp8 where the model was converted)");
  }

  /// An option of 2024. Source: pytorch/torchtitan torchtitan/models/norms.py of that year.
  void read_norm() {
    constexpr const char* key = "model.norm_type";
    const auto norm = in_.word(key);
    if (!norm) return;
    if (norm->ends_with("rmsnorm")) in_.use(key, "the framework profile states how the norm is computed");
    else in_.refuse(key, "the norm " + *norm, "State the model's norm in the scenario, and " + how_to_leave_out(key));
  }

  std::int64_t degree(std::initializer_list<const char*> names, const char* ours) {
    const char* key = spelling(names);
    const auto v = in_.integer(key, between(1, 1 << 20));
    if (v && ours != nullptr) in_.set(ours, std::to_string(*v), key);
    return std::max<std::int64_t>(1, ours != nullptr ? in_.stated_integer(ours).value_or(v.value_or(1)) : v.value_or(1));
  }

  void read_parallelism() {
    tensor_ = degree({"parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", "training.sequence_parallel_degree"}, "parallelism.tensor");
    stages_ = degree({"parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree", "training.pipeline_parallel_degree"}, "parallelism.pipeline");
    context_ = degree({"parallelism.context_parallel_degree", "experimental.context_parallel_degree"}, "parallelism.context");
    expert_ = degree({"parallelism.expert_parallel_degree"}, "parallelism.expert");
    degree({"parallelism.expert_tensor_parallel_degree"}, "parallelism.expert_tensor");
    if (const auto backend = in_.word("parallelism.expert_parallel_comm_backend")) {
      if (*backend == "standard") in_.set("experts.dispatcher", "all-to-all", "parallelism.expert_parallel_comm_backend");
      else if (*backend == "deepep") in_.set("experts.dispatcher", "deepep", "parallelism.expert_parallel_comm_backend");
      else in_.refuse("parallelism.expert_parallel_comm_backend", "the dispatcher " + *backend);
    }
    if (tensor_ > 1) {
      const bool split = in_.flag("parallelism.enable_sequence_parallel").value_or(true);
      if (in_.has("parallelism.enable_sequence_parallel")) in_.set("parallelism.sequence_parallel", split ? "true" : "false", "parallelism.enable_sequence_parallel");
      else in_.assume("parallelism.sequence_parallel", "true", "torchtitan's tensor parallelism always has it");
    } else if (in_.has("parallelism.enable_sequence_parallel")) {
      in_.use("parallelism.enable_sequence_parallel", "one tensor-parallel rank: nothing to split");
    }
    const char* overlap = spelling({"parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel", "compile.enable_async_tensor_parallel"});
    if (in_.flag(overlap).value_or(false)) {
      if (tensor_ > 1) in_.set("parallelism.overlap_tensor", "true", overlap);
      else in_.use(overlap, "one tensor-parallel rank: nothing to overlap");
    }
    read_rotation();
    const char *shard_key = spelling({"parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree"}),
               *replicate_key = spelling({"parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"});
    const std::int64_t shard = in_.integer(shard_key, between(-1, 1 << 20)).value_or(-1), replicate = in_.integer(replicate_key, between(1, 1 << 20)).value_or(1);
    if (shard == 0) return in_.complain(shard_key, "0 ranks cannot hold a shard", "Use -1 for the rest of the GPUs");
    if (shard == 1 && replicate > 1) {
      in_.set("data_parallel.kind", "ddp", replicate_key);
    } else {
      if (in_.has(shard_key)) in_.set("data_parallel.kind", "fsdp2", shard_key);
      else in_.assume("data_parallel.kind", "fsdp2", "parameters are sharded over the rest of the GPUs");
    }
    const std::int64_t others = bounded_product({tensor_, stages_, context_});
    if (const auto stated = in_.stated_integer("parallelism.data")) ranks_ = *stated;
    else if (shard > 0) ranks_ = bounded_product({shard, replicate});
    else if (in_.context().gpus && others <= *in_.context().gpus && *in_.context().gpus % bounded_product({others, replicate}) == 0) ranks_ = *in_.context().gpus / others;
    if (shard > 0) in_.fragment().set("parallelism.data", std::to_string(bounded_product({shard, replicate})), in_.find(shard_key)->place());
    if (replicate > 1 && shard != 1) {
      if (shard > 0) in_.set("parallelism.data_shard", std::to_string(shard), shard_key);
      else if (ranks_) in_.set("parallelism.data_shard", std::to_string(std::max<std::int64_t>(1, *ranks_ / replicate)), replicate_key);
      else in_.complain(shard_key, "-1 is the rest of the GPUs, whose number is not known", "Give the scenario a cluster");
    } else if (in_.has(replicate_key)) {
      in_.use(replicate_key, shard == 1 ? "every rank holds a replica" : "no replicas");
    }
    const std::string reshard = in_.word("parallelism.fsdp_reshard_after_forward").value_or("default");
    if (reshard != "default" && reshard != "always" && reshard != "never") in_.complain("parallelism.fsdp_reshard_after_forward", fmt::format("'{}' is no policy", reshard), "Use default, always or never");
    const bool drops = reshard == "always" || (reshard == "default" && stages_ == 1);
    if (in_.has("parallelism.fsdp_reshard_after_forward")) in_.set("data_parallel.reshard_after_forward", drops ? "true" : "false", "parallelism.fsdp_reshard_after_forward");
    else in_.assume("data_parallel.reshard_after_forward", drops ? "true" : "false", "the default: not with pipeline stages");
    if (stages_ > 1) read_pipeline();
    else pass_over_pipeline();
  }

  void pass_over_pipeline() {
    for (const char* key : {"parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_layers_per_stage",
                            "parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers",
                            "parallelism.pipeline_parallel_microbatch_size", "parallelism.num_pp_microbatches"})
      if (in_.has(key)) in_.use(key, "one stage: no pipeline");
  }

  /// How torch.distributed.tensor.experimental brings keys and values to the ranks of a context group.
  void read_rotation() {
    const char* key = spelling({"parallelism.context_parallel_rotate_method", "experimental.context_parallel_rotate_method"});
    const auto method = in_.word(key);
    if (method && *method != "allgather" && *method != "alltoall") return in_.complain(key, fmt::format("'{}' is no rotate method", *method), "Use allgather or alltoall");
    const char* kind = method.value_or("allgather") == "allgather" ? "all-gather" : "ring";
    if (context_ == 1) {
      if (method) in_.use(key, "one context-parallel rank: nothing to rotate");
    } else if (method) {
      in_.set("parallelism.context_kind", kind, key);
    } else {
      in_.assume("parallelism.context_kind", kind, "PyTorch gathers keys and values unless told to rotate them");
    }
  }

  void read_pipeline() {
    constexpr const char* key = "parallelism.pipeline_parallel_schedule";
    const char* at = spelling({key, "experimental.pipeline_parallel_schedule"});
    const std::string name = in_.word(at).value_or("1F1B");
    static const std::pair<const char*, const char*> kSchedules[] = {{"1F1B", "1f1b"}, {"GPipe", "gpipe"}, {"Interleaved1F1B", "pytorch-interleaved-1f1b"}, {"InterleavedZeroBubble", "pytorch-interleaved-zero-bubble"}, {"ZBVZeroBubble", "zb-v"}, {"DualPipeV", "dualpipev"}};
    const char* csv = spelling({"parallelism.pipeline_parallel_schedule_csv", "experimental.pipeline_parallel_schedule_csv"});
    const config::Value* table = in_.find(csv);
    const bool own_table = table != nullptr && table->is_scalar() && !table->text().empty();
    std::string ours;
    for (const auto& [theirs, own] : kSchedules)
      if (name == theirs) ours = own;
    if (own_table) {
      in_.set("pipeline.table", table->text(), csv);
      if (in_.has(at)) in_.use(at, "the CSV is the schedule");
    } else if (ours.empty()) {
      return in_.refuse(at, "the schedule " + name, "Set pipeline.schedule, and " + how_to_leave_out(at));
    } else if (in_.has(at)) {
      in_.set("pipeline.schedule", ours, at);
    } else {
      in_.assume("pipeline.schedule", ours, "1F1B unless given");
    }
    // A table's own class says whether ranks hold one stage or several (torchtitan distributed/pipeline_parallel.py).
    const bool several = name != "1F1B" && name != "GPipe" && name != "PipelineScheduleSingle";
    const auto per_stage = in_.integer("parallelism.pipeline_parallel_layers_per_stage", positive);
    const std::int64_t first = in_.integer("parallelism.pipeline_parallel_first_stage_less_layers", between(0, 1000)).value_or(1), last = in_.integer("parallelism.pipeline_parallel_last_stage_less_layers", between(0, 1000)).value_or(1);
    const auto layers = layers_ ? layers_ : in_.context().layers;
    std::int64_t chunks = several ? 2 : 1;
    if (per_stage && layers) chunks = std::max<std::int64_t>(1, (*layers + first + last + *per_stage - 1) / *per_stage / stages_);
    else if (per_stage) return in_.complain("parallelism.pipeline_parallel_layers_per_stage", "the number of stages follows from the model's layers, which are not known", "Give the scenario a model");
    constexpr const char* kHidden = "parallelism.pipeline_parallel_expert_parallel_overlap";
    if (in_.flag(kHidden).value_or(false) && ours == "dualpipev" && expert_ > 1) in_.refuse(kHidden, "the experts' exchange under another chunk's computation");
    if (chunks > 1 && !own_table) in_.assume("pipeline.virtual_stages", std::to_string(chunks), per_stage ? "from the layers per stage" : "two per rank with such a schedule");
    if (layers && bounded_product({chunks, stages_}) <= *layers) split_layers(*layers, chunks * stages_, first, last);
  }

  /// Embedding and head count as layers of the first and last stage; what does not divide goes to the first stages.
  void split_layers(std::int64_t layers, std::int64_t parts, std::int64_t first, std::int64_t last) {
    const std::int64_t all = layers + first + last, each = all / parts, extra = all % parts;
    if (first > each || last > each) return;
    std::vector<std::string> words;
    for (std::int64_t i = 0; i < parts; ++i) words.push_back(std::to_string(each + (i < extra ? 1 : 0) - (i == 0 ? first : 0) - (i == parts - 1 ? last : 0)));
    in_.fragment().set_list("pipeline.layers_per_stage", words, {in_.root().place().source, 0, 0});
    std::string shown;
    for (const std::string& w : words) shown += (shown.empty() ? "" : ", ") + w;
    in_.remark("pipeline.layers_per_stage", fmt::format("[{}] (embedding counts as {}, head as {} layers)", shown, first, last));
  }

  void read_batch() {
    constexpr const char *kTokens = "training.num_tokens_per_microbatch_per_dp_rank", *kStep = "training.num_tokens_per_train_step", *kLength = "training.max_context_length";
    const char *length_key = in_.has(kLength) ? kLength : "training.seq_len", *local_key = spelling({"training.local_batch_size", "training.batch_size"});
    const auto length = in_.integer(length_key, between(1, 1 << 26));
    const std::int64_t tokens = length.value_or(2048);
    if (length) in_.set("training.sequence_length", std::to_string(tokens), length_key);
    else in_.assume("training.sequence_length", "2048", "torchtitan's default");
    const bool in_tokens = in_.has(kTokens) || in_.has(kLength);
    std::int64_t local = 0, micro = 0;
    std::string by = local_key;
    if (in_tokens) {
      const std::int64_t all = in_.integer(kTokens, between(1, 1e15)).value_or(16384);
      by = kTokens;
      if (all % tokens != 0) return in_.complain(kTokens, fmt::format("{} tokens are no whole number of sequences of {}", all, tokens));
      local = all / tokens;
    } else {
      local = in_.integer(local_key, between(1, 1e9)).value_or(8);
    }
    const char* split_key = in_tokens ? "parallelism.num_pp_microbatches" : "parallelism.pipeline_parallel_microbatch_size";
    const auto split = stages_ > 1 ? in_.integer(split_key, between(1, 1e9)) : std::nullopt;
    micro = stages_ == 1 ? local : in_tokens ? local / split.value_or(1) : std::min(local, split.value_or(1));
    if (micro < 1 || local % micro != 0) return in_.complain(split_key, fmt::format("{} samples per rank do not divide into its micro-batches", local));
    if (in_.has(by)) in_.set("training.micro_batch_size", std::to_string(micro), by, stages_ > 1 ? fmt::format("{} samples per rank in micro-batches", local) : "");
    else in_.assume("training.micro_batch_size", std::to_string(micro), in_tokens ? "16384 tokens are torchtitan's default" : "local_batch_size is 8 unless given");
    const char* global_key = in_tokens ? kStep : "training.global_batch_size";
    std::int64_t global = in_.integer(global_key, between(-1, 1e15)).value_or(-1);
    if (in_tokens && global > 0) {
      if (global % tokens != 0) return in_.complain(global_key, fmt::format("{} tokens are no whole number of sequences of {}", global, tokens));
      global /= tokens;
    }
    if (global > 0) {
      const std::int64_t once = ranks_ ? bounded_product({local, *ranks_}) : 0;
      if (stages_ > 1 && once > 0 && global > once && global % once == 0)   // each run of the schedule takes the local batch (trainer.py, gradient_accumulation_steps)
        in_.set("pipeline.accumulation_steps", std::to_string(global / once), global_key, fmt::format("{} samples on {} ranks in each run of the schedule", local, *ranks_));
      return in_.set("training.global_batch_size", std::to_string(global), global_key);
    }
    if (in_.has(global_key)) in_.use(global_key, "no accumulation: one local batch per rank");
    if (in_.stated("training.global_batch_size")) return;
    if (!ranks_) return in_.complain(global_key, "the global batch is the local one on every data-parallel rank, whose number is not known", "Give the scenario a cluster, or set training.global_batch_size");
    in_.assume("training.global_batch_size", std::to_string(bounded_product({local, *ranks_})), fmt::format("{} samples on {} ranks, no accumulation", local, *ranks_));
  }

  /// A list; until April 2025 (pytorch/torchtitan#1123) words between commas.
  std::vector<std::string> converters() {
    std::vector<std::string> all;
    const config::Value* v = in_.find("model.converters");
    if (v == nullptr) return all;
    for (const config::Value& item : v->items()) all.push_back(item.text());
    const std::string text = v->is_scalar() ? v->text() : "";
    for (std::size_t at = text.find_first_not_of(", "); at != std::string::npos;) {
      const std::size_t end = std::min(text.find_first_of(", ", at), text.size());
      all.push_back(text.substr(at, end - at));
      at = text.find_first_not_of(", ", end);
    }
    return all;
  }

  /// training.fp8_linear of the first half of 2024: false, true, or a kind of scaling.
  void read_first_float8(bool& eight, const char*& by) {
    constexpr const char* key = "training.fp8_linear";
    const std::string kind = in_.word(key).value_or("");
    if (kind == "true" || kind == "dynamic") eight = true, by = key;
    else if (!kind.empty() && kind != "false") in_.refuse(key, "8-bit products with scaling " + kind);
    else if (in_.has(key)) in_.use(key, "products of 16 bits");
  }

  void read_precision() {
    const std::string compute = in_.word("training.mixed_precision_param").value_or("bfloat16"), stored = in_.word("training.dtype").value_or("float32");
    if (stored != "float32") in_.refuse("training.dtype", "parameters and optimizer states in " + stored);
    if (in_.has("training.mixed_precision_reduce")) {
      const std::string reduce = in_.word("training.mixed_precision_reduce").value_or("");
      in_.set("data_parallel.reduce_dtype", reduce == "float32" ? "fp32" : reduce == "bfloat16" ? "bf16" : reduce, "training.mixed_precision_reduce");
    }
    bool eight = false, block = false, by_row = false;
    const char* by = spelling({"model.converters", "training.mixed_precision_param"});
    for (const std::string& converter : converters()) {
      if (converter == "float8" || converter == "quantize.linear.float8") eight = true;
      else if (converter == "mx" || converter == "quantize.linear.mx") block = true;
      else in_.refuse("model.converters", "the converter " + converter);
    }
    for (const char* key : {"float8.enable_float8_linear", "training.enable_float8_linear"})
      if (in_.flag(key).value_or(false)) eight = true, by = key;
    read_first_float8(eight, by);
    for (const char* key : {"float8.recipe_name", "quantize.linear.float8.recipe_name"})
      if (const auto recipe = in_.word(key); recipe && eight && *recipe != "tensorwise") {
        if (*recipe != "rowwise") in_.refuse(key, "the recipe " + *recipe, "Use tensorwise or rowwise");
        else by_row = true, by = key;
      }
    read_float8_gather(eight, by_row);
    if (eight || block) in_.set("training.precision", block ? "mxfp8" : by_row ? "fp8-rowwise" : "fp8", by);
    else if (in_.has("training.mixed_precision_param")) in_.set("training.precision", compute == "bfloat16" ? "bf16" : compute == "float32" ? "fp32" : compute, "training.mixed_precision_param");
    else in_.assume("training.precision", "bf16", "mixed_precision_param is bfloat16 unless given");
  }

  /// Weights that FSDP gathers in 8 bits, and when their scales are found. torchtitan asks for one scale per weight, and shards.
  void read_float8_gather(bool eight, bool by_row) {
    const config::Value* kind = in_.fragment().find("data_parallel.kind");
    const bool shards = kind != nullptr && kind->text() == "fsdp2";
    for (const std::string at : {"float8.", "quantize.linear.float8.", "training."}) {
      const std::string gather = at + "enable_fsdp_float8_all_gather", ahead = at + "precompute_float8_dynamic_scale_for_fsdp";
      const bool on = in_.flag(gather).value_or(false), scaled_ahead = in_.flag(ahead).value_or(false);
      const bool applies = on && eight && shards;
      if (applies && by_row) in_.refuse(gather, "8-bit gathering of weights with a scale per row", "torchtitan refuses it as well");
      else if (applies) in_.set("data_parallel.fp8_gather", scaled_ahead ? "scaled-ahead" : "scaled-by-weight", gather);
      else if (in_.has(gather)) in_.use(gather, "parameters are gathered in 16 bits");
      if (in_.has(ahead)) in_.use(ahead, applies && scaled_ahead ? "scales are found after the optimizer" : "no scales to find ahead");
    }
  }

  void read_checkpointing() {
    const config::Value* section = in_.root().find("activation_checkpoint");
    const bool resolved = section != nullptr && section->find("mode") == nullptr && in_.root().find("model_spec") != nullptr;
    if (resolved) {
      // The JSON does not name the class; its fields tell it.
      if (section->is_null()) in_.assume("memory.recompute", "none", "activation_checkpoint is null");
      else if (section->find("memory_budget") != nullptr) in_.refuse("activation_checkpoint.memory_budget", "a memory budget");
      else in_.assume("memory.recompute", section->find("force_recompute_mm_shapes_by_fqns") != nullptr ? "selective" : "full", "the fields of activation_checkpoint");
      return;
    }
    const std::string mode = in_.word("activation_checkpoint.mode").value_or("selective"), option = in_.word("activation_checkpoint.selective_ac_option").value_or("2");
    if (mode == "memory_budget") return in_.refuse("activation_checkpoint.mode", "a memory budget");
    if (mode != "none" && mode != "full" && mode != "selective") return in_.complain("activation_checkpoint.mode", fmt::format("'{}' is no mode", mode), "Use none, selective or full");
    const bool given = in_.has("activation_checkpoint.mode");
    const auto every = config::parse_integer(option);
    const bool layers = mode == "selective" && option != "op";
    if (layers && (!every || *every.value < 1)) return in_.complain("activation_checkpoint.selective_ac_option", fmt::format("'{}' is neither op nor a number of layers", option));
    const std::string ours = layers ? "full" : mode;
    if (given) in_.set("memory.recompute", ours, "activation_checkpoint.mode", layers ? "whole layers" : "");
    else in_.assume("memory.recompute", ours, "mode is selective unless given");
    if (layers && in_.has("activation_checkpoint.selective_ac_option")) in_.set("memory.recompute_every", option, "activation_checkpoint.selective_ac_option");
    else if (layers) in_.assume("memory.recompute_every", option, "selective_ac_option is 2 unless given");
  }

  void read_rest() {
    const char* compile = spelling({"compile.enable", "training.compile"});
    // Source: models/llama3/infra/parallelize.py: compile.enable and "model" in compile.components; components/loss.py, the same with "loss".
    const config::Value* parts = in_.find("compile.components");
    const auto names = [&](const char* part) { return parts == nullptr || std::any_of(parts->items().begin(), parts->items().end(), [&](const config::Value& item) { return item.text() == part; }); };
    const bool asked = in_.flag(compile).value_or(false), on = asked && names("model"), loss = names("loss");
    // Files were TOML until 2026-02 (9810191bb).
    const bool now = in_.root().find("model_spec") != nullptr;
    const std::string framework = !on ? now ? "torchtitan" : "torchtitan-2025" : !loss || std::string_view(compile) != "compile.enable" ? "torchtitan-compile-2024" : now ? "torchtitan-compile" : "torchtitan-2025-compile";
    if (compile == std::string_view("compile.enable") && in_.has("training.compile")) in_.ignore("training.compile", "an early name of compile.enable, which is given too");
    if (in_.has(compile)) in_.set("training.framework", framework, compile, asked && !on ? "compile.components leaves out the model" : "");
    else in_.assume("training.framework", framework, "the file is torchtitan's; compile is off unless given");
    if (asked && !on && loss && !now) in_.set("training.cross_entropy", "compiled", "compile.components", "the loss alone is compiled");
    else if (asked && !on) in_.use("compile.components", loss ? "the loss alone is compiled, which is simulated as if it were not" : "nothing that is simulated is compiled");
    if (const auto stops = in_.flag("activation_checkpoint.early_stop")) {
      if (on) in_.use("activation_checkpoint.early_stop", "of what is compiled nothing runs that nobody reads");
      else in_.set("profile.early_stop_recompute", *stops ? "true" : "false", "activation_checkpoint.early_stop");
    }
    if (in_.flag("training.enable_cpu_offload").value_or(false)) {
      in_.set("memory.offload.parameters", "cpu", "training.enable_cpu_offload");
      in_.set("memory.offload.optimizer", "cpu", "training.enable_cpu_offload");
    }
    read_graphs();
    read_optimizer();
    read_chunked_loss();
    if (const auto norm = in_.number("training.max_norm")) in_.set("training.clip_gradients", *norm > 0 ? "true" : "false", "training.max_norm");
  }

  /// Forward and backward are one graph unless stages or experts' exchanges, which ask the host for sizes, forbid it; so is the update here. Files from before
  /// mid-2026 know nothing of it. Source: pytorch/torchtitan torchtitan/config/configs.py, disable_cuda_graphs.
  void read_graphs() {
    constexpr const char* key = "training.disable_cuda_graphs";
    const auto off = in_.flag(key);
    if (!off) return;
    if (*off) in_.set("training.cuda_graph", "false", key);
    else if (stages_ > 1 || expert_ > 1) in_.use(key, stages_ > 1 ? "pipelines run without graphs" : "exchanges of experts' tokens run without graphs");
    else in_.set("training.cuda_graph", "true", key, "forward and backward, and here the update, are one graph");
  }

  /// One name; since 2026 a list of groups of parameters, each with its own (components/optimizer/optimizer.py).
  void read_optimizer() {
    constexpr const char *kName = "optimizer.name", *kGroups = "optimizer.param_groups", *kHow = "optimizer.implementation";
    const config::Value* groups = in_.find(kGroups);
    const char* by = groups != nullptr && groups->is_list() && !groups->items().empty() ? kGroups : kName;
    std::vector<std::string> names;
    if (by == kName) names.push_back(in_.word(kName).value_or("AdamW"));
    else
      for (const config::Value& group : groups->items())
        if (const config::Value* name = group.find("optimizer_name"); name != nullptr && name->is_scalar()) names.push_back(name->text());
    const auto other = std::find_if(names.begin(), names.end(), [](const std::string& name) { return name != "AdamW" && name != "Adam"; });
    if (other != names.end()) return in_.refuse(by, "the optimizer " + *other, "Set training.optimizer, and " + how_to_leave_out(by));
    if (in_.has(by)) in_.set("training.optimizer", "adamw", by);
    else in_.assume("training.optimizer", "adamw", "torchtitan's default");
    const std::string how = in_.word(kHow).value_or("");
    if (how == "fused_opt_states_bf16") in_.set("training.optimizer_state_dtype", "bf16", kHow);
    else if (how == "foreach") in_.set("profile.fused_optimizer", "false", kHow);
  }

  /// Output layer and loss a piece at a time (components/loss.py, ChunkedLossWrapper).
  void read_chunked_loss() {
    constexpr const char* key = "loss.num_chunks";
    const auto chunks = in_.integer(key, positive);
    if (!chunks) return;
    if (in_.stated("training.cross_entropy")) return in_.use(key, "training.cross_entropy of the scenario stands in its place");
    in_.set("training.cross_entropy", "chunked-linear", key);
    in_.set("training.loss_chunks", std::to_string(*chunks), key);
  }

  Importer in_;
  std::int64_t tensor_ = 1, stages_ = 1, context_ = 1, expert_ = 1;
  std::optional<std::int64_t> ranks_, layers_;
};

}  // namespace

config::Value parse_torchtitan(const std::string& text, const std::string& file_name, const ShellVariables& given) {
  refuse_variables(file_name, given);
  const std::size_t start = text.find("Running with configs:");
  const std::size_t brace = start == std::string::npos ? std::string::npos : text.find('{', start);
  if (brace != std::string::npos) {
    // The JSON object inside a log: everything around it becomes blank, so that its places stay.
    std::string blank = text;
    std::size_t end = brace;
    int depth = 0;
    bool quoted = false;
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (quoted && c == '\\') ++end;
      else if (c == '"') quoted = !quoted;
      else if (!quoted && c == '{') ++depth;
      else if (!quoted && c == '}' && --depth == 0) break;
    }
    for (std::size_t i = 0; i < blank.size(); ++i)
      if ((i < brace || i > end) && blank[i] != '\n') blank[i] = ' ';
    return config::parse_document(std::move(blank), file_name).root;
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return parse_commented_json(text, file_name);
  return parse_toml(text, file_name);
}

bool is_torchtitan(const config::Value& root, const std::string&) {
  const config::Value *training = root.find("training"), *model = root.find("model");
  if (root.find("model_spec") != nullptr) return true;
  if (training == nullptr || !training->is_map()) return false;
  for (const char* key : {"seq_len", "local_batch_size", "max_context_length", "mixed_precision_param"})
    if (training->find(key) != nullptr) return model != nullptr || root.find("parallelism") != nullptr;
  return false;
}

Imported read_torchtitan(const config::Value& root, const Context& context) { return Torchtitan(root, context).read(); }

}  // namespace rehearse::importers
