#include "sim/scenario/measured_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "sim/core/suggestion.h"
#include "sim/scenario/measured_cells.h"
#include "sim/scenario/measured_columns.h"
#include "sim/scenario/measured_scenario.h"
#include "sim/scenario/measured_sharding.h"
#include "sim/scenario/megatron_command.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// Clean by what was measured only (truth README, "Which rows are clean").
bool is_clean(const config::CsvRow& row) {
  const std::string net = cell(row, "net_class");
  if (net == "degraded_intranode") return false;
  if (net == "degraded_internode" && !(row.find("ar_gbps_world") && row.number("ar_gbps_world"))) return false;
  return !contains(cell(row, "source"), "bigscience") || !contains(cell(row, "source"), "experiments/gpt2.md");   // ±40 % between allocations, says the document
}

/// What makes two rows repeats of one configuration; all but some columns: jobs that differ in nothing else.
std::string configuration(const config::CsvRow& row, std::initializer_list<std::string_view> but = {}) {
  std::string key;
  for (const char* column : {"task", "framework", "model", "layers", "hidden", "kv_heads", "ffn_hidden", "vocab", "seq_len", "gpu", "n_gpus", "tp", "sp", "pp", "vpp", "pp_schedule", "dp", "cp", "ep", "sharding", "micro_batch", "global_batch", "precision",
                             "recompute", "attention", "optimizer", "offload", "lora_rank", "lora_targets", "torch_compile", "cuda_graph", "model_args_json", "env_vars_json", "after_pp_fix"})
    if (std::find(but.begin(), but.end(), column) == but.end()) key += cell(row, column) + "|";
  if (asynchronous_tensor(row)) key += "asynchronous tensor parallelism";
  if (contains(cell(row, "note"), "rowwise")) key += "a scale per row";
  if (const int group = shard_group(row, static_cast<int>(integer(row, "dp").value_or(0))); group > 0) key += fmt::format("shards of {}", group);
  return key;
}

/// What the row's wording told of stages, kernels and updates beyond its columns (apply_readings).
std::string told(const MeasuredRun& run) {
  if (!run.scenario) return "";
  const st::FrameworkProfile& p = run.scenario->profile;
  if (const auto& stages = run.scenario->strategy.pipeline.layers_per_stage; !stages.empty()) return fmt::format("stages of {}", fmt::join(stages, ","));
  if (p.name != "huggingface" && !p.name.starts_with("torchtune")) return "";
  return fmt::format("{} {} {} {} {} {} {} {} {}", static_cast<int>(p.norm), static_cast<int>(p.activation), static_cast<int>(p.loss), p.adapter_autocast, p.upcasts_unquantised, p.copies_shifted_logits,
                     p.reentrant_checkpoint, p.keeps_quantised_inputs, run.scenario->strategy.memory.optimizer_in_backward);
}

using Repeats = std::map<std::string, std::vector<std::size_t>>;

/// Repeats of one configuration that disagree by more than `factor` differ in something that the table does not say (a busy
/// machine, an older library): the fastest, or the smallest, stays clean.
void mark_repeats(std::vector<MeasuredRun>& runs, const Repeats& repeats, std::optional<double> MeasuredRun::*value, double factor, bool others_too) {
  for (const auto& [key, rows] : repeats) {
    const auto less = [&](std::size_t a, std::size_t b) { return *(runs[a].*value) < *(runs[b].*value); };
    const double best = *(runs[*std::min_element(rows.begin(), rows.end(), less)].*value);
    const double worst = *(runs[*std::max_element(rows.begin(), rows.end(), less)].*value);
    if (worst <= factor * best) continue;
    for (std::size_t r : rows)
      if (*(runs[r].*value) > (others_too ? 1.0 : factor) * best) runs[r].clean = false;
  }
}

/// Step times of jobs that differ in their number of layers only, in one file of a source.
using Depths = std::map<std::string, std::map<std::string, std::vector<std::pair<double, double>>>>;

