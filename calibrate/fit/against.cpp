#include "calibrate/fit/against.h"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "calibrate/fit/gauss_newton.h"
#include "calibrate/fit/logged_runs.h"
#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using strategies::FrameworkProfile;

constexpr FrameworkConstant kAll[] = {FrameworkConstant::kernel, FrameworkConstant::layer, FrameworkConstant::collective, FrameworkConstant::step, FrameworkConstant::interference};
constexpr double kNoticed = 0.005;  // of a step
constexpr double kWorstCondition = 30;

struct Bounds {
  double usual, most;  // microseconds, or a factor
};
Bounds bounds_of(FrameworkConstant c) {
  switch (c) {
    case FrameworkConstant::kernel: return {8, 200};
    case FrameworkConstant::layer: return {500, 50'000};
    case FrameworkConstant::collective: return {40, 5'000};
    case FrameworkConstant::step: return {20'000, 5'000'000};
    case FrameworkConstant::interference: return {1, 8};
  }
  return {};
}

double microseconds_of(Duration d) { return to_seconds(d) * 1e6; }

double value_of(const FrameworkProfile& p, FrameworkConstant c) {
  switch (c) {
    case FrameworkConstant::kernel: return microseconds_of(p.kernel_host);
    case FrameworkConstant::layer: return microseconds_of(p.layer_host);
    case FrameworkConstant::collective: return microseconds_of(p.collective_host);
    case FrameworkConstant::step: return microseconds_of(p.step_host);
    case FrameworkConstant::interference: return p.collective_sm_factor;
  }
  return 0;
}

/// How far a constant is moved to see what it does.
double felt(FrameworkConstant c, double base) { return std::max(base, bounds_of(c).usual); }

/// d log(step) for each constant grown to twice the base or by its usual size, whichever is more.
MatrixXd effects_of(LoggedRunSimulator& simulator, const std::vector<FrameworkConstant>& constants, const VectorXd& base) {
  const VectorXd at = simulator.log_steps(base);
  MatrixXd j(at.size(), base.size());
  for (Eigen::Index k = 0; k < base.size(); ++k) {
    VectorXd more = base;
    more[k] += felt(constants[static_cast<std::size_t>(k)], base[k]);
    j.col(k) = simulator.log_steps(more) - at;
  }
  return j;
}

void check_enough(const std::vector<LoggedRun>& runs, const MatrixXd& effects, AgainstFit& out) {
  const std::size_t k = out.constants.size();
  if (runs.size() < 3 * k)
    out.refusals.push_back(fmt::format("{} run{} cannot hold {} constant{} (three runs for each are needed)", runs.size(), runs.size() == 1 ? "" : "s", k, k == 1 ? "" : "s"));
  bool all_seen = true;
  for (std::size_t i = 0; i < k; ++i) {
    const double most = effects.col(static_cast<Eigen::Index>(i)).cwiseAbs().maxCoeff();
    if (most > kNoticed) out.possible.push_back(out.constants[i]);
    else all_seen = false, out.refusals.push_back(fmt::format("no run tells {}: doubling it moves no step by more than {:.2f} % ({}, or nothing of the kind runs)", name_of(out.constants[i]), 100 * most, out.constants[i] == FrameworkConstant::interference ? "too little runs at once" : "the GPU hides the host"));
  }
  if (!all_seen || k < 2) return;
  out.condition = condition_of(effects);
  if (out.condition <= kWorstCondition) return;
  // Which two are the most alike.
  std::size_t a = 0, b = 1;
  double alike = -1;
  for (std::size_t i = 0; i < k; ++i)
    for (std::size_t j = i + 1; j < k; ++j) {
      const VectorXd u = effects.col(static_cast<Eigen::Index>(i)).normalized(), v = effects.col(static_cast<Eigen::Index>(j)).normalized();
      if (std::abs(u.dot(v)) > alike) alike = std::abs(u.dot(v)), a = i, b = j;
    }
  out.refusals.push_back(fmt::format("{} and {} act alike on all these runs (condition {:.0f}): fit one of them, or add runs with other shapes", name_of(out.constants[a]), name_of(out.constants[b]), out.condition));
}

}  // namespace

std::string_view name_of(FrameworkConstant c) {
  constexpr std::string_view names[] = {"kernel", "layer", "collective", "step", "interference"};
  return names[static_cast<std::size_t>(c)];
}

std::optional<FrameworkConstant> framework_constant_named(std::string_view name) {
  for (const FrameworkConstant c : kAll)
    if (name_of(c) == name) return c;
  return std::nullopt;
}

FrameworkProfile with_constants(FrameworkProfile p, const std::vector<FrameworkConstant>& constants, const VectorXd& x) {
  // Backward keeps the ratio that the profile has; without one it costs what forward costs.
  const auto scaled = [](Duration forward, Duration backward, double value) { return microseconds(forward.count() > 0 ? value * static_cast<double>(backward.count()) / static_cast<double>(forward.count()) : value); };
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const double value = x[static_cast<Eigen::Index>(i)];
    switch (constants[i]) {
      case FrameworkConstant::kernel:
        p.backward_kernel_host = scaled(p.kernel_host, p.backward_kernel_host, value);
        p.kernel_host = microseconds(value);
        break;
      case FrameworkConstant::layer:
        p.layer_backward_host = scaled(p.layer_host, p.layer_backward_host, value);
        p.layer_host = microseconds(value);
        break;
      case FrameworkConstant::collective: p.collective_host = microseconds(value); break;
      case FrameworkConstant::step: p.step_host = microseconds(value); break;
      case FrameworkConstant::interference: p.collective_sm_factor = value; break;
    }
  }
  return p;
}

AgainstFit fit_against(const std::vector<LoggedRun>& runs, const std::vector<FrameworkConstant>& constants) {
  EXPECTS(!runs.empty() && !constants.empty(), "runs and constants");
  AgainstFit out;
  out.constants = constants;
  const FrameworkProfile& profile = runs.front().scenario.profile;
  TimeModel m;
  VectorXd base(static_cast<Eigen::Index>(constants.size()));
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const double most = bounds_of(constants[i]).most;
    base[static_cast<Eigen::Index>(i)] = std::min(value_of(profile, constants[i]), most);
    m.parameters.push_back({constants[i] == FrameworkConstant::interference ? "collective_sm_factor" : std::string(name_of(constants[i])) + "_host", base[static_cast<Eigen::Index>(i)], 0, most, false});
  }
  m.log_measured.resize(static_cast<Eigen::Index>(runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) m.log_measured[static_cast<Eigen::Index>(i)] = std::log(runs[i].step_seconds), m.size.push_back(runs[i].step_seconds);
  LoggedRunSimulator simulator(runs, constants);
  check_enough(runs, effects_of(simulator, constants, base), out);
  if (!out.refusals.empty()) return out;

  m.log_seconds = [&](const VectorXd& x) -> VectorXd { return simulator.log_steps(x); };
  VectorXd usual(base.size());
  for (std::size_t i = 0; i < constants.size(); ++i) usual[static_cast<Eigen::Index>(i)] = bounds_of(constants[i]).usual;
  const TimeFit fit = fit_dear_times(m, usual);
  out.converged = fit.fit.converged, out.simulated = simulator.simulated();
  out.parameters = fitted_parameters(fit, m.parameters);
  out.scale = fit.fit.scale, out.condition = fit.fit.condition;
  out.before = fit.before, out.after = fit.after, out.leave_one_out = fit.leave_one_out;
  return out;
}

std::string profile_yaml(const AgainstFit& fit, const FrameworkProfile& base, const std::string& origin) {
  VectorXd x(static_cast<Eigen::Index>(fit.parameters.size()));
  for (std::size_t i = 0; i < fit.parameters.size(); ++i) x[static_cast<Eigen::Index>(i)] = fit.parameters[i].value;
  const FrameworkProfile p = with_constants(base, fit.constants, x);
  const ErrorSummary before = summary_of(fit.before), after = summary_of(fit.after), unseen = summary_of(fit.leave_one_out);
  std::string source = fmt::format("calibrate against {}; {} runs: mean error {:.1f} % before, {:.1f} % after, {:.1f} % on runs left out one by one", origin, after.rows, before.mean_absolute, after.mean_absolute, unseen.mean_absolute);
  std::replace(source.begin(), source.end(), '"', '\'');
  std::string text = fmt::format("extends: {}\ntitle: \"{}, constants fitted\"\nsource: \"{}\"\n", base.name, base.title, source);
  const auto line = [&](const char* key, Duration d) { text += fmt::format("{}: {:.6g} us\n", key, microseconds_of(d)); };
  for (std::size_t i = 0; i < fit.constants.size(); ++i) {
    const char* unit = fit.constants[i] == FrameworkConstant::interference ? "" : " us";
    text += fmt::format("# {}: {:.4g} +- {:.2g}{}, was {:.4g}{}\n", fit.parameters[i].name, fit.parameters[i].value, fit.parameters[i].standard_error, unit, fit.parameters[i].before, unit);
    switch (fit.constants[i]) {
      case FrameworkConstant::kernel: line("kernel_host", p.kernel_host), line("backward_kernel_host", p.backward_kernel_host); break;
      case FrameworkConstant::layer: line("layer_host", p.layer_host), line("layer_backward_host", p.layer_backward_host); break;
      case FrameworkConstant::collective: line("collective_host", p.collective_host); break;
      case FrameworkConstant::step: line("step_host", p.step_host); break;
      case FrameworkConstant::interference: text += fmt::format("collective_sm_factor: {:.6g}\n", p.collective_sm_factor); break;
    }
  }
  return text;
}

}  // namespace rehearse::calibrate
