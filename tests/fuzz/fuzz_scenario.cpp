// Any bytes are a scenario or a ConfigError; a scenario that is read breaks no rule.
#include <cstdint>
#include <cstdlib>

#include "sim/config/document.h"
#include "sim/scenario/scenario.h"

using namespace rehearse;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const config::Value root = config::parse_document(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml").root;
    const scenario::Scenario s = scenario::read_scenario(root, "fuzz.yaml");
    if (!scenario::problems_of(s).empty()) std::abort();
    scenario::describe(s);
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty()) std::abort();
  }
  return 0;
}
