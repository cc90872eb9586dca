#include "calibrate/probe/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

double median_of_sorted(const double* first, std::size_t n) {
  return n % 2 == 1 ? first[n / 2] : 0.5 * (first[n / 2 - 1] + first[n / 2]);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return median_of_sorted(values.data(), values.size());
}

}  // namespace

std::pair<std::size_t, std::size_t> median_interval(std::size_t n) {
  std::size_t j = 0;
  double below = 0;                                     // P(X < j + 1)
  double log_term = -static_cast<double>(n) * std::log(2.0);  // of P(X = j); logarithms: 2^-n underflows
  while (j < n / 2) {
    below += std::exp(log_term);
    if (2 * below > 0.05) break;
    ++j;
    log_term += std::log(static_cast<double>(n - j + 1)) - std::log(static_cast<double>(j));
  }
  if (j == 0) return {1, n};
  return {j, n + 1 - j};
}

Summary summarise(const std::vector<double>& samples) {
  EXPECTS(!samples.empty());
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  EXPECTS(sorted.front() > 0 && std::isfinite(sorted.back()));
  Summary s;
  const std::size_t n = s.samples = sorted.size();
  s.median = median_of_sorted(sorted.data(), n);
  s.mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(n);
  s.min = sorted.front();
  s.max = sorted.back();
  double squares = 0;
  for (double v : sorted) squares += (v - s.mean) * (v - s.mean);
  s.stddev = n > 1 ? std::sqrt(squares / static_cast<double>(n - 1)) : 0;
  const auto [low, high] = median_interval(n);
  s.relative_error = 0.5 * (sorted[high - 1] - sorted[low - 1]) / s.median;
  if (n >= 4) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(n / 2);
    s.drift = median_of({middle, samples.end()}) / median_of({samples.begin(), middle}) - 1;
  }
  return s;
}

}  // namespace rehearse::calibrate
