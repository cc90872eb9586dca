// rehearse calibrate against: a framework profile's host costs and interference, fitted to training steps that somebody logged.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>

#include "calibrate/fit/against.h"
#include "calibrate/import/import.h"
#include "hwmodels/collective/parameters.h"
#include "sim/cli/calibrate.h"
#include "sim/cli/output.h"
#include "sim/config/scalar_types.h"
#include "sim/core/error.h"
#include "sim/report/format.h"
#include "sim/scenario/measured_run.h"

namespace rehearse::cli {
namespace {

namespace cal = calibrate;

struct CalibrateAgainstOptions {
  std::vector<std::string> tables, runs, constants{"kernel", "layer"};
  std::string framework, out, gpu, collectives;
  bool unclean = false;
};

/// Rows of validate's tables that can be simulated and say how long a step took.
void add_table(const std::string& file, const CalibrateAgainstOptions& o, std::vector<cal::LoggedRun>& runs, std::map<std::string, int>& left_out) {
  for (scenario::MeasuredRun& run : scenario::read_measured_runs(file)) {
    if (!run.scenario) ++left_out[run.reason];
    else if (!run.step_time_s) ++left_out["no step time"];
    else if (!run.clean && !o.unclean) ++left_out["not clean (a degraded network, a repeat that disagrees, or a time composed of parts)"];
    else runs.push_back({run.row_id, std::move(*run.scenario), *run.step_time_s});
  }
}

/// "scenario.yaml:train.log"
cal::LoggedRun logged(const std::string& pair) {
  const std::size_t colon = pair.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == pair.size()) throw ConfigError(Diagnostic{{"--run", 0, 0}, "", "'" + pair + "' names no scenario and log", "Write --run scenario.yaml:train.log", ""});
  const std::string file = pair.substr(colon + 1);
  cal::LoggedRun run{file, scenario::load_scenario(pair.substr(0, colon)), 0};
  const strategies::Training& t = run.scenario.strategy.training;
  const double tokens = static_cast<double>(t.global_batch_size) * static_cast<double>(t.sequence_length);
  run.step_seconds = cal::steady_seconds(cal::read_training_log(cal::read_maybe_gzip(file), file, tokens, run.scenario.gpus()), file);
  return run;
}

std::string joined(std::string list, const std::string& more) { return list.empty() ? more : list + ", " + more; }

/// The framework profile whose runs are fitted: the one asked for, or the only one.
std::string framework_of(const std::vector<cal::LoggedRun>& runs, std::string framework) {
  std::map<std::string, int> profiles;
  for (const cal::LoggedRun& r : runs) ++profiles[r.scenario.profile.name];
  if (framework.empty() && profiles.size() == 1) framework = profiles.begin()->first;
  if (profiles.contains(framework)) return framework;
  std::string known;
  for (const auto& [name, count] : profiles) known = joined(known, fmt::format("{} ({})", name, count));
  throw ConfigError(Diagnostic{{}, "", framework.empty() ? "the runs are of several framework profiles" : "no run is of the framework profile '" + framework + "'", known.empty() ? "No row could be simulated" : "Choose one: --framework; here are " + known, ""});
}

/// Runs of this profile, on the hardware that the options replace.
std::vector<cal::LoggedRun> runs_of(const std::string& framework, std::vector<cal::LoggedRun>& all, const CalibrateAgainstOptions& o) {
  std::vector<cal::LoggedRun> runs;
  for (cal::LoggedRun& r : all) {
    if (r.scenario.profile.name != framework) continue;
    if (!o.gpu.empty()) r.scenario.cluster.gpu = hwmodels::load_gpu(o.gpu);
    if (!o.collectives.empty()) r.scenario.cluster.collectives = std::make_shared<const hwmodels::CollectiveParameters>(hwmodels::load_collective_parameters(o.collectives));
    runs.push_back(std::move(r));
  }
  return runs;
}

std::string refusal_text(const cal::AgainstFit& fit) {
  std::string text = "\nnothing was fitted:\n", possible;
  for (const std::string& why : fit.refusals) text += report::wrapped("  ", why);
  for (const cal::FrameworkConstant c : fit.possible) possible = joined(possible, std::string(cal::name_of(c)));
  if (!possible.empty()) text += report::wrapped("  ", "one at a time these runs could tell: --fit " + possible);
  return text;
}

std::string parameter_table(const cal::AgainstFit& fit) {
  report::Table parameters({"constant", "before", "fitted", "+-", ""});
  parameters.left(4);
  for (const cal::FittedParameter& p : fit.parameters) {
    const auto shown = [&](double v) { return p.name == "collective_sm_factor" ? fmt::format("{:.3g}", v) : report::seconds_text(v * 1e-6); };
    parameters.add({p.name, shown(p.before), shown(p.value), p.standing == cal::Standing::fitted ? shown(p.standard_error) : "",
                    p.standing == cal::Standing::at_bound ? "at its bound" : p.standing == cal::Standing::not_determined ? "kept: the runs do not tell it well enough" : ""});
  }
  return parameters.text(0);
}

std::string error_table(const std::vector<cal::LoggedRun>& runs, const cal::AgainstFit& fit) {
  report::Table errors({"run", "measured", "before", "after", "left out"});
  const auto percent = [](double log_error) { return fmt::format("{:+.1f} %", 100 * std::expm1(log_error)); };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto k = static_cast<Eigen::Index>(i);
    errors.add({runs[i].name, report::seconds_text(runs[i].step_seconds), percent(fit.before[k]), percent(fit.after[k]), percent(fit.leave_one_out[k])});
  }
  return errors.text(0);
}

