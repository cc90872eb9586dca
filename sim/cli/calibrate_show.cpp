// rehearse calibrate show: what a measurements file holds, and how good its timings are.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "calibrate/fit/fit_report.h"
#include "calibrate/operations.h"
#include "sim/cli/calibrate.h"
#include "sim/cli/output.h"
#include "sim/report/format.h"

namespace rehearse::cli {
namespace {

namespace cal = calibrate;

struct CalibrateShowOptions {
  std::string file;
  bool all = false;
};

std::string fact_text(const cal::Fact& fact) {
  if (const auto* flag = std::get_if<bool>(&fact)) return *flag ? "yes" : "no";
  if (const auto* whole = std::get_if<std::int64_t>(&fact)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&fact)) return report::number_text(*number);
  if (const auto* text = std::get_if<std::string>(&fact)) return *text;
  return fmt::format("{} lines", std::get<std::vector<std::string>>(fact).size());
}

std::string facts_text(const char* title, const cal::Facts& facts) {
  if (facts.empty()) return {};
  std::string text;
  for (const auto& [name, fact] : facts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, fact_text(fact));
  return report::wrapped(fmt::format("{:<10}", title), text);
}

int show(const CalibrateShowOptions& o) {
  const cal::Measurements m = cal::read_measurements(o.file);
  std::string text = facts_text("machine", m.machine) + facts_text("software", m.software) + facts_text("options", m.options);
  if (!m.source.empty()) text = report::wrapped(fmt::format("{:<10}", "source"), m.source) + text;
  for (const std::string& warning : m.warnings) text += report::wrapped("warning: ", warning);
  struct Group {
    int series = 0, open = 0, throttled = 0;
    double least = 1e300, most = 0, worst = 0;
  };
  std::map<std::string, Group> groups;
  for (const cal::Series& s : m.series) {
    Group& g = groups[s.operation];
    ++g.series;
    if (!s.converged) ++g.open;
    if (!s.throttle.empty()) ++g.throttled;
    g.least = std::min(g.least, s.median_s), g.most = std::max(g.most, s.median_s), g.worst = std::max(g.worst, s.relative_error.value_or(0));
  }
  report::Table table({"Operation", "series", "shortest", "longest", "worst error", "not converged", "throttled"});
  for (const auto& [name, g] : groups)
    table.add({name, std::to_string(g.series), report::seconds_text(g.least), report::seconds_text(g.most), g.worst > 0 ? report::percent_text(g.worst) : "", std::to_string(g.open), std::to_string(g.throttled)});
  text += "\n" + table.text(0);
  if (o.all) {
    text += "\n";
    for (const cal::Series& s : m.series) text += fmt::format("{:<12} {}{}\n", report::seconds_text(s.median_s), cal::identity(s), s.converged ? "" : "  (not converged)");
  }
  if (!m.skipped.empty()) {
    std::vector<std::pair<std::string, std::string>> skipped;
    for (const cal::Skipped& s : m.skipped) skipped.emplace_back(cal::identity(s.operation, s.parameters), "skipped: " + s.reason);
    text += cal::unused_text(skipped);
  }
  text += cal::unused_text(cal::observe(m).unused);
  print(text);
  return kYes;
}

}  // namespace

Run add_calibrate_show(CLI::App& app) {
  auto o = std::make_shared<CalibrateShowOptions>();
  app.add_option("MEASUREMENTS", o->file, "measurements file (JSON)")->required();
  app.add_flag("--all", o->all, "every series");
  app.footer("Example:\n  rehearse calibrate show m.json --all");
  return [o] { return show(*o); };
}

}  // namespace rehearse::cli
