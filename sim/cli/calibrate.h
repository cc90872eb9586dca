// The subcommands of `rehearse calibrate`, one file each.
#pragma once

#include <string>

#include "sim/cli/subcommand.h"

namespace rehearse::cli {

Run add_calibrate_fit(CLI::App& app);
Run add_calibrate_show(CLI::App& app);
Run add_calibrate_import(CLI::App& app);
Run add_calibrate_against(CLI::App& app);

/// Today in UTC, as sources of fitted numbers state it: "2026-05-04".
std::string today();

}  // namespace rehearse::cli
