// The pieces that the measured time of every algorithm is made of: ramps and the overlap of latency with
// data. Leaves out the constants (parameters.h) and which piece an algorithm uses (its own file).
#pragma once

#include <cmath>

namespace rehearse::hwmodels {

constexpr double kMiB = 1024.0 * 1024.0;

/// A cost that grows with the message until the pipeline is full: `full` microseconds at the end, half of it
/// at `half`.
inline double ramp(double full, double amount, double half) {
  return amount <= 0 ? 0 : full * amount / (amount + half);
}

/// Two costs that hide each other in part: max(a, b) for p = infinity, a + b for p = 1.
inline double overlapped(double a, double b, double p) {
  if (a <= 0) return b;
  if (b <= 0) return a;
  double big = a > b ? a : b, small = a > b ? b : a;
  return big * std::pow(1 + std::pow(small / big, p), 1 / p);
}

}  // namespace rehearse::hwmodels
