#include "sim/scenario/measured_scenario.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include <fmt/core.h>

#include "sim/model/presets.h"
#include "sim/scenario/measured_alternatives.h"
#include "sim/scenario/measured_columns.h"
#include "sim/scenario/measured_memory.h"
#include "sim/scenario/measured_nanotron.h"
#include "sim/scenario/measured_settings.h"
#include "sim/scenario/measured_setup.h"
#include "sim/scenario/measured_sharding.h"
#include "sim/scenario/measured_tuning.h"
#include "sim/scenario/megatron_command.h"
#include "strategies/framework/recipes.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

class RowScenario {
 public:
  RowScenario(const config::CsvRow& row, MeasuredRun& run) : row_(row), run_(run), note_(cell(row, "note")), source_(cell(row, "source")), arguments_(command_of(cell(row, "model_args_json"))) {}

  /// In the order of these steps: later ones need what earlier ones chose.
  Scenario make() {
    begin();
    choose_setup();
    const bool command = profile_ == "megatron-core" && !arguments_.entries().empty();
    if (command && is_whole_command(arguments_)) {
      if (const auto words = integer(row_, "vocab")) arguments_ = with_vocabulary(arguments_, *words);
      choose_degrees();
      choose_ranks();
    } else {
      choose_documents();
      choose_precision();
      choose_model();
      choose_degrees();
      choose_ranks();
      choose_sequence();
      choose_batch();
      choose_parallelism();
      choose_memory();
      if (command) arguments_ = completed_command(arguments_, s_);
    }
    if (command) import_command();
    apply_stated_settings(row_, s_);
    take_measured_bandwidth();
    choose_alternatives();
    return std::move(s_);
  }

 private:
  /// The job of the row's command, a user's script as it were. Where it ran, its columns say.
  void import_command() {
    const auto text = [](const std::string& key, std::string value) { return config::Value::Entry{key, {}, config::Value::scalar(std::move(value), false, {}, "cluster." + key)}; };
    const hwmodels::ClusterDescription& c = s_.cluster;
    const config::Value cluster = config::Value::map({text("node", c.node.name), text("gpu", c.gpu.name), text("nodes", std::to_string(c.nodes)), text("gpus_per_node", std::to_string(c.gpus_per_node))}, {}, "cluster");
    Scenario s = scenario_of_command(arguments_, cell(row_, "env_vars_json"), config::Value::map({{"cluster", {}, cluster}}, {}, ""));
    s.title = s_.title;
    s.file = s_.file;
    s.model.name = cell(row_, "model");
    s.cluster = s_.cluster;
    s.strategy.tuning = s_.strategy.tuning;
    s.strategy.training.document_length = s_.strategy.training.document_length;
    s.strategy.training.documents_per_sample = s_.strategy.training.documents_per_sample;
    apply_wording(s);
    s.notes.insert(s.notes.begin(), s_.notes.begin(), s_.notes.end());
    run_.dense = s.model.experts.experts == 0;
    s_ = std::move(s);
  }

  void apply_wording(Scenario& s) { apply_readings("wording", RowFacts(row_).with("profile", profile_).with("sharding", sharding_).with("release", release_of(row_)), s); }

  void begin() {
    s_.file = row_.at().file;
    s_.title = run_.row_id;
    run_.dense = integer(row_, "n_experts").value_or(0) == 0;
    const std::string task = cell(row_, "task");
    if (!task.empty() && task != "pretrain" && task != "sft" && task != "lora" && task != "qlora") throw NotSimulated{"task '" + task + "' is not simulated: pretrain, sft, lora and qlora are"};
    RowTuning tuning = tuning_of(row_);
    if (tuning.not_simulated) throw NotSimulated{*tuning.not_simulated};
    s_.strategy.tuning = std::move(tuning.tuning);
    s_.notes = std::move(tuning.notes);
    check_counts(row_);
    // Megatron-DeepSpeed megatron/arguments.py, --ds-sequence-parallel-fpdt-chunk-size: 65536 unless given.
    if (contains(note_, "FPDT chunked")) s_.strategy.memory.sequence_chunk = 65536;
  }

