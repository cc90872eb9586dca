#include "calibrate/fit/fit_report.h"

#include <fmt/format.h>

#include <map>

#include "sim/report/format.h"

namespace rehearse::calibrate {
namespace {

using report::Table;

std::string percent(const ErrorSummary& e) { return e.rows == 0 ? "-" : fmt::format("{:.1f}", e.mean_absolute); }

}  // namespace

std::string family_text(const FamilyFit& f) {
  if (f.rows == 0) return {};
  std::string text = fmt::format("{}: {} rows; a good row scatters by {:.1f} %; condition {:.0f}{}\n", f.name, f.rows, 100 * f.scale, f.condition, f.converged ? "" : "; NOT CONVERGED");
  Table parameters({"parameter", "before", "fitted", "+-", ""});
  parameters.left(4);
  std::string kept;
  for (const FittedParameter& p : f.parameters) {
    if (p.standing == Standing::not_determined) {
      kept += (kept.empty() ? "" : ", ") + p.name;
      continue;
    }
    parameters.add({p.name, fmt::format("{:.4g}", p.before), fmt::format("{:.4g}", p.value), p.standing == Standing::fitted ? fmt::format("{:.2g}", p.standard_error) : "", p.standing == Standing::at_bound ? "at its bound" : ""});
  }
  if (!parameters.empty()) text += parameters.text(2);
  if (!kept.empty()) text += report::wrapped("  kept, since these rows do not tell: ", kept);
  // Errors: mean |predicted / measured - 1|, %.
  Table errors({"error, %", "rows", "before", "bias", "fitted", "bias", "one out", "fifth out", "largest", "points"});
  for (const OperationError& e : f.errors)
    errors.add({e.sizes.empty() ? e.operation : "  " + e.sizes, std::to_string(e.after.rows), percent(e.before), fmt::format("{:+.1f}", e.before.bias), percent(e.after), fmt::format("{:+.1f}", e.after.bias),
                percent(e.leave_one_out), percent(e.fivefold), percent(e.largest_fifth), percent(e.with_points)});
  text += errors.text(2);
  constexpr std::size_t kMostOutliers = 12;
  if (!f.outliers.empty()) text += fmt::format("  outliers ({}):\n", f.outliers.size());
  for (std::size_t i = 0; i < f.outliers.size() && i < kMostOutliers; ++i) text += "    " + f.outliers[i] + "\n";
  if (f.outliers.size() > kMostOutliers) text += fmt::format("    and {} more\n", f.outliers.size() - kMostOutliers);
  return text + "\n";
}

std::string lines_text(const std::string& title, const std::vector<LinearFit>& fits, bool rates) {
  if (fits.empty()) return {};
  Table table({title, "sizes", "latency", "+-", rates ? "rate" : "per node", "+-", "error, %", "one out"});
  for (const LinearFit& f : fits) {
    const double rate_error = f.per_unit_s > 0 ? f.per_unit_error_s / f.per_unit_s * f.rate() : 0;
    const bool slope = f.per_unit_s > 0;
    table.add({f.operation, std::to_string(f.rows), report::seconds_text(f.latency_s), f.latency_error_s > 0 ? report::seconds_text(f.latency_error_s) : "",
               !slope ? "" : rates ? report::si_text(f.rate(), "B/s") : report::seconds_text(f.per_unit_s), !slope ? "" : rates ? report::si_text(rate_error, "B/s") : report::seconds_text(f.per_unit_error_s), percent(f.after),
               percent(f.leave_one_out)});
  }
  return table.text(0) + "\n";
}

std::string host_text(const std::vector<HostNumber>& numbers) {
  if (numbers.empty()) return {};
  Table table({"Host", "measured", "series", "spread", ""});
  table.left(4);
  for (const HostNumber& n : numbers)
    table.add({n.key, n.key.ends_with("fraction") ? fmt::format("{:.3g}", n.value) : report::si_text(n.value, "B/s"), std::to_string(n.rows), fmt::format("{:.0f} %", 100 * n.spread), n.how});
  return table.text(0) + "\n";
}

std::string unused_text(const std::vector<std::pair<std::string, std::string>>& unused) {
  std::map<std::string, std::pair<int, std::string>> reasons;  // why -> how many, an example
  for (const auto& [what, why] : unused) {
    auto& [count, example] = reasons[why];
    if (count++ == 0) example = what;
  }
  std::string text;
  for (const auto& [why, rows] : reasons) text += report::wrapped(fmt::format("not used, {} series: ", rows.first), fmt::format("{} (e.g. {})", why, rows.second));
  return text;
}

}  // namespace rehearse::calibrate
