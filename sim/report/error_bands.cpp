#include "sim/report/error_bands.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/config/document.h"
#include "sim/core/resources.h"

namespace rehearse::report {
namespace {

constexpr double kShare = 0.8;
constexpr const char* kFile = "hwmodels/data/accuracy/error_bands.yaml";

std::optional<double> time_error(const RowOutcome& r) {
  if (!r.clean || !r.measured_time || !r.predicted_time) return std::nullopt;
  return std::abs(*r.predicted_time / *r.measured_time - 1);
}
std::optional<double> memory_error(const RowOutcome& r) {
  if (!r.clean || !r.measured_memory || !r.predicted_memory || r.memory_kind == "unstated") return std::nullopt;
  return std::abs(*r.predicted_memory / *r.measured_memory - 1);
}

using Error = std::function<std::optional<double>(const RowOutcome&)>;

struct Quantile {
  std::optional<double> value;
  int rows = 0, sources = 0;
};

/// The error that the share of rows stays below, every source weighing the same.
Quantile quantile_of(const std::vector<const RowOutcome*>& rows, const Error& error, const std::function<bool(const RowOutcome&)>& counts) {
  std::map<std::string, std::vector<double>> by_source;
  for (const RowOutcome* r : rows)
    if (const auto e = error(*r); e && counts(*r)) by_source[r->source].push_back(*e);
  std::vector<std::pair<double, double>> weighted;   // error, weight
  Quantile out;
  for (const auto& [source, errors] : by_source) {
    ++out.sources;
    out.rows += static_cast<int>(errors.size());
    for (double e : errors) weighted.emplace_back(e, 1.0 / static_cast<double>(errors.size()));
  }
  if (weighted.empty()) return out;
  std::sort(weighted.begin(), weighted.end());
  double sum = 0;
  for (const auto& [e, weight] : weighted) {
    sum += weight;
    out.value = e;
    if (sum >= kShare * out.sources * (1 - 1e-12)) break;
  }
  return out;
}

/// The first set of rows, from alike to all, that two sources or more agree on.
Quantile nearest(const std::vector<const RowOutcome*>& rows, const Error& error, const std::string& profile, const std::string& architecture, std::string& level) {
  const std::pair<std::string, std::function<bool(const RowOutcome&)>> levels[] = {
      {profile + " on any GPU", [&](const RowOutcome& r) { return r.profile == profile; }},
      {"any framework on " + architecture, [&](const RowOutcome& r) { return r.architecture == architecture; }},
      {"all runs", [](const RowOutcome&) { return true; }}};
  for (const auto& [name, counts] : levels) {
    const Quantile q = quantile_of(rows, error, counts);
    if (q.sources < 2) continue;
    level = name;
    return q;
  }
  return {};
}

}  // namespace

Band band_for(const std::vector<const RowOutcome*>& rows, const std::string& profile, const std::string& architecture) {
  Band band;
  std::string level, memory_level;
  const Quantile time = nearest(rows, time_error, profile, architecture, level), memory = nearest(rows, memory_error, profile, architecture, memory_level);
  band.step_time = time.value;
  band.peak_memory = memory.value;
  if (!time.value && !memory.value) {
    band.basis = "not established: no measured runs";
    return band;
  }
  auto words = [](const Quantile& q, const std::string& from) { return fmt::format("{} rows of {} sources ({})", q.rows, q.sources, from); };
  band.basis = "80 % of measured runs lay within: " + (time.value ? words(time, level) : std::string("no step times")) + (memory.value ? "; memory: " + words(memory, memory_level) : "");
  return band;
}

std::vector<Coverage> band_coverage(const Accuracy& accuracy) {
  std::set<std::string> sources;
  for (const RowOutcome& r : accuracy.rows) sources.insert(r.source);
  std::vector<Coverage> out;
  for (const std::string& source : sources) {
    std::vector<const RowOutcome*> others;
    for (const RowOutcome& r : accuracy.rows)
      if (r.source != source) others.push_back(&r);
    std::map<std::pair<std::string, std::string>, Band> bands;
    Coverage c{.source = source};
    for (const RowOutcome& r : accuracy.rows) {
      const auto e = time_error(r);
      if (r.source != source || !e) continue;
      auto [it, fresh] = bands.try_emplace({r.profile, r.architecture});
      if (fresh) it->second = band_for(others, r.profile, r.architecture);
      if (!it->second.step_time) continue;
      ++c.rows;
      c.inside += *e <= *it->second.step_time;
    }
    if (c.rows > 0) c.inside /= c.rows, out.push_back(c);
  }
  return out;
}

double mean_coverage(const std::vector<Coverage>& coverage) {
  double sum = 0;
  int n = 0;
  for (const Coverage& c : coverage)
    if (c.rows >= 5) sum += c.inside, ++n;
  return n > 0 ? sum / n : std::numeric_limits<double>::quiet_NaN();
}

std::string bands_yaml(const Accuracy& accuracy) {
  std::vector<const RowOutcome*> rows;
  std::set<std::pair<std::string, std::string>> kinds;
  for (const RowOutcome& r : accuracy.rows) {
    rows.push_back(&r);
    if (r.simulated) kinds.insert({r.profile, r.architecture}), kinds.insert({"any", r.architecture});
  }
  kinds.insert({"any", "any"});
  std::string out =
      "# Written by scripts/accuracy (rehearse validate --bands): half widths of relative errors that 80 % of the clean rows of\n"
      "# tests/accuracy/runs stayed within, every source weighing the same (sim/report/error_bands.h).\n";
  out += fmt::format("coverage: {:.3f}   # share of a source's step times inside the band made from the other sources, mean over sources\n", mean_coverage(band_coverage(accuracy)));
  out += "bands:\n";
  for (const auto& [profile, architecture] : kinds) {
    const Band band = band_for(rows, profile, architecture);
    out += fmt::format("  - {{profile: {}, architecture: {}", profile, architecture);
    if (band.step_time) out += fmt::format(", step_time: {:.3f}", *band.step_time);
    if (band.peak_memory) out += fmt::format(", peak_memory: {:.3f}", *band.peak_memory);
    out += fmt::format(", basis: \"{}\"}}\n", band.basis);
  }
  return out;
}

Band stored_band(const std::string& profile, const std::string& architecture) {
  Band none{.basis = fmt::format("not established for {} on {}: compare with measured runs by `rehearse validate`", profile, architecture)};
  const std::filesystem::path path = resource_root() / kFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return none;
  const config::Document document = config::load_document(path);
  const config::Value* bands = document.root.find("bands");
  if (bands == nullptr) return none;
  // From alike to strangers; the file is ours, so its shape is trusted.
  for (const auto& [wanted, on] : {std::pair{profile, architecture}, std::pair{std::string("any"), architecture}, std::pair{std::string("any"), std::string("any")}})
    for (const config::Value& entry : bands->items()) {
      if (entry.find("profile")->text() != wanted || entry.find("architecture")->text() != on) continue;
      Band band{.basis = std::string(entry.find("basis")->text())};
      auto number = [&](const char* key) -> std::optional<double> {
        const config::Value* v = entry.find(key);
        if (v == nullptr) return std::nullopt;
        return std::strtod(std::string(v->text()).c_str(), nullptr);
      };
      band.step_time = number("step_time");
      band.peak_memory = number("peak_memory");
      return band;
    }
  return none;
}

}  // namespace rehearse::report
