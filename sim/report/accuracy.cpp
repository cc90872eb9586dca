#include "sim/report/accuracy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <numeric>

#include "hwmodels/device/gpu.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"
#include "sim/core/parallel.h"
#include "sim/scenario/measured_alternatives.h"
#include "strategies/data/catalog.h"

namespace rehearse::report {
namespace {

/// 1, 2-8, 9-64, 65-512, more: what scale means to people.
std::string size_class(int n) { return n <= 1 ? "1" : n <= 8 ? "2-8" : n <= 64 ? "9-64" : n <= 512 ? "65-512" : "over 512"; }

std::map<std::string, std::string> facets_of(const scenario::MeasuredRun& run) {
  std::map<std::string, std::string> out{{"source", run.source}, {"framework", run.framework}, {"gpu", run.gpu}};
  if (run.peak_mem_gib) out["memory-kind"] = run.peak_mem_kind;
  if (!run.scenario) return out;
  const scenario::Scenario& s = *run.scenario;
  const strategies::Degrees& d = s.strategy.parallelism.degrees;
  out["profile"] = s.profile.name;
  out["architecture"] = name_of(s.cluster.gpu.architecture);
  out["gpus"] = size_class(s.gpus());
  out["tensor"] = std::to_string(d.tensor);
  out["pipeline"] = std::to_string(d.pipeline);
  out["context"] = std::to_string(d.context);
  out["precision"] = name_of(scenario::product_format(s.strategy.training.precision));
  out["sequence"] = std::to_string(s.strategy.training.sequence_length);
  out["micro-batch"] = std::to_string(s.strategy.training.micro_batch_size);
  const auto& kinds = strategies::data_parallel_kinds();
  for (const auto& entry : kinds.entries())
    if (entry.value == s.strategy.data_parallel.kind) out["data-parallel"] = std::string(entry.name);
  const strategies::Recompute recompute = s.strategy.memory.recompute;
  out["recompute"] = recompute == strategies::Recompute::full ? "full" : recompute == strategies::Recompute::selective ? "selective" : "none";
  return out;
}

RowOutcome outcome_of(const scenario::MeasuredRun& run, const AccuracyOptions& options) {
  RowOutcome out{.row_id = run.row_id, .source = run.source, .framework = run.framework, .gpu = run.gpu, .clean = run.clean, .dense = run.dense, .reason = run.reason, .cell_notes = run.cell_notes, .guessed_profile = run.guessed_profile, .memory_kind = run.peak_mem_kind};
  out.facets = facets_of(run);
  if (!run.scenario) return out;
  out.profile = run.scenario->profile.name;
  out.architecture = name_of(run.scenario->cluster.gpu.architecture);
  std::optional<PredictedRun> predicted;
  try {
    predicted = predict(run, options);
  } catch (const ConfigError& error) {
    out.reason = error.diagnostics().front().problem;
    return out;
  }
  const scenario::Result& result = predicted->result;
  if (!result.deadlock.empty()) {
    out.reason = "deadlock: " + result.deadlock.substr(0, 160);
    return out;
  }
  out.simulated = true;
  if (run.step_time_s && *run.step_time_s > 0) {
    out.measured_time = run.step_time_s;
    out.predicted_time = result.step_time;
  }
  if (run.peak_mem_gib) {
    const std::size_t which = run.last_stage_memory ? result.classes.size() - 1 : run.first_stage_memory ? 0 : result.fullest_class;
    const scenario::ClassResult& c = result.classes[which];
    out.measured_memory = run.peak_mem_gib;
    out.predicted_memory = gib(run.peak_mem_kind == "reserved" ? (run.reserved_at_end ? c.memory.end_reserved : c.memory.peak_reserved) : run.peak_mem_kind == "device" ? c.peak_device() : c.memory.peak_allocated);
  }
  if (run.fits) {
    out.measured_fits = run.fits;
    out.predicted_fits = result.fits;
  }
  return out;
}

/// Places in ascending order, from 0; equal values share the mean of their places.
std::vector<double> ranks_of(const std::vector<double>& v) {
  std::vector<std::size_t> order(v.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return v[a] < v[b]; });
  std::vector<double> rank(v.size());
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first + 1;
    while (end < order.size() && v[order[end]] == v[order[first]]) ++end;
    for (std::size_t i = first; i < end; ++i) rank[order[i]] = static_cast<double>(first + end - 1) / 2;
    first = end;
  }
  return rank;
}