std::string verdict_text(const cal::AgainstFit& fit) {
  const cal::ErrorSummary before = cal::summary_of(fit.before), after = cal::summary_of(fit.after), unseen = cal::summary_of(fit.leave_one_out);
  std::string text = fmt::format("\nmean error: {:.1f} % before, {:.1f} % after, {:.1f} % on runs left out one by one; bias {:+.1f} %, {:+.1f} %, {:+.1f} %; condition {:.1f}\n", before.mean_absolute, after.mean_absolute, unseen.mean_absolute,
                                 before.bias, after.bias, unseen.bias, fit.condition);
  text += fmt::format("all runs were simulated with {} choices of the constants{}\n", fit.simulated, fit.converged ? "" : "; the last step still mattered: NOT CONVERGED");
  if (unseen.mean_absolute > before.mean_absolute) text += "on runs that it has not seen the fit is no better than the profile as it was: do not use it\n";
  return text;
}

void write_profile(const cal::AgainstFit& fit, strategies::FrameworkProfile base, const CalibrateAgainstOptions& o) {
  if (config::is_file_name(base.name)) base.name = std::filesystem::absolute(base.name).string();
  std::string sources;
  for (const std::string& file : o.tables) sources = joined(sources, std::filesystem::path(file).filename().string());
  if (!o.runs.empty()) sources = joined(sources, fmt::format("{} logs", o.runs.size()));
  write_file(o.out, cal::profile_yaml(fit, base, sources + ", " + today()));
  if (o.out != "-") strategies::load_profile(o.out.find('/') == std::string::npos ? "./" + o.out : o.out);  // what we write, we can read
}

int against(const CalibrateAgainstOptions& o) {
  if (o.tables.empty() && o.runs.empty()) throw ConfigError(Diagnostic{{}, "", "there is nothing to fit to", "Give a table of runs (RUNS.csv), or --run scenario.yaml:train.log", ""});
  if (!o.out.empty()) check_writable(o.out);
  std::vector<cal::LoggedRun> all;
  std::map<std::string, int> left_out;
  for (const std::string& file : o.tables) add_table(file, o, all, left_out);
  for (const std::string& pair : o.runs) all.push_back(logged(pair));
  const std::string framework = framework_of(all, o.framework);
  const std::vector<cal::LoggedRun> runs = runs_of(framework, all, o);
  std::vector<cal::FrameworkConstant> constants;
  for (const std::string& name : o.constants) constants.push_back(*cal::framework_constant_named(name));

  const cal::AgainstFit fit = cal::fit_against(runs, constants);
  std::string text = fmt::format("{} runs of {}\n", runs.size(), framework);
  for (const auto& [reason, count] : left_out) text += report::wrapped(fmt::format("left out, {}: ", count), reason);
  if (!fit.refusals.empty()) {
    print(text + refusal_text(fit));
    return kNo;
  }
  text += "\n" + parameter_table(fit) + "\n" + error_table(runs, fit) + verdict_text(fit);
  if (!o.out.empty()) {
    write_profile(fit, runs.front().scenario.profile, o);
    text += "written: " + o.out + " (use: --set training.framework=" + o.out + ")\n";
  }
  print(text);
  return kYes;
}

}  // namespace

Run add_calibrate_against(CLI::App& app) {
  auto o = std::make_shared<CalibrateAgainstOptions>();
  app.add_option("RUNS", o->tables, "tables of measured runs (CSV; columns as of validate)");
  app.add_option("--run", o->runs, "a scenario and the log of its training: scenario.yaml:train.log (Megatron, torchtitan; repeatable)")->allow_extra_args(false)->type_name("SCENARIO:LOG");
  app.add_option("--framework", o->framework, "framework profile whose runs are used; default: the only one");
  app.add_option("--fit", o->constants, "constants to fit: host time per kernel, layer, collective, step; interference: SMs that collectives take from kernels")->delimiter(',')->check(CLI::IsMember({"kernel", "layer", "collective", "step", "interference"}))->capture_default_str();
  app.add_option("--gpu", o->gpu, "GPU file of the machine, where you have calibrated one");
  app.add_option("--collectives", o->collectives, "file of measured NCCL constants, likewise");
  app.add_flag("--unclean", o->unclean, "also rows that are not clean");
  app.add_option("-o,--out", o->out, "write a profile that extends the original");
  app.footer("Example:\n  rehearse calibrate against my_runs.csv --framework torchtitan --fit kernel,layer --out my-torchtitan.yaml");
  return [o] { return against(*o); };
}

}  // namespace rehearse::cli
