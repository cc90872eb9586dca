// The accuracy report as text, Markdown (README, tests/accuracy/by_source.md) and JSON (design: the contract of `validate --json`).
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "sim/report/accuracy.h"
#include "sim/report/error_bands.h"
#include "sim/report/format.h"

namespace rehearse::report {
namespace {

std::string percent(double v, bool sign = false) {
  if (std::isnan(v)) return "-";
  return sign ? signed_text(100 * v) : fmt::format("{:.1f}", 100 * v);
}

std::string correlation(const ErrorSummary& e) { return e.rows < 3 || std::isnan(e.rank_correlation) ? "-" : fmt::format("{:.2f}", e.rank_correlation); }

std::string fits(const SourceSummary& s) { return s.fits_rows == 0 ? "-" : fmt::format("{:.1f}", 100.0 * s.fits_right / s.fits_rows); }

/// Means over sources with at least five scored rows: how the project is judged.
struct OverSources {
  double mape = 0, bias = 0;
  int sources = 0;
};
OverSources over_sources(const Accuracy& a) {
  OverSources o;
  for (const SourceSummary& s : a.sources) {
    if (s.name == "all" || s.time.rows < 5) continue;
    o.mape += s.time.mape;
    o.bias += s.time.bias;
    ++o.sources;
  }
  if (o.sources == 0) return {.mape = std::nan(""), .bias = std::nan("")};
  o.mape /= o.sources, o.bias /= o.sources;
  return o;
}

/// Kinds of memory, which have a bar each: PyTorch's two counters and what nvidia-smi shows.
constexpr std::array<const char*, 3> kMemoryKinds{"allocated", "reserved", "device"};

const ErrorSummary* of_kind(const SourceSummary& s, const char* kind) {
  const auto it = s.memory_by_kind.find(kind);
  return it == s.memory_by_kind.end() ? nullptr : &it->second;
}

double error_of(const RowOutcome& r) { return *r.predicted_time / *r.measured_time - 1; }

nlohmann::json number_or_null(double v) { return std::isnan(v) ? nlohmann::json(nullptr) : nlohmann::json(v); }

nlohmann::json json_of(const ErrorSummary& e) {
  return {{"rows", e.rows}, {"mape", number_or_null(e.mape)}, {"median", number_or_null(e.median)}, {"bias", number_or_null(e.bias)}, {"p90", number_or_null(e.p90)}, {"rank_correlation", number_or_null(e.rank_correlation)}};
}

/// How well bands hold: those made from the other sources; of one table alone those that answers state.
std::string coverage_text(const Accuracy& a) {
  const double time = mean_coverage(band_coverage(a)), memory = mean_coverage(memory_band_coverage(a));
  if (!std::isnan(time) || !std::isnan(memory))
    return fmt::format("error bands made from the other sources (80 % wanted): a source's step times lie inside {} %, its memory {} %, means over sources\n", percent(time), percent(memory));
  const StatedCoverage stated = stated_coverage(a);
  std::string out;
  if (stated.times > 0) out += fmt::format("error bands as answers state them (80 % wanted): {} of {} step times lie inside\n", stated.times_inside, stated.times);
  if (stated.memory > 0) out += fmt::format("error bands as answers state them (80 % wanted): {} of {} peaks of memory lie inside\n", stated.memory_inside, stated.memory);
  return out;
}

std::string first_few(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) out += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kMost ? out + ", ..." : out;
}

}  // namespace

