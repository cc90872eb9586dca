// rehearse plan: which machines train a job soonest and cheapest.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "hwmodels/topology/cluster.h"
#include "sim/cli/output.h"
#include "sim/cli/scenario_arguments.h"
#include "sim/cli/subcommand.h"
#include "sim/config/layers.h"
#include "sim/report/capacity_writer.h"

namespace rehearse::cli {
namespace {

struct PlanOptions {
  ScenarioArguments scenario;
  std::vector<std::string> machines, prices;
  std::string tokens, within, budget;
  int jobs = 0;
  bool json = false, quiet = false;
};

[[noreturn]] void complain(const std::string& where, const std::string& problem, const std::string& fix) { throw ConfigError(Diagnostic{{}, where, problem, fix, ""}); }

/// A positive number and what follows it: "15T" -> 15, "T".
std::pair<double, std::string> number_and_unit(const std::string& text, const std::string& where, const std::string& fix) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value > 0) || value > 1e30) complain(where, fmt::format("'{}' does not begin with a positive number", text), fix);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  return {value, unit};
}

double scaled(const std::string& text, const std::string& where, const std::string& fix) {
  const auto [value, unit] = number_and_unit(text, where, fix);
  static const std::pair<const char*, double> kUnits[] = {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"B", 1e9}, {"T", 1e12}};
  for (const auto& [name, factor] : kUnits)
    if (unit == name) return value * factor;
  complain(where, fmt::format("'{}' is no unit", unit), fix);
}

double seconds_in(const std::string& text) {
  const char* fix = "Write --within 30d, 12h or 1.5y";
  const auto [value, unit] = number_and_unit(text, "--within", fix);
  static const std::pair<const char*, double> kUnits[] = {{"h", 3600}, {"d", 86400}, {"w", 7 * 86400}, {"y", 365.25 * 86400}};
  for (const auto& [name, factor] : kUnits)
    if (unit == name) return value * factor;
  complain("--within", unit.empty() ? "lacks its unit" : fmt::format("'{}' is no unit of it", unit), fix);
}

/// "dgx-h100:4,8,16"; nothing: the scenario's node design, from a quarter of its nodes to four times as many.
std::vector<advice::Machines> machines_of(const PlanOptions& o, const advice::Case& job) {
  std::vector<advice::Machines> out;
  for (const std::string& text : o.machines) {
    const std::size_t colon = text.rfind(':');
    const char* fix = "Write --machines dgx-h100:4,8,16 (a node design, and numbers of nodes)";
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) complain("--machines", fmt::format("'{}' does not say which machines, and how many", text), fix);
    try {
      hwmodels::load_node(text.substr(0, colon));
    } catch (const ConfigError& error) {
      complain("--machines", error.diagnostics().front().problem, error.diagnostics().front().fix);
    }
    for (std::size_t at = colon + 1; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      int nodes = 0;
      const auto [end, error] = std::from_chars(text.data() + at, text.data() + comma, nodes);
      if (error != std::errc{} || end != text.data() + comma || nodes < 1 || nodes > 100000) complain("--machines", fmt::format("'{}' is no number of nodes", text.substr(at, comma - at)), fix);
      const std::string node = text.substr(0, colon);
      if (std::none_of(out.begin(), out.end(), [&](const advice::Machines& m) { return m.node == node && m.nodes == nodes; })) out.push_back({node, nodes});
      at = comma + 1;
    }
  }
  if (!out.empty()) return out;
  const scenario::Scenario s = job.read();
  for (int nodes = std::max(1, s.cluster.nodes / 4); nodes <= s.cluster.nodes * 4; nodes *= 2) out.push_back({s.cluster.node.name, nodes});
  return out;
}