  void choose_setup() {
    const ProfileChoice choice = profile_of(row_);
    profile_ = choice.name;
    if (!choice.note.empty()) s_.notes.push_back(choice.note);
    if (choice.guessed) run_.guessed_profile = choice.note;
    if (profile_.starts_with("torchtitan-2025") && cell(row_, "framework") == "torchtitan" && !contains(note_ + source_ + cell(row_, "framework_version"), "202"))
      run_.cell_notes.push_back(fmt::format("framework 'torchtitan' without a date is read as {}: write torchtitan 2026 into the column note where it is newer", profile_));
    gpu_ = gpu_of(row_);
    if (auto other = gpu_of_stated_memory(row_, gpu_)) {
      s_.notes.push_back(fmt::format("GPU taken as {}: the memory that its source gives is not {}'s", *other, gpu_));
      gpu_ = *std::move(other);
    }
    sharding_ = sharding_of(row_, profile_, s_.notes);
    const bool one_gpu = contains(note_, "all runs are single-GPU");
    // LitGPT's config_hub/finetune: `devices` is 1 for adapters, 4 for the full fine-tuning of Gemma-2B, Llama-2-7B and Llama-3-8B, whose weights,
    // gradients and AdamW states of the first alone are 20 GB beside the 17.43 GB that its README has. finetune/full.py, setup: several devices are
    // FSDP with a checkpoint around every block.
    checkpointed_fsdp_ = one_gpu && cell(row_, "task") == "sft" && integer(row_, "n_gpus").value_or(1) > 1;
    one_gpu_said_ = one_gpu && !checkpointed_fsdp_;
    if (checkpointed_fsdp_) {
      sharding_ = "fsdp";
      s_.notes.push_back("full fine-tuning on several GPUs: FSDP with block checkpoints, as LitGPT's finetune/full.py has them");
    }
    if (one_gpu_said_) {
      sharding_ = "none";
      s_.notes.push_back("ran on one GPU, as its source says");
    }
    if (profile_ == "megatron-2021" && sharding_.starts_with("zero")) profile_ = "megatron-deepspeed";
    s_.cluster = hwmodels::load_cluster(one_gpu_said_ ? "single-gpu" : node_of(row_, gpu_), 1, "rail-fat-tree", gpu_);
    apply_network(row_, s_.cluster, s_.notes);
  }

  /// Fine-tuning on questions and answers packed into long samples; attention stays within each (NeMo's THD format).
  /// Assumption: SQuAD's paragraphs with question and answer are of some 200 tokens, and long ones count for more.
  /// Of samples whose number of documents is stated, lengths are taken to lie like exponentially distributed ones: their squares over their mean are
  /// twice the mean.
  void choose_documents() {
    static const std::regex kPacked(R"(packed samples of ([0-9]{1,6}(?:\.[0-9]{1,6})?) documents)");
    if (std::smatch found; std::regex_search(note_, found, kPacked)) {
      st::Training& t = s_.strategy.training;
      t.documents_per_sample = std::max(1.0, std::stod(found[1].str()));
      t.document_length = std::max<std::int64_t>(1, std::llround(2 * static_cast<double>(integer(row_, "seq_len").value_or(1)) / *t.documents_per_sample));
      return;
    }
    if (!contains(note_, "SQuAD packed")) return;
    s_.strategy.training.document_length = 256;
    s_.notes.push_back("packed samples of SQuAD: attention within documents of 256 tokens");
  }

