#include "calibrate/fit/loss.h"

#include <algorithm>
#include <cmath>

namespace rehearse::calibrate {
namespace {

constexpr double kHuber = 1.345, kTukey = 4.685;
constexpr double kMad = 0.6744897501960817;  // median of |z|, z standard normal

}  // namespace

Influence influence(Loss loss, double z) {
  const double a = std::abs(z);
  switch (loss) {
    case Loss::square: return {z * z / 2, 1, 1};
    case Loss::huber: return a <= kHuber ? Influence{z * z / 2, 1, 1} : Influence{kHuber * (a - kHuber / 2), kHuber / a, 0};
    case Loss::tukey: {
      if (a >= kTukey) return {kTukey * kTukey / 6, 0, 0};
      const double u = z / kTukey, v = 1 - u * u;
      return {kTukey * kTukey / 6 * (1 - v * v * v), v * v, v * (1 - 5 * u * u)};
    }
  }
  return {};
}

double cost_of(const Eigen::VectorXd& r, Loss loss, double scale) {
  double sum = 0;
  for (Eigen::Index i = 0; i < r.size(); ++i) sum += influence(loss, r[i] / scale).rho;
  return sum;
}

Eigen::VectorXd weights_of(const Eigen::VectorXd& r, Loss loss, double scale) {
  Eigen::VectorXd w(r.size());
  for (Eigen::Index i = 0; i < r.size(); ++i) w[i] = influence(loss, r[i] / scale).weight;
  return w;
}

double robust_scale(const Eigen::VectorXd& residuals, std::size_t parameters) {
  std::vector<double> sizes;
  for (Eigen::Index i = 0; i < residuals.size(); ++i) sizes.push_back(std::abs(residuals[i]));
  if (sizes.empty()) return 1e-12;
  std::sort(sizes.begin(), sizes.end());
  // With p parameters about p residuals are made small by the fit itself: the median of the rest.
  const std::size_t skip = std::min(parameters, sizes.size() - 1), rest = sizes.size() - skip;
  const double middle = rest % 2 == 1 ? sizes[skip + rest / 2] : (sizes[skip + rest / 2 - 1] + sizes[skip + rest / 2]) / 2;
  return std::max(middle / kMad, 1e-12);
}

}  // namespace rehearse::calibrate
