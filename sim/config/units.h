// Strict readers and writers of quantities as people write them: "900 GB/s", "80 GiB", "2 us", "5e8".
// Leaves out where the text stood (fields.h adds file, line and key). G = 1e9, Gi = 2^30; B bytes, b bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/units.h"

namespace rehearse::config {

/// A value, or why there is none. `problem` quotes the text; `fix` says what to write.
template <typename T>
struct Reading {
  std::optional<T> value = {};
  std::string problem = {};
  std::string fix = {};
  explicit operator bool() const { return value.has_value(); }
};

/// A whole number. Takes 128, -1, 5e8 and 8.0; refuses 8.5, 010, 0x10, 1_000, "1 000", 128K and beyond int64.
Reading<std::int64_t> parse_integer(std::string_view text);
/// A finite decimal number, correctly rounded. Refuses NaN, infinities, hexadecimal and digit separators.
Reading<double> parse_number(std::string_view text);
/// A number, or a percentage: 0.45 and "45 %" are the same.
Reading<double> parse_fraction(std::string_view text);

// Quantities: a number, a space if wanted, and a unit. Negative ones are read; fields.h refuses them.
// Missing and misspelt units name the candidates; "G", "KB" and "Gbps" are refused, because people mean
// different things by them.

/// Exact: refuses what is not a whole number of bytes.
Reading<Bytes> parse_bytes(std::string_view text);
/// Correctly rounded; Gb/s (also written Gbit/s) is an eighth of GB/s.
Reading<BytesPerSecond> parse_rate(std::string_view text);
/// ps, ns, us, ms, s, min, h; to the nearest picosecond. Refuses non-zero times below half a picosecond.
Reading<Duration> parse_duration(std::string_view text);
/// TFLOPS (also TFLOP/s), and TOPS for integer arithmetic.
Reading<FlopsPerSecond> parse_flops_rate(std::string_view text);
/// In hertz.
Reading<double> parse_frequency(std::string_view text);
/// In watts.
Reading<double> parse_power(std::string_view text);

// The shortest text that reads back to the same value.
std::string to_text(Bytes value);
std::string to_text(BytesPerSecond value);
std::string to_text(Duration value);
std::string to_text(FlopsPerSecond value);
std::string number_text(double value);
std::string frequency_text(double hertz);
std::string power_text(double watts);

/// What a unit can be, for schemas and reference pages.
enum class Dimension : std::uint8_t { bytes, rate, duration, flops_rate, frequency, power };
/// "80 GiB or 80 GB": how such a quantity is written.
std::string example_of(Dimension dimension);
/// The units, joined with '|', as a regular expression needs them.
std::string unit_pattern(Dimension dimension);

}  // namespace rehearse::config
