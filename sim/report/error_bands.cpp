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

/// A half width, and the rows that it comes from, in words.
struct Side {
  std::optional<double> width;
  std::string basis;
};

/// Two sources or more have to agree: one alone may be wrong in its own way.
Side side_of(const std::vector<const RowOutcome*>& rows, const Error& error, const std::string& name, const std::function<bool(const RowOutcome&)>& counts) {
  const Quantile q = quantile_of(rows, error, counts);
  if (q.sources < 2) return {};
  return {q.value, fmt::format("{} rows of {} sources ({})", q.rows, q.sources, name)};
}

/// What runs of the same framework and runs on the same architecture stayed within, whichever is wider: a job may share the mistakes of
/// both. All runs, where neither is known.
Side wider(const Side& framework, const Side& architecture, const Side& all) {
  if (!framework.width && !architecture.width) return all;
  return architecture.width.value_or(0) > framework.width.value_or(0) ? architecture : framework;
}

Band band_of(const Side& time, const Side& memory) {
  if (!time.width && !memory.width) return {.basis = "not established: no measured runs"};
  return {time.width, memory.width, "80 % of measured runs lay within: " + (time.width ? time.basis : std::string("no step times")) + (memory.width ? "; memory: " + memory.basis : "")};
}

constexpr const char* kAny = "any";

/// Whose libraries run on it: a framework's mistakes on one maker's GPUs say little of the other's.
const char* maker_of(const std::string& architecture) { return architecture.starts_with("cdna") ? "AMD" : "NVIDIA"; }

/// Rows of a profile on a maker's GPUs, of an architecture, or all rows ("any").
struct Level {
  std::string profile, architecture;   // of a profile: a maker

  std::string name() const { return profile != kAny ? profile + " on " + architecture + " GPUs" : architecture != kAny ? "any framework on " + architecture : "all runs"; }
  bool holds(const RowOutcome& r) const { return profile != kAny ? r.profile == profile && maker_of(r.architecture) == architecture : architecture == kAny || r.architecture == architecture; }
};

Side side_of(const std::vector<const RowOutcome*>& rows, const Error& error, const Level& level) {
  return side_of(rows, error, level.name(), [&](const RowOutcome& r) { return level.holds(r); });
}

Side nearest(const std::vector<const RowOutcome*>& rows, const Error& error, const std::string& profile, const std::string& architecture) {
  return wider(side_of(rows, error, {profile, maker_of(architecture)}), side_of(rows, error, {kAny, architecture}), side_of(rows, error, {kAny, kAny}));
}

std::vector<Coverage> coverage_of(const Accuracy& accuracy, const Error& error, std::optional<double> Band::*width) {
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
      const auto e = error(r);
      if (r.source != source || !e) continue;
      auto [it, fresh] = bands.try_emplace({r.profile, r.architecture});
      if (fresh) it->second = band_for(others, r.profile, r.architecture);
      if (!(it->second.*width)) continue;
      ++c.rows;
      c.inside += *e <= *(it->second.*width);
    }
    if (c.rows > 0) c.inside /= c.rows, out.push_back(c);
  }
  return out;
}

}  // namespace

Band band_for(const std::vector<const RowOutcome*>& rows, const std::string& profile, const std::string& architecture) {
  return band_of(nearest(rows, time_error, profile, architecture), nearest(rows, memory_error, profile, architecture));
}

std::vector<Coverage> band_coverage(const Accuracy& accuracy) { return coverage_of(accuracy, time_error, &Band::step_time); }
std::vector<Coverage> memory_band_coverage(const Accuracy& accuracy) { return coverage_of(accuracy, memory_error, &Band::peak_memory); }

Band band_beside(const Accuracy& accuracy, const RowOutcome& row) {
  std::vector<const RowOutcome*> others;
  for (const RowOutcome& other : accuracy.rows)
    if (other.source != row.source) others.push_back(&other);
  Band band = band_for(others, row.profile, row.architecture);
  return band.step_time || band.peak_memory ? band : stored_band(row.profile, row.architecture);
}

StatedCoverage stated_coverage(const Accuracy& accuracy) {
  StatedCoverage out;
  for (const RowOutcome& r : accuracy.rows) {
    const auto time = time_error(r), memory = memory_error(r);
    if (!time && !memory) continue;
    const Band band = stored_band(r.profile, r.architecture);
    if (time && band.step_time) ++out.times, out.times_inside += *time <= *band.step_time;
    if (memory && band.peak_memory) ++out.memory, out.memory_inside += *memory <= *band.peak_memory;
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
  std::vector<Level> levels{{kAny, kAny}};
  std::set<std::string> architectures;
  std::set<std::pair<std::string, std::string>> profiles;
  for (const RowOutcome& r : accuracy.rows) {
    rows.push_back(&r);
    if (r.simulated) profiles.emplace(r.profile, maker_of(r.architecture)), architectures.insert(r.architecture);
  }
  for (const std::string& name : architectures) levels.push_back({kAny, name});
  for (const auto& [name, maker] : profiles) levels.push_back({name, maker});
  std::string out =
      "# Written by scripts/accuracy (rehearse validate --into): half widths of relative errors that 80 % of the clean rows of\n"
      "# tests/accuracy/runs stayed within, every source weighing the same. A job's is the wider of its framework's, on GPUs of the\n"
      "# same maker, and its architecture's (sim/report/error_bands.h).\n";
  out += fmt::format("coverage: {:.3f}   # share of a source's step times inside the band made from the other sources, mean over sources\n", mean_coverage(band_coverage(accuracy)));
  out += fmt::format("memory_coverage: {:.3f}   # the same of memory\n", mean_coverage(memory_band_coverage(accuracy)));
  out += "bands:\n";
  for (const Level& level : levels) {
    const Side time = side_of(rows, time_error, level), memory = side_of(rows, memory_error, level);
    if (!time.width && !memory.width) continue;
    out += fmt::format("  - {{profile: {}, architecture: {}", level.profile, level.architecture);
    if (time.width) out += fmt::format(", step_time: {:.3f}, step_time_basis: \"{}\"", *time.width, time.basis);
    if (memory.width) out += fmt::format(", peak_memory: {:.3f}, peak_memory_basis: \"{}\"", *memory.width, memory.basis);
    out += "}\n";
  }
  return out;
}

Band stored_band(const std::string& profile, const std::string& architecture) {
  static const config::Document document = [] {   // asked for with every result
    const std::filesystem::path path = resource_root() / kFile;
    std::error_code error;
    return std::filesystem::exists(path, error) ? config::load_document(path) : config::Document{};
  }();
  const Band none{.basis = fmt::format("not established for {} on {}: compare with measured runs by `rehearse validate`", profile, architecture)};
  const config::Value* bands = document.root.find("bands");
  if (bands == nullptr) return none;
  // The file is ours, so its shape is trusted.
  const auto side = [&](const Level& level, const std::string& key) {
    for (const config::Value& entry : bands->items()) {
      const config::Value* width = entry.find(key);
      if (width == nullptr || entry.find("profile")->text() != level.profile || entry.find("architecture")->text() != level.architecture) continue;
      return Side{std::strtod(width->text().c_str(), nullptr), entry.find(key + "_basis")->text()};
    }
    return Side{};
  };
  const auto nearest_of = [&](const char* key) { return wider(side({profile, maker_of(architecture)}, key), side({kAny, architecture}, key), side({kAny, kAny}, key)); };
  return band_of(nearest_of("step_time"), nearest_of("peak_memory"));
}

}  // namespace rehearse::report
