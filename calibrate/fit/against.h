// Closes the loop: the few constants of a framework profile that kernels cannot tell (host time per kernel, layer, collective
// and step; interference), fitted to training steps that somebody logged. Leaves out everything that was measured apart: kernels, collectives.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/fit/fit_kernels.h"
#include "sim/scenario/scenario.h"

namespace rehearse::calibrate {

struct LoggedRun {
  std::string name;
  scenario::Scenario scenario;
  double step_seconds = 0;
};

/// kernel: kernel_host and backward_kernel_host in the base's ratio; layer: layer_host and layer_backward_host likewise;
/// collective: collective_host; step: step_host, all in microseconds; interference: collective_sm_factor, a factor.
enum class FrameworkConstant : std::uint8_t { kernel, layer, collective, step, interference };
std::string_view name_of(FrameworkConstant constant);
std::optional<FrameworkConstant> framework_constant_named(std::string_view name);

struct AgainstFit {
  /// Why these runs do not hold these constants: too few rows, no effect on any step, or two that act alike. Then nothing
  /// below was fitted; `possible` are the constants that the runs could tell one at a time.
  std::vector<std::string> refusals;
  std::vector<FrameworkConstant> possible;
  std::vector<FrameworkConstant> constants;
  std::vector<FittedParameter> parameters;  // "kernel_host", ... in microseconds; "collective_sm_factor"
  double condition = 1, scale = 0;
  bool converged = false;
  int simulated = 0;  // how many choices of constants all runs were simulated with
  Eigen::VectorXd before, after, leave_one_out;  // log(predicted / measured) of each run
};

/// Rows >= 3 x constants; each constant moves some step by more than 0.5 % when it doubles (or reaches its usual size); the
/// condition of the Jacobian (columns of equal length) is below 30. Leave-one-out is by the linearised model at the answer.
/// Simulating is dear: the answer is sought by gauss_newton.h, and nothing is simulated twice with the same constants.
/// Precondition: all runs have one profile.
AgainstFit fit_against(const std::vector<LoggedRun>& runs, const std::vector<FrameworkConstant>& constants);

/// The profile with the constants as fitted.
strategies::FrameworkProfile with_constants(strategies::FrameworkProfile profile, const std::vector<FrameworkConstant>& constants, const Eigen::VectorXd& values);

/// A profile of the user's own that extends `base`.
std::string profile_yaml(const AgainstFit& fit, const strategies::FrameworkProfile& base, const std::string& origin);

/// Seconds of each iteration in a training log: Megatron's "elapsed time per iteration (ms)", or torchtitan's "tps" (tokens per
/// second and GPU), which needs the tokens of a step and the GPUs. Throws ConfigError when the log has neither.
struct TrainingLog {
  std::string framework;  // megatron, torchtitan
  std::vector<double> seconds;
};
TrainingLog read_training_log(const std::string& text, const std::string& file, double tokens_per_step, int gpus);

/// Median without the first fifth (at least two iterations): warm-up, compilation, allocator. Throws ConfigError below 3.
double steady_seconds(const TrainingLog& log, const std::string& file);

}  // namespace rehearse::calibrate
