// Mistakes on the command line itself, in our words: unknown subcommands and options with the nearest real ones.
// Leaves out mistakes in files (diagnostics.h).
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "sim/core/error.h"

namespace rehearse::cli {

/// What went wrong while `app` parsed its command line.
Diagnostic explain_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace rehearse::cli
