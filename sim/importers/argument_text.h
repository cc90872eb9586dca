// Arguments as people paste them: a command line, a shell script around it, or the block that Megatron prints at start-up.
// Leaves out what the arguments mean (megatron.cpp). Nothing is executed.
#pragma once

#include <array>
#include <string>

#include "sim/config/value.h"
#include "sim/importers/shell_words.h"

namespace rehearse::importers {

inline constexpr const char* kProgram = "program";

/// Before the names of a script's #SBATCH options.
inline constexpr const char* kBatchPrefix = "sbatch_";

/// The files that a script sources: a map from their names to why they were not read, "" where they were.
inline constexpr const char* kSourced = "source";

/// In a YAML file of Megatron-Bridge: the names of its sections, which flat arguments lose.
inline constexpr const char* kSections = "sections";

/// Variables of a job's environment that change what a step does.
inline constexpr std::array kEnvironment{"CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "NVTE_ALLOW_NONDETERMINISTIC_ALGO", "NVTE_CUTEDSL_FUSED_GROUPED_MLP", "NVTE_FUSED_ATTN",
                                         "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_ENABLE_TIMING"};

/// Every `--name value` in the text as a map: dashes become underscores, a name without a value is `true`, several values
/// are a list, the last of several uses wins. Understands quotes, continued lines, comments, arrays, `NAME=value` with
/// $NAME, ${NAME}, ${NAME:-default} and $((arithmetic)), `given` from outside; branches that variables rule out are left out. A training program (pretrain_gpt.py) is the
/// value of kProgram; #SBATCH lines and sourced files are keys too. Variables that PyTorch or CUDA read are keys as well, by their names (kEnvironment).
config::Value parse_command_line(const std::string& text, const std::string& file_name, const ShellVariables& given = {});

/// The lines `  name ........ value` between "--- arguments ---" and "--- end of arguments ---", whatever a launcher wrote
/// before them. Null when there is no such block.
config::Value parse_argument_dump(const std::string& text, const std::string& file_name);
bool has_argument_dump(const std::string& text);

/// A map of maps made flat: the last part of each key, with dashes as underscores and without leading ones; of equal names
/// the last wins.
config::Value flat_arguments(const config::Value& tree);

}  // namespace rehearse::importers
