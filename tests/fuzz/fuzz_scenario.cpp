// Any bytes are a scenario or a ConfigError; a scenario that is read breaks no rule, and a small one can be simulated: it
// takes a time that is a number, needs memory, and does not wait for ever.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "sim/config/document.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"

using namespace rehearse;

namespace {

/// Cheap enough to run thousands of times.
bool small(const scenario::Scenario& s) {
  const auto& t = s.strategy.training;
  return s.gpus() <= 64 && s.model.layers.size() <= 12 && t.global_batch_size <= 64 && t.sequence_length <= (std::int64_t{1} << 20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const config::Value root = config::parse_document(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml").root;
    const scenario::Scenario s = scenario::read_scenario(root, "fuzz.yaml");
    if (!scenario::problems_of(s).empty()) std::abort();
    scenario::describe(s);
    if (!small(s)) return 0;
    const scenario::Result r = simulate(s);
    if (!r.deadlock.empty() || !std::isfinite(r.step_time) || r.step_time <= 0) std::abort();
    for (const scenario::ClassResult& c : r.classes)
      if (c.peak_device() <= Bytes{0}) std::abort();
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty()) std::abort();
  }
  return 0;
}
