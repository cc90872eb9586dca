// Exports of Nsight Systems. Tables and columns differ by version: each is asked for by name, what is missing is told.
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "calibrate/import/import.h"
#include "calibrate/import/series_builder.h"
#include "calibrate/import/text.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

struct Closer {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
  void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
};
using Database = std::unique_ptr<sqlite3, Closer>;
using Statement = std::unique_ptr<sqlite3_stmt, Closer>;

class Export {
 public:
  explicit Export(const std::string& file) : file_(file) {
    sqlite3* db = nullptr;
    const int code = sqlite3_open_v2(file.c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
    db_.reset(db);
    if (code != SQLITE_OK) fail(sqlite3_errmsg(db));
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError(Diagnostic{{file_, 0, 0}, "", "cannot be read as an SQLite database (" + why + ")", "Export again: nsys export --type sqlite report.nsys-rep", ""});
  }
  Statement prepare(const std::string& sql) const {
    sqlite3_stmt* s = nullptr;
    if (sqlite3_prepare_v2(db_.get(), sql.c_str(), -1, &s, nullptr) != SQLITE_OK) fail(sqlite3_errmsg(db_.get()));
    return Statement(s);
  }
  bool step(const Statement& s) const {
    const int code = sqlite3_step(s.get());
    if (code == SQLITE_ROW) return true;
    if (code != SQLITE_DONE) fail(sqlite3_errmsg(db_.get()));
    return false;
  }
  std::set<std::string> tables() const {
    std::set<std::string> out;
    const Statement s = prepare("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')");
    while (step(s)) out.insert(text(s, 0));
    return out;
  }
  std::set<std::string> columns(const std::string& table) const {
    std::set<std::string> out;
    const Statement s = prepare("SELECT name FROM pragma_table_info('" + table + "')");
    while (step(s)) out.insert(text(s, 0));
    return out;
  }
  static std::string text(const Statement& s, int column) {
    const unsigned char* t = sqlite3_column_text(s.get(), column);
    return t == nullptr ? std::string() : valid_utf8(reinterpret_cast<const char*>(t));
  }

 private:
  std::string file_;
  Database db_;
};

// CUPTI's numbers: cuda's cupti_activity.h, CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind.
const char* direction_of(int kind) { return kind == 1 ? "host_to_device" : kind == 2 ? "device_to_host" : kind == 8 ? "device_to_device" : kind == 10 ? "peer" : nullptr; }
constexpr int kPageable = 1;

void read_copies(const Export& db, Imported& out, SeriesBuilder& series) {
  const std::set<std::string> columns = db.columns("CUPTI_ACTIVITY_KIND_MEMCPY");
  for (const char* needed : {"start", "end", "bytes", "copyKind"})
    if (!columns.contains(needed)) return out.report.not_understood.push_back(fmt::format("CUPTI_ACTIVITY_KIND_MEMCPY has no column {}", needed));
  const bool kinds = columns.contains("srcKind") && columns.contains("dstKind");
  const Statement s = db.prepare(std::string("SELECT end - start, bytes, copyKind, ") + (kinds ? "srcKind, dstKind" : "0, 0") + " FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE end > start AND bytes > 0");
  int used = 0, other = 0;
  while (db.step(s)) {
    const char* direction = direction_of(sqlite3_column_int(s.get(), 2));
    if (direction == nullptr) {
      ++other;
      continue;
    }
    const bool pinned = sqlite3_column_int(s.get(), 3) != kPageable && sqlite3_column_int(s.get(), 4) != kPageable;
    series.add("transfer", {{"direction", std::string(direction)}, {"bytes", static_cast<std::int64_t>(sqlite3_column_int64(s.get(), 1))}, {"pinned", pinned}}, static_cast<double>(sqlite3_column_int64(s.get(), 0)) * 1e-9);
    ++used;
  }
  out.report.used.push_back(fmt::format("{} copies{}", used, kinds ? "" : " (whether memory was pinned is not recorded: taken as pinned)"));
  if (other > 0) out.report.ignored.push_back(fmt::format("{} copies of other kinds (arrays, managed memory)", other));
}

void list_kernels(const Export& db, Imported& out) {
  const std::set<std::string> columns = db.columns("CUPTI_ACTIVITY_KIND_KERNEL");
  const char* name = columns.contains("shortName") ? "shortName" : columns.contains("demangledName") ? "demangledName" : nullptr;
  if (name == nullptr || !columns.contains("start") || !columns.contains("end")) return out.report.not_understood.push_back("CUPTI_ACTIVITY_KIND_KERNEL without names or times");
  const bool strings = db.tables().contains("StringIds");
  const Statement s = db.prepare(strings ? fmt::format("SELECT StringIds.value, COUNT(*), SUM(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN StringIds ON StringIds.id = k.{} GROUP BY k.{} ORDER BY 3 DESC", name, name)
                                         : fmt::format("SELECT {}, COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1 ORDER BY 3 DESC", name));
  int kinds = 0;
  long long launches = 0;
  while (db.step(s)) {
    if (++kinds <= 20) out.report.not_understood.push_back(fmt::format("{}: {} times, {:.3f} ms: its shapes are unknown", Export::text(s, 0).substr(0, 80), sqlite3_column_int64(s.get(), 1), static_cast<double>(sqlite3_column_int64(s.get(), 2)) * 1e-6));
    launches += sqlite3_column_int64(s.get(), 1);
  }
  if (kinds > 20) out.report.not_understood.push_back(fmt::format("{} more kernels", kinds - 20));
  out.report.ignored.push_back(fmt::format("{} launches of {} kernels: Nsight Systems does not record what they worked on (a PyTorch profile with record_shapes does)", launches, kinds));
}

}  // namespace

