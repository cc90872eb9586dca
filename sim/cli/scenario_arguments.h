// SCENARIO and --set, which most subcommands share.
// Leaves out what is done with the scenario.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "sim/scenario/scenario.h"

namespace rehearse::cli {

struct ScenarioArguments {
  std::string file;
  std::vector<std::string> overrides;

  /// Adds both. The options point into this object, so it must outlive the parsing.
  void add_to(CLI::App& app) {
    app.add_option("SCENARIO", file, "scenario file (YAML)")->required();
    add_overrides(app, "--set", overrides, "set a key of the scenario: --set training.micro_batch_size=2 (repeatable)");
  }
  scenario::Scenario load() const { return scenario::load_scenario(file, overrides); }

  /// One value per use, so that what follows is not swallowed.
  static CLI::Option* add_overrides(CLI::App& app, const std::string& name, std::vector<std::string>& target, const std::string& help) {
    return app.add_option(name, target, help)->allow_extra_args(false)->type_name("KEY=VALUE");
  }
};

}  // namespace rehearse::cli
