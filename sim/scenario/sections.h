// Sections of the scenario file that are needed before all of them can be resolved.
#pragma once

#include <string>
#include <vector>

#include "hwmodels/topology/cluster.h"
#include "sim/config/reader.h"
#include "sim/model/description.h"
#include "sim/scenario/scenario_file.h"

namespace rehearse::scenario {

/// A preset's name, {from: hf, path: ...} beside `file`, or shapes. Throws ConfigError.
model::ModelDescription read_model_section(const config::Value& value, const std::string& file, std::vector<std::string>& notes);

/// The cluster with its overrides; `given` knows where they stand. Throws ConfigError.
hwmodels::ClusterDescription resolve_cluster(const ClusterSection& section, const config::Provenance& given);

}  // namespace rehearse::scenario
