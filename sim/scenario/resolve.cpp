// From the file's sections to a checked scenario.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include <fmt/core.h>

#include "hwmodels/collective/group.h"
#include "hwmodels/collective/parameters.h"
#include "hwmodels/device/device_rates.h"
#include "sim/config/layers.h"
#include "sim/config/scalar_types.h"
#include "sim/config/text_file.h"
#include "sim/model/huggingface.h"
#include "sim/model/model_file.h"
#include "sim/model/presets.h"
#include "sim/scenario/import_section.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/scenario_file.h"
#include "sim/scenario/sections.h"
#include "strategies/pipeline/table.h"
#include "strategies/plan_writer.h"
#include "strategies/rules.h"
#include "strategies/unused_keys.h"

namespace rehearse::scenario {

using config::Value;
namespace st = strategies;

/// A path of the scenario is looked for beside the file that has it (which may be one that the scenario extends), then
/// beside the scenario, then in the working folder.
static std::filesystem::path place_of(const Value& written, const std::string& scenario_file) {
  const std::filesystem::path path = written.text();
  std::error_code unknown;
  for (const std::filesystem::path& folder : {std::filesystem::path(written.at().file).parent_path(), std::filesystem::path(scenario_file).parent_path()})
    if (path.is_relative() && std::filesystem::exists(folder / path, unknown)) return folder / path;
  return path;
}

/// What is wrong with a file as a whole (it is not there, it is a folder) is said where the scenario names it: `blame` makes the
/// diagnostic there from the problem and its fix, of the file that it is about, or nothing when that is none of its files.
template <typename Load, typename Blame>
static auto naming(const Load& load, const Blame& blame) {
  try {
    return load();
  } catch (const ConfigError& error) {
    const Diagnostic& d = error.diagnostics().front();
    if (d.at.line > 0 || !d.key.empty() || d.at.file.empty()) throw;
    if (std::optional<Diagnostic> there = blame(d.at.file, fmt::format("{}: {}", d.at.file, d.problem), d.fix)) throw ConfigError(*std::move(there));
    throw;
  }
}

static model::ModelDescription read_config_file(const Value& path, const std::string& scenario_file, std::vector<std::string>& notes) {
  const std::filesystem::path place = place_of(path, scenario_file);
  model::ImportedModel imported = naming([&] { return model::import_huggingface(place); },
                                         [&](const std::string&, const std::string& problem, const std::string& fix) { return std::optional(path.diagnostic(problem, fix)); });
  if (imported.text_part_only) notes.push_back(place.string() + ": its language model is simulated (text_config), nothing of what sees or hears");
  for (const auto& item : imported.report.not_understood) notes.push_back(place.string() + ": '" + item.key + "' is not understood and was left out");
  return imported.model;
}

/// {preset: llama-3-8b, layers: 8}
static model::ModelDescription read_changed_preset(const Value& v, const Value& preset, const std::string& file) {
  if (!preset.is_scalar()) throw ConfigError(preset.diagnostic("is not a preset's name", "Write {preset: llama-3-8b, layers: 8}"));
  if (!model::preset_for(preset.text()) && model::means_config_file(place_of(preset, file))) throw ConfigError(preset.diagnostic("single keys of a config.json are not changed here", "Change a copy of the file, or write the shapes"));
  std::vector<Value::Entry> changes;
  for (const Value::Entry& e : v.entries())
    if (e.key != "preset") changes.push_back(e);
  try {
    return model::load_preset(preset.text(), Value::map(std::move(changes), v.place(), v.path()));
  } catch (const ConfigError& e) {
    const Diagnostic& d = e.diagnostics().front();
    if (!d.at.file.empty()) throw;
    throw ConfigError(preset.diagnostic(d.problem, d.fix));   // there is none of this name
  }
}

model::ModelDescription read_model_section(const Value& v, const std::string& file, std::vector<std::string>& notes) {
  if (v.is_scalar()) {
    // A bundled model's bare name stays one, whatever the folder is called that lies here.
    const bool bundled = v.text().find('/') == std::string::npos && model::preset_for(v.text());
    if (!bundled && model::means_config_file(place_of(v, file))) return read_config_file(v, file, notes);
    try {
      return model::load_preset(v.text());
    } catch (const ConfigError& e) {
      Diagnostic d = e.diagnostics().front();
      throw ConfigError(v.diagnostic(d.problem, d.fix));
    }
  }
  if (const Value* preset = v.find("preset")) return read_changed_preset(v, *preset, file);
  const Value* from = v.find("from");
  const Value* path = v.find("path");
  if (from == nullptr && path != nullptr) throw ConfigError(path->diagnostic("a path, but not of what", "Write {from: hf, path: config.json}"));
  if (from == nullptr) {
    const Value* name = v.find("name");
    if (name != nullptr && name->is_scalar() && v.find("layers") == nullptr && model::preset_for(name->text()))
      throw ConfigError(name->diagnostic("a name, but no shapes", fmt::format("Write {{preset: {}, ...}}: what stands beside it takes the place of the preset's own", name->text())));
    return model::read_model(v);
  }
  if (!from->is_scalar() || from->text() != "hf")
    throw ConfigError(from->diagnostic("models can be read from 'hf' (a Hugging Face config.json)", "Write {from: hf, path: config.json}"));
  if (path == nullptr || !path->is_scalar()) throw ConfigError(v.diagnostic("a model from hf needs a path", "Write {from: hf, path: config.json}"));
  for (const Value::Entry& e : v.entries())
    if (e.key != "from" && e.key != "path") throw ConfigError(e.value.diagnostic("unknown key", "Known: from, path"));
  return read_config_file(*path, file, notes);
}

/// A file is looked for beside the file that names it; one that --set names, or that is not there, in the working folder.
static std::string beside(const std::string& name, const std::string& key, const config::Provenance& given) {
  const auto said = given.where(key);
  if (!config::is_file_name(name) || !said || std::filesystem::path(name).is_absolute()) return name;
  const std::filesystem::path place = std::filesystem::path(said->file).parent_path() / name;
  std::error_code unknown;   // reading the file says what is wrong with it
  return std::filesystem::exists(place, unknown) ? place.lexically_normal().string() : name;
}

hwmodels::ClusterDescription resolve_cluster(const ClusterSection& c, const config::Provenance& given) {
  const std::map<std::string, std::string> files{{"cluster.node", beside(c.node, "cluster.node", given)}, {"cluster.fabric", beside(c.fabric, "cluster.fabric", given)},
                                                 {"cluster.gpu", beside(c.gpu.value_or(""), "cluster.gpu", given)}, {"cluster.collectives", beside(c.collectives, "cluster.collectives", given)}};
  const auto load = [&] {
    hwmodels::ClusterDescription loaded = hwmodels::load_cluster(files.at("cluster.node"), static_cast<int>(c.nodes), files.at("cluster.fabric"), files.at("cluster.gpu"));
    if (config::is_file_name(c.collectives)) loaded.collectives = std::make_shared<const hwmodels::CollectiveParameters>(hwmodels::load_collective_parameters(files.at("cluster.collectives")));
    hwmodels::network_timing(loaded.node, loaded.collectives ? *loaded.collectives : hwmodels::collective_parameters());   // a slip is told before anything runs
    return loaded;
  };
  hwmodels::ClusterDescription cluster = naming(load, [&](const std::string& file, const std::string& problem, const std::string& fix) -> std::optional<Diagnostic> {
    for (const auto& [key, name] : files)
      if (name == file) return given.diagnostic(key, problem, fix);
    return std::nullopt;
  });
  if (c.gpus_per_node) {
    if (*c.gpus_per_node > cluster.node.gpus)
      throw ConfigError(given.diagnostic("cluster.gpus_per_node", fmt::format("{} GPUs, but a {} has {}", *c.gpus_per_node, c.node, cluster.node.gpus), fmt::format("Use at most {}", cluster.node.gpus)));
    cluster.gpus_per_node = static_cast<int>(*c.gpus_per_node);
  }
  hwmodels::NicDesign& nic = cluster.node.nic;
  if (nic.count == 0 && c.nics.has_value() != c.nic_bandwidth.has_value())
    throw ConfigError(given.diagnostic(c.nics ? "cluster.nics" : "cluster.nic_bandwidth", fmt::format("a {} has no network card of its own", c.node), "Write both cluster.nics and cluster.nic_bandwidth"));
  nic.count = static_cast<int>(c.nics.value_or(nic.count));
  nic.bandwidth = c.nic_bandwidth.value_or(nic.bandwidth);
  if (c.nodes > 1 && cluster.node.nic.count == 0 && cluster.gpus_per_node * c.nodes > cluster.node.domain)
    throw ConfigError(given.diagnostic("cluster.nodes", fmt::format("{} nodes, but a {} has no network card", c.nodes, c.node), "Use 1, or a design with network cards (hardware list)"));
  if (c.gpu_clock) {
    hwmodels::Gpu& gpu = cluster.gpu;
    const double asked = *c.gpu_clock / 1e6;
    if (const double highest = gpu.highest_clock_mhz(); asked > highest)
      throw ConfigError(given.diagnostic("cluster.gpu_clock", fmt::format("{:g} MHz, but a {} runs at {:g} MHz at most", asked, gpu.name, highest), fmt::format("Use at most {:g} MHz", highest)));
    gpu.locked_clock_mhz = asked;
  }
  if (c.gpu_power) {
    hwmodels::Gpu& gpu = cluster.gpu;
    if (*c.gpu_power > gpu.own_watts)
      throw ConfigError(given.diagnostic("cluster.gpu_power", fmt::format("{:g} W, but a {} draws {:g} W at most", *c.gpu_power, gpu.name, gpu.own_watts), fmt::format("Use at most {:g} W", gpu.own_watts)));
    gpu.limit_watts = *c.gpu_power;
  }
  cluster.oversubscription = c.oversubscription;
  cluster.nic_efficiency = c.nic_efficiency;
  return cluster;
}

namespace {

/// Fills in the data-parallel degree; reports degrees that do not fill the cluster.
void resolve_degrees(const ParallelismSection& p, Scenario& s, const config::Provenance& given, config::Diagnostics& out) {
  st::Degrees& d = s.strategy.parallelism.degrees;
  d.tensor = static_cast<int>(p.tensor);
  d.context = static_cast<int>(p.context);
  d.context_ulysses = static_cast<int>(p.context_ulysses);
  s.strategy.parallelism.context_kind = p.context_kind;
  d.pipeline = static_cast<int>(p.pipeline);
  d.expert = static_cast<int>(p.expert);
  d.expert_tensor = static_cast<int>(p.expert_tensor);
  if (p.data) {
    d.data = static_cast<int>(*p.data);
  } else if (const auto fill = st::data_degree_to_fill(d, s.gpus())) {
    d.data = *fill;
    if (*fill > 1) s.notes.push_back(fmt::format("parallelism.data: auto became {}", *fill));
  }
  if (p.data_shard) d.data_shard = static_cast<int>(*p.data_shard);
  s.strategy.parallelism.sequence_parallel = p.sequence_parallel;
  s.strategy.parallelism.overlap_tensor = p.overlap_tensor;
  s.strategy.parallelism.order = p.order;
  for (Diagnostic& problem : st::problems_of(d, s.gpus(), p.order, s.cluster.gpus_per_node)) out.push_back(given.diagnostic(problem.key, problem.problem, problem.fix));
}

/// What the user measured, of the groups that these degrees make.
hwmodels::MeasuredBandwidth measured_bandwidth(const MeasuredBandwidthSection& m, const Scenario& s) {
  const auto gbps = [](BytesPerSecond rate) { return rate.value / 1e9; };
  return {.all_reduce_world = gbps(m.all_reduce), .all_gather_world = gbps(m.all_gather), .reduce_scatter_world = gbps(m.reduce_scatter),
          .all_reduce_node = gbps(m.all_reduce_node), .all_gather_node = gbps(m.all_gather_node), .reduce_scatter_node = gbps(m.reduce_scatter_node),
          .world = st::Layout(s.strategy.parallelism.degrees).shape_of(st::Axis::world, 0, s.cluster.gpus_per_node), .message = m.message, .through_lists = m.lists};
}

/// A schedule that the user wrote: read and checked here, where its lines can be named.
void read_schedule_table(st::Pipeline& pipeline, const std::string& scenario_file, const config::Provenance& given) {
  if (given.given("pipeline.schedule"))
    throw ConfigError(given.diagnostic("pipeline.schedule", "a table is given as well", "Leave out pipeline.schedule or pipeline.table"));
  std::filesystem::path place = pipeline.table_file;
  std::error_code unknown;   // reading the file says what is wrong with it
  const auto said = given.where("pipeline.table");   // the scenario, or a framework's own file
  if (place.is_relative() && said && std::filesystem::exists(std::filesystem::path(said->file).parent_path() / place, unknown)) place = std::filesystem::path(said->file).parent_path() / place;
  else if (place.is_relative()) place = std::filesystem::path(scenario_file).parent_path() / place;
  try {
    pipeline.table = config::read_text_file(place, std::size_t{64} << 20);
  } catch (const ConfigError& error) {   // who names the file is where it can be mended
    const Diagnostic& d = error.diagnostics().front();
    throw ConfigError(given.diagnostic("pipeline.table", place.string() + ": " + d.problem, d.fix));
  }
  pipeline.table_file = place.string();
  pipeline.schedule = "table";
  st::parse_schedule_table(pipeline.table, pipeline.table_file);
}

}  // namespace

namespace {

/// A layer that is made again stays until its weight gradients have been made.
bool holds_back_what_is_made_again(const st::Strategy& s) {
  if (s.memory.recompute != st::Recompute::full || s.parallelism.degrees.pipeline == 1) return false;
  const st::PipelineProgram program = st::schedule_of(s);
  return std::any_of(program.ranks.begin(), program.ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const st::Action& a) { return a.kind == st::ActionKind::backward_weight; });
  });
}

}  // namespace

