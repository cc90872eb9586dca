#include "sim/scenario/measured_run.h"

#include <algorithm>
#include <cmath>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>

#include <fmt/core.h>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"
#include "sim/scenario/measured_alternatives.h"
#include "sim/scenario/measured_memory.h"
#include "sim/scenario/measured_setup.h"
#include "sim/scenario/measured_sharding.h"
#include "sim/scenario/measured_tuning.h"
#include "sim/scenario/megatron_arguments.h"
#include "strategies/framework/recipes.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// Counts that no job has would overflow further on, or divide by zero.
void check_counts(const config::CsvRow& row) {
  const auto check = [&](std::string_view column, double least, double most) {
    const auto number = row.find(column) ? row.number(column) : std::nullopt;
    if (number && !(*number >= least && *number <= most)) throw NotSimulated{fmt::format("{} {} is not between {} and {}", column, cell(row, column), least, most)};
  };
  for (const char* degree : {"tp", "pp", "vpp", "cp", "ep", "etp", "dp"}) check(degree, 1, 20'000);
  for (const char* count : {"n_gpus", "gpus_per_node", "seq_len", "micro_batch", "global_batch", "grad_accum"}) check(count, 1, 1e9);
  for (const char* size : {"layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn_hidden", "n_experts", "top_k", "moe_ffn_hidden", "shared_expert_ffn"}) check(size, 0, 1e9);
}

/// torchtitan's asynchronous tensor parallelism has no column of its own.
bool asynchronous_tensor(const config::CsvRow& row) { return contains(cell(row, "note"), "async TP"); }

/// The release that a row's source names: "26.04.01 NeMo Container" is "26.04.01", "NeMo 25.04" is "25.04".
std::string release_of(const std::string& source) {
  const std::size_t end = source.find(" NeMo Container"), named = source.find("NeMo 2");
  if (end == std::string::npos && named != std::string::npos) return source.substr(named + 5, source.find_first_not_of("0123456789.", named + 5) - named - 5);
  if (end == std::string::npos) return "";
  const std::size_t begin = source.find_last_not_of("0123456789.", end - 1);
  return source.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? 0 : begin + 1));
}

model::ModelDescription model_of(const config::CsvRow& row, const std::string& profile, std::vector<std::string>& notes) {
  model::Shapes shapes;
  shapes.name = cell(row, "model");
  shapes.layers = integer(row, "layers").value_or(0);
  shapes.hidden = integer(row, "hidden").value_or(0);
  shapes.heads = integer(row, "heads").value_or(0);
  shapes.vocab = integer(row, "vocab").value_or(0);
  shapes.kv_heads = integer(row, "kv_heads");
  shapes.head_dim = integer(row, "head_dim");
  shapes.ffn_hidden = integer(row, "ffn_hidden");
  shapes.max_positions = integer(row, "seq_len").value_or(0);
  shapes.experts = integer(row, "n_experts").value_or(0);
  shapes.top_k = integer(row, "top_k").value_or(0);
  shapes.moe_ffn_hidden = integer(row, "moe_ffn_hidden");
  shapes.shared_ffn_hidden = integer(row, "shared_expert_ffn").value_or(0);
  const std::string gated = cell(row, "gated_mlp"), tied = cell(row, "tie_embeddings");
  shapes.gated = gated.starts_with("y");
  if (!tied.empty()) shapes.tied = tied.starts_with("y") || tied == "True" || tied == "true" || tied == "1";
  const auto preset = model::preset_for(shapes.name);
  if (preset) {
    const model::ModelDescription named = model::load_preset(*preset);
    if (gated.empty() || named.gated_mlp == shapes.gated) return model::with_sizes(named, shapes);
  }
  if (shapes.layers == 0 || shapes.hidden == 0 || shapes.heads == 0) throw NotSimulated{"the shapes of '" + shapes.name + "' are not stated and it is no preset"};
  if (shapes.vocab == 0) {
    shapes.vocab = profile.starts_with("megatron") ? 50257 : shapes.gated ? 32000 : 50257;
    notes.push_back(fmt::format("vocabulary not stated, taken as {}", shapes.vocab));
  }
  if (!shapes.tied && profile.starts_with("nanotron")) shapes.tied = false;
  return model::make_from_shapes(shapes);
}