/// Spearman's rho: Pearson's correlation of the ranks (Kendall 1970, ch. 3, on ties). NaN for fewer than three values, or if all of one kind are equal.
double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() < 3) return std::numeric_limits<double>::quiet_NaN();
  const auto a = ranks_of(x), b = ranks_of(y);
  const double middle = static_cast<double>(x.size() - 1) / 2;
  double both = 0, of_x = 0, of_y = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    both += (a[i] - middle) * (b[i] - middle);
    of_x += (a[i] - middle) * (a[i] - middle);
    of_y += (b[i] - middle) * (b[i] - middle);
  }
  return of_x > 0 && of_y > 0 ? both / std::sqrt(of_x * of_y) : std::numeric_limits<double>::quiet_NaN();
}

ErrorSummary summarise(const std::vector<double>& measured, const std::vector<double>& predicted) {
  ErrorSummary s;
  s.rows = static_cast<int>(measured.size());
  if (measured.empty()) {
    s.mape = s.median = s.bias = s.p90 = s.rank_correlation = std::numeric_limits<double>::quiet_NaN();
    return s;
  }
  std::vector<double> size;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const double e = predicted[i] / measured[i] - 1;
    s.bias += e;
    size.push_back(std::abs(e));
  }
  const double n = static_cast<double>(size.size());
  s.bias /= n;
  s.mape = std::accumulate(size.begin(), size.end(), 0.0) / n;
  std::sort(size.begin(), size.end());
  auto quantile = [&](double q) { return size[std::min(size.size() - 1, static_cast<std::size_t>(q * n))]; };
  s.median = quantile(0.5);
  s.p90 = quantile(0.9);
  s.rank_correlation = spearman(measured, predicted);
  return s;
}

SourceSummary summarise(const std::string& name, const std::vector<const RowOutcome*>& rows) {
  SourceSummary s;
  s.name = name;
  std::vector<double> mt, pt, mm, pm;
  std::map<std::string, std::array<std::vector<double>, 2>> kinds;   // measured, predicted
  std::set<std::string> sources;
  for (const RowOutcome* r : rows) {
    ++s.rows;
    sources.insert(r->source);
    s.dense += r->dense;
    s.simulated += r->simulated;
    s.dense_simulated += r->simulated && r->dense;
    if (r->clean && r->measured_time && r->predicted_time) mt.push_back(*r->measured_time), pt.push_back(*r->predicted_time);
    if (r->clean && r->measured_memory && r->predicted_memory && r->memory_kind != "unstated") {
      mm.push_back(*r->measured_memory), pm.push_back(*r->predicted_memory);
      kinds[r->memory_kind][0].push_back(*r->measured_memory), kinds[r->memory_kind][1].push_back(*r->predicted_memory);
    }
    if (r->measured_fits && r->predicted_fits) {
      ++s.fits_rows;
      s.fits_right += *r->measured_fits == *r->predicted_fits;
    }
  }
  s.sources = static_cast<int>(sources.size());
  s.time = summarise(mt, pt);
  s.memory = summarise(mm, pm);
  for (const auto& [kind, values] : kinds) s.memory_by_kind[kind] = summarise(values[0], values[1]);
  return s;
}

}  // namespace

const std::vector<std::string>& accuracy_facets() {
  static const std::vector<std::string> names{"source", "framework", "profile", "gpu", "architecture", "gpus", "tensor", "pipeline", "context", "data-parallel", "precision", "recompute", "sequence", "micro-batch", "memory-kind"};
  return names;
}