Scenario read_scenario(const Value& written, const std::string& file) {
  config::Diagnostics out;
  config::Provenance given;
  Scenario s;
  const Value root = with_import(written, file, s.notes);
  ScenarioFile f = config::read(root, scenario_fields(), out, &given);
  s.file = file;
  s.title = f.title;
  auto collect = [&](auto step) {
    try {
      step();
    } catch (const ConfigError& e) {
      out.insert(out.end(), e.diagnostics().begin(), e.diagnostics().end());
    }
  };
  if (f.model.inline_model) collect([&] { s.model = read_model_section(*f.model.inline_model, file, s.notes); });
  if (!out.empty()) config::throw_if_any(std::move(out));
  collect([&] { s.cluster = resolve_cluster(f.cluster, given); });
  config::throw_if_any(std::move(out));
  if (const double within_power = hwmodels::power_limited_clock_mhz(s.cluster.gpu); s.cluster.gpu.locked_clock_mhz > within_power)
    s.notes.push_back(fmt::format("cluster.gpu_clock: {:g} MHz hold back short kernels only: the power limit brings long 16-bit matrix products to {:.0f} MHz", s.cluster.gpu.locked_clock_mhz, within_power));
  if (const hwmodels::Gpu& gpu = s.cluster.gpu; gpu.limit_watts > 0 && gpu.limit_watts < gpu.own_watts / 2)
    s.notes.push_back(fmt::format("cluster.gpu_power: {:g} W are less than half of the {:g} W that the GPU draws; clocks are known down to half, and below they are extrapolated", gpu.limit_watts, gpu.own_watts));
  s.communication.nvls = f.cluster.nvls;
  s.communication.backend = f.cluster.backend;
  s.strategy.backend = f.cluster.backend == "gloo" ? st::Backend::gloo : f.cluster.backend == "mpi" ? st::Backend::mpi : st::Backend::nccl;
  s.strategy.training = f.training;
  s.strategy.data_parallel = f.data_parallel;
  s.strategy.pipeline = f.pipeline;
  s.strategy.memory = f.memory;
  s.strategy.tuning = f.tuning;
  s.strategy.experts = f.experts;
  if (!f.pipeline.table_file.empty()) collect([&] { read_schedule_table(s.strategy.pipeline, file, given); });
  s.sweep = std::move(f.sweep);
  std::string framework = f.training.framework;
  if (f.training.compile.value_or(false) && framework == "torchtitan") framework = "torchtitan-compile";
  const st::FrameworkProfile profile = naming([&] { return st::load_profile(beside(framework, "training.framework", given)); },
                                              [&](const std::string&, const std::string& problem, const std::string& fix) { return std::optional(given.diagnostic("training.framework", problem, fix)); });
  resolve_degrees(f.parallelism, s, given, out);   // first: habits change with stages and context ranks
  const st::FrameworkProfile habits = st::with_precision(profile, f.training.precision);
  s.profile = st::with_choices(habits, s.strategy);
  if (!s.strategy.pipeline.overlap_messages && f.parallelism.pipeline > 2) s.strategy.pipeline.overlap_messages = s.profile.overlap_messages;  // two stages need it
  if (!f.profile.is_null()) collect([&] {
    s.profile = st::with_keys(std::move(s.profile), f.profile);
    std::string keys;
    for (const Value::Entry& e : f.profile.entries()) keys += (keys.empty() ? "" : ", ") + e.key;
    if (!keys.empty()) s.notes.push_back(fmt::format("profile: not as {} has it: {}", framework, keys));
  });
  if (s.profile.unties_embeddings && s.model.tied_embeddings) {
    s.model.tied_embeddings = false;
    s.notes.push_back(framework + " keeps a table of its own for the output layer; the model ties it");
  }
  if (f.cluster.measured_bandwidth && out.empty()) s.communication.measured = measured_bandwidth(*f.cluster.measured_bandwidth, s);
  if (!given.given("data_parallel.kind")) {
    if (s.strategy.parallelism.degrees.data == 1) {
      s.strategy.data_parallel.kind = st::DataParallelKind::none;
    } else {
      s.notes.push_back("data_parallel.kind: not given, taken as ddp");
    }
  }
  if (out.empty())
    for (Diagnostic& d : problems_of(s)) out.push_back(given.diagnostic(d.key, d.problem, d.fix));
  config::throw_if_any(std::move(out));
  for (const st::UnusedKey& unused : st::unused_keys(s.model, s.strategy, habits, s.cluster.gpus_per_node))
    if (given.given(unused.key)) s.notes.push_back(unused.key + " changes nothing: " + unused.why);
  const st::Degrees& d = s.strategy.parallelism.degrees;
  if (const int ranks = d.shard() * d.context; s.strategy.data_parallel.kind == st::DataParallelKind::zero3 && s.profile.part_ranks_measured > 0 && ranks > s.profile.part_ranks_measured)
    s.notes.push_back(fmt::format("ZeRO-3's host time grows with the ranks that shard: measured over up to {}, carried on to {} here", s.profile.part_ranks_measured, ranks));
  if (holds_back_what_is_made_again(s.strategy))
    s.notes.push_back("memory.recompute: '" + s.strategy.pipeline.schedule + "' holds weight gradients back, and with them the layers that were made again: less memory is saved than under 1f1b");
  return s;
}