st::Precision precision_of(const std::string& word) {
  static const std::map<std::string, st::Precision> known{{"fp32", st::Precision::fp32}, {"tf32", st::Precision::tf32}, {"fp16", st::Precision::fp16}, {"bf16", st::Precision::bf16},
                                                          {"fp8", st::Precision::fp8}, {"fp8-rowwise", st::Precision::fp8_rowwise}, {"mxfp8", st::Precision::mxfp8}, {"nvfp4", st::Precision::nvfp4}};
  if (const auto it = known.find(word); it != known.end()) return it->second;
  // "BF16 mixed", "bf16-true", "float16"
  const std::string text = lower(word);
  if (contains(text, "bf16") || contains(text, "bfloat16")) return st::Precision::bf16;
  if (contains(text, "fp16") || contains(text, "float16")) return st::Precision::fp16;
  throw NotSimulated{"precision '" + word + "' is not simulated yet"};
}

st::DataParallelKind kind_of(const std::string& word, const std::string& profile, int data) {
  using K = st::DataParallelKind;
  const bool megatron = profile.starts_with("megatron") || profile.starts_with("nanotron");
  if (word == "none" || word.empty()) return data > 1 ? (word.empty() && profile == "megatron-bridge" ? K::distributed_optimizer : K::ddp) : K::none;
  if (word == "zero1") return megatron ? K::distributed_optimizer : K::zero1;
  if (word == "zero2") return K::zero2;
  if (word == "zero3") return K::zero3;
  if (word == "fsdp" || word == "hsdp") return profile.starts_with("torchtitan") || profile.starts_with("torchtune") ? K::fsdp2 : K::fsdp1;
  if (word == "megatron-fsdp") return K::megatron_fsdp;
  throw NotSimulated{"sharding '" + word + "' is not simulated yet"};
}

/// The schedule by its name in the row; without one, by the number of chunks.
st::Pipeline pipeline_of(const config::CsvRow& row, int stages, std::int64_t layers) {
  std::string name = cell(row, "pp_schedule");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static const std::pair<const char*, const char*> kNames[] = {
      {"zb-1p", "zb-1p"}, {"zb1p", "zb-1p"}, {"zb-h1", "zb-h1"}, {"zb-2p", "zb-2p"}, {"zb2p", "zb-2p"}, {"zb-h2", "zb-h2"}, {"zb-v", "zb-v"}, {"zbv", "zb-v"},
      {"dualpipev", "dualpipev"}, {"dualpipe", "dualpipe"}, {"gpipe", "gpipe"}};
  st::Pipeline pipeline;
  pipeline.virtual_stages = static_cast<int>(integer(row, "vpp").value_or(1));
  pipeline.schedule = pipeline.virtual_stages > 1 ? "interleaved-1f1b" : "1f1b";
  for (const auto& [theirs, ours] : kNames)
    if (name.starts_with(theirs)) {
      pipeline.schedule = ours;
      pipeline.virtual_stages = 1;
      // The paper's own implementation lets every stage go on by itself, unless the row says that it synchronises.
      pipeline.post_validation = name.starts_with("zb") && !contains(name, "synchronised");
      break;
    }
  if (contains(cell(row, "note"), "first and last stage hold one layer fewer") && pipeline.virtual_stages == 1 && (layers + 2) % stages == 0) {
    pipeline.layers_per_stage.assign(static_cast<std::size_t>(stages), (layers + 2) / stages);
    --pipeline.layers_per_stage.front();
    --pipeline.layers_per_stage.back();
  }
  return pipeline;
}

