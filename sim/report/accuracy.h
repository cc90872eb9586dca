// Predictions against measured runs: simulates every row of the tables and sums up the errors by source.
// Leaves out reading the rows (sim/scenario/measured_run.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/executor/costs.h"
#include "sim/scenario/measured_run.h"

namespace rehearse::report {

struct RowOutcome {
  std::string row_id, source, framework, gpu;
  bool clean = true, simulated = false, dense = true;
  std::string reason;                                      // why not simulated
  std::optional<double> measured_time, predicted_time;     // seconds
  std::string memory_kind;
  std::optional<double> measured_memory, predicted_memory; // GiB
  std::optional<bool> measured_fits, predicted_fits;
};

/// Errors over rows: relative, predicted / measured - 1. NaN when there are none.
struct ErrorSummary {
  int rows = 0;
  double mape = 0, median = 0, bias = 0, p90 = 0, rank_correlation = 0;
};

struct SourceSummary {
  std::string name;
  int rows = 0, dense = 0, simulated = 0, dense_simulated = 0;
  ErrorSummary time, memory;      // clean rows only; memory of a stated kind only
  int fits_rows = 0, fits_right = 0;
};

struct Accuracy {
  std::vector<RowOutcome> rows;
  std::vector<SourceSummary> sources;   // by name, then "all"; the errors of "all" are over rows
};

/// Which mechanism to switch off, to see what it is worth.
struct AccuracyOptions {
  executor::Ablation ablation;
  int threads = 0;                      // 0: all cores
  bool progress = false;                // on stderr, for terminals
};

/// Throws ConfigError for files that are no such tables. Same rows, same numbers, for any number of threads.
Accuracy measure_accuracy(const std::vector<std::string>& files, const AccuracyOptions& options);

std::string accuracy_text(const Accuracy& accuracy, int worst);
std::string accuracy_markdown(const Accuracy& accuracy);
std::string accuracy_json(const Accuracy& accuracy);

}  // namespace rehearse::report
