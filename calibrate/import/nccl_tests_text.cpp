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

struct Row {
  std::string collective, dtype;
  std::int64_t bytes = 0;
  double seconds = 0;
  bool in_place = false;
};

/// What the lines of a log say.
class Log {
 public:
  explicit Log(const std::string& given) : collective(given), collective_is_given_(!given.empty()) {}
  void read(const std::string& text);

  std::string collective, nccl;   // "": nobody says which
  int ranks = 0;
  std::set<std::string> hosts, gpus;
  int header_line = 0;            // of the last table; 0: there is none
  std::vector<Row> rows;
  int empty = 0, wrong = 0;       // rows of nothing; rows whose results were wrong
  int strange = 0, first_strange = 0;

 private:
  void read_line(const std::string& line, int number);
  void read_rank(const std::vector<std::string>& words);
  void read_row(const std::vector<std::string>& words, int number);
  void not_understood(int number) {
    if (strange++ == 0) first_strange = number;
  }

  bool collective_is_given_;
  std::optional<Columns> columns_;
};

void Log::read(const std::string& text) {
  int number = 0;
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end - begin > kLongestLine) continue;
    std::string line = valid_utf8(text.substr(begin, end - begin));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    read_line(untagged(line), number);
  }
}

void Log::read_line(const std::string& line, int number) {
  const std::vector<std::string> words = words_of(line);
  if (words.empty()) return;
  if (const std::size_t at = line.find("NCCL version "); at != std::string::npos && nccl.empty()) nccl = words_of(line.substr(at + 13)).empty() ? "" : words_of(line.substr(at + 13)).front();
  // The program's name says the collective: in "# Collective test starting: all_reduce_perf", or in the command line.
  if (const auto named = collective_in(line); named && !collective_is_given_) collective = *named;
  if (words.front() == "#" && words.size() > 8 && words[1] == "Rank") {
    read_rank(words);
  } else if (words.front().starts_with("#")) {
    if (const auto header = header_of(words)) columns_ = header, header_line = number;
  } else if (columns_ && number_in(words.front())) {  // others: log lines of NCCL and of the launcher
    read_row(words, number);
  }
}

/// "#  Rank  3 Group  0 Pid 866559 on HOST device  3 [0x61] NVIDIA GeForce RTX 4090"
void Log::read_rank(const std::vector<std::string>& words) {
  std::size_t on = 0;
  while (on < words.size() && words[on] != "on") ++on;
  if (on + 5 >= words.size() || words[on + 2] != "device") return;
  ++ranks;
  hosts.insert(words[on + 1]);
  std::string gpu;
  for (std::size_t i = on + 5; i < words.size(); ++i) gpu += (gpu.empty() ? "" : " ") + words[i];
  gpus.insert(gpu);
}

void Log::read_row(const std::vector<std::string>& words, int number) {
  if (words.size() < columns_->all - (columns_->all > 9 ? 1 : 0)) return not_understood(number);
  const auto bytes = number_in(words[columns_->size]), time = number_in(words[columns_->time.front()]);
  const auto in_place = columns_->time.size() > 1 && columns_->time[1] < words.size() ? number_in(words[columns_->time[1]]) : std::nullopt;
  const auto type = dtype_of_nccl(words[columns_->type]);
  if (!bytes || (!time && !in_place)) return not_understood(number);
  if (words.back() != "0" && words.back() != "N/A" && number_in(words.back()).value_or(0) >= 1) ++wrong;
  const bool use_in_place = !time || *time <= 0;
  const double us = use_in_place ? in_place.value_or(0) : *time;
  if (*bytes <= 0 || us <= 0) ++empty;
  else rows.push_back({collective, type.value_or("fp32"), whole_number(*bytes), us * 1e-6, use_in_place});
}

/// One line of the import's report, or a warning, for each thing that was left out.
void report_rows(const Log& log, const std::string& refused, const std::string& file, Imported& out) {
  std::vector<std::string>& warnings = out.measurements.warnings;
  if (log.gpus.size() > 1) warnings.push_back(fmt::format("{}: {} kinds of GPU took part", file, log.gpus.size()));
  if (log.wrong > 0) warnings.push_back(fmt::format("{}: {} rows with wrong results", file, log.wrong));
  if (!refused.empty()) out.report.not_understood.push_back(refused);
  if (log.empty > 0) out.report.ignored.push_back(fmt::format("{} rows of 0 bytes or 0 us", log.empty));
  if (log.strange > 0) out.report.not_understood.push_back(fmt::format("{} lines with fewer columns than the header (first: line {})", log.strange, log.first_strange));
}

}  // namespace

Imported import_nccl_tests_text(const std::string& text, const std::string& file, const ImportOptions& options) {
  Log log(options.collective);
  log.read(text);
  if (log.header_line == 0) throw ConfigError(Diagnostic{{file, 0, 0}, "", "holds no table of nccl-tests (a line '# size count type ... busbw')", "Give the whole output of all_reduce_perf and its sisters; what else is read: rehearse calibrate import --help", ""});
  const int ranks = options.ranks.value_or(log.ranks), nodes = options.nodes.value_or(std::max<int>(1, static_cast<int>(log.hosts.size())));
  if (ranks < 1) throw ConfigError(Diagnostic{{file, log.header_line, 1}, "", "how many GPUs took part is not in the log (its lines '# Rank ... on ... device' are missing)", "Say it: --ranks 8 --nodes 1", ""});
  SeriesBuilder series;
  for (const Row& row : log.rows) {
    if (row.collective.empty()) throw ConfigError(Diagnostic{{file, log.header_line, 1}, "", "which collective was tested is not in the log", "Say it: --op all_reduce", ""});
    Facts f{{"collective", row.collective}, {"bytes", row.bytes}, {"ranks", std::int64_t{ranks}}, {"nodes", std::int64_t{nodes}}, {"dtype", row.dtype}, {"in_place", row.in_place}};
    if (row.collective == "send_recv") f["pattern"] = std::string("ring");  // every rank sends to the next
    series.add("collective", f, row.seconds);
  }
  Imported out;
  Measurements& m = out.measurements;
  m.source = "nccl-tests log";
  if (log.gpus.size() == 1) m.machine["gpu"] = *log.gpus.begin();
  m.machine["gpu_count"] = std::int64_t{ranks}, m.machine["node_count"] = std::int64_t{nodes};
  if (!log.nccl.empty()) m.software["nccl"] = log.nccl.substr(0, log.nccl.find('+'));
  m.series = series.take();
  out.report.used.push_back(fmt::format("{} rows of {} GPUs on {} node{}", log.rows.size(), ranks, nodes, nodes == 1 ? "" : "s"));
  report_rows(log, series.refused(), file, out);
  return out;
}

}  // namespace rehearse::calibrate
