// rehearse compare: two scenarios side by side.
#include "sim/cli/output.h"
#include "sim/cli/scenario_arguments.h"
#include "sim/cli/subcommand.h"
#include "sim/config/layers.h"
#include "sim/report/comparison.h"

namespace rehearse::cli {
namespace {

struct CompareOptions {
  std::string a, b;
  std::vector<std::string> both, only_b;
  bool json = false;
};

int run(const CompareOptions& o) {
  if (o.b.empty() && o.only_b.empty())
    throw ConfigError(Diagnostic{{}, "", "compare needs something to compare with", "Name a second scenario, or change the first: rehearse compare A.yaml --set-b parallelism.tensor=4", ""});
  const std::string& file_b = o.b.empty() ? o.a : o.b;
  const scenario::Scenario a = scenario::load_scenario(o.a, o.both);
  const scenario::Scenario b = scenario::read_scenario(config::apply_overrides(config::apply_overrides(config::load_layered(file_b), o.both), o.only_b, "--set-b"), file_b);
  const scenario::Result ra = simulate(a), rb = simulate(b);
  print(o.json ? report::write_comparison_json({a, ra}, {b, rb}) : report::write_comparison({a, ra}, {b, rb}));
  return kYes;
}

}  // namespace

Run add_compare(CLI::App& app) {
  auto o = std::make_shared<CompareOptions>();
  app.add_option("A", o->a, "scenario file")->required();
  app.add_option("B", o->b, "scenario file; A itself when left out (with --set-b)");
  ScenarioArguments::add_overrides(app, "--set", o->both, "set a key in both scenarios (repeatable)");
  ScenarioArguments::add_overrides(app, "--set-b", o->only_b, "set a key in B only (repeatable)");
  app.add_flag("--json", o->json, "as JSON");
  app.footer("Examples:\n  rehearse compare fsdp.yaml ddp.yaml\n  rehearse compare job.yaml --set-b memory.recompute=full");
  return [o] { return run(*o); };
}

}  // namespace rehearse::cli
