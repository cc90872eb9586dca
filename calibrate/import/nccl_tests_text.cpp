// nccl-tests' printed tables. Formats since 2.0: the header line names the columns, which have grown over the years.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "calibrate/import/import.h"
#include "calibrate/import/nccl_words.h"
#include "calibrate/import/series_builder.h"
#include "calibrate/import/text.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;   // bytes; rows of the tables have some hundred

/// mpirun -tag-output and kubectl put "[1,0]<stdout>:" or "worker-0: " before a line: the table begins at '#' or at a number.
std::string untagged(const std::string& line) {
  if (const std::size_t tag = line.find("<stdout>:"); tag != std::string::npos) return line.substr(tag + 9);
  return line;
}

std::optional<double> number_in(const std::string& word) {
  char* end = nullptr;
  const double v = std::strtod(word.c_str(), &end);
  return end == word.c_str() || *end != '\0' || !std::isfinite(v) ? std::nullopt : std::optional(v);
}

struct Columns {
  std::size_t size = 0, count = 0, type = 0;
  std::vector<std::size_t> time;  // out of place, then in place
  std::size_t all = 0;
};

/// "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time ..."
std::optional<Columns> header_of(std::vector<std::string> words) {
  if (!words.empty() && words.front() == "#") words.erase(words.begin());
  if (!words.empty() && words.front().starts_with("#") && words.front() != "#wrong") words.front().erase(0, 1);
  std::map<std::string, std::vector<std::size_t>> at;
  for (std::size_t i = 0; i < words.size(); ++i) at[words[i]].push_back(i);
  if (!at.contains("size") || !at.contains("count") || !at.contains("type") || !at.contains("busbw")) return std::nullopt;
  Columns c;
  c.size = at["size"].front(), c.count = at["count"].front(), c.type = at["type"].front(), c.all = words.size();
  c.time = at.contains("time") ? at["time"] : at["cputime"];
  if (c.time.empty()) return std::nullopt;
  return c;
}

}  // namespace

Imported import_nccl_tests_text(const std::string& text, const std::string& file, const ImportOptions& options) {
  Imported out;
  SeriesBuilder series;
  std::set<std::string> hosts, gpus;
  std::set<int> ranks;
  std::string collective = options.collective, nccl;
  std::optional<Columns> columns;
  int rows = 0, empty = 0, wrong = 0, header_line = 0, strange = 0, number = 0, first_strange = 0;
  struct Row {
    std::string collective, dtype;
    std::int64_t bytes;
    double seconds;
    bool in_place;
  };
  std::vector<Row> found;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end - begin > kLongestLine) continue;
    std::string line = valid_utf8(text.substr(begin, end - begin));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    line = untagged(line);
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (const std::size_t at = line.find("NCCL version "); at != std::string::npos && nccl.empty()) nccl = words_of(line.substr(at + 13)).empty() ? "" : words_of(line.substr(at + 13)).front();
    // The program's name says the collective: in "# Collective test starting: all_reduce_perf", or in the command line.
    if (const auto named = collective_in(line); named && options.collective.empty()) collective = *named;
    if (words.front() == "#" && words.size() > 8 && words[1] == "Rank") {
      // "#  Rank  3 Group  0 Pid 866559 on HOST device  3 [0x61] NVIDIA GeForce RTX 4090"
      std::size_t on = 0;
      while (on < words.size() && words[on] != "on") ++on;
      if (on + 5 < words.size() && words[on + 2] == "device") {
        ranks.insert(static_cast<int>(ranks.size()));
        hosts.insert(words[on + 1]);
        std::string gpu;
        for (std::size_t i = on + 5; i < words.size(); ++i) gpu += (gpu.empty() ? "" : " ") + words[i];
        gpus.insert(gpu);
      }
      continue;
    }
    if (words.front().starts_with("#")) {
      if (const auto header = header_of(words)) columns = header, header_line = number;
      continue;
    }
    const auto first = number_in(words.front());
    if (!columns || !first) continue;  // log lines of NCCL and of the launcher
    if (words.size() < columns->all - (columns->all > 9 ? 1 : 0)) {
      ++strange;
      if (first_strange == 0) first_strange = number;
      continue;
    }
    const auto bytes = number_in(words[columns->size]), time = number_in(words[columns->time.front()]);
    const auto in_place = columns->time.size() > 1 && columns->time[1] < words.size() ? number_in(words[columns->time[1]]) : std::nullopt;
    const auto type = dtype_of_nccl(words[columns->type]);
    if (!bytes || (!time && !in_place)) {
      ++strange;
      if (first_strange == 0) first_strange = number;
      continue;
    }
    if (words.back() != "0" && words.back() != "N/A" && number_in(words.back()).value_or(0) >= 1) ++wrong;
    if (*bytes <= 0) {
      ++empty;
      continue;
    }
    const bool use_in_place = !time || *time <= 0;
    const double us = use_in_place ? in_place.value_or(0) : *time;
    if (us <= 0) {
      ++empty;
      continue;
    }
    ++rows;
    found.push_back({collective, type.value_or("fp32"), whole_number(*bytes), us * 1e-6, use_in_place});
  }
  if (!columns) throw ConfigError(Diagnostic{{file, 0, 0}, "", "holds no table of nccl-tests (a line '# size count type ... busbw')", "Give the whole output of all_reduce_perf and its sisters", ""});
  const int all_ranks = options.ranks.value_or(static_cast<int>(ranks.size()));
  if (all_ranks < 1) throw ConfigError(Diagnostic{{file, header_line, 1}, "", "how many GPUs took part is not in the log (its lines '# Rank ... on ... device' are missing)", "Say it: --ranks 8 --nodes 1", ""});
  const int nodes = options.nodes.value_or(std::max<int>(1, static_cast<int>(hosts.size())));
  for (const Row& row : found) {
    if (row.collective.empty()) throw ConfigError(Diagnostic{{file, header_line, 1}, "", "which collective was tested is not in the log", "Say it: --op all_reduce", ""});
    Facts f{{"collective", row.collective}, {"bytes", row.bytes}, {"ranks", std::int64_t{all_ranks}}, {"nodes", std::int64_t{nodes}}, {"dtype", row.dtype}, {"in_place", row.in_place}};
    if (row.collective == "send_recv") f["pattern"] = std::string("ring");  // every rank sends to the next
    series.add("collective", f, row.seconds);
  }
  Measurements& m = out.measurements;
  m.source = "nccl-tests log";
  if (gpus.size() == 1) m.machine["gpu"] = *gpus.begin();
  if (gpus.size() > 1) m.warnings.push_back(fmt::format("{}: {} kinds of GPU took part", file, gpus.size()));
  m.machine["gpu_count"] = std::int64_t{all_ranks}, m.machine["node_count"] = std::int64_t{nodes};
  if (!nccl.empty()) m.software["nccl"] = nccl.substr(0, nccl.find('+'));
  m.series = series.take();
  out.report.used.push_back(fmt::format("{} rows of {} GPUs on {} node{}", rows, all_ranks, nodes, nodes == 1 ? "" : "s"));
  if (const std::string refused = series.refused(); !refused.empty()) out.report.not_understood.push_back(refused);
  if (empty > 0) out.report.ignored.push_back(fmt::format("{} rows of 0 bytes or 0 us", empty));
  if (wrong > 0) m.warnings.push_back(fmt::format("{}: {} rows with wrong results", file, wrong));
  if (strange > 0) out.report.not_understood.push_back(fmt::format("{} lines with fewer columns than the header (first: line {})", strange, first_strange));
  return out;
}

}  // namespace rehearse::calibrate
