// What every family's fit tells of itself: errors by operation and size, parameters, outliers.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "calibrate/fit/fit_kernels.h"

namespace rehearse::calibrate {

std::vector<OperationError> errors_by_operation(const TimeFit& fit, const Eigen::VectorXd& with_points, const std::vector<std::string>& operations,
                                                const std::vector<double>& sizes, const std::string& unit) {
  std::map<std::string, std::map<int, std::vector<std::size_t>>> groups;  // operation -> decade (or all: -1) -> rows
  for (std::size_t i = 0; i < operations.size(); ++i) {
    groups[operations[i]][-1].push_back(i);
    groups[operations[i]][static_cast<int>(std::floor(std::log10(std::max(sizes[i], 1.0))))].push_back(i);
  }
  std::vector<OperationError> out;
  for (const auto& [operation, decades] : groups)
    for (const auto& [decade, rows] : decades) {
      if (decade >= 0 && decades.size() == 2) continue;  // one decade: the same as all
      OperationError e;
      e.operation = operation;
      if (decade >= 0) e.sizes = fmt::format("1e{} - 1e{} {}", decade, decade + 1, unit);
      e.before = summary_of(fit.before, rows), e.after = summary_of(fit.after, rows), e.leave_one_out = summary_of(fit.leave_one_out, rows);
      e.fivefold = summary_of(fit.fivefold, rows), e.largest_fifth = summary_of(fit.largest_fifth, rows), e.with_points = summary_of(with_points, rows);
      out.push_back(std::move(e));
    }
  return out;
}

std::vector<FittedParameter> fitted_parameters(const TimeFit& fit, const std::vector<Parameter>& parameters) {
  std::vector<FittedParameter> out;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    out.push_back({parameters[i].name, fit.fit.x[static_cast<Eigen::Index>(i)], fit.fit.standard_error(i), parameters[i].start, fit.fit.standing[i]});
  return out;
}

std::vector<std::string> outliers_of(const TimeFit& fit, const std::function<std::string(std::size_t)>& describe) {
  std::vector<std::string> out;
  for (Eigen::Index i = 0; i < fit.after.size(); ++i)
    if (std::abs(fit.after[i]) > 4 * fit.fit.scale && std::abs(fit.after[i]) > 0.02)
      out.push_back(fmt::format("{}: predicted {:+.0f} %", describe(static_cast<std::size_t>(i)), 100 * std::expm1(fit.after[i])));
  return out;
}

}  // namespace rehearse::calibrate
