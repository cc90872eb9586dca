// One row of a table of measured training runs as a scenario, and what was measured. The columns are the contract of
// `rehearse validate` (tests/accuracy/runs/README.md). Leaves out simulating and scoring (sim/report/accuracy.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/csv.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

struct MeasuredRun {
  std::string row_id, source, framework, gpu;   // source: the table's file name without folder and ending
  std::optional<double> step_time_s, peak_mem_gib;
  std::string peak_mem_kind;                    // allocated, reserved, device, unstated
  std::optional<bool> fits;                     // from `outcome`
  bool last_stage_memory = false;               // measured on the last pipeline stage (else: first stage or highest)
  bool first_stage_memory = false;
  bool reserved_at_end = false;   // reserved memory is what was left after a step, not the most there ever was
  int steps = 2;                  // 1: the job ended after its first step, in which optimizer states are made last
  bool dense = true;
  bool clean = true;
  std::optional<Scenario> scenario;
  /// Where the micro-batch is not stated: the same job with larger ones. Whoever ran it took the fastest that fits.
  std::vector<Scenario> alternatives;
  /// Interleaved, and nobody says in how many chunks per rank: the fastest number that fits, for the micro-batch that was the fastest without.
  bool chunks_open = false;
  /// Where recomputation, ZeRO's stage or the degrees are not stated: the same in less memory. Whoever ran it took the first that fits.
  std::vector<Scenario> smaller;
  std::string reason;                           // why there is no scenario
  std::vector<std::string> cell_notes;          // cells that were read otherwise than they are written
  std::string guessed_profile;                  // which profile stands in for a framework that nobody here knows, and why
};

/// Every row of the table; rows that cannot be simulated carry the reason. Defaults that had to be filled in are notes of
/// the scenario. Throws ConfigError only for a file that cannot be read as such a table.
std::vector<MeasuredRun> read_measured_runs(const std::string& path);

/// The table's columns that nothing here reads, with the one that may be meant: "precison (precision?)". Throws as above.
std::vector<std::string> unread_columns(const std::string& path);

}  // namespace rehearse::scenario
