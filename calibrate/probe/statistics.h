// Statistics of repeated timings that assume nothing about how they are distributed: timings have long right tails.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace rehearse::calibrate {

struct Summary {
  std::size_t samples = 0;
  double median = 0, mean = 0, min = 0, max = 0;
  double stddev = 0;          // n - 1 in the denominator; 0 for one sample
  double relative_error = 0;  // see Series::relative_error; of fewer than six samples: half their whole range
  double drift = 0;           // see Series::drift; 0 for fewer than four samples
};

/// Expects at least one sample, all above 0, in the order in which they were taken.
Summary summarise(const std::vector<double>& samples);

/// Ranks (from 1) of the order statistics that enclose the median with at least 95 % probability, as narrow as a
/// symmetric pair can be: the largest j with 2 P(X < j) <= 5 %, X binomial(n, 1/2), and n + 1 - j. (1, n) where no
/// pair can (n < 6).   Source: Conover, Practical Nonparametric Statistics, 3.2 (quantile intervals).
std::pair<std::size_t, std::size_t> median_interval(std::size_t n);

}  // namespace rehearse::calibrate