  void choose_precision() {
    format_ = cell(row_, "precision");
    static const std::regex kPower(R"(\b(?:limited to|power limit of) ([0-9]{2,4}) W\b)");
    if (std::smatch found; std::regex_search(note_, found, kPower)) s_.cluster.gpu.limit_watts = std::min(s_.cluster.gpu.own_watts, std::stod(found[1].str()));
    if (contains(note_, "power limited")) throw NotSimulated{"the GPUs ran under a power limit that the source does not state"};
    if (contains(note_, "no wrapping policy")) throw NotSimulated{"FSDP without a wrapping policy, the whole model one unit, is not simulated"};
    if (contains(note_, "autocast around FSDP without its MixedPrecision")) throw NotSimulated{"autocast around FSDP units that gather fp32 weights, whose residual stream is fp32, is not simulated"};
    if (contains(note_, "rowwise_with_gw_hp")) throw NotSimulated{"fp8 with row scales whose weight gradients are 16-bit products is not simulated"};
    if (format_ == "fp8" && (contains(note_, "float8 rowwise") || contains(note_, "fp8 rowwise"))) format_ = "fp8-rowwise";
    if (format_ == "nf4") format_ = "bf16";  // what products are computed in
    if (format_.empty()) {
      format_ = s_.cluster.gpu.peak.contains(DType::bf16) ? "bf16" : "fp16";
      s_.notes.push_back("precision not stated, taken as " + format_);
    }
    precision_ = precision_of(format_);
  }

  void choose_model() {
    s_.profile = st::load_profile(profile_);
    s_.model = model_of(row_, profile_, s_.notes);
    if (cell(row_, "torch_compile").starts_with("y") && !s_.profile.compiled) s_.notes.push_back(fmt::format("torch.compile stated, simulated without: the profile {} has no compiled form", profile_));
    apply_wording(s_);
    s_.profile = st::with_precision(std::move(s_.profile), precision_);
    // "nvfp4 (layers 0-26) + bf16 tail"
    static const std::regex kTail(R"(layers 0-([0-9]{1,4})\) \+ bf16 tail)");
    std::smatch tail;
    if (std::regex_search(note_, tail, kTail)) s_.strategy.training.last_layers_16bit = std::max(0, static_cast<int>(s_.model.layer_count()) - 1 - std::stoi(tail[1]));
    if (s_.profile.unties_embeddings) s_.model.tied_embeddings = false;
  }

  void choose_degrees() {
    st::Degrees& d = s_.strategy.parallelism.degrees;
    const auto recipe = recipe_of(integer(row_, "global_batch").value_or(0));
    const bool published = recipe && recipe->tensor > 0 && cell(row_, "tp").empty() && cell(row_, "dp").empty();
    d.tensor = static_cast<int>(integer(row_, "tp").value_or(published ? recipe->tensor : 1));
    d.pipeline = static_cast<int>(integer(row_, "pp").value_or(1));
    d.context = static_cast<int>(integer(row_, "cp").value_or(1));
    if (!std::any_of(s_.model.layers.begin(), s_.model.layers.end(), [](const model::Layer& l) { return l.moe; })) return;
    run_.dense = false;
    d.expert = static_cast<int>(integer(row_, "ep").value_or(1));
    // Megatron's experts are split like everything else unless told otherwise (--expert-tensor-parallel-size); its releases' recipes keep them whole.
    d.expert_tensor = static_cast<int>(integer(row_, "etp").value_or(profile_ == "megatron-core" ? d.tensor : 1));
  }

