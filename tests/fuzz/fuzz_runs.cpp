// Any bytes are a table of measured runs or a ConfigError; a row is a scenario that breaks no rule, or has a reason.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "sim/core/error.h"
#include "sim/scenario/measured_run.h"

using namespace rehearse;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string file = "/tmp/rehearse-fuzz-" + std::to_string(::getpid()) + ".csv";
  std::ofstream(file, std::ios::binary | std::ios::trunc).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    for (const scenario::MeasuredRun& run : scenario::read_measured_runs(file)) {
      if (run.scenario.has_value() == !run.reason.empty()) std::abort();
      if (run.scenario && !scenario::problems_of(*run.scenario).empty()) std::abort();
    }
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty()) std::abort();
  }
  return 0;
}
