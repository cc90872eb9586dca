// rehearse import: a framework's own file becomes a scenario, and a report says what became of each of its keys.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iomanip>
#include <sstream>

#include "sim/cli/output.h"
#include "sim/cli/scenario_arguments.h"
#include "sim/cli/subcommand.h"
#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/config/reader.h"
#include "sim/importers/importer.h"
#include "sim/model/huggingface.h"
#include "sim/model/presets.h"
#include "sim/scenario/import_section.h"

namespace rehearse::cli {
namespace {

using config::Value;

struct ImportOptions {
  std::string file, framework, version, model, cluster, output;
  std::int64_t nodes = 0, sequence = 0;
  std::vector<std::string> overrides, without, variables;
  std::string arguments;
  bool strict = false;
};

/// What the command line says of the scenario, as the tree that a scenario file would give.
Value stated(const ImportOptions& o) {
  std::vector<std::string> all;
  if (!o.model.empty()) {
    // The model section reads paths from beside the scenario, which lies elsewhere than the working folder.
    std::error_code ignored;
    const bool path = o.model.find('/') != std::string::npos;
    const bool file = path ? std::filesystem::is_regular_file(o.model, ignored) || model::means_config_file(o.model) : !model::preset_for(o.model) && model::means_config_file(o.model);
    all.push_back(file ? fmt::format("model={{from: hf, path: \"{}\"}}", std::filesystem::absolute(o.model).string()) : "model=" + o.model);
  }
  if (!o.cluster.empty()) all.push_back("cluster.node=" + o.cluster);
  if (o.nodes > 0) all.push_back(fmt::format("cluster.nodes={}", o.nodes));
  if (o.sequence > 0) all.push_back(fmt::format("training.sequence_length={}", o.sequence));
  all.insert(all.end(), o.overrides.begin(), o.overrides.end());
  return config::apply_overrides(Value::map({}, {}, ""), all);
}

/// What only the user can say.
config::Diagnostics missing(const Value& scenario, const std::string& file, bool with_sequence) {
  config::Diagnostics all;
  const auto need = [&](const char* key, const char* what, const char* fix) {
    const Value* v = importers::find_dotted(scenario, key);
    if (v == nullptr || v->is_null()) all.push_back({{file, 0, 0}, key, what, fix, ""});
  };
  need("model", "the file does not say which model is trained", "Add --model llama-2-13b (rehearse model list), or --model path/to/config.json");
  need("cluster.node", "the file does not say on which machines", "Add --cluster dgx-a100 (rehearse hardware list), and --nodes if there are several");
  if (with_sequence) need("training.sequence_length", "the file does not say how long the samples are", "Add --sequence-length 4096");
  return all;
}

std::string flow(const Value& v) {
  std::string text;
  for (const Value& item : v.items()) text += (text.empty() ? "" : ", ") + item.text();
  return "[" + text + "]";
}

/// Where a value comes from, for the margin.
std::string origin(const Value& v, const importers::Imported& imported) {
  const SourceLocation at = v.at();
  if (at.line > 0) return to_string(SourceLocation{std::filesystem::path(at.file).filename().string(), at.line, 0});
  for (const model::ImportNote& n : imported.report.assumed)
    if (n.key == v.path()) {
      const std::size_t open = n.note.find(" (");
      return open == std::string::npos ? "assumed" : n.note.substr(open + 2, n.note.size() - open - 3);
    }
  return at.file.starts_with("--") ? "given with the import" : "";
}

std::string line_number(std::string text) {
  const std::size_t zero = text.rfind(":0");
  return zero != std::string::npos && zero + 2 == text.size() ? text.substr(0, zero) : text;
}

void write(const Value& v, const std::string& key, int indent, const importers::Imported& imported, std::string& out) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  if (v.is_map()) {
    out += fmt::format("{}{}:\n", margin, key);
    for (const Value::Entry& e : v.entries()) write(e.value, e.key, indent + 2, imported, out);
    return;
  }
  std::string text = v.is_list() ? flow(v) : config::to_yaml(v);
  while (text.ends_with('\n')) text.pop_back();
  const std::string from = line_number(origin(v, imported));
  std::string line = fmt::format("{}{}: {}", margin, key, text);
  out += from.empty() ? line + "\n" : fmt::format("{:<44} # {}\n", line, from);
}

constexpr std::array kOrder = {"title", "model", "cluster", "training", "parallelism", "data_parallel", "pipeline"};

std::string scenario_text(const Value& scenario, const importers::Imported& imported) {
  const auto& r = imported.report;
  std::string out = fmt::format("# From {} ({}): {} keys used, {} ignored, {} not understood.\n", imported.file, imported.framework, r.used.size(), r.ignored.size(), r.not_understood.size());
  for (const model::ImportNote& n : r.not_understood) out += fmt::format("# Not understood: {}\n", n.key);
  for (const model::ImportNote& n : r.ignored)
    if (n.note == importers::kLeftOut) out += fmt::format("# Left out, as asked: {}\n", n.key);
  if (scenario.find("title") == nullptr) out += fmt::format("title: \"{}\"\n", std::filesystem::path(imported.file).filename().string());
  const auto known = [](const std::string& key) { return std::find(kOrder.begin(), kOrder.end(), key) != kOrder.end(); };
  for (const char* key : kOrder)
    if (const Value* v = scenario.find(key)) write(*v, key, 0, imported, out);
  for (const Value::Entry& e : scenario.entries())
    if (!known(e.key)) write(e.value, e.key, 0, imported, out);
  return out;
}

/// --variable NAME=VALUE, and --arguments by their numbers.
importers::ShellVariables variables_of(const ImportOptions& o) {
  importers::ShellVariables out;
  for (const std::string& v : o.variables) {
    const std::size_t equals = v.find('=');
    if (equals == std::string::npos || equals == 0) throw ConfigError(Diagnostic{{}, "--variable", fmt::format("'{}' is no variable with its value", v), "Write --variable WORLD_SIZE=4", ""});
    out[v.substr(0, equals)] = v.substr(equals + 1);
  }
  std::istringstream words(o.arguments);
  std::string word;
  for (int i = 1; words >> std::quoted(word); ++i) out[std::to_string(i)] = word;
  return out;
}

int run(const ImportOptions& o) {
  check_outputs({o.output}, {o.file});
  const Value over = stated(o);
  importers::Context context = scenario::import_context(over, o.file);
  context.version = o.version;
  context.without = o.without;
  context.variables = variables_of(o);
  importers::Imported imported;
  try {
    imported = importers::import_file(o.file, o.framework, context);
  } catch (const ConfigError& e) {
    // A file of another kind needs no machines; one that can be read may have failed for want of them.
    config::Diagnostics all = e.diagnostics();
    const bool read = std::any_of(all.begin(), all.end(), [](const Diagnostic& d) { return !d.key.empty(); });
    if (read && importers::find_dotted(over, "cluster.node") == nullptr)
      for (Diagnostic& d : missing(over, o.file, false))
        if (d.key == "cluster.node") all.push_back(std::move(d));
    throw ConfigError(std::move(all));
  }
  std::string report = fmt::format("{}: {}\n", o.file, imported.framework);
  for (const std::string& line : importers::to_lines(imported)) report += line + "\n";
  if (o.output.empty()) say(report);
  else print(report);
  config::throw_if_any(importers::refusals(imported, o.strict));
  const Value scenario = scenario::merged_import(imported, over);
  config::throw_if_any(missing(scenario, o.file, true));
  scenario::read_scenario(scenario, o.file);  // says what cannot be, at the places of the user's file
  const std::string text = scenario_text(scenario, imported);
  if (o.output.empty()) print(text);
  else write_file(o.output, text);
  return kYes;
}

}  // namespace

