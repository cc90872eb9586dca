// What a script asks of Slurm in its #SBATCH lines. Leaves out what the importer makes of it (megatron_parallelism.cpp).
#pragma once

#include <string>
#include <vector>

#include "sim/importers/shell_words.h"

namespace rehearse::importers {

struct BatchOption {
  std::string name, value;   // as arguments are: ntasks_per_node; short options by their long names
  int line = 1, column = 1;  // of the value, or of an option without one
};

/// In the order of the text, up to its first command, where sbatch stops too.
std::vector<BatchOption> batch_options(const std::string& text);

/// The variables that Slurm sets from them: SLURM_NNODES and the like.
ShellVariables batch_variables(const std::vector<BatchOption>& options);

}  // namespace rehearse::importers