/// Data-parallel ranks of a test of Megatron's CI whose global batch is smaller than its machine: it runs on a part of it
/// (tests/functional_tests, model_config.yaml of gpt3_mcore_reruns_resume_check_grads: "DP=1", GPUS_PER_NODE: 1).
std::optional<std::int64_t> ranks_of_test(const config::CsvRow& row, const std::string& source, std::int64_t ranks) {
  const auto micro = integer(row, "micro_batch"), global = integer(row, "global_batch");
  if (!source.starts_with("megatron_lm_ci") || !micro || !global || *global >= *micro * ranks || *global % *micro != 0) return std::nullopt;
  return *global / *micro;
}

/// NeMo's recommended configurations of dense models interleave wherever there are stages; tables of fine-tuning leave out how.
/// Source: NVIDIA/NeMo scripts/performance/recommended_model_configs.
void add_chunks(Scenario& s, MeasuredRun& run) {
  const std::int64_t layers = s.model.layer_count() / s.strategy.parallelism.degrees.pipeline;
  if (s.model.layer_count() % s.strategy.parallelism.degrees.pipeline != 0) return;
  s.notes.push_back("chunks per rank not stated, taken as the fastest that fit");
  for (std::int64_t chunks = 2; chunks <= layers; ++chunks) {
    if (layers % chunks != 0) continue;
    Scenario other = s;
    other.strategy.pipeline.schedule = "interleaved-1f1b";
    other.strategy.pipeline.virtual_stages = static_cast<int>(chunks);
    if (problems_of(other).empty()) run.alternatives.push_back(std::move(other));
  }
}

