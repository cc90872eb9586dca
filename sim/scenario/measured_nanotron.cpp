#include "sim/scenario/measured_nanotron.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <string>

#include "sim/config/scalar_types.h"
#include "sim/scenario/measured_row.h"
#include "strategies/stage_layers.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// "671M", "1.01G": as nanotron's log_throughput prints numbers.
std::optional<double> parameters_on_rank(const config::CsvRow& row) {
  const std::string text = cell(row, "local_params");
  if (text.empty()) return std::nullopt;
  std::size_t read = 0;
  double count = 0;
  try {
    count = std::stod(text, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  const std::string unit = text.substr(read);
  const double scale = unit == "K" ? 1e3 : unit == "M" ? 1e6 : unit == "G" ? 1e9 : 0;
  if (read == 0 || scale == 0 || !(count > 0)) throw ConfigError(row.diagnostic("local_params", "'" + text + "' is no number of parameters", "Write 671M or 1.01G"));
  return count * scale;
}

/// Layers of the first stage when a stage ends beyond its share, or on it.
int first_stage(const Scenario& s, bool passes_share) {
  st::FrameworkProfile profile = s.profile;
  profile.passes_share = passes_share;
  const int stages = s.strategy.parallelism.degrees.pipeline;
  if (!st::stage_layer_problems(s.model, s.strategy, profile, stages).empty()) return 0;
  return st::stage_layers(s.model, s.strategy, profile, stages).front().count;
}

/// Does the first stage hold what the public rule gives it?
bool shows_public_rule(const Scenario& s, double on_rank) {
  const model::ParameterCount all = model::count_parameters(s.model);
  const double layer = static_cast<double>(all.attention + all.mlp) / static_cast<double>(s.model.layer_count());
  const double layers = (on_rank * s.strategy.parallelism.degrees.tensor - static_cast<double>(all.embedding)) / layer;
  return std::abs(layers - first_stage(s, true)) < std::abs(layers - first_stage(s, false));
}

}  // namespace

void apply_nanotron_release(const config::CsvRow& row, Scenario& s) {
  const std::string fixed = lower(cell(row, "after_pp_fix"));
  const bool before = fixed == "n" || fixed == "false";
  if (before) {
    s.profile.message_poll = std::chrono::milliseconds(100);
    s.notes.emplace_back("messages between stages are polled every 100 ms, as nanotron did before the fix that the source's table speaks of");
  }
  const std::optional<double> on_rank = parameters_on_rank(row);
  s.profile.passes_share = on_rank ? shows_public_rule(s, *on_rank) : before;
  if (s.profile.passes_share && first_stage(s, true) != first_stage(s, false)) s.notes.emplace_back("stages end beyond their share of the cost, as in nanotron's public code");
}

}  // namespace rehearse::scenario
