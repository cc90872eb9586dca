// Kernels that somebody measured on this GPU: near them the kernel model is corrected to what was measured.
// Leaves out the parametric model that holds everywhere else (kernel_model.h) and measuring (calibrate).
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hwmodels/device/measured_kernel.h"

namespace rehearse::hwmodels {

/// The points of one GPU type. Kernels are compared within one class: same kind, role, formats, mask and attention kernel.
/// The correction is log(measured / parametric) at the point's clock, so it holds for both clocks; between points it is a
/// weighted mean, w = ((1 - d/R) / (d/R))^2 for points nearer than the reach R, with a small constant weight for no
/// correction: exact at points, continuous everywhere, nothing beyond the reach. Source of the weights: Franke & Nielson
/// 1980 (modified quadratic Shepard), constant terms only.
class MeasuredPoints {
 public:
  MeasuredPoints() = default;
  /// `parametric(kernel, clock)` gives the model's seconds; points with a time that is not positive are a contract failure.
  template <typename Parametric>
  MeasuredPoints(const std::vector<MeasuredKernel>& points, const Reach& reach, const Parametric& parametric) {
    for (const MeasuredKernel& p : points) add(p, reach, parametric(p.kernel, p.clock));
  }

  struct Correction {
    double factor = 1;   // on the parametric time
    double support = 0;  // 0: no point near; 1: at a point
  };
  Correction at(const model::KernelSpec& kernel) const;
  bool empty() const { return classes_.empty(); }

 private:
  struct Point {
    std::array<double, 4> size;
    double log_ratio;
    int repeats = 1;  // points at one place count as their mean
  };
  struct Class {
    double reach = 1;
    std::vector<Point> points;
  };
  void add(const MeasuredKernel& point, const Reach& reach, double parametric_seconds);
  std::map<std::string, Class> classes_;
};

/// The table beside a GPU's file: one row per measured kernel (columns: calibrate/fit/README.md).
/// Throws ConfigError with every mistake: unknown words, sizes that are missing or not positive, times that are not positive.
std::vector<MeasuredKernel> read_measured_kernels(const std::filesystem::path& file);
std::string measured_kernels_csv(const std::vector<MeasuredKernel>& points);

}  // namespace rehearse::hwmodels
