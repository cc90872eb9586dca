// Mistakes of the user as compilers show them: the place, the line with a mark under it, and what to do.
// Leaves out finding mistakes (sim/config, rules) and exit codes (main.cpp).
#pragma once

#include <string>
#include <vector>

#include "sim/core/error.h"

namespace rehearse::cli {

/// All of them, and how many there are. `file:line:column` stands in one piece, for editors that jump to it.
std::string show(const std::vector<Diagnostic>& diagnostics, bool colour);

}  // namespace rehearse::cli
