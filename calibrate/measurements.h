// What was measured on a machine: one file of raw timings, before anything is fitted to them. Written by rehearse-probe
// and by importers of other programs' logs, read by the fit. Leaves out what may be measured (operations.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace rehearse::calibrate {

inline constexpr std::string_view kSchema = "rehearse-measurements/1";

/// One documented value: a size, a rate, a name, a yes or no, or lines of text (operations.h says which, and its unit).
using Fact = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;
using Facts = std::map<std::string, Fact, std::less<>>;

/// Repeated timings of one operation with one set of parameters. All times are seconds of one execution; where several
/// processes take part, of the slowest. Absent statistics are those that an imported log does not tell.
struct Series {
  std::string operation;  // a name of operations()
  Facts parameters;       // as the operation documents them; absent = the documented default

  std::int64_t samples = 0;  // timed samples, >= 1
  std::int64_t repeats = 1;  // executions per sample; a sample is their mean
  double median_s = 0;
  std::optional<double> mean_s, min_s, max_s, stddev_s;
  /// Half the width of the 95 % confidence interval of the median (order statistics), divided by the median.
  std::optional<double> relative_error;
  /// Median of the later half of the samples over that of the earlier half, minus 1: clocks that fall while measuring.
  std::optional<double> drift;
  bool converged = true;  // false: the time cap came before the wished relative error
  std::optional<double> sm_clock_mhz;  // mean over the samples
  std::vector<std::string> throttle;   // reasons that NVML gave during the samples; empty = none
  std::string note;

  /// The parameter, or its documented default. Asking for an undocumented one, or for another type, is a contract failure.
  std::int64_t integer(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  bool flag(std::string_view name) const;

  friend bool operator==(const Series&, const Series&) = default;
};

/// An operation that could not be measured, and why: it is not tried again when a run is resumed.
struct Skipped {
  std::string operation;
  Facts parameters;
  std::string reason;
  friend bool operator==(const Skipped&, const Skipped&) = default;
};

struct Measurements {
  std::string source;    // who measured: "rehearse-probe 0.1.0", "nccl-tests log of 2026-05"
  Facts machine;         // machine_keys()
  Facts software;        // software_keys()
  Facts options;         // option_keys()
  std::vector<std::string> warnings;  // about the state of the machine: another process on the GPU, throttling
  std::vector<Skipped> skipped;
  std::vector<Series> series;

  friend bool operator==(const Measurements&, const Measurements&) = default;
};

/// "gemm k=4096 m=8192 n=4096": the same for two series exactly when they measure the same thing, defaults filled in.
std::string identity(std::string_view operation, const Facts& parameters);
inline std::string identity(const Series& s) { return identity(s.operation, s.parameters); }

/// One fact and one series per line, so that two files can be compared by eye. Expects finite numbers.
std::string to_json(const Measurements& measurements);

/// Throws ConfigError with file:line:column and the fix, every mistake at once: unknown, missing, repeated and mistyped
/// keys, unknown operations, negative times, statistics that contradict each other.
Measurements measurements_from_json(const std::string& text, const std::string& file);

/// As measurements_from_json, from a file of at most 256 MiB.
Measurements read_measurements(const std::string& path);

/// Writes beside `path` and renames into place: a reader, or a run after a crash, sees the old file or the new one.
/// `press`: not only as safe as the operating system, but on the disk. Throws ConfigError when the place cannot be written.
void write_measurements(const std::string& path, const Measurements& measurements, bool press = true);

}  // namespace rehearse::calibrate