Run add_import(CLI::App& app) {
  auto o = std::make_shared<ImportOptions>();
  std::string formats;
  for (const std::string& n : importers::formats().names()) formats += (formats.empty() ? "" : ", ") + n;
  app.add_option("FILE", o->file, "configuration of a framework: DeepSpeed's JSON, Megatron's arguments or log, torchtitan's TOML or JSON, accelerate's YAML")->required();
  app.add_option("--framework", o->framework, "what the file is, if its content does not tell: " + formats)->type_name("NAME");
  app.add_option("--framework-version", o->version, "for defaults that changed; default: the newest known")->type_name("VERSION");
  app.add_option("--model", o->model, "a bundled model, or a Hugging Face config.json or its folder")->type_name("NAME");
  app.add_option("--cluster", o->cluster, "node design (hardware list)")->type_name("NODE");
  app.add_option("--nodes", o->nodes, "number of nodes")->type_name("N")->check(CLI::Range(1, 100000));
  app.add_option("--sequence-length", o->sequence, "tokens per sample")->type_name("N")->check(CLI::Range(1, 1 << 26));
  ScenarioArguments::add_overrides(app, "--set", o->overrides, "set a key of the scenario; it wins over the file (repeatable)");
  app.add_option("--without", o->without, "leave out a key of the file, with all below it (repeatable)")->allow_extra_args(false)->type_name("KEY");
  app.add_option("--arguments", o->arguments, "of a script, as a shell would get them: --arguments '8B 1 256'")->type_name("WORDS");
  app.add_option("--variable", o->variables, "of a script's environment: --variable WORLD_SIZE=4 (repeatable)")->allow_extra_args(false)->type_name("NAME=VALUE");
  app.add_flag("--strict", o->strict, "keys that are not understood are errors");
  app.add_option("-o,--output", o->output, "write the scenario to a file; the report then goes to stdout")->type_name("FILE");
  app.footer("Examples:\n  rehearse import ds_config.json --model llama-2-13b --cluster dgx-a100 --sequence-length 4096 -o job.yaml\n  rehearse import train.log --cluster dgx-h100 -o job.yaml\n"
             "In a scenario: training: {from: deepspeed, path: ds_config.json}");
  return [o] { return run(*o); };
}

}  // namespace rehearse::cli