Scenario scenario_of(const config::CsvRow& row, MeasuredRun& run) {
  Scenario s;
  s.file = row.at().file;
  s.title = run.row_id;
  run.dense = integer(row, "n_experts").value_or(0) == 0;
  const std::string task = cell(row, "task");
  RowTuning tuning = tuning_of(row);
  if (tuning.not_simulated) throw NotSimulated{*tuning.not_simulated};
  s.strategy.tuning = std::move(tuning.tuning);
  s.notes = std::move(tuning.notes);
  check_counts(row);
  if (contains(cell(row, "note"), "FPDT chunked")) throw NotSimulated{"sequences in pieces with keys and values on the host (FPDT) are not simulated"};
  const std::int64_t context = integer(row, "cp").value_or(1);

  auto [profile, stand_in] = profile_of(row);
  if (!stand_in.empty()) s.notes.push_back(stand_in);
  const std::string gpu = gpu_of(row);
  std::string sharding = sharding_of(row, profile, s.notes);
  const bool one_gpu_said = contains(cell(row, "note"), "all runs are single-GPU");
  if (one_gpu_said) {
    sharding = "none";
    s.notes.push_back("ran on one GPU, as its source says");
  }
  if (profile == "megatron-2021" && sharding.starts_with("zero")) profile = "megatron-deepspeed";
  s.cluster = hwmodels::load_cluster(one_gpu_said ? "single-gpu" : node_of(row, gpu), 1, "rail-fat-tree", gpu);
  apply_network(row, s.cluster, s.notes);
  std::string format = cell(row, "precision");
  if (contains(cell(row, "note"), "power limited")) throw NotSimulated{"the GPUs ran under a power limit that the source does not state"};
  if (contains(cell(row, "note"), "rowwise_with_gw_hp")) throw NotSimulated{"fp8 with row scales whose weight gradients are 16-bit products is not simulated"};
  if (format == "fp8" && (contains(cell(row, "note"), "precision: float8 rowwise") || contains(cell(row, "note"), "precision: fp8 rowwise"))) format = "fp8-rowwise";
  if (format == "nf4") format = "bf16";  // what products are computed in
  if (format.empty()) {
    format = s.cluster.gpu.peak.contains(DType::bf16) ? "bf16" : "fp16";
    s.notes.push_back("precision not stated, taken as " + format);
  }
  const st::Precision precision = precision_of(format);
  // "nvfp4 (layers 0-26) + bf16 tail"
  static const std::regex kTail(R"(layers 0-([0-9]+)\) \+ bf16 tail)");
  const std::string note = cell(row, "note");
  std::smatch tail;
  const bool wide_tail = std::regex_search(note, tail, kTail);
  s.profile = st::with_precision(st::load_profile(profile), precision);
  apply_wording(row, s.profile, s.notes);
  s.model = model_of(row, profile, s.notes);
  if (wide_tail) s.strategy.training.last_layers_16bit = std::max(0, static_cast<int>(s.model.layer_count()) - 1 - std::stoi(tail[1]));
  if (s.profile.unties_embeddings) s.model.tied_embeddings = false;
  if (const std::string arguments = cell(row, "model_args_json"); profile == "megatron-core" && !arguments.empty()) {
    if (const auto reason = apply_megatron_arguments(arguments, cell(row, "env_vars_json"), s)) throw NotSimulated{*reason};
  } else if (profile == "megatron-core" && contains(cell(row, "source"), "_cef")) {
    s.profile.loss = st::LossKind::fused;  // SimuMax names the fused cross-entropy in its case names
  }
  const bool experts = std::any_of(s.model.layers.begin(), s.model.layers.end(), [](const model::Layer& l) { return l.moe; });
  if (experts) run.dense = false;

  std::int64_t gpus = one_gpu_said ? 1 : integer(row, "n_gpus").value_or(0);
  st::Degrees& d = s.strategy.parallelism.degrees;
  d.tensor = static_cast<int>(integer(row, "tp").value_or(1));
  d.pipeline = static_cast<int>(integer(row, "pp").value_or(1));
  d.context = static_cast<int>(context);
  if (experts) {
    d.expert = static_cast<int>(integer(row, "ep").value_or(1));
    // Megatron's experts are split like everything else unless told otherwise (--expert-tensor-parallel-size); its releases' recipes keep them whole.
    d.expert_tensor = static_cast<int>(integer(row, "etp").value_or(profile == "megatron-core" ? d.tensor : 1));
    if (contains(cell(row, "model"), "tokendrop")) {
      s.strategy.experts.capacity_factor = 1;
      s.strategy.experts.pad_to_capacity = true;
    }
  }
  const auto data = integer(row, "dp");
  const std::int64_t parts = static_cast<std::int64_t>(d.tensor) * d.pipeline * d.context;
  if (gpus == 0 && !data) {
    if (!run.source.starts_with("megatron_lm_ci") || contains(cell(row, "note"), "release-scale")) throw NotSimulated{"the number of GPUs is not stated"};
    gpus = std::max<std::int64_t>(8, parts);  // the CI's other tests run on 8 GPUs
    s.notes.push_back(fmt::format("number of GPUs not stated, taken as {}", gpus));
  }
  std::int64_t all = gpus > 0 ? gpus : *data * parts;
  if (all % parts != 0) throw NotSimulated{fmt::format("{} GPUs cannot be split {} ways", all, parts)};
  d.data = static_cast<int>(all / parts);
  if (const auto fewer = ranks_of_test(row, run.source, d.data)) {
    all = *fewer * parts;
    d.data = static_cast<int>(*fewer);
    s.notes.push_back(fmt::format("ran on {} GPUs, as its global batch says", all));
  }

  const int per_node = static_cast<int>(std::min<std::int64_t>({integer(row, "gpus_per_node").value_or(s.cluster.node.gpus), s.cluster.node.gpus, all}));
  if (all % per_node != 0) throw NotSimulated{fmt::format("{} GPUs do not fill nodes of {}", all, per_node)};
  s.cluster.gpus_per_node = per_node;
  s.cluster.nodes = static_cast<int>(all / per_node);

  st::Training& t = s.strategy.training;
  t.framework = profile;
  t.sequence_length = integer(row, "seq_len").value_or(0);
  if (t.sequence_length == 0 && s.model.position == model::Position::learned && s.model.max_positions > 0) {
    t.sequence_length = s.model.max_positions;  // whoever has a table of positions is trained on all of them
    s.notes.push_back(fmt::format("sequence length not stated, taken as the model's {} positions", t.sequence_length));
  }
  if (t.sequence_length == 0) throw NotSimulated{"the sequence length is not stated"};
  const auto micro = integer(row, "micro_batch"), global = integer(row, "global_batch"), accumulation = integer(row, "grad_accum");
  if (micro) t.micro_batch_size = *micro;
  else if (global && accumulation && *global % (*accumulation * d.data) == 0) t.micro_batch_size = std::max<std::int64_t>(1, *global / (*accumulation * d.data));
  else s.notes.push_back("micro-batch not stated, taken as the fastest power of two up to 32 that fits");
  t.global_batch_size = global ? *global : t.micro_batch_size * d.data * accumulation.value_or(1);
  if (!global) s.notes.push_back(fmt::format("global batch not stated, taken as {}", t.global_batch_size));
  t.precision = precision;
  if (const std::string attention = cell(row, "attention"); !t.attention && (attention == "unfused" || attention == "flash")) t.attention = attention;

  s.strategy.parallelism.sequence_parallel = d.tensor > 1 && (cell(row, "sp") == "y" || (cell(row, "sp").empty() && (profile == "megatron-bridge" || profile.starts_with("torchtitan"))));
  if (asynchronous_tensor(row) && s.strategy.parallelism.sequence_parallel) s.strategy.parallelism.overlap_tensor = s.profile.overlap_tensor = true;
  s.strategy.data_parallel.kind = kind_of(sharding, profile, d.data);
  if (sharding == "hsdp") d.data_shard = per_node;
  if (const int group = shard_group(row, d.data); group > 0) d.data_shard = group;

  if (d.pipeline > 1) s.strategy.pipeline = pipeline_of(row, d.pipeline, s.model.layer_count());
  // Megatron's option of 2023-05 was off until 2024-11; the zero-bubble paper compares with the Megatron of 2023.
  if (d.pipeline > 2) s.strategy.pipeline.overlap_messages = s.profile.overlap_messages && !contains(cell(row, "source"), "arXiv 2401.10241");
  if (profile == "megatron-core") apply_megatron_layout(cell(row, "model_args_json"), s);
  const std::string recompute = cell(row, "recompute");
  const bool share_open = apply_recompute(row, s);
  if (cell(row, "framework") == "nemo") apply_nemo(sharding, release_of(cell(row, "source")), s.profile, s.strategy);
  if (profile == "maxtext") apply_rematerialisation(row, s.strategy.memory);
  apply_offload(row, s);
  apply_optimizer(row, s);
  if (const std::string release = release_of(cell(row, "source")); !release.empty())
    if (const auto preset = model::preset_for(cell(row, "model")))
      if (const auto recipe = st::recipe_for(cell(row, "framework") == "nemo" ? "nemo" : profile, {release, *preset, gpu, format, t.global_batch_size})) {
        st::apply(*recipe, recompute.empty(), s.strategy);
        s.profile = st::with_choices(s.profile, s.strategy);
        s.notes.push_back("dispatcher, CUDA graphs, fused kernels and overlap of experts as the presets of release " + recipe->release);
      }
  const bool recompute_unstated = recompute.empty() && s.strategy.memory.recompute_modules.empty();
  const st::Recompute recomputes = s.strategy.memory.recompute;
  const bool least_recompute = share_open || (recompute_unstated && task == "pretrain" && recomputes == st::Recompute::none);
  if (recompute_unstated) s.notes.push_back(std::string("recomputation not stated, taken as ") + (recomputes == st::Recompute::full ? "full" : recomputes == st::Recompute::selective ? "selective" : least_recompute ? "the least that fits" : "none"));

  if (const auto world = row.find("ar_gbps_world") ? row.number("ar_gbps_world") : std::nullopt) {
    hwmodels::MeasuredBandwidth measured;
    auto take = [&](double& to, const char* column) { if (const auto v = row.find(column) ? row.number(column) : std::nullopt) to = *v; };
    take(measured.all_reduce_world, "ar_gbps_world");
    take(measured.all_gather_world, "ag_gbps_world");
    take(measured.reduce_scatter_world, "rs_gbps_world");
    take(measured.all_reduce_node, "ar_gbps_node");
    take(measured.all_gather_node, "ag_gbps_node");
    take(measured.reduce_scatter_node, "rs_gbps_node");
    measured.world = st::Layout(d).shape_of(st::Axis::world, 0, per_node);
    s.communication.measured = measured;
  }
  if (const auto problems = problems_of(s); !problems.empty()) {
    std::optional<Scenario> split = least_split(row, s);
    if (!split) throw NotSimulated{to_string(problems.front())};
    s = *std::move(split);
  }
  add_smaller(row, s, least_recompute, run);
  if (!micro && !accumulation && global) add_alternatives(row, s, run);
  else if (cell(row, "framework") == "nemo" && d.pipeline > 1 && cell(row, "vpp").empty() && run.dense) add_chunks(s, run);
  return s;
}

