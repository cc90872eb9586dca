#include "sim/scenario/megatron_command.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "sim/config/document.h"
#include "sim/config/reader.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/readers.h"
#include "sim/scenario/import_section.h"

namespace rehearse::scenario {

bool is_whole_command(const std::string& arguments) {
  const auto states = [&](const char* name) { return arguments.find(std::string("\"") + name + "\"") != std::string::npos; };
  return (states("num-layers") || states("hybrid-layer-pattern") || states("hybrid-override-pattern")) && states("hidden-size") && states("seq-length") && states("micro-batch-size") && states("global-batch-size");
}

std::int64_t steps_of_command(const std::string& arguments) {
  constexpr std::string_view kKey = "\"train-iters\":";
  const std::size_t at = arguments.find(kKey);
  return at == std::string::npos ? 0 : std::strtoll(arguments.c_str() + at + kKey.size(), nullptr, 10);
}

Scenario scenario_of_arguments(const std::string& arguments, const std::string& environment, const config::Value& around) {
  const config::Value command = importers::flat_arguments(config::parse_document(arguments, "model_args_json").root);
  std::vector<config::Value::Entry> all = command.entries();
  const config::Value variables = environment.empty() ? config::Value() : config::parse_document(environment, "env_vars_json").root;
  for (const config::Value::Entry& e : variables.entries())
    if (command.find(e.key) == nullptr && std::find(importers::kEnvironment.begin(), importers::kEnvironment.end(), e.key) != importers::kEnvironment.end()) all.push_back(e);
  const importers::Imported imported = importers::read_megatron(config::Value::map(std::move(all), command.place(), command.path()), import_context(around, "model_args_json"));
  config::throw_if_any(importers::refusals(imported, false));
  Scenario s = read_scenario(merged_import(imported, around), "model_args_json");
  for (const model::ImportNote& n : imported.report.not_understood) s.notes.push_back(n.key + " was left out: " + n.note);
  return s;
}

}  // namespace rehearse::scenario
