// Predictions against measured runs: simulates every row of the tables and sums up the errors by source.
// Leaves out reading the rows (sim/scenario/measured_run.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/executor/costs.h"
#include "sim/scenario/measured_run.h"
#include "sim/scenario/simulate.h"

namespace rehearse::report {

struct RowOutcome {
  std::string row_id, source, framework, gpu;
  std::string profile, architecture;                       // of the simulated scenario
  std::map<std::string, std::string> facets;               // "tensor" -> "8": what `--by` can group by
  bool clean = true, simulated = false, dense = true;
  std::string reason;                                      // why not simulated
  std::vector<std::string> cell_notes;                     // cells that were read otherwise than they are written
  std::string guessed_profile;                             // which profile stands in for an unknown framework, and why
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
  int sources = 0;                // whose rows these are
  ErrorSummary time, memory;      // clean rows only; memory of a stated kind only
  std::map<std::string, ErrorSummary> memory_by_kind;   // allocated, reserved, device: those that rows state
  int fits_rows = 0, fits_right = 0;
};

struct Accuracy {
  std::vector<RowOutcome> rows;
  std::vector<SourceSummary> sources;   // by name, then "all"; the errors of "all" are over rows
  std::vector<std::string> unread;      // "runs.csv: precison (precision?)": columns that nothing reads
};

/// Which mechanism to switch off, to see what it is worth.
struct AccuracyOptions {
  executor::Ablation ablation;
  int threads = 0;                      // 0: all cores
  bool progress = false;                // on stderr, for terminals
  std::string gpu;                      // a file for all rows on GPUs of its title, as calibrate fit writes; empty: our own data
};

/// A row's scenario and what came of it. Of settings that the row does not state it is the fastest alternative that fits, else the
/// first smaller one that does.
struct PredictedRun {
  scenario::Scenario scenario;
  scenario::Result result;
};

/// Precondition: the row has a scenario.
PredictedRun predict(const scenario::MeasuredRun& run, const AccuracyOptions& options);

/// Throws ConfigError for files that are no such tables. Same rows, same numbers, for any number of threads.
Accuracy measure_accuracy(const std::vector<std::string>& files, const AccuracyOptions& options);

/// Names that rows can be grouped by.
const std::vector<std::string>& accuracy_facets();

/// The same errors, of rows that agree in these facets. Precondition: names of accuracy_facets().
std::vector<SourceSummary> grouped(const Accuracy& accuracy, const std::vector<std::string>& facets);

std::string accuracy_text(const Accuracy& accuracy, int worst);
/// One line per group, and how wrong on the average each value of each facet is.
std::string groups_text(const std::vector<SourceSummary>& groups, const std::vector<std::string>& facets);
/// Markdown: a line per source, as tests/accuracy/by_source.md has them.
std::string sources_markdown(const Accuracy& accuracy);
/// Markdown: a line per framework profile, its memory by kind, as README shows it.
std::string profiles_markdown(const Accuracy& accuracy);
std::string accuracy_json(const Accuracy& accuracy);

}  // namespace rehearse::report
