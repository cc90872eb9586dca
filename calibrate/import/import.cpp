#include "calibrate/import/import.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

constexpr const char* kDatabase = "SQLite format 3";

std::string fact_text(const Fact& f) {
  if (const auto* t = std::get_if<std::string>(&f)) return *t;
  if (const auto* i = std::get_if<std::int64_t>(&f)) return std::to_string(*i);
  return "other";
}

}  // namespace

std::string read_maybe_gzip(const std::string& file, std::size_t most) {
  const auto fail = [&](const std::string& why, const std::string& fix) { throw ConfigError(Diagnostic{{file, 0, 0}, "", why, fix, ""}); };
  std::error_code ec;
  const std::filesystem::file_status status = std::filesystem::status(file, ec);
  if (std::filesystem::is_directory(status)) fail("is a folder, not a file", "Name a file in it");
  if (!std::filesystem::exists(status)) fail("there is no such file", "Check the path");
  // zlib reads what is not gzip as it is.
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(file.c_str(), "rb"), gzclose);
  if (!in) fail("cannot be opened", "Check its permissions");
  std::string out, block(std::size_t{1} << 20, '\0');
  for (;;) {
    const int got = gzread(in.get(), block.data(), static_cast<unsigned>(block.size()));
    if (got < 0) fail("the compressed file is damaged", "Copy it again");
    if (got == 0) break;
    out.append(block, 0, static_cast<std::size_t>(got));
    if (out.starts_with(kDatabase)) return out;
    if (out.size() > most) fail(fmt::format("holds more than {} MiB", most >> 20), "Profile fewer steps");
  }
  int code = Z_OK;
  gzerror(in.get(), &code);
  if (code == Z_BUF_ERROR) fail("the compressed file ends in the middle", "Copy it again");
  return out;
}

Imported import_file(const std::string& file, const ImportOptions& options) {
  return import_text(read_maybe_gzip(file), file, options);
}

Imported import_text(const std::string& text, const std::string& file, const ImportOptions& options) {
  if (text.starts_with(kDatabase)) return import_nsys(file);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '[')) {
    // A trace names its events, nccl-tests its results; what is neither is told by the trace's reader.
    const bool tests = text.find("\"traceEvents\"") == std::string::npos && text.find("\"results\"") != std::string::npos;
    return tests ? import_nccl_tests_json(text, file, options) : import_kineto(text, file, options);
  }
  return import_nccl_tests_text(text, file, options);
}

void merge(Measurements& into, const Measurements& more, const std::string& file) {
  if (into.source.empty()) into.source = more.source;
  else if (into.source.find(more.source) == std::string::npos) into.source += ", " + more.source;
  const auto join = [&](Facts& to, const Facts& from) {
    for (const auto& [key, value] : from) {
      const auto [at, is_new] = to.emplace(key, value);
      if (is_new || at->second == value) continue;
      const bool counts = key == "gpu_count" || key == "node_count";
      if (counts) at->second = std::max(std::get<std::int64_t>(at->second), std::get<std::int64_t>(value));
      else into.warnings.push_back(fmt::format("{}: {} is {}, elsewhere {}", file, key, fact_text(value), fact_text(at->second)));
    }
  };
  join(into.machine, more.machine), join(into.software, more.software);
  into.warnings.insert(into.warnings.end(), more.warnings.begin(), more.warnings.end());
  into.series.insert(into.series.end(), more.series.begin(), more.series.end());
}

}  // namespace rehearse::calibrate
