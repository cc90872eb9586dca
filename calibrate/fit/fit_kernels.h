// Fits the kernel model's parameters (hwmodels/device/kernel_parameters.h) to kernels measured on one GPU.
// Leaves out reading measurements (observations.h) and writing the answer (write_gpu.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/fit/observations.h"
#include "calibrate/fit/time_fit.h"
#include "hwmodels/device/gpu.h"

namespace rehearse::calibrate {

struct FittedParameter {
  std::string name;
  double value = 0, standard_error = 0;
  double before = 0;  // the base's
  Standing standing = Standing::fitted;
};

/// Errors of one operation, or of one range of its sizes.
struct OperationError {
  std::string operation, sizes;  // "1e9 - 1e10 FLOP"; "" = all
  ErrorSummary before, after, leave_one_out, fivefold, largest_fifth, with_points;
};

/// One family that is fitted at once: products, one attention kernel, kernels bound by memory, collectives, ...
struct FamilyFit {
  std::string name;
  int rows = 0;
  std::vector<FittedParameter> parameters;
  double scale = 0;      // robust standard deviation of log(predicted / measured)
  double condition = 1;  // of the Jacobian
  bool converged = false;
  std::vector<OperationError> errors;   // per operation, then per range of sizes
  std::vector<std::string> outliers;    // rows beyond four standard deviations
};

/// Whose parameters of the kernel model a fit to this kernel's times finds; "": it has none that are fitted.
std::string_view fitted_attention(model::AttentionKernel kernel);

struct KernelFit {
  hwmodels::Gpu gpu;  // the base with fitted parameters, measured kernels and their reach
  std::vector<FamilyFit> families;
  std::vector<std::string> notes;  // what could not be fitted, and why
};

/// Physical parameters within bounds, those that the data tell; the rest stay as in `base`. The reach of measured points is
/// the one of 0, 1/2, 1, 2, 3 octaves with the least leave-one-out error. Keeps every kernel as a measured point.
/// Without `held_out` there are no errors on unseen rows, and the reach stays 0.
KernelFit fit_kernels(const Observations& observations, const hwmodels::Gpu& base, bool held_out = true);

/// Errors by operation and by decade of size. Precondition: all vectors have one entry per row.
std::vector<OperationError> errors_by_operation(const TimeFit& fit, const Eigen::VectorXd& with_points, const std::vector<std::string>& operations,
                                                const std::vector<double>& sizes, const std::string& unit);
std::vector<FittedParameter> fitted_parameters(const TimeFit& fit, const std::vector<Parameter>& parameters);
std::vector<std::string> outliers_of(const TimeFit& fit, const std::function<std::string(std::size_t)>& describe);

}  // namespace rehearse::calibrate
