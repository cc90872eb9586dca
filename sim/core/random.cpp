#include "sim/core/random.h"

#include <cmath>

#include "sim/core/contract.h"

namespace rehearse {

std::uint64_t Random::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::uint64_t Random::below(std::uint64_t n) {
  EXPECTS(n > 0);
  const std::uint64_t uneven = (0 - n) % n;  // 2^64 mod n: as many of the lowest values would come once too often
  std::uint64_t x = next();
  while (x < uneven) x = next();
  return x % n;
}

double Random::uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }

double Random::normal() {
  for (;;) {
    const double u = 2 * uniform() - 1, v = 2 * uniform() - 1, s = u * u + v * v;
    if (s < 1 && s > 0) return u * std::sqrt(-2 * portable_log(s) / s);
  }
}

double Random::gamma(double shape) {
  EXPECTS(shape > 0);
  if (shape < 1) {
    const double larger = gamma(shape + 1);
    return larger * portable_exp(portable_log(uniform()) / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (portable_log(uniform()) < 0.5 * x * x + d - d * v + d * portable_log(v)) return d * v;
  }
}

namespace {
// ln 2 in two parts: the first has zeros where a product with an exponent needs room.
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
}  // namespace

double portable_log(double x) {
  EXPECTS(x > 0);
  int exponent = 0;
  double m = std::frexp(x, &exponent);   // exact
  if (m < 0.70710678118654752) m *= 2, --exponent;
  // ln m = 2 artanh t, |t| <= 0.172: the term after the last is below 1e-17 of the sum.
  const double t = (m - 1) / (m + 1), square = t * t;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  const double e = exponent;
  return e * kLn2High + (2 * t * sum + e * kLn2Low);
}

double portable_exp(double x) {
  if (x < -745) return 0;
  EXPECTS(x < 709);
  const double k = std::floor(x / 0.69314718055994531 + 0.5), r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1;
  for (int i = 18; i >= 1; --i) sum = 1 + r / i * sum;
  return std::ldexp(sum, static_cast<int>(k));
}

}  // namespace rehearse