std::vector<SourceSummary> grouped(const Accuracy& accuracy, const std::vector<std::string>& facets) {
  std::map<std::string, std::vector<const RowOutcome*>> groups;
  for (const RowOutcome& row : accuracy.rows) {
    if (!row.simulated) continue;
    std::string key;
    for (const std::string& facet : facets) {
      const auto it = row.facets.find(facet);
      key += (key.empty() ? "" : ", ") + (it == row.facets.end() ? std::string("-") : it->second);
    }
    groups[key].push_back(&row);
  }
  std::vector<SourceSummary> out;
  for (const auto& [key, rows] : groups) out.push_back(summarise(key, rows));
  return out;
}

PredictedRun predict(const scenario::MeasuredRun& run, const AccuracyOptions& options) {
  PredictedRun out{*run.scenario, scenario::simulate(*run.scenario, {.memory_steps = run.steps, .ablation = options.ablation})};
  const auto try_faster = [&](const scenario::Scenario& other) {
    scenario::Result faster = scenario::simulate(other, {.memory_steps = run.steps, .ablation = options.ablation});
    if (faster.deadlock.empty() && faster.fits && (!out.result.fits || faster.step_time < out.result.step_time)) out = {other, std::move(faster)};
  };
  for (const scenario::Scenario& other : run.alternatives) try_faster(other);
  if (run.chunks_open)
    for (const scenario::Scenario& other : scenario::more_chunks(out.scenario)) try_faster(other);
  for (const scenario::Scenario& other : run.smaller) {
    if (out.result.fits || !out.result.deadlock.empty()) break;
    scenario::Result smaller = scenario::simulate(other, {.memory_steps = run.steps, .ablation = options.ablation});
    if (smaller.fits) out = {other, std::move(smaller)};
  }
  return out;
}

namespace {

/// Puts the user's GPU file in the place of ours. Throws ConfigError when no row is of that kind of GPU.
void use_gpu(const std::string& file, std::vector<scenario::MeasuredRun>& runs) {
  const hwmodels::Gpu gpu = hwmodels::load_gpu(file);
  bool used = false;
  const auto put = [&](scenario::Scenario& s) {
    if (s.cluster.gpu.title != gpu.title) return;
    s.cluster.gpu = gpu;
    used = true;
  };
  for (scenario::MeasuredRun& run : runs) {
    if (run.scenario) put(*run.scenario);
    for (auto* others : {&run.alternatives, &run.smaller})
      for (scenario::Scenario& s : *others) put(s);
  }
  if (!used) throw ConfigError(Diagnostic{{file, 0, 0}, "title", "no row of these tables ran on '" + gpu.title + "'", "Give a file that calibrate fit wrote for the GPU of these rows", ""});
}

}  // namespace

Accuracy measure_accuracy(const std::vector<std::string>& files, const AccuracyOptions& options) {
  std::vector<scenario::MeasuredRun> runs;
  for (const std::string& file : files)
    for (scenario::MeasuredRun& run : scenario::read_measured_runs(file)) runs.push_back(std::move(run));
  if (!options.gpu.empty()) use_gpu(options.gpu, runs);

  Accuracy accuracy;
  for (const std::string& file : files)
    for (const std::string& column : scenario::unread_columns(file)) accuracy.unread.push_back(file + ": " + column);
  accuracy.rows.resize(runs.size());
  std::vector<std::string> failures(runs.size());
  for_each_index(runs.size(), options.threads, [&](std::size_t i) {
    try {
      accuracy.rows[i] = outcome_of(runs[i], options);
    } catch (const ContractViolation& bug) {
      failures[i] = bug.what();
    }
    if (options.progress && i % 20 == 0) std::fprintf(stderr, "\r%zu of %zu rows", i, runs.size());
  });
  if (options.progress) std::fprintf(stderr, "\r\033[K");
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!failures[i].empty()) throw ContractViolation(runs[i].row_id + ": " + failures[i]);

  std::map<std::string, std::vector<const RowOutcome*>> by_source;
  std::vector<const RowOutcome*> all;
  for (const RowOutcome& row : accuracy.rows) {
    by_source[row.source].push_back(&row);
    all.push_back(&row);
  }
  for (const auto& [name, rows] : by_source) accuracy.sources.push_back(summarise(name, rows));
  accuracy.sources.push_back(summarise("all", all));
  return accuracy;
}

}  // namespace rehearse::report
