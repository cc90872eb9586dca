// nccl-tests -J: version 3. Booleans and NaN are texts there, and `env` holds the whole environment: never read.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "calibrate/import/import.h"
#include "calibrate/import/json_text.h"
#include "calibrate/import/nccl_words.h"
#include "calibrate/import/series_builder.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

using Json = nlohmann::json;

/// A number, or a text that is one; null otherwise ("nan", "N/A").
std::optional<double> finite_number(const Json& holder, const char* key) {
  const auto at = holder.find(key);
  if (at == holder.end()) return std::nullopt;
  if (at->is_number()) return at->get<double>();
  if (!at->is_string()) return std::nullopt;
  char* end = nullptr;
  const std::string text = at->get<std::string>();
  const double v = std::strtod(text.c_str(), &end);
  return end == text.c_str() || !std::isfinite(v) ? std::nullopt : std::optional(v);
}

/// "NVIDIA H100 80GB HBM3" of "worker-1 device 0 [0x8d] NVIDIA H100 80GB HBM3" or as it is.
std::string gpu_in(const std::string& info) {
  const std::size_t bracket = info.find("] ");
  return bracket == std::string::npos ? info : info.substr(bracket + 2);
}

}  // namespace

Imported import_nccl_tests_json(const std::string& text, const std::string& file, const ImportOptions& options) {
  Imported out;
  int repaired = 0;
  const Json root = parse_foreign_json(text, file, &repaired);
  if (!root.is_object() || !root.contains("results") || !root["results"].is_array())
    throw ConfigError(Diagnostic{{file, 0, 0}, "results", "is missing: this is no output of nccl-tests -J", "Give the file that -J wrote", ""});
  std::string collective = options.collective;
  if (const auto args = root.find("args"); args != root.end() && args->is_array())
    for (const Json& a : *args)
      if (a.is_string() && collective.empty()) collective = collective_in(a.get<std::string>()).value_or("");
  std::set<std::string> hosts, gpus;
  int devices = 0;
  if (const auto config = root.find("config"); config != root.end() && config->is_object())
    if (const auto list = config->find("devices"); list != config->end() && list->is_array())
      for (const Json& d : *list) {
        if (!d.is_object()) continue;
        ++devices;
        hosts.insert(text_of(d, "hostname"));
        gpus.insert(gpu_in(text_of(d, "device_info")));
      }
  const int ranks = options.ranks.value_or(devices), nodes = options.nodes.value_or(std::max<int>(1, static_cast<int>(hosts.size())));
  if (collective.empty()) throw ConfigError(Diagnostic{{file, 0, 0}, "args", "do not say which collective was tested", "Say it: --op all_reduce", ""});
  if (ranks < 1) throw ConfigError(Diagnostic{{file, 0, 0}, "config.devices", "is missing: how many GPUs took part stays open", "Say it: --ranks 8 --nodes 1", ""});
  SeriesBuilder series;
  int rows = 0, empty = 0;
  for (const Json& r : root["results"]) {
    if (!r.is_object()) continue;
    const auto bytes = finite_number(r, "size");
    const char* where = r.contains("out_of_place") && r["out_of_place"].is_object() ? "out_of_place" : "in_place";
    if (!bytes || !r.contains(where) || !r[where].is_object()) {
      out.report.not_understood.push_back("a result without size or time");
      continue;
    }
    auto us = finite_number(r[where], "time");
    if (!us) us = finite_number(r[where], "cpu_time");
    if (*bytes <= 0 || us.value_or(0) <= 0) {
      ++empty;
      continue;
    }
    Facts f{{"collective", collective}, {"bytes", whole_number(*bytes)}, {"ranks", std::int64_t{ranks}}, {"nodes", std::int64_t{nodes}}, {"dtype", dtype_of_nccl(text_of(r, "type")).value_or("fp32")},
            {"in_place", std::string(where) == "in_place"}};
    if (collective == "send_recv") f["pattern"] = std::string("ring");
    ++rows;
    // Single iterations, where they were recorded, tell the scatter.
    const std::string each = std::string(where) + "_per_iter";
    const auto list = r.contains(each) && r[each].is_object() && r[each].contains("times_us") ? &r[each]["times_us"] : nullptr;
    if (list != nullptr && list->is_array() && !list->empty()) {
      for (const Json& t : *list)
        if (t.is_number() && t.get<double>() > 0) series.add("collective", f, t.get<double>() * 1e-6);
    } else {
      series.add("collective", f, *us * 1e-6);
    }
  }
  Measurements& m = out.measurements;
  m.source = "nccl-tests JSON";
  if (gpus.size() == 1 && !gpus.begin()->empty()) m.machine["gpu"] = *gpus.begin();
  m.machine["gpu_count"] = std::int64_t{ranks}, m.machine["node_count"] = std::int64_t{nodes};
  if (const std::string nccl = text_of(root, "nccl_version"); !nccl.empty()) m.software["nccl"] = nccl;
  m.series = series.take();
  out.report.used.push_back(fmt::format("{} rows of {}, {} GPUs on {} node{}", rows, collective, ranks, nodes, nodes == 1 ? "" : "s"));
  if (const std::string refused = series.refused(); !refused.empty()) out.report.not_understood.push_back(refused);
  if (empty > 0) out.report.ignored.push_back(fmt::format("{} rows of 0 bytes or without a time", empty));
  if (root.contains("env")) out.report.ignored.push_back("env: the environment may hold secrets");
  if (repaired > 0) out.report.ignored.push_back(fmt::format("{} control characters inside texts", repaired));
  return out;
}

}  // namespace rehearse::calibrate