Scenario load_scenario(const std::string& path, const std::vector<std::string>& overrides) {
  return read_scenario(config::apply_overrides(config::load_layered(path), overrides), path);
}

DType product_format(st::Precision p) {
  switch (p) {
    case st::Precision::fp32: return DType::fp32;
    case st::Precision::tf32: return DType::tf32;
    case st::Precision::fp16: return DType::fp16;
    case st::Precision::bf16: return DType::bf16;
    case st::Precision::fp8:
    case st::Precision::fp8_rowwise: return DType::fp8;
    case st::Precision::mxfp8: return DType::mxfp8;
    case st::Precision::nvfp4: return DType::nvfp4;
  }
  return DType::bf16;
}

namespace {

/// What the node's host must have, and say, for state to be away from the GPUs: else it would be kept nowhere and moved in no time.
std::vector<Diagnostic> host_problems(const Scenario& s) {
  std::vector<Diagnostic> out;
  const hwmodels::NodeDesign& node = s.cluster.node;
  const st::Offload& o = s.strategy.memory.offload;
  const std::string name = "the node design '" + node.title + "' ";
  const bool disks = node.nvme.capacity > Bytes{0} && node.nvme.read.value > 0 && node.nvme.write.value > 0;
  for (const auto& [tier, key] : {std::pair{o.optimizer, "memory.offload.optimizer"}, {o.parameters, "memory.offload.parameters"}})
    if (tier == st::MemoryTier::nvme && !disks) out.push_back({{}, key, name + "has no NVMe disks", "Use cpu, or write the disks into the node design: nvme: {read: 20 GB/s, write: 10 GB/s, capacity: 15 TB}", ""});
  const bool activations = o.activations != st::MemoryTier::device, states = o.optimizer != st::MemoryTier::device;
  const char* key = states ? "memory.offload.optimizer" : activations ? "memory.offload.activations" : s.strategy.memory.device_map.active() ? "memory.device_map" : nullptr;
  if (key == nullptr) return out;
  if (node.cpu.memory == Bytes{0}) out.push_back({{}, key, name + "does not say how much memory its host has", "Write it into the node design: cpu: {memory: 1024 GB}", ""});
  if (states && node.cpu.memory_bandwidth.value == 0 && node.cpu.update_bandwidth.value == 0)
    out.push_back({{}, key, name + "does not say how fast its host's memory is, which the CPU's update takes its time from", "Write it into the node design: cpu: {memory_bandwidth: 400 GB/s}", ""});
  return out;
}

/// A kernel of attention that this GPU, or this attention, does not have.
std::vector<Diagnostic> attention_kernel_problems(const Scenario& s) {
  const st::Training& t = s.strategy.training;
  std::vector<Diagnostic> out;
  if (!t.attention_kernel) return out;
  const hwmodels::Gpu& gpu = s.cluster.gpu;
  const auto forbid = [&](bool problem, const std::string& what, const char* fix) {
    if (problem && out.empty()) out.push_back({{}, "training.attention_kernel", what, fix, ""});
  };
  const bool old = *t.attention_kernel == model::AttentionKernel::mem_efficient;
  forbid(st::scores_in_memory(t, s.profile), "attention with its scores in memory is no kernel of its own", "Set training.attention: flash, or leave the key out");
  forbid(t.fp8_attention, "attention in 8 bits is cuDNN's", "Leave the key out");
  forbid(hwmodels::is_cdna(gpu.architecture), gpu.title + " has attention kernels of its own (AMD's)", "Leave the key out");
  forbid(*t.attention_kernel == model::AttentionKernel::flash3 && gpu.compute_capability != 90, "FlashAttention 3 is made for Hopper, not for " + gpu.title, "Use flash2 or cudnn");
  forbid(!old && gpu.compute_capability < 80, gpu.title + " is older than these kernels, which want an Ampere GPU", "Use mem-efficient, or leave the key out");
  return out;
}

}  // namespace