/// Clean by what was measured only (truth README, "Which rows are clean").
bool is_clean(const config::CsvRow& row, const MeasuredRun& run) {
  const std::string net = cell(row, "net_class");
  if (net == "degraded_intranode") return false;
  if (net == "degraded_internode" && !(row.find("ar_gbps_world") && row.number("ar_gbps_world"))) return false;
  if (run.source.starts_with("bigscience_v100")) return false;
  return true;
}

/// What makes two rows repeats of one configuration; `sharding` aside: jobs that differ in who keeps the optimizer states.
std::string configuration(const config::CsvRow& row, bool sharding = true) {
  std::string key;
  for (const char* column : {"task", "framework", "model", "layers", "hidden", "kv_heads", "ffn_hidden", "seq_len", "gpu", "n_gpus", "tp", "sp", "pp", "vpp", "pp_schedule", "dp", "cp", "ep", "sharding", "micro_batch", "global_batch", "precision",
                             "recompute", "attention", "optimizer", "offload", "lora_rank", "lora_targets", "torch_compile", "cuda_graph", "model_args_json", "env_vars_json"})
    if (sharding || std::string_view(column) != "sharding") key += cell(row, column) + "|";
  if (asynchronous_tensor(row)) key += "asynchronous tensor parallelism";
  if (contains(cell(row, "note"), "rowwise")) key += "a scale per row";
  if (const int group = shard_group(row, static_cast<int>(integer(row, "dp").value_or(0))); group > 0) key += fmt::format("shards of {}", group);
  return key;
}

