// The bundled models: public architectures under short names, with their sources (sim/model/data/*.yaml).
// Leaves out the file format of one model (model_file.h) and weights.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/value.h"
#include "sim/model/description.h"

namespace rehearse::model {

/// Throws ConfigError for an unknown name (with the nearest one); aliases are accepted too.
ModelDescription load_preset(const std::string& name);

/// The preset with the keys of `changes` (a map; maps inside merge key by key, an empty key takes away) in place of its own, called by
/// both unless they have a `name`. Throws ConfigError: unknown name; what read_model refuses, at the key that was changed or at `changes`.
ModelDescription load_preset(const std::string& name, const config::Value& changes);

/// Every preset's name, sorted; the names are of lower case: "llama-3-8b".
std::vector<std::string> preset_names();

/// The preset that a model name in prose or a table means: "Llama-3.1-8B", "meta-llama/Llama-2-7b-hf",
/// "GPT-OSS-120B", "llama3-70b (12 layers)". Brackets, case, punctuation and the suffixes hf, base, instruct,
/// chat, it do not matter. Nothing when no preset has the name or the alias: sizes are never guessed from a
/// near name.
std::optional<std::string> preset_for(std::string_view model_name);

/// What a data file says about a preset.
struct PresetFacts {
  std::string name;
  std::string source;  // where the shapes come from
  std::vector<std::string> aliases;
  std::optional<std::int64_t> parameters;    // exact published or independently counted total
  std::optional<double> published_billions;  // rounded published total, when there is no exact one
  std::optional<double> published_active_billions;
};
PresetFacts preset_facts(const std::string& name);

/// The parts in which two descriptions differ, names left aside: "hidden 4096 / 5120; tied"; "" when they
/// agree.
std::string describe_difference(const ModelDescription& a, const ModelDescription& b);

}  // namespace rehearse::model