std::vector<Diagnostic> problems_of(const Scenario& s) {
  std::vector<Diagnostic> out = st::problems_of(s.strategy.parallelism.degrees, s.gpus(), s.strategy.parallelism.order, s.cluster.gpus_per_node);
  if (!s.cluster.gpu.peak.contains(product_format(s.strategy.training.precision))) {
    std::string known;
    for (const auto& [format, rate] : s.cluster.gpu.peak) known += (known.empty() ? "" : ", ") + std::string(name_of(format));
    out.push_back({{}, "training.precision", fmt::format("{} has no {} matrix products", s.cluster.gpu.title, name_of(product_format(s.strategy.training.precision))), "It has " + known, ""});
  }
  if (const st::Training& t = s.strategy.training; t.fp8_attention && out.empty() && bits(product_format(t.precision)) <= 8) {
    const std::string kernel = t.precision == st::Precision::mxfp8 ? "cudnn_mxfp8" : "cudnn_fp8";
    if (!s.cluster.gpu.kernel_parameters.contains(kernel + "_forward_fraction"))
      out.push_back({{}, "training.fp8_attention", fmt::format("how fast attention in 8 bits is on {} is not known", s.cluster.gpu.title), "Leave the key out, or use a GPU of the architecture blackwell", ""});
  }
  for (Diagnostic& problem : attention_kernel_problems(s)) out.push_back(std::move(problem));
  for (const std::string& problem : model::problems_of(s.model)) out.push_back({{}, "model", problem, "", ""});
  if (!out.empty()) return out;
  out = st::problems_of(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  for (Diagnostic& problem : host_problems(s)) out.push_back(std::move(problem));
  return out;
}

std::string scenario_schema() { return config::json_schema(scenario_fields(), "Rehearse scenario"); }
std::string scenario_reference() {
  const std::string title = "Scenario file\n\n`extends: other.yaml` (or a list of files) at the top: this file completes the others, `key: ~` takes away what they have.";
  std::string text = config::markdown_reference(scenario_fields(), title);
  text += "\n## model\n\nwhere it is a map: layers, hidden, heads and vocab are needed, the rest follows from `style` unless it is written\n\n| key | meaning |\n|---|---|\n";
  for (const model::ModelKey& key : model::model_keys()) text += fmt::format("| `{}` | {} |\n", key.name, key.meaning);
  return text;
}

std::string describe(const Scenario& s) {
  const st::Degrees& d = s.strategy.parallelism.degrees;
  std::string text = fmt::format("model: {} ({} layers, hidden {}, {} heads, {} key/value heads, MLP {}, vocabulary {})\n", s.model.name, s.model.layer_count(), s.model.hidden, s.model.heads, s.model.kv_heads,
                                 s.model.ffn_hidden, s.model.vocab);
  text += fmt::format("cluster: {} x {} ({} x {}), fabric {}\n", s.cluster.nodes, s.cluster.node.name, s.cluster.gpus_per_node, s.cluster.gpu.name, s.cluster.fabric.name);
  text += fmt::format("training: sequence {}, global batch {}, micro-batch {}, framework {}\n", s.strategy.training.sequence_length, s.strategy.training.global_batch_size, s.strategy.training.micro_batch_size, s.profile.name);
  text += fmt::format("parallelism: tensor {}, context {}, pipeline {}, data {}{}\n", d.tensor, d.context, d.pipeline, d.data, s.strategy.parallelism.sequence_parallel ? ", sequence parallel" : "");
  for (const std::string& note : s.notes) text += "note: " + note + "\n";
  return text;
}

}  // namespace rehearse::scenario
