// How wrong predictions are for scenarios like this one: bands that held 80 % of the clean rows of the measured runs, made
// by `rehearse validate --into` and read from hwmodels/data/accuracy/error_bands.yaml. Leaves out the runs (accuracy.h).
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

/// The band of 80 % of `rows` as seen by a job with this framework profile on this GPU architecture: the wider of what rows with the same
/// profile on GPUs of the same maker and rows on the same architecture stayed within, each of two sources or more; else what all did. Every source weighs the
/// same, because its rows share their mistakes.
Band band_for(const std::vector<const RowOutcome*>& rows, const std::string& profile, const std::string& architecture);

/// Leave one source out: the share of each source's clean rows that lies inside the band made from the other sources.
struct Coverage {
  std::string source;
  int rows = 0;
  double inside = 0;
};
std::vector<Coverage> band_coverage(const Accuracy& accuracy);
std::vector<Coverage> memory_band_coverage(const Accuracy& accuracy);
/// Mean over sources with at least five rows; NaN when there are none.
double mean_coverage(const std::vector<Coverage>& coverage);

/// The band of a row's job as made from the other sources; as answers state it, where these are too few to agree.
Band band_beside(const Accuracy& accuracy, const RowOutcome& row);

/// Clean rows, and how many of them lie inside the band that answers state.
struct StatedCoverage {
  int times = 0, times_inside = 0, memory = 0, memory_inside = 0;
};
StatedCoverage stated_coverage(const Accuracy& accuracy);

/// The data file: an entry per profile and maker, one per architecture, and one for strangers.
std::string bands_yaml(const Accuracy& accuracy);

/// As band_for, from the data file; its basis says "not established" where there is no such file.
Band stored_band(const std::string& profile, const std::string& architecture);

}  // namespace rehearse::report