  /// The data-parallel degree from the number of GPUs, and the nodes that they fill.
  void choose_ranks() {
    st::Degrees& d = s_.strategy.parallelism.degrees;
    std::int64_t gpus = one_gpu_said_ ? 1 : integer(row_, "n_gpus").value_or(0);
    const auto data = integer(row_, "dp");
    const std::int64_t parts = static_cast<std::int64_t>(d.tensor) * d.pipeline * d.context;
    if (gpus == 0 && !data) {
      if (!is_megatron_test(row_) || contains(note_, "release-scale")) throw NotSimulated{"the number of GPUs is not stated"};
      gpus = std::max<std::int64_t>(8, parts);  // the CI's other tests run on 8 GPUs
      s_.notes.push_back(fmt::format("number of GPUs not stated, taken as {}", gpus));
    }
    std::int64_t all = gpus > 0 ? gpus : *data * parts;
    if (all % parts != 0) throw NotSimulated{fmt::format("{} GPUs cannot be split {} ways", all, parts)};
    d.data = static_cast<int>(all / parts);
    if (data && gpus > 0 && *data != d.data && !one_gpu_said_) s_.notes.push_back(fmt::format("dp {} is not what {} GPUs leave beside tensor, pipeline and context parallelism, taken as {}", *data, gpus, d.data));
    if (const auto fewer = ranks_of_test(row_, d.data)) {
      all = *fewer * parts;
      d.data = static_cast<int>(*fewer);
      s_.notes.push_back(fmt::format("ran on {} GPUs, as its global batch says", all));
    }
    const int per_node = static_cast<int>(std::min<std::int64_t>({integer(row_, "gpus_per_node").value_or(s_.cluster.node.gpus), s_.cluster.node.gpus, all}));
    if (all % per_node != 0) throw NotSimulated{fmt::format("{} GPUs do not fill nodes of {}", all, per_node)};
    s_.cluster.gpus_per_node = per_node;
    s_.cluster.nodes = static_cast<int>(all / per_node);
  }

  void choose_sequence() {
    st::Training& t = s_.strategy.training;
    t.framework = profile_;
    t.sequence_length = integer(row_, "seq_len").value_or(0);
    if (t.sequence_length == 0 && s_.model.position == model::Position::learned && s_.model.max_positions > 0) {
      t.sequence_length = s_.model.max_positions;  // whoever has a table of positions is trained on all of them
      s_.notes.push_back(fmt::format("sequence length not stated, taken as the model's {} positions", t.sequence_length));
    }
    if (t.sequence_length == 0) throw NotSimulated{"the sequence length is not stated"};
    if (const std::string attention = cell(row_, "attention"); !t.attention && (attention == "unfused" || attention.starts_with("flash"))) t.attention = attention == "unfused" ? "unfused" : "flash";
  }

  void choose_batch() {
    st::Training& t = s_.strategy.training;
    const int data = s_.strategy.parallelism.degrees.data;
    const auto micro = integer(row_, "micro_batch"), global = integer(row_, "global_batch"), accumulation = integer(row_, "grad_accum");
    const bool pipelining = s_.profile.name.starts_with("torchtitan") && s_.strategy.parallelism.degrees.pipeline > 1;
    if (micro) t.micro_batch_size = *micro;
    else if (const auto recipe = recipe_of(global.value_or(0)); recipe && recipe->micro_batch > 0) {
      t.micro_batch_size = recipe->micro_batch;
      s_.notes.emplace_back("degrees and micro-batch not stated, taken from the published configurations");
    } else if (global && accumulation && *global % (*accumulation * data) == 0) t.micro_batch_size = std::max<std::int64_t>(1, *global / (*accumulation * data));
    else if (pipelining) s_.notes.emplace_back("micro-batch not stated, taken as torchtitan's pipeline_parallel_microbatch_size, 1");
    else s_.notes.push_back("micro-batch not stated, taken as the fastest power of two up to 32 that fits");
    t.global_batch_size = global ? *global : t.micro_batch_size * data * accumulation.value_or(1);
    if (!global) s_.notes.push_back(fmt::format("global batch not stated, taken as {}", t.global_batch_size));
    const std::int64_t passes = t.micro_batch_size * data * accumulation.value_or(1);
    if (micro && global && accumulation && passes != *global) s_.notes.push_back(fmt::format("micro_batch, grad_accum and {} data-parallel ranks make {} samples per step, not the {} that are stated: these are taken", data, passes, *global));
    t.precision = precision_;
    const auto recipe = recipe_of(t.global_batch_size);
    micro_batch_open_ = !micro && !accumulation && global && !pipelining && !(recipe && recipe->micro_batch > 0);
  }

