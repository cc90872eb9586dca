// What a subcommand is: a name, a line of help, and a function that adds its options to the command line.
// Leaves out what each of them does (one file each) and how errors become exit codes (main.cpp).
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "sim/core/catalog.h"

namespace rehearse::cli {

/// Exit codes; documented in --help and in the README. Scripts rely on the difference between 1 and 2.
enum ExitCode : int {
  kYes = 0,
  kNo = 1,                  // the answer is no: does not fit, target missed
  kBadInput = 2,            // mistakes in files or on the command line
  kMissingEnvironment = 3,  // data files, devices or space that the program needs
  kOurBug = 4,
};

/// What the environment lacks: main prints it and exits with 3.
struct EnvironmentError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What a subcommand runs once the command line has been read; returns its exit code.
using Run = std::function<int()>;

/// Adds options to `app` and returns what to run. Options live in a shared_ptr that the returned function holds.
using AddSubcommand = Run (*)(CLI::App& app);

/// Every subcommand, in the order of --help.
const Catalog<AddSubcommand>& subcommands();

Run add_run(CLI::App& app);
Run add_explain(CLI::App& app);
Run add_compare(CLI::App& app);
Run add_sweep(CLI::App& app);
Run add_advise(CLI::App& app);
Run add_max_batch(CLI::App& app);
Run add_max_model(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_validate(CLI::App& app);
Run add_calibrate(CLI::App& app);
Run add_hardware(CLI::App& app);
Run add_model(CLI::App& app);
Run add_framework(CLI::App& app);
Run add_import(CLI::App& app);
Run add_schema(CLI::App& app);
Run add_reference(CLI::App& app);
Run add_doctor(CLI::App& app);

}  // namespace rehearse::cli
