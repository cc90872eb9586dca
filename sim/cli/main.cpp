// rehearse: reads the command line, runs one subcommand and turns every kind of failure into its exit code.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <exception>
#include <map>
#include <new>

#include "sim/cli/diagnostics.h"
#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/cli/usage.h"
#include "sim/cli/version.h"
#include "sim/core/contract.h"
#include "sim/core/freed_memory.h"
#include "sim/core/resources.h"

namespace {

using namespace rehearse;
using namespace rehearse::cli;

constexpr const char* kFooter =
    "Exit codes: 0 yes; 1 the answer is no (does not fit, target missed); 2 bad input; 3 the environment lacks\n"
    "something; 4 a bug of ours; 130, 143 stopped by Ctrl-C or SIGTERM.\n\n"
    "Examples:\n"
    "  rehearse run scenarios/llama3_8b_8xh100.yaml\n"
    "  rehearse sweep scenarios/llama3_8b_8xh100.yaml --over training.micro_batch_size=1,2,4";

int complain(const std::vector<Diagnostic>& diagnostics) {
  say(show(diagnostics, use_colour(Channel::err)));
  return kBadInput;
}

int dispatch(int argc, char** argv) {
  CLI::App app("Rehearse a training run before you own the machines: does it fit, how fast is it, and why.", "rehearse");
  app.set_version_flag("--version", std::string("rehearse ") + kVersion);
  app.require_subcommand(1);
  app.footer(kFooter);
  std::map<const CLI::App*, Run> runs;
  for (const auto& entry : subcommands().entries()) {
    CLI::App* sub = app.add_subcommand(entry.name, entry.summary);
    runs[sub] = entry.value(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    std::ostringstream text;
    app.exit(request, text, text);
    print(text.str());
    return kYes;
  } catch (const CLI::ParseError& error) {
    return complain({explain_usage(app, error)});
  }
  if (const auto mistake = empty_value(app)) return complain({*mistake});
  try {
    resource_root();
  } catch (const ConfigError& error) {
    throw EnvironmentError(error.what());
  }
  return runs.at(app.get_subcommands().front())();
}

}  // namespace

int main(int argc, char** argv) {
  set_signals();
  keep_freed_memory();   // every command simulates class after class, and most scenario after scenario
  try {
    return dispatch(argc, argv);
  } catch (const ConfigError& error) {
    return complain(error.diagnostics());
  } catch (const EnvironmentError& error) {
    say(std::string("error: ") + error.what() + "\n");
    return kMissingEnvironment;
  } catch (const std::bad_alloc&) {
    say("error: not enough memory on this machine\n");
    return kMissingEnvironment;
  } catch (const ContractViolation& error) {
    say(std::string("internal error: ") + error.what() + "\nThis is a bug of ours. Please report it with the command line and the scenario.\n");
    return kOurBug;
  } catch (const std::exception& error) {
    say(std::string("internal error: ") + error.what() + "\nThis is a bug of ours. Please report it with the command line and the scenario.\n");
    return kOurBug;
  }
}