/// At least three numbers of layers, and times on one straight line to five digits: runs repeat to three digits at best.
bool composed(const std::vector<std::pair<double, double>>& jobs) {
  const auto [low, high] = std::minmax_element(jobs.begin(), jobs.end());
  const bool three = std::any_of(jobs.begin(), jobs.end(), [&](const auto& job) { return job.first > low->first && job.first < high->first; });
  if (!three) return false;
  const double slope = (high->second - low->second) / (high->first - low->first);
  return std::all_of(jobs.begin(), jobs.end(), [&](const auto& job) { return std::abs(low->second + slope * (job.first - low->first) - job.second) < 1e-5 * job.second; });
}

/// A file whose step times are on straight lines in most of its series was composed of measured parts: no step in it was measured.
void mark_composed(std::vector<MeasuredRun>& runs, const Depths& depths, const std::map<std::string, std::vector<std::size_t>>& files) {
  constexpr std::size_t kSeries = 5;   // fewer may be chance
  for (const auto& [file, series] : depths) {
    std::size_t long_enough = 0, straight = 0;
    for (const auto& [key, jobs] : series) {
      std::set<double> layers;
      for (const auto& job : jobs) layers.insert(job.first);
      long_enough += layers.size() >= 3;
      straight += composed(jobs);
    }
    if (straight < kSeries || 2 * straight < long_enough) continue;
    for (const std::size_t r : files.at(file)) runs[r].clean = false;
  }
}

/// Jobs of different degrees that share their time and their bytes to the last digit: what stands there was measured of one of them at most.
/// Megatron's CI kept such files beside tests that had changed.
void mark_copies(std::vector<MeasuredRun>& runs, const std::map<std::string, std::map<std::string, std::vector<std::size_t>>>& exact) {
  for (const auto& [value, jobs] : exact) {
    if (jobs.size() < 2) continue;
    for (const auto& [degrees, rows] : jobs)
      for (const std::size_t r : rows) runs[r].clean = false;
  }
}

/// A measurement; what was not measured is an empty cell.
std::optional<double> measured(const config::CsvRow& row, const char* column) {
  const std::optional<double> value = row.number(column);
  if (value && *value <= 0) throw ConfigError(row.diagnostic(column, fmt::format("nothing that was measured is {}", row.text(column)), "Leave the cell empty where there is no measurement"));
  return value;
}