Imported import_nsys(const std::string& file) {
  const Export db(file);
  const std::set<std::string> tables = db.tables();
  Imported out;
  out.measurements.source = "Nsight Systems export";
  SeriesBuilder series;
  const bool kernels = tables.contains("CUPTI_ACTIVITY_KIND_KERNEL"), copies = tables.contains("CUPTI_ACTIVITY_KIND_MEMCPY");
  if (!kernels && !copies)
    throw ConfigError(Diagnostic{{file, 0, 0}, "", "holds no GPU activity (neither kernels nor copies)", "Profile with --trace=cuda, then nsys export --type sqlite", ""});
  if (copies) read_copies(db, out, series);
  if (kernels) list_kernels(db, out);
  if (tables.contains("TARGET_INFO_GPU") && db.columns("TARGET_INFO_GPU").contains("name")) {
    const Statement s = db.prepare("SELECT DISTINCT name FROM TARGET_INFO_GPU");
    std::set<std::string> names;
    while (db.step(s)) names.insert(Export::text(s, 0));
    if (names.size() == 1) out.measurements.machine["gpu"] = *names.begin();
  }
  if (tables.contains("DIAGNOSTIC_EVENT")) {
    const Statement s = db.prepare("SELECT COUNT(*) FROM DIAGNOSTIC_EVENT");
    if (db.step(s) && sqlite3_column_int64(s.get(), 0) > 0) out.measurements.warnings.push_back(fmt::format("{}: the profiler left {} diagnostics: events may be missing", file, sqlite3_column_int64(s.get(), 0)));
  }
  for (const std::string& t : tables)
    if (t.starts_with("CUPTI_ACTIVITY_KIND_") && t != "CUPTI_ACTIVITY_KIND_KERNEL" && t != "CUPTI_ACTIVITY_KIND_MEMCPY") out.report.ignored.push_back("table " + t);
  out.measurements.series = series.take();
  if (const std::string refused = series.refused(); !refused.empty()) out.report.not_understood.push_back(refused);
  return out;
}

}  // namespace rehearse::calibrate
