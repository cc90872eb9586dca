// Random numbers that are the same on every machine: integers from SplitMix64, and logarithm and exponential of sums and
// products alone, which IEEE 754 rounds alike everywhere (the C library's differ in the last bit).
// Leaves out cryptography and speed.
#pragma once

#include <cstdint>

namespace rehearse {

/// Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", figure 17.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// 0 <= result < n. Precondition: n > 0.
  std::uint64_t below(std::uint64_t n);
  /// 0 < result < 1, a multiple of 2^-53 (shifted by half of that).
  double uniform();
  /// Mean 0, variance 1. Marsaglia's polar method.
  double normal();
  /// Gamma with this shape and scale 1; shape > 0. Marsaglia & Tsang 2000, "A simple method for generating gamma variables".
  double gamma(double shape);

 private:
  std::uint64_t state_;
};

/// Natural logarithm of x > 0 and exponential, to 1e-15 relative, the same bits on every IEEE machine.
double portable_log(double x);
double portable_exp(double x);

}  // namespace rehearse
