// `training: {from: deepspeed, path: ds_config.json}`: the user's own file as the layer below the scenario's keys.
// Leaves out what the files mean (sim/importers) and the scenario's own keys (scenario_file.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/importers/import_file.h"

namespace rehearse::scenario {

/// What importers may know of the scenario: its keys, and the size of its cluster and the width of its model where they
/// can be read (mistakes in them are reported later, with the others).
importers::Context import_context(const config::Value& root, const std::string& file);

/// The scenario with the keys of the file that `training.from` names below its own, and without the keys that name it; the
/// scenario as it is when there is no `training.from`. Throws ConfigError when the file cannot be read, holds features that
/// cannot be simulated, or, with `training.strict`, holds keys that are not understood.
///   notes    learns what was assumed and what was left out
config::Value with_import(const config::Value& root, const std::string& file, std::vector<std::string>& notes);

/// `over` on top of the imported keys, without the keys that name a file to import.
config::Value merged_import(const importers::Imported& imported, const config::Value& over);

}  // namespace rehearse::scenario