std::string accuracy_text(const Accuracy& a, int worst) {
  std::string out = fmt::format("{:<32} {:>5} {:>5} | {:>5} {:>6} {:>6} {:>6} {:>6} {:>5} | {:>5} {:>6} {:>6} {:>6} | {:>5}\n", "source", "rows", "sim.", "time", "MAPE", "median", "bias", "P90", "rho", "mem.", "MAPE",
                                "bias", "P90", "fits");
  for (const SourceSummary& s : a.sources)
    out += fmt::format("{:<32} {:>5} {:>5} | {:>5} {:>6} {:>6} {:>6} {:>6} {:>5} | {:>5} {:>6} {:>6} {:>6} | {:>5}\n", s.name, s.rows, s.simulated, s.time.rows, percent(s.time.mape), percent(s.time.median),
                       percent(s.time.bias, true), percent(s.time.p90), correlation(s.time), s.memory.rows, percent(s.memory.mape), percent(s.memory.bias, true), percent(s.memory.p90), fits(s));
  const OverSources o = over_sources(a);
  out += "\n";
  if (o.sources > 0) out += fmt::format("step time over {} with at least 5 rows: MAPE {} %, bias {} %. ", counted(o.sources, "source"), percent(o.mape), percent(o.bias, true));
  out += "All errors in %, of clean rows.\n";
  out += coverage_text(a);
  const SourceSummary& all = a.sources.back();
  for (const char* kind : kMemoryKinds)
    if (const ErrorSummary* e = of_kind(all, kind)) out += fmt::format("memory, {}: {}, MAPE {} %, bias {} %, P90 {} %\n", kind, counted(e->rows, "row"), percent(e->mape), percent(e->bias, true), percent(e->p90));
  out += fmt::format("dense rows simulated: {} of {} ({:.1f} %)\n", all.dense_simulated, all.dense, 100.0 * all.dense_simulated / std::max(1, all.dense));

  const auto list = [&](const char* title, const auto& texts_of) {
    std::map<std::string, std::vector<std::string>> rows;   // text -> names
    for (const RowOutcome& r : a.rows)
      for (const std::string& text : texts_of(r)) rows[text].push_back(r.row_id);
    if (!rows.empty()) out += fmt::format("\n{}:\n", title);
    for (const auto& [text, names] : rows) out += fmt::format("{:>6}  {} ({})\n", names.size(), text, first_few(names));
  };
  using Texts = std::vector<std::string>;
  list("not simulated", [](const RowOutcome& r) { return r.simulated ? Texts{} : Texts{r.reason}; });
  list("simulated as something else", [](const RowOutcome& r) { return r.simulated && !r.guessed_profile.empty() ? Texts{r.guessed_profile} : Texts{}; });
  list("cells read otherwise than they are written", [](const RowOutcome& r) { return r.cell_notes; });
  if (!a.unread.empty()) out += "\ncolumns that are not read (tests/accuracy/runs/README.md has those that are):\n";
  for (const std::string& column : a.unread) out += "  " + column + "\n";

  std::vector<const RowOutcome*> rows;
  for (const RowOutcome& r : a.rows)
    if (r.clean && r.measured_time && r.predicted_time) rows.push_back(&r);
  std::stable_sort(rows.begin(), rows.end(), [](const RowOutcome* x, const RowOutcome* y) { return std::abs(error_of(*x)) > std::abs(error_of(*y)); });
  if (worst > 0 && !rows.empty()) out += "\nworst step times:\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(rows.size(), static_cast<std::size_t>(std::max(0, worst))); ++i)
    out += fmt::format("  {:<36} measured {:>9.4f} s, predicted {:>9.4f} s ({} %)\n", rows[i]->row_id, *rows[i]->measured_time, *rows[i]->predicted_time, percent(error_of(*rows[i]), true));
  return out;
}

std::string groups_text(const std::vector<SourceSummary>& groups, const std::vector<std::string>& facets) {
  std::string title;
  for (const std::string& f : facets) title += (title.empty() ? "" : ", ") + f;
  std::size_t width = title.size();
  for (const SourceSummary& g : groups) width = std::max(width, g.name.size());
  std::string out = fmt::format("{:<{}} | {:>5} {:>6} {:>6} {:>6} {:>6} | {:>5} {:>6} {:>6} | {:>5}\n", title, width, "time", "MAPE", "median", "bias", "P90", "mem.", "MAPE", "bias", "fits");
  for (const SourceSummary& g : groups)
    out += fmt::format("{:<{}} | {:>5} {:>6} {:>6} {:>6} {:>6} | {:>5} {:>6} {:>6} | {:>5}\n", g.name, width, g.time.rows, percent(g.time.mape), percent(g.time.median), percent(g.time.bias, true), percent(g.time.p90), g.memory.rows,
                       percent(g.memory.mape), percent(g.memory.bias, true), fits(g));
  return out;
}

namespace {

/// What both tables end with: errors over sources, and how well error bands hold.
std::string closing_markdown(const Accuracy& a) {
  const OverSources o = over_sources(a);
  const SourceSummary& all = a.sources.back();
  std::string out = fmt::format("\nOver the {} sources with at least 5 timed rows: step-time MAPE {} %, bias {} %. Dense rows simulated: {} of {} ({:.1f} %). Clean rows only; memory of a stated kind only.\n", o.sources, percent(o.mape),
                                percent(o.bias, true), all.dense_simulated, all.dense, 100.0 * all.dense_simulated / std::max(1, all.dense));
  const double time_coverage = mean_coverage(band_coverage(a)), memory_coverage = mean_coverage(memory_band_coverage(a));
  if (!std::isnan(time_coverage)) out += fmt::format("Error bands of 80 %, made from the other sources: a source's step times lie inside {} %, its memory {} %, means over sources.\n", percent(time_coverage), percent(memory_coverage));
  return out;
}

}  // namespace

