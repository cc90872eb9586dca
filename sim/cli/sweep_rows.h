// What a sweep keeps of each point, and how that is written: CSV, JSON Lines, or a ranking for people.
// Leaves out which points there are (sweep_grid.h).
#pragma once

#include <string>
#include <vector>

#include "sim/cli/sweep_grid.h"
#include "sim/scenario/simulate.h"

namespace rehearse::cli {

enum class Outcome : std::uint8_t { fits, does_not_fit, invalid, failed, not_simulated };
std::string_view name_of(Outcome outcome);

struct Row {
  Outcome outcome = Outcome::not_simulated;
  std::string reason;   // why not; "" when it fits
  std::string hash;     // of the scenario; "" when invalid
  int gpus = 0;
  double step_time = 0, tokens_per_second = 0, samples_per_second = 0, mfu = 0, hfu = 0;
  std::int64_t peak_allocated = 0, peak_reserved = 0, peak_device = 0, headroom = 0;  // of the fullest class, bytes

  double tokens_per_second_per_gpu() const { return gpus > 0 ? tokens_per_second / gpus : 0; }
};
Row row_of(const scenario::Scenario& scenario, const scenario::Result& result);

/// One line per point, in the order of the grid; the swept keys are the first columns. Numbers are the shortest that
/// read back; a point that could not be simulated has empty cells (CSV) or null (JSON Lines).
std::string to_csv(const Grid& grid, const std::vector<Row>& rows);
std::string to_json_lines(const Grid& grid, const std::vector<Row>& rows);
/// The best `top` points that fit by tokens/s, then how many did not and why.
std::string to_ranking(const Grid& grid, const std::vector<Row>& rows, std::size_t top);

}  // namespace rehearse::cli
