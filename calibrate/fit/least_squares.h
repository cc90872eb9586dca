// Least squares as fits of measured times need it: bounds, outliers, and how sure one can be of each parameter.
// Leaves out what is fitted (fit_kernels.h, fit_copies.h, fit_collectives.h, against.h).
#pragma once

#include <Eigen/Core>
#include <functional>
#include <string>
#include <vector>

namespace rehearse::calibrate {

/// x >= 0 that minimises |A x - b|. Lawson & Hanson 1974, chapter 23.
Eigen::VectorXd nonnegative_least_squares(const Eigen::MatrixXd& a, const Eigen::VectorXd& b);

/// One parameter. `logarithmic`: steps are taken in log(x), as suits positive scales; then least > 0.
struct Parameter {
  std::string name;
  double start = 1, least = 0, most = 1;
  bool logarithmic = false;
};

/// How much a residual r (in units of the scale) counts:  square r^2/2;  huber: |r| beyond 1.345;  tukey: nothing beyond 4.685
/// (95 % efficient on Gaussian noise; Huber 1981, Beaton & Tukey 1974).
enum class Loss : std::uint8_t { square, huber, tukey };

struct FitOptions {
  Loss loss = Loss::huber;
  double scale = 0;              // standard deviation of a good residual; 0: estimated (median absolute deviation)
  int most_iterations = 200;
  double difference = 1e-4;      // step of the numerical derivatives, relative
};

/// Why a parameter stands where it does.
enum class Standing : std::uint8_t { fitted, at_bound, not_determined };

struct Fit {
  Eigen::VectorXd x;                 // parameters, in the caller's order
  Eigen::MatrixXd covariance;        // of x; rows of parameters that are not `fitted` are zero
  Eigen::VectorXd spread;            // standard errors in the coordinates of the steps, as if there were no bounds
  std::vector<Standing> standing;
  Eigen::VectorXd residuals, weights;  // at x; a weight of 0 is an outlier under tukey
  double scale = 0;                  // robust standard deviation of the residuals
  double condition = 1;              // of the Jacobian with columns of equal length, over fitted parameters
  int iterations = 0;
  bool converged = false;
  double standard_error(std::size_t i) const;
};

using Residuals = std::function<Eigen::VectorXd(const Eigen::VectorXd& x)>;

/// Levenberg-Marquardt with bounds (steps are projected on the box), reweighted for the loss. Parameters that no residual
/// tells apart (rank of the Jacobian at the start, at most one for three residuals) keep their start: `not_determined`.
/// Preconditions: least <= start <= most; the residuals are finite at every point of the box.
/// Covariance: scale^2 / (n - p) * sum psi^2 / mean(psi')^2 * (J^T J)^-1. Source: Huber 1981, section 7.6.
Fit least_squares(const Residuals& residuals, const std::vector<Parameter>& parameters, const FitOptions& options = {});

/// least_squares, then again without each parameter that turned out to be known worse than `worst` (standard error over
/// the width of its bounds, both in log(x) when logarithmic), the worst one first: it keeps its start.
Fit fit_what_is_determined(const Residuals& residuals, const std::vector<Parameter>& parameters, const FitOptions& options = {},
                           double worst = 0.25);

/// Median of the absolute values / 0.6745: the standard deviation of Gaussian residuals, deaf to outliers.
double robust_scale(const Eigen::VectorXd& residuals, std::size_t parameters);

/// Singular values of J with columns of length 1: largest / smallest; infinite when the rank is short.
double condition_of(const Eigen::MatrixXd& jacobian);

}  // namespace rehearse::calibrate