std::string sources_markdown(const Accuracy& a) {
  std::string out = "| source | rows | simulated | time rows | MAPE % | bias % | P90 % | rank corr. | memory rows | MAPE % | bias % | P90 % | fits or not, right % |\n";
  out += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (const SourceSummary& s : a.sources)
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", s.name, s.rows, s.simulated, s.time.rows, percent(s.time.mape), percent(s.time.bias, true), percent(s.time.p90), correlation(s.time),
                       s.memory.rows, percent(s.memory.mape), percent(s.memory.bias, true), percent(s.memory.p90), fits(s));
  return out + closing_markdown(a);
}

std::string profiles_markdown(const Accuracy& a) {
  std::string out = "| framework profile | sources | step times | MAPE % | bias % | P90 % | allocated | MAPE % | reserved | MAPE % | device | MAPE % | fits or not, right % |\n";
  out += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  std::vector<SourceSummary> lines = grouped(a, {"profile"});
  lines.push_back(a.sources.back());
  for (const SourceSummary& s : lines) {
    out += fmt::format("| {} | {} | {} | {} | {} | {} |", s.name, s.sources, s.time.rows, percent(s.time.mape), percent(s.time.bias, true), percent(s.time.p90));
    for (const char* kind : kMemoryKinds) {
      const ErrorSummary* e = of_kind(s, kind);
      out += e == nullptr ? " 0 | - |" : fmt::format(" {} | {} |", e->rows, percent(e->mape));
    }
    out += fmt::format(" {} |\n", fits(s));
  }
  return out + closing_markdown(a);
}

std::string accuracy_json(const Accuracy& a) {
  nlohmann::json rows = nlohmann::json::array(), sources = nlohmann::json::array();
  std::map<std::array<std::string, 3>, Band> bands;
  for (const RowOutcome& r : a.rows) {
    nlohmann::json j{{"row_id", r.row_id}, {"source", r.source}, {"framework", r.framework}, {"gpu", r.gpu}, {"clean", r.clean}, {"simulated", r.simulated}};
    if (!r.simulated) j["reason"] = r.reason;
    if (!r.cell_notes.empty()) j["read_otherwise"] = r.cell_notes;
    auto pair = [&](const char* key, const auto& measured, const auto& predicted) {
      if (measured) j[key]["measured"] = *measured;
      if (predicted) j[key]["predicted"] = *predicted;
    };
    pair("step_time_s", r.measured_time, r.predicted_time);
    pair("peak_mem_gib", r.measured_memory, r.predicted_memory);
    if (j.contains("peak_mem_gib")) j["peak_mem_gib"]["kind"] = r.memory_kind;
    // Not scored: nobody says what was measured.
    if (r.memory_kind == "unstated" && j.contains("peak_mem_gib")) j["peak_mem_gib"].erase("measured");
    pair("fits", r.measured_fits, r.predicted_fits);
    if (r.simulated) {
      j["profile"] = r.profile;
      j["architecture"] = r.architecture;
      auto [it, fresh] = bands.try_emplace(std::array<std::string, 3>{r.source, r.profile, r.architecture});
      if (fresh) it->second = band_beside(a, r);
      const auto width = [](const std::optional<double>& w) { return w ? nlohmann::json(*w) : nlohmann::json(nullptr); };
      j["error_band"] = {{"step_time", width(it->second.step_time)}, {"peak_memory", width(it->second.peak_memory)}, {"basis", it->second.basis}};
    }
    rows.push_back(std::move(j));
  }
  for (const SourceSummary& s : a.sources) {
    nlohmann::json by_kind = nlohmann::json::object();
    for (const auto& [kind, e] : s.memory_by_kind) by_kind[kind] = json_of(e);
    sources.push_back({{"source", s.name}, {"rows", s.rows}, {"dense", s.dense}, {"simulated", s.simulated}, {"dense_simulated", s.dense_simulated}, {"step_time", json_of(s.time)}, {"peak_memory", json_of(s.memory)},
                       {"peak_memory_by_kind", by_kind}, {"fits_rows", s.fits_rows}, {"fits_right", s.fits_right}});
  }
  const OverSources o = over_sources(a);
  nlohmann::json document{{"schema_version", 1}, {"summary", {{"sources", sources}, {"step_time_mape_over_sources", number_or_null(o.mape)}, {"step_time_bias_over_sources", number_or_null(o.bias)}}}, {"rows", rows}};
  if (!a.unread.empty()) document["unread_columns"] = a.unread;
  return document.dump(1) + "\n";
}

}  // namespace rehearse::report
