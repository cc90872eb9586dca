#include "sim/scenario/import_section.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "sim/config/layers.h"
#include "sim/core/suggestion.h"
#include "sim/importers/importer.h"
#include "sim/scenario/sections.h"

namespace rehearse::scenario {
namespace {

using config::Value;

constexpr std::string_view kImportKeys[] = {"from", "path", "version", "without", "variables", "strict"};

/// The text of `training.<key>`; "" when absent. Complains when it is no text.
std::string text_of(const Value& training, const char* key, config::Diagnostics& out) {
  const Value* v = training.find(key);
  if (v == nullptr) return {};
  if (v->is_scalar() && !v->text().empty()) return v->text();
  out.push_back(v->diagnostic("needs a word", ""));
  return {};
}

/// Files are named relative to the file that names them; --set has none, so the working folder counts.
std::filesystem::path place_of(const Value& path) {
  std::filesystem::path name = path.text();
  const std::string beside = path.at().file;
  if (name.is_relative() && !beside.starts_with("--")) name = std::filesystem::path(beside).parent_path() / name;
  return name;
}

Value without_import_keys(const Value& root) {
  std::vector<Value::Entry> entries = root.entries();
  for (Value::Entry& e : entries)
    if (e.key == "training" && e.value.is_map()) {
      std::vector<Value::Entry> own = e.value.entries();
      std::erase_if(own, [](const Value::Entry& t) { return std::find(std::begin(kImportKeys), std::end(kImportKeys), t.key) != std::end(kImportKeys); });
      e.value = Value::map(std::move(own), e.value.place(), e.value.path());
    }
  return Value::map(std::move(entries), root.place(), root.path());
}

}  // namespace

importers::Context import_context(const Value& root, const std::string& file) {
  importers::Context context;
  context.scenario = root;
  config::Diagnostics later;
  config::Provenance given;
  const ScenarioFile f = config::read(root, scenario_fields(), later, &given);
  std::vector<std::string> notes;
  if (const Value* model = root.find("model")) {
    try {
      const model::ModelDescription description = read_model_section(*model, file, notes);
      context.hidden = description.hidden;
      context.layers = description.layer_count();
    } catch (const ConfigError&) {
    }
  }
  try {
    const hwmodels::ClusterDescription cluster = resolve_cluster(f.cluster, given);
    context.gpus_per_node = cluster.gpus_per_node;
    context.gpus = static_cast<std::int64_t>(cluster.gpus_per_node) * cluster.nodes;
  } catch (const ConfigError&) {
  }
  return context;
}

Value merged_import(const importers::Imported& imported, const Value& over) { return config::merged(imported.keys, without_import_keys(over)); }

Value with_import(const Value& root, const std::string& file, std::vector<std::string>& notes) {
  const Value* training = root.find("training");
  if (training == nullptr || !training->is_map()) return root;
  const Value* from = training->find("from");
  if (from == nullptr) {
    for (const std::string_view key : kImportKeys)
      if (const Value* v = training->find(key)) throw ConfigError(v->diagnostic("belongs to training.from, which is not given", "Write from: deepspeed (or megatron, torchtitan, accelerate)"));
    return root;
  }
  config::Diagnostics out;
  importers::Context context = import_context(root, file);
  const std::string format = text_of(*training, "from", out);
  if (!format.empty() && importers::formats().find(format) == nullptr) {
    std::string known;
    for (const std::string& n : importers::formats().names()) known += (known.empty() ? "" : ", ") + n;
    out.push_back(from->diagnostic(fmt::format("files of '{}' cannot be imported", format), did_you_mean(format, importers::formats().names(), "Known: " + known)));
  }
  const Value* path = training->find("path");
  if (path == nullptr || !path->is_scalar() || path->text().empty()) out.push_back((path != nullptr ? *path : *from).diagnostic("an import needs the path of the file", "Write {from: deepspeed, path: ds_config.json}"));
  context.version = text_of(*training, "version", out);
  bool strict = false;
  if (const Value* v = training->find("strict")) {
    strict = v->text() == "true";
    if (!v->is_scalar() || (v->text() != "true" && v->text() != "false")) out.push_back(v->diagnostic("needs true or false", ""));
  }
  if (const Value* v = training->find("without")) {
    if (!v->is_list()) out.push_back(v->diagnostic("needs a list of keys of the imported file", "Write [key, key.below]"));
    for (const Value& item : v->items()) context.without.push_back(item.text());
  }
  if (const Value* v = training->find("variables")) {
    if (!v->is_map()) out.push_back(v->diagnostic("needs variables of the imported script with their values", "Write {WORLD_SIZE: 4, 1: 8B}; numbers are the script's arguments"));
    for (const Value::Entry& e : v->entries()) context.variables[e.key] = e.value.text();
  }
  config::throw_if_any(std::move(out));

  const std::filesystem::path place = place_of(*path);
  importers::Imported imported;
  try {
    imported = importers::import_file(place, format, context);
  } catch (const ConfigError& e) {
    std::vector<Diagnostic> all;
    for (Diagnostic d : e.diagnostics()) {
      // A mistake of the whole file (it is missing, say) is mended where the file is named.
      if (d.at.line == 0 && d.key.empty()) d = path->diagnostic(fmt::format("{}: {}", place.string(), d.problem), d.fix);
      all.push_back(std::move(d));
    }
    throw ConfigError(std::move(all));
  }
  config::throw_if_any(importers::refusals(imported, strict));
  const auto& report = imported.report;
  const std::string name = place.filename().string();
  notes.push_back(fmt::format("{}: {} keys used, {} ignored, {} not understood (rehearse import {} lists them)", name, report.used.size(), report.ignored.size(), report.not_understood.size(), place.string()));
  for (const model::ImportNote& n : report.assumed) notes.push_back(fmt::format("{}: {} = {}", name, n.key, n.note));
  for (const model::ImportNote& n : report.not_understood) notes.push_back(fmt::format("{}: {} was left out: {}", name, n.key, n.note));
  for (const model::ImportNote& n : report.ignored)
    if (n.note == importers::kLeftOut) notes.push_back(fmt::format("{}: {} was left out, as asked", name, n.key));
  return merged_import(imported, root);
}

}  // namespace rehearse::scenario