advice::Goal goal_of(const PlanOptions& o) {
  advice::Goal goal;
  goal.tokens = scaled(o.tokens, "--tokens", "Write --tokens 15T, 300B or 2e12");
  if (!o.within.empty()) goal.within = seconds_in(o.within);
  if (!o.budget.empty()) goal.budget = scaled(o.budget, "--budget", "Write --budget 2M or 150000");
  for (const std::string& text : o.prices) {
    const std::size_t equals = text.rfind('=');
    const char* fix = "Write --price dgx-h100=2.50 (of one GPU for one hour)";
    if (equals == std::string::npos || equals == 0) complain("--price", fmt::format("'{}' does not say of which machines", text), fix);
    const auto [price, unit] = number_and_unit(text.substr(equals + 1), "--price", fix);
    if (!unit.empty()) complain("--price", fmt::format("'{}' follows the number", unit), fix);
    goal.gpu_hour[text.substr(0, equals)] = price;
  }
  if (goal.budget && goal.gpu_hour.empty()) complain("--budget", "there is no price to hold it against", "Add --price NODE=PRICE for each kind of machines");
  return goal;
}

int run(const PlanOptions& o) {
  const advice::Goal goal = goal_of(o);
  const advice::Case job(config::apply_overrides(config::load_layered(o.scenario.file), o.scenario.overrides), o.scenario.file);
  const scenario::Scenario as_written = job.read();
  const strategies::Training& t = as_written.strategy.training;
  const auto step_tokens = static_cast<double>(t.sequence_length * t.global_batch_size);
  if (goal.tokens < step_tokens) complain("--tokens", fmt::format("{} are less than the {} of one step", o.tokens, step_tokens), "Write --tokens 15T, 300B or 2e12");
  const std::vector<advice::Machines> machines = machines_of(o, job);
  for (const auto& [name, price] : goal.gpu_hour)
    if (std::none_of(machines.begin(), machines.end(), [&](const advice::Machines& m) { return m.node == name; }))
      complain("--price", fmt::format("'{}' is not among the machines on offer", name), fmt::format("Offer them: --machines {}:4,8,16, or leave the price out", name));
  const bool told = !o.quiet && is_terminal(Channel::err);
  const std::vector<advice::Offer> offers = plan_capacity(job, machines, goal, o.jobs, told ? [](int asked) { say(fmt::format("\r\033[K{} arrangements", asked)); } : std::function<void(int)>{});
  if (told) say("\r\033[K");
  print(o.json ? report::write_capacity_json(offers, goal, as_written) : report::write_capacity(offers, goal, as_written));
  return advice::chosen(offers) != nullptr ? kYes : kNo;
}

}  // namespace

Run add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanOptions>();
  o->scenario.add_to(app);
  app.add_option("--tokens", o->tokens, "tokens to train on: 15T, 300B")->required();
  app.add_option("--machines", o->machines, "a node design and numbers of nodes: dgx-h100:4,8,16 (repeatable); default: the scenario's, from a quarter to four times as many")->allow_extra_args(false)->type_name("NODE:N,N");
  app.add_option("--within", o->within, "time that training may take: 30d, 12h, 1.5y");
  app.add_option("--price", o->prices, "of one GPU of these machines for one hour, in your currency: dgx-h100=2.50 (repeatable)")->allow_extra_args(false)->type_name("NODE=PRICE");
  app.add_option("--budget", o->budget, "money that training may cost: 2M");
  app.add_option("-j,--jobs", o->jobs, "threads; 0: one per core")->capture_default_str()->check(CLI::Range(0, 4096));
  app.add_flag("--json", o->json, "as JSON");
  app.add_flag("-q,--quiet", o->quiet, "no progress");
  app.footer("For each set of machines the fastest arrangement is found by simulation: the scenario's own, and others: tensor and pipeline degrees, chunks,\n"
             "micro-batches, recomputation. Global batch, sequence, data-parallel strategy, context and expert degrees stay the scenario's.\n"
             "What the scenario says of its machines (cluster.gpu, gpus_per_node, gpu_clock, gpu_power, nic_efficiency, collectives) holds for that node design only.\n"
             "Exit code 1: nothing on offer meets the goal.\n"
             "Example:\n  rehearse plan job.yaml --tokens 2T --within 30d --machines dgx-h100:16,32,64 --machines dgx-b200:8,16 --price dgx-h100=2.5 --price dgx-b200=4.5");
  return [o] { return run(*o); };
}

}  // namespace rehearse::cli