/// What the row's wording told of kernels and updates beyond its columns (apply_wording).
std::string told(const MeasuredRun& run) {
  if (!run.scenario) return "";
  const st::FrameworkProfile& p = run.scenario->profile;
  if (p.name != "huggingface" && !p.name.starts_with("torchtune")) return "";
  return fmt::format("{} {} {} {} {} {} {} {} {}", static_cast<int>(p.norm), static_cast<int>(p.activation), static_cast<int>(p.loss), p.adapter_autocast, p.upcasts_unquantised, p.copies_shifted_logits,
                     p.reentrant_checkpoint, p.keeps_quantised_inputs, run.scenario->strategy.memory.optimizer_in_backward);
}

using Repeats = std::map<std::string, std::vector<std::size_t>>;

/// Repeats of one configuration that disagree by more than `factor` differ in something that the table does not say (a busy
/// machine, an older library): the fastest, or the smallest, stays clean.
void mark_repeats(std::vector<MeasuredRun>& runs, const Repeats& repeats, std::optional<double> MeasuredRun::*value, double factor, bool others_too) {
  for (const auto& [key, rows] : repeats) {
    const auto less = [&](std::size_t a, std::size_t b) { return *(runs[a].*value) < *(runs[b].*value); };
    const double best = *(runs[*std::min_element(rows.begin(), rows.end(), less)].*value);
    const double worst = *(runs[*std::max_element(rows.begin(), rows.end(), less)].*value);
    if (worst <= factor * best) continue;
    for (std::size_t r : rows)
      if (*(runs[r].*value) > (others_too ? 1.0 : factor) * best) runs[r].clean = false;
  }
}

}  // namespace

