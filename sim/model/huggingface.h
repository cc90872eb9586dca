// Reads a Hugging Face config.json into a model description, family by family, and reports every field of it.
// Leaves out weights, remote code (never run), vision towers and the number format of the checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/model/description.h"
#include "sim/model/import_report.h"

namespace rehearse::model {

struct ImportedModel {
  ModelDescription model;
  ImportReport report;
  bool text_part_only = false;   // the file describes a multimodal model, this is its language model
};

/// The description of the language model in a config.json. A file that keeps it under `text_config` is
/// followed there.
///   config   the whole file; transformers 4 and 5 spellings are both read
///   name     becomes ModelDescription::name; empty = `_name_or_path`, else the file's stem
/// Throws ConfigError with every mistake: unknown model_type (lists the known), missing or unusable sizes,
/// and features that would change the answer but that we cannot state (linear attention, per-layer overrides,
/// encoders). Source: the configuration classes of transformers 5.23, whose defaults stand in for absent
/// fields.
ImportedModel import_huggingface(const config::Value& config, const std::string& name = {});

/// The same for a file, or for a folder that holds a config.json. Throws also when it cannot be read or is not JSON.
ImportedModel import_huggingface(const std::filesystem::path& path);

/// Whether what is given for a model means a file, not a preset: it ends in .json, or is a folder with a config.json.
bool means_config_file(const std::filesystem::path& given);

/// Every `model_type` that import_huggingface knows, with a word on it, in the catalog's order.
struct HuggingFaceFamily {
  std::string model_type;
  std::string summary;
};
std::vector<HuggingFaceFamily> huggingface_families();

}  // namespace rehearse::model
