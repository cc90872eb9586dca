// rehearse explain: one stage between a scenario and its answer.
#include <fmt/format.h>

#include "sim/cli/output.h"
#include "sim/cli/scenario_arguments.h"
#include "sim/cli/subcommand.h"
#include "sim/core/suggestion.h"
#include "sim/report/explain.h"

namespace rehearse::cli {
namespace {

struct ExplainOptions {
  ScenarioArguments scenario;
  std::string stage;
};

const report::Stage& stage_named(const std::string& name) {
  if (const report::Stage* stage = report::stages().find(name)) return *stage;
  std::string known;
  for (const std::string& n : report::stages().names()) known += (known.empty() ? "" : ", ") + n;
  throw ConfigError(Diagnostic{{}, "--stage", fmt::format("there is no stage '{}'", name), did_you_mean(name, report::stages().names(), "Known: " + known), ""});
}

int run(const ExplainOptions& o) {
  const report::Stage& stage = stage_named(o.stage);
  const scenario::Scenario s = o.scenario.load();
  print(stage.write(s, simulate(s, stage.needs)));
  return kYes;
}

}  // namespace

Run add_explain(CLI::App& app) {
  auto o = std::make_shared<ExplainOptions>();
  o->scenario.add_to(app);
  std::string help = "what to show:";
  for (const auto& entry : report::stages().entries()) help += fmt::format("\n  {}: {}", entry.name, entry.summary);
  app.add_option("--stage", o->stage, help)->required()->type_name("STAGE");
  app.footer("Examples:\n  rehearse explain scenarios/llama3_8b_8xh100.yaml --stage costs\n  rehearse explain job.yaml --stage memory --set memory.recompute=full");
  return [o] { return run(*o); };
}

}  // namespace rehearse::cli
