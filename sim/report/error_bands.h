// How wrong predictions are for scenarios like this one: bands that held 80 % of the clean rows of the measured runs, made
// by `rehearse validate --bands` and read from hwmodels/data/accuracy/error_bands.yaml. Leaves out the runs (accuracy.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/report/accuracy.h"

namespace rehearse::report {

/// Half widths of relative errors. `basis`: which rows they come from, in words.
struct Band {
  std::optional<double> step_time, peak_memory;
  std::string basis;
};

/// The band of 80 % of `rows` as seen by a job with this framework profile on this GPU architecture. Sources with the same
/// profile are asked first, then those with the same architecture, then all: the first set with two sources or more. Every
/// source weighs the same, because its rows share their mistakes.
Band band_for(const std::vector<const RowOutcome*>& rows, const std::string& profile, const std::string& architecture);

/// Leave one source out: the share of each source's clean rows that lies inside the band made from the other sources.
struct Coverage {
  std::string source;
  int rows = 0;
  double inside = 0;
};
std::vector<Coverage> band_coverage(const Accuracy& accuracy);
/// Mean over sources with at least five rows; NaN when there are none.
double mean_coverage(const std::vector<Coverage>& coverage);

/// The data file: one entry per profile and architecture, and one for strangers.
std::string bands_yaml(const Accuracy& accuracy);

/// The band of the data file; its basis says "not established" where there is no such file.
Band stored_band(const std::string& profile, const std::string& architecture);

}  // namespace rehearse::report
