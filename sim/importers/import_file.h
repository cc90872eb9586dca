// Reads the configuration of a training framework as keys of a scenario, with a report of every key of the file.
// Leaves out models of Hugging Face (sim/model/huggingface.h), resolving the scenario (sim/scenario) and printing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/core/catalog.h"
#include "sim/core/error.h"
#include "sim/importers/shell_words.h"
#include "sim/model/import_report.h"

namespace rehearse::importers {

/// What the scenario around the file says already; importers need it for values that are left to the framework
/// ("auto", the third number of a batch, "the rest of the GPUs").
struct Context {
  config::Value scenario;                      // the keys that the user wrote; null when there is no scenario yet
  std::optional<std::int64_t> gpus;            // of the cluster
  std::optional<std::int64_t> gpus_per_node;
  std::optional<std::int64_t> hidden, layers;      // of the model
  std::string version;                         // of the framework, where its defaults changed; empty: the newest known
  std::vector<std::string> without;            // keys of the file to leave out, with all below them
  ShellVariables variables;                    // of a script, from outside: its environment, and its arguments as "1", "2", ...
  std::string beside;                          // where file names inside the file start; empty: the folder of the file
};

struct Imported {
  std::string framework;                       // a name of formats()
  std::string file;
  config::Value keys;                          // scenario keys; every value has the place it came from in the user's file
  model::ImportReport report;
  std::vector<Diagnostic> unsimulated;         // set features that would change the answer and cannot be simulated yet
};

/// Reads a file in `format`; an empty `format` is told from the content. Throws ConfigError with every mistake: unreadable
/// syntax, wrong kinds of values, contradictions, keys in `without` that the file lacks, variables that it does not use.
Imported import_file(const std::filesystem::path& path, const std::string& format, const Context& context);

/// The same from memory; `file_name` is what messages call it.
Imported import_text(const std::string& text, const std::string& file_name, const std::string& format, const Context& context);

/// deepspeed, megatron, torchtitan, accelerate, each with what its files look like.
struct Format {
  config::Value (*parse)(const std::string& text, const std::string& file_name, const ShellVariables& given);
  bool (*recognises)(const config::Value& root, const std::string& text);
  Imported (*read)(const config::Value& root, const Context& context);
};
const Catalog<Format>& formats();

/// The report's lines, and below them what cannot be simulated yet.
std::vector<std::string> to_lines(const Imported& imported);

/// The mistakes that stop a simulation: what is not simulated yet and, when strict, what was not understood.
std::vector<Diagnostic> refusals(const Imported& imported, bool strict);

}  // namespace rehearse::importers
