// rehearse model: the bundled models, and config.json files as we understand them.
#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/config/document.h"
#include "sim/model/describe.h"
#include "sim/model/huggingface.h"
#include "sim/model/model_file.h"
#include "sim/model/presets.h"
#include "sim/report/format.h"

#include <filesystem>
#include <fmt/format.h>

namespace rehearse::cli {
namespace {

std::string other_names(const std::string& preset) { return fmt::format("{}", fmt::join(model::preset_facts(preset).aliases, ", ")); }

int list_models() {
  report::Table table({"Model", "parameters", "layers", "hidden", "heads", "kv heads", "vocabulary", "other names"});
  table.left(7);
  for (const std::string& name : model::preset_names()) {
    const model::ModelDescription m = model::load_preset(name);
    table.add({"  " + name, model::human_count(model::count_parameters(m).total), std::to_string(m.layer_count()), std::to_string(m.hidden), std::to_string(m.heads), std::to_string(m.kv_heads),
               std::to_string(m.vocab), other_names(name)});
  }
  print(table.text(0));
  return kYes;
}

std::string lines(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& line : all) text += line + "\n";
  return text;
}

std::string show_file(const std::filesystem::path& path) {
  const config::Document document = config::load_document(path);
  const bool ours = document.root.find("layers") != nullptr && document.root.find("model_type") == nullptr;
  if (ours) return lines(model::describe(model::read_model(document.root, path.stem().string())));
  const model::ImportedModel imported = model::import_huggingface(path);
  return lines(model::describe(imported.model)) + "\n" + lines(to_lines(imported.report));
}

int show_model(const std::string& name) {
  std::error_code ignored;
  const auto preset = model::preset_for(name);   // "meta-llama/Llama-2-7b-hf", too
  if (std::filesystem::exists(name, ignored) || name.ends_with(".json") || name.ends_with(".yaml") || (!preset && name.find('/') != std::string::npos)) {
    print(show_file(name));
    return kYes;
  }
  const model::ModelDescription m = model::load_preset(preset.value_or(name));
  std::string text = lines(model::describe(m));
  if (preset && !other_names(*preset).empty()) text += report::wrapped("other names     ", other_names(*preset));
  if (preset) text += report::wrapped("source          ", model::preset_facts(*preset).source);
  print(text);
  return kYes;
}

}  // namespace

Run add_model(CLI::App& app) {
  app.require_subcommand(1);
  auto name = std::make_shared<std::string>();
  app.footer("Examples:\n  rehearse model show llama-3-8b\n  rehearse model show path/to/config.json");  // of the subcommands, too: they take what is there
  CLI::App* list_command = app.add_subcommand("list", "every bundled model");
  CLI::App* show_command = app.add_subcommand("show", "shapes and parameters of one");
  show_command->add_option("NAME", *name, "a bundled model, or a Hugging Face config.json or its folder")->required();
  return [=] { return list_command->parsed() ? list_models() : show_model(*name); };
}

}  // namespace rehearse::cli