std::vector<MeasuredRun> read_measured_runs(const std::string& path) {
  const config::CsvTable table = config::read_csv(path);
  table.require({"row_id", "framework", "gpu", "n_gpus", "seq_len"});
  std::vector<MeasuredRun> runs;
  Repeats repeats, sharding_repeats, memory_repeats;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const config::CsvRow row = table.row(i);
    MeasuredRun run;
    run.row_id = cell(row, "row_id");
    run.source = std::filesystem::path(path).stem().string();
    run.framework = cell(row, "framework");
    run.gpu = cell(row, "gpu");
    if (row.find("step_time_s")) run.step_time_s = row.number("step_time_s");
    // Iteration times of Megatron's CI are of tiny models on shared machines; its release-scale runs are meant as times.
    if (run.source.starts_with("megatron_lm_ci") && !contains(cell(row, "note"), "release-scale")) run.step_time_s.reset();
    // The transcription calls the time an anomaly of the measurement and the memory good.
    if (contains(cell(row, "note"), "use memory only")) run.step_time_s.reset();
    if (row.find("peak_mem_gib")) run.peak_mem_gib = row.number("peak_mem_gib");
    run.peak_mem_kind = cell(row, "peak_mem_kind");
    // Samples of many lengths: the peak is the longest's, the time an average's.
    for (const char* average : {"time by average", "step time is an average over a length distribution"})
      if (contains(cell(row, "note"), average)) run.step_time_s.reset();
    run.last_stage_memory = contains(cell(row, "mem_rank"), "last");
    run.first_stage_memory = run.framework == "nanotron";
    if (const std::string outcome = cell(row, "outcome"); outcome == "ok" || outcome == "oom") run.fits = outcome == "ok";
    run.clean = is_clean(row, run);
    try {
      run.scenario = scenario_of(row, run);
    } catch (const NotSimulated& e) {
      run.reason = e.reason;
    } catch (const ConfigError& e) {
      run.reason = to_string(e.diagnostics().front());
    }
    if (run.step_time_s) repeats[configuration(row) + told(run)].push_back(i);
    // Whoever keeps the optimizer states, gradients are reduced once per step: after many micro-batches that cannot double it.
    const std::string sharding = cell(row, "sharding");
    if (run.step_time_s && integer(row, "grad_accum").value_or(1) >= 8 && (sharding == "none" || sharding == "zero1")) sharding_repeats[configuration(row, false)].push_back(i);
    // Memory is as good as its arguments: only rows that state all of them are repeats of one another.
    if (run.peak_mem_gib && !cell(row, "model_args_json").empty()) memory_repeats[configuration(row)].push_back(i);
    runs.push_back(std::move(run));
  }
  mark_repeats(runs, repeats, &MeasuredRun::step_time_s, 1.1, true);
  mark_repeats(runs, sharding_repeats, &MeasuredRun::step_time_s, 2, false);
  mark_repeats(runs, memory_repeats, &MeasuredRun::peak_mem_gib, 1.1, true);
  return runs;
}

}  // namespace rehearse::scenario
