// A scenario: model, cluster and strategy, everything resolved and checked, as one constant value.
// Leaves out the simulation itself (simulate.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"
#include "sim/config/value.h"
#include "sim/model/description.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::scenario {

struct Scenario {
  std::string file;                       // where it was read, or what it stands for
  std::string title;
  model::ModelDescription model;
  hwmodels::ClusterDescription cluster;
  hwmodels::CommunicationOptions communication;
  strategies::Strategy strategy;
  strategies::FrameworkProfile profile;
  std::vector<std::string> notes;         // defaults that were filled in, inputs that were ignored: always shown
  std::vector<std::pair<std::string, std::vector<config::Value>>> sweep;   // dotted key -> values

  int gpus() const { return cluster.nodes * cluster.gpus_per_node; }
};

/// Reads a scenario file (with `extends`), applies `--set` overrides, resolves presets and `auto`, checks every rule.
/// Throws ConfigError with all mistakes at once, each with its place and its fix.
Scenario load_scenario(const std::string& path, const std::vector<std::string>& overrides = {});

/// The same from a value tree; `file` names it in messages.
Scenario read_scenario(const config::Value& root, const std::string& file);

/// Checks a scenario built in code; the diagnostics have no places.
std::vector<Diagnostic> problems_of(const Scenario& scenario);

/// The number format of matrix products under a precision; the GPU must have a peak for it.
DType product_format(strategies::Precision precision);

/// JSON Schema and Markdown reference of the scenario file, from the parser's own table.
std::string scenario_schema();
std::string scenario_reference();

/// The effective scenario as YAML lines, every default filled in.
std::string describe(const Scenario& scenario);

}  // namespace rehearse::scenario