  void choose_parallelism() {
    st::Strategy& strategy = s_.strategy;
    st::Degrees& d = strategy.parallelism.degrees;
    std::string said = cell(row_, "sp");
    // Megatron-DeepSpeed before 0d6e3793a (2024-09-04, "Enable Sequence Parallelism"): language_model.py does not scatter the
    // embedding's output. FPDT's baselines (arXiv 2408.16978) are of August 2024.
    if (profile_ == "megatron-deepspeed" && said == "y" && d.tensor > 1) {
      said = "n";
      s_.notes.emplace_back("no sequence parallelism beside tensor parallelism: Megatron-DeepSpeed had none until September 2024");
    }
    strategy.parallelism.sequence_parallel = d.tensor > 1 && (said == "y" || (said.empty() && (is_nvidia_recipe(profile_) || profile_.starts_with("torchtitan"))));
    if (asynchronous_tensor(row_) && strategy.parallelism.sequence_parallel) strategy.parallelism.overlap_tensor = s_.profile.overlap_tensor = true;
    strategy.data_parallel.kind = kind_of(sharding_, s_.profile, d.data);
    // Both switches are in the command of the source that says so (enable_fsdp_float8_all_gather, precompute_float8_dynamic_scale_for_fsdp).
    if (strategy.data_parallel.kind == st::DataParallelKind::fsdp2 && contains(note_, "float8 all-gather")) strategy.data_parallel.fp8_gather = st::NarrowGather::scaled_ahead;
    if (sharding_ == "hsdp") d.data_shard = s_.cluster.gpus_per_node;
    if (const int group = shard_group(row_, d.data); group > 0) d.data_shard = group;
    s_.profile = st::with_choices(s_.profile, strategy);
    if (d.pipeline > 1) strategy.pipeline = pipeline_of(row_, d.pipeline, s_.model.layer_count(), s_.notes);
    // Megatron's option of 2023-05 was off until 2024-11; the zero-bubble paper compares with the Megatron of 2023.
    if (d.pipeline > 2) strategy.pipeline.overlap_messages = s_.profile.overlap_messages && !contains(source_, "arXiv 2401.10241");
    if (profile_ == "nanotron" && d.pipeline > 1) apply_nanotron_release(row_, s_);
    const bool pieces = arguments_.entries().empty() && profile_.starts_with("megatron") && contains(note_, "--tp-comm-overlap");
    if (pieces && strategy.parallelism.sequence_parallel) strategy.parallelism.overlap_tensor = s_.profile.overlap_tensor = true;
  }

  void choose_memory() {
    const bool share_open = apply_recompute(row_, s_);
    if (checkpointed_fsdp_) s_.strategy.memory.recompute = st::Recompute::full;
    const bool stated = checkpointed_fsdp_ || !cell(row_, "recompute").empty() || s_.strategy.memory.recompute_layers > 0;
    if (profile_ == "maxtext") apply_rematerialisation(row_, s_.strategy.memory);
    apply_offload(row_, s_);
    apply_zero_scripts(row_, s_);
    apply_optimizer(row_, s_);
    apply_recipe(stated);
    apply_graphs();
    const st::Recompute recompute = s_.strategy.memory.recompute;
    const bool unstated = !stated && s_.strategy.memory.recompute_modules.empty();
    recompute_open_ = share_open || (unstated && cell(row_, "task") == "pretrain" && recompute == st::Recompute::none);
    if (!unstated) return;
    const char* taken = recompute == st::Recompute::full ? "full" : recompute == st::Recompute::selective ? "selective" : recompute_open_ ? "the least that fits" : "none";
    s_.notes.push_back(std::string("recomputation not stated, taken as ") + taken);
  }

