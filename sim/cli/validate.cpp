// rehearse validate: predicted against measured, for tables of real runs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/report/accuracy.h"
#include "sim/report/error_bands.h"
#include "sim/report/explain.h"
#include "sim/report/text_writer.h"

namespace rehearse::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files;
  bool json = false;
  int worst = 10, threads = 0;
  std::vector<std::string> without, by;
  std::string out, into, row, gpu, stage;
};

std::vector<std::string> mechanisms() {
  std::vector<std::string> names;
  for (const executor::AblationSwitch& mechanism : executor::kAblationSwitches) names.emplace_back(mechanism.name);
  return names;
}

/// One row: the scenario that it became, with every default filled in, the answer, and what was measured.
std::string one_row(const ValidateOptions& o, const report::AccuracyOptions& options) {
  for (const std::string& file : o.files)
    for (const scenario::MeasuredRun& run : scenario::read_measured_runs(file)) {
      if (run.row_id != o.row) continue;
      if (!run.scenario) throw ConfigError(Diagnostic{{file, 0, 0}, o.row, "is not simulated: " + run.reason, "", ""});
      const report::PredictedRun predicted = report::predict(run, options);
      if (!o.stage.empty()) {
        const report::Stage& stage = *report::stages().find(o.stage);
        return stage.write(predicted.scenario, scenario::simulate(predicted.scenario, stage.needs));
      }
      std::string text = report::explain_scenario(predicted.scenario, predicted.result) + "\n" + report::write_text(predicted.scenario, predicted.result);
      if (run.step_time_s) text += fmt::format("\nmeasured: {:.4g} s per step; predicted {:.4g} s, {:+.1f} %\n", *run.step_time_s, predicted.result.step_time, 100 * (predicted.result.step_time / *run.step_time_s - 1));
      if (run.peak_mem_gib) text += fmt::format("\nmeasured: {:.2f} GiB at the peak ({})\n", *run.peak_mem_gib, run.peak_mem_kind);
      return text;
    }
  throw ConfigError(Diagnostic{{}, "--row", "there is no row '" + o.row + "' in these tables", "Names are in the column row_id", ""});
}

int validate(const ValidateOptions& o) {
  report::AccuracyOptions options;
  options.threads = o.threads;
  options.gpu = o.gpu;
  options.progress = is_terminal(Channel::err);
  for (const executor::AblationSwitch& mechanism : executor::kAblationSwitches)
    if (std::find(o.without.begin(), o.without.end(), mechanism.name) != o.without.end()) options.ablation.*mechanism.on = false;
  if (!o.row.empty()) {
    const std::string text = one_row(o, options);
    if (o.out.empty()) print(text);
    else write_file(o.out, text);
    return kYes;
  }
  if (!o.into.empty()) make_folder(o.into);
  const report::Accuracy accuracy = report::measure_accuracy(o.files, options);
  if (!o.into.empty()) {
    write_file(o.into + "/by_profile.md", report::profiles_markdown(accuracy));
    write_file(o.into + "/by_source.md", report::sources_markdown(accuracy));
    write_file(o.into + "/error_bands.yaml", report::bands_yaml(accuracy));
  }
  const std::string text = !o.by.empty() ? report::groups_text(report::grouped(accuracy, o.by), o.by) : o.json ? report::accuracy_json(accuracy) : report::accuracy_text(accuracy, o.worst);
  if (o.out.empty()) print(text);
  else write_file(o.out, text);
  return kYes;
}

}  // namespace

Run add_validate(CLI::App& app) {
  auto o = std::make_shared<ValidateOptions>();
  app.add_option("runs", o->files, "tables of measured runs (CSV; columns: tests/accuracy/runs/README.md)")->required();
  auto* json = app.add_flag("--json", o->json, "one JSON document with every row");
  app.add_option("--by", o->by, "errors of groups of rows instead: --by framework,gpu")->delimiter(',')->check(CLI::IsMember(report::accuracy_facets()))->excludes(json);
  app.add_option("--row", o->row, "one row instead: the scenario that it became, and the answer")->excludes(json);
  app.add_option("--stage", o->stage, "with --row: a stage of that row's simulation, as explain shows it")->needs("--row")->check(CLI::IsMember(report::stages().names()));
  app.add_option("--worst", o->worst, "how many of the worst rows to list")->capture_default_str()->check(CLI::Range(0, 1'000'000));
  app.add_option("--without", o->without, "switch a mechanism off, to see what it is worth (list below); repeatable")->check(CLI::IsMember(mechanisms()));
  app.add_option("--threads", o->threads, "rows simulated at once; 0: all cores")->capture_default_str()->check(CLI::Range(0, 4096));
  app.add_option("--gpu", o->gpu, "GPU file for the rows on that kind of GPU, as calibrate fit writes it (gpu.yaml)")->excludes("--row");
  app.add_option("-o,--output", o->out, "write to a file instead of stdout");
  app.add_option("--into", o->into, "write into this folder as well: errors as Markdown, by framework profile (by_profile.md) and by source (by_source.md), and error bands (error_bands.yaml)")->excludes("--row");
  std::string footer = "Mechanisms that --without switches off:\n";
  for (const executor::AblationSwitch& mechanism : executor::kAblationSwitches) footer += fmt::format("  {:<15}{}\n", mechanism.name, mechanism.what);
  app.footer(footer + "Examples:\n  rehearse validate tests/accuracy/runs/*.csv\n  rehearse validate my_runs.csv --json -o result.json\n  rehearse validate my_runs.csv --without contention --without waves");
  return [o] { return validate(*o); };
}

}  // namespace rehearse::cli
