// Mistakes on the command line itself, in our words: unknown subcommands and options with the nearest real ones.
// Leaves out mistakes in files (diagnostics.h).
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "sim/core/error.h"

namespace rehearse::cli {

/// What went wrong while `app` parsed its command line.
Diagnostic explain_usage(const CLI::App& app, const CLI::ParseError& error);

/// An option or argument that was given an empty value, as by a variable of the shell that is not set.
std::optional<Diagnostic> empty_value(const CLI::App& app);

}  // namespace rehearse::cli
