// The formats' readers, one file each; import_file.cpp announces them. Only scripts have variables that may be given.
#pragma once

#include "sim/importers/import_file.h"

namespace rehearse::importers {

// DeepSpeed's JSON file; comments (#, //, /* */) and a trailing comma are read as its parser, hjson, reads them.
config::Value parse_deepspeed(const std::string& text, const std::string& file_name, const ShellVariables& given = {});
bool is_deepspeed(const config::Value& root, const std::string& text);
Imported read_deepspeed(const config::Value& root, const Context& context);

// Megatron-LM: a command line or a shell script, the block of arguments in a log, a YAML file.
config::Value parse_megatron(const std::string& text, const std::string& file_name, const ShellVariables& given = {});
bool is_megatron(const config::Value& root, const std::string& text);
Imported read_megatron(const config::Value& root, const Context& context);

// torchtitan: TOML as it was until February 2026, and the JSON that the trainer writes.
config::Value parse_torchtitan(const std::string& text, const std::string& file_name, const ShellVariables& given = {});
bool is_torchtitan(const config::Value& root, const std::string& text);
Imported read_torchtitan(const config::Value& root, const Context& context);

// What `accelerate config` writes.
config::Value parse_accelerate(const std::string& text, const std::string& file_name, const ShellVariables& given = {});
bool is_accelerate(const config::Value& root, const std::string& text);
Imported read_accelerate(const config::Value& root, const Context& context);

/// Throws where variables are given to a file that has none.
void refuse_variables(const std::string& file_name, const ShellVariables& given);

/// JSON with comments, as YAML reads it; comments become spaces, so that every place stays where it was.
config::Value parse_commented_json(std::string text, const std::string& file_name);

}  // namespace rehearse::importers