/// As integer(), but nothing where the cell holds something else: the row is not simulated then, which its reason tells.
std::optional<std::int64_t> count(const config::CsvRow& row, const char* column) {
  try {
    return integer(row, column);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

/// Logs that have the rate and no time: what a step's samples take at it. Nothing where the row does not state them, or how the job is spread over its GPUs.
std::optional<double> time_at_rate(const config::CsvRow& row) {
  if (!row.find("tokens_per_s_per_gpu")) return std::nullopt;
  const auto rate = measured(row, "tokens_per_s_per_gpu");
  const auto samples = count(row, "global_batch"), tokens = count(row, "seq_len"), gpus = count(row, "n_gpus");
  if (!rate || samples.value_or(0) < 1 || tokens.value_or(0) < 1 || gpus.value_or(0) < 1 || (*gpus > 1 && degrees_open(row))) return std::nullopt;
  return static_cast<double>(*samples) * static_cast<double>(*tokens) / (*rate * static_cast<double>(*gpus));
}

/// How the run ended; not stated: nothing.
std::optional<bool> ended_well(const config::CsvRow& row) {
  const std::string outcome = cell(row, "outcome");
  if (outcome.empty()) return std::nullopt;
  if (outcome != "ok" && outcome != "oom") throw ConfigError(row.diagnostic("outcome", "'" + outcome + "' is no outcome", "Write ok, oom or nothing"));
  return outcome == "ok";
}

}  // namespace

std::vector<std::string> unread_columns(const std::string& path) {
  std::vector<std::string> out;
  const std::vector<std::string>& known = run_columns();
  const RunTable table = read_run_table(path);
  for (const std::string& column : table.cells.columns()) {
    if (std::find(known.begin(), known.end(), column) != known.end()) continue;
    const auto meant = nearest_name(column, known);
    out.push_back(meant ? fmt::format("{} ({}?)", column, *meant) : column);
  }
  return out;
}

std::vector<MeasuredRun> read_measured_runs(const std::string& path) {
  const RunTable read = read_run_table(path);
  const config::CsvTable& table = read.cells;
  std::vector<MeasuredRun> runs;
  std::set<std::string> known;
  Repeats repeats, sharding_repeats, memory_repeats;
  Depths depths;
  std::map<std::string, std::vector<std::size_t>> files;
  std::map<std::string, std::map<std::string, std::vector<std::size_t>>> exact;   // by what was measured: degrees, and their rows
  for (std::size_t i = 0; i < table.size(); ++i) {
    const config::CsvRow row = table.row(i);
    MeasuredRun run;
    run.row_id = cell(row, "row_id");
    if (!known.insert(run.row_id).second) throw ConfigError(row.diagnostic("row_id", "'" + run.row_id + "' was there before", "Give every row a name of its own"));
    run.source = std::filesystem::path(path).stem().string();
    run.framework = cell(row, "framework");
    run.gpu = cell(row, "gpu");
    if (row.find("step_time_s")) run.step_time_s = measured(row, "step_time_s");
    if (!run.step_time_s) run.step_time_s = time_at_rate(row);
    // Iteration times of Megatron's CI are of tiny models on shared machines; its release-scale runs are meant as times.
    if (is_megatron_test(row) && !contains(cell(row, "note"), "release-scale")) run.step_time_s.reset();
    // The transcription calls the time an anomaly of the measurement and the memory good.
    if (contains(cell(row, "note"), "use memory only")) run.step_time_s.reset();
    if (row.find("peak_mem_gib")) run.peak_mem_gib = measured(row, "peak_mem_gib");
    run.peak_mem_kind = cell(row, "peak_mem_kind");
    // Samples of many lengths: the peak is the longest's, the time an average's.
    for (const char* average : {"time by average", "step time is an average over a length distribution"})
      if (contains(cell(row, "note"), average)) run.step_time_s.reset();
    run.last_stage_memory = contains(cell(row, "mem_rank"), "last");
    run.first_stage_memory = run.framework == "nanotron" || contains(cell(row, "mem_rank"), "first");
    run.reserved_at_end = run.framework == "nanotron";   // log_memory resets the peak before and after each step's passes (nanotron trainer.py, training_step)
    if (steps_of_command(cell(row, "model_args_json")) == 1) run.steps = 1;
    run.fits = ended_well(row);
    run.clean = is_clean(row);
    run.cell_notes = read.notes[i];
    try {
      run.scenario = scenario_of(row, run);
      run.scenario->notes.insert(run.scenario->notes.begin(), run.cell_notes.begin(), run.cell_notes.end());
    } catch (const NotSimulated& e) {
      run.reason = e.reason;
    } catch (const ConfigError& e) {
      run.reason = to_string(e.diagnostics().front());
    }
    if (run.step_time_s) repeats[configuration(row) + told(run)].push_back(i);
    // Whoever keeps the optimizer states, gradients are reduced once per step: after many micro-batches that cannot double it.
    const std::string sharding = cell(row, "sharding");
    if (run.step_time_s && count(row, "grad_accum").value_or(1) >= 8 && (sharding == "none" || sharding == "zero1")) sharding_repeats[configuration(row, {"sharding"})].push_back(i);
    // Memory is as good as its arguments: only rows that state all of them are repeats of one another.
    if (run.peak_mem_gib && !cell(row, "model_args_json").empty()) memory_repeats[configuration(row)].push_back(i);
    const std::string bytes = cell(row, "max_mem_allocated_bytes"), time = cell(row, "step_time_s");
    if (!bytes.empty() && !time.empty()) exact[bytes + "|" + time][fmt::format("{} {} {} {}", cell(row, "tp"), cell(row, "pp"), cell(row, "cp"), cell(row, "ep"))].push_back(i);
    files[cell(row, "source")].push_back(i);
    if (const auto layers = count(row, "layers"); run.step_time_s && layers) depths[cell(row, "source")][configuration(row, {"layers", "model"})].emplace_back(*layers, *run.step_time_s);
    runs.push_back(std::move(run));
  }
  mark_repeats(runs, repeats, &MeasuredRun::step_time_s, 1.1, true);
  mark_repeats(runs, sharding_repeats, &MeasuredRun::step_time_s, 2, false);
  mark_repeats(runs, memory_repeats, &MeasuredRun::peak_mem_gib, 1.1, true);
  mark_composed(runs, depths, files);
  mark_copies(runs, exact);
  return runs;
}

}  // namespace rehearse::scenario