  /// What the presets of a release of NeMo or Megatron-Bridge set beyond the row's columns.
  void apply_recipe(bool recompute_stated) {
    const auto recipe = recipe_of(s_.strategy.training.global_batch_size);
    if (!recipe) return;
    st::apply(*recipe, !recompute_stated, s_.model.layer_count(), s_.strategy);
    s_.profile = st::with_choices(s_.profile, s_.strategy);
    s_.notes.push_back("settings that the row leaves out as the presets of release " + recipe->release);
  }
  /// `cuda_graph`: layers are replayed from graphs, of layers with experts what has the same shapes in every micro-batch; or the step as one, where
  /// the note says so (Megatron's cuda_graph_scope full_iteration).
  void apply_graphs() {
    st::Training& t = s_.strategy.training;
    if (!cell(row_, "cuda_graph").starts_with("y") || t.cuda_graph.has_value() || !t.cuda_graph_modules.empty()) return;
    if (contains(note_, "one CUDA graph of the whole step") || contains(note_, "full_iteration")) t.cuda_graph = true;
    else t.cuda_graph_modules = {"attn", s_.model.experts.experts > 0 ? "moe_router" : "mlp"};
  }

  std::optional<st::Recipe> recipe_of(std::int64_t global_batch) const {
    const std::string release = release_of(row_);
    const auto preset = release.empty() ? std::nullopt : model::preset_for(cell(row_, "model"));
    return preset ? st::recipe_for(nemo() ? "nemo" : profile_, {release, *preset, gpu_, format_, global_batch}) : std::nullopt;
  }

  void take_measured_bandwidth() {
    const auto number = [&](const char* column) { return row_.find(column) ? row_.number(column) : std::nullopt; };
    if (!number("ar_gbps_world")) return;
    hwmodels::MeasuredBandwidth measured;
    const auto take = [&](double& to, const char* column) { if (const auto v = number(column)) to = *v; };
    take(measured.all_reduce_world, "ar_gbps_world");
    take(measured.all_gather_world, "ag_gbps_world");
    take(measured.reduce_scatter_world, "rs_gbps_world");
    take(measured.all_reduce_node, "ar_gbps_node");
    take(measured.all_gather_node, "ag_gbps_node");
    take(measured.reduce_scatter_node, "rs_gbps_node");
    measured.world = st::Layout(s_.strategy.parallelism.degrees).shape_of(st::Axis::world, 0, s_.cluster.gpus_per_node);
    s_.communication.measured = measured;
  }

  void choose_alternatives() {
    if (const auto problems = problems_of(s_); !problems.empty()) {
      std::optional<Scenario> split = least_split(row_, s_);
      if (!split) throw NotSimulated{to_string(problems.front())};
      s_ = *std::move(split);
    }
    add_smaller(row_, s_, recompute_open_, run_);
    if (micro_batch_open_) add_alternatives(row_, s_, run_);
    // NeMo's recommended configurations of dense models interleave wherever there are stages; tables of fine-tuning leave out how
    // (NVIDIA/NeMo scripts/performance/recommended_model_configs).
    const bool interleaves = cell(row_, "pp_schedule").starts_with("interleaved") || (nemo() && !micro_batch_open_ && run_.dense);
    if (interleaves && cell(row_, "vpp").empty() && s_.strategy.parallelism.degrees.pipeline > 1) {
      run_.chunks_open = true;
      s_.notes.push_back("chunks per rank not stated, taken as the fastest that fit");
    }
  }

  bool nemo() const { return cell(row_, "framework") == "nemo"; }

  const config::CsvRow& row_;
  MeasuredRun& run_;
  Scenario s_;
  std::string note_, source_;                         // cells
  config::Value arguments_;                           // of Megatron's command, as far as the row states them
  std::string profile_, gpu_, sharding_, format_;     // by our names
  st::Precision precision_ = st::Precision::bf16;
  bool one_gpu_said_ = false, checkpointed_fsdp_ = false;
  bool micro_batch_open_ = false, recompute_open_ = false;   // whoever ran it chose
};

}  // namespace

Scenario scenario_of(const config::CsvRow& row, MeasuredRun& run) { return RowScenario(row, run).make(); }

}  // namespace rehearse::scenario
