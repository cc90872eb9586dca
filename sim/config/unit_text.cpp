// Quantities as text (units.h), and the table of units.
#include <fmt/format.h>

#include <cmath>

#include "sim/config/decimal.h"
#include "sim/config/unit_scales.h"

namespace rehearse::config {

namespace {

constexpr Unit kBytes[] = {{"B"},          {"kB", 3},      {"MB", 6},      {"GB", 9},
                           {"TB", 12},     {"PB", 15},     {"KiB", 0, 10}, {"MiB", 0, 20},
                           {"GiB", 0, 30}, {"TiB", 0, 40}, {"PiB", 0, 50}};
constexpr Unit kRates[] = {{"B/s"},           {"kB/s", 3},       {"MB/s", 6},       {"GB/s", 9},
                           {"TB/s", 12},      {"PB/s", 15},      {"KiB/s", 0, 10},  {"MiB/s", 0, 20},
                           {"GiB/s", 0, 30},  {"TiB/s", 0, 40},  {"b/s", 0, -3},    {"kb/s", 3, -3},
                           {"Mb/s", 6, -3},   {"Gb/s", 9, -3},   {"Tb/s", 12, -3},  {"kbit/s", 3, -3},
                           {"Mbit/s", 6, -3}, {"Gbit/s", 9, -3}, {"Tbit/s", 12, -3}};
constexpr Unit kTimes[] = {{"ps", -12}, {"ns", -9}, {"us", -6},        {"\u00b5s", -6},  {"\u03bcs", -6},
                           {"ms", -3},  {"s"},      {"min", 0, 0, 60}, {"h", 0, 0, 3600}};
constexpr Unit kFlopsRates[] = {{"FLOPS"},       {"MFLOPS", 6},   {"GFLOPS", 9},   {"TFLOPS", 12},
                                {"PFLOPS", 15},  {"EFLOPS", 18},  {"MFLOP/s", 6},  {"GFLOP/s", 9},
                                {"TFLOP/s", 12}, {"PFLOP/s", 15}, {"EFLOP/s", 18}, {"GOPS", 9},
                                {"TOPS", 12},    {"POPS", 15}};
constexpr Unit kFrequencies[] = {{"Hz"}, {"kHz", 3}, {"MHz", 6}, {"GHz", 9}};
constexpr Unit kPowers[] = {{"mW", -3}, {"W"}, {"kW", 3}, {"MW", 6}};

/// The value in the largest unit that leaves at least 1 before the point. Exact: only the decimal point of
/// the shortest representation moves.
std::string scaled_text(double value, Dimension dimension) {
  const NumberPrefix number = read_number_prefix(fmt::format("{}", std::abs(value)));
  const bool zero = !number.number || number.number->digits.empty();
  const std::int64_t power =
      zero ? 0 : static_cast<std::int64_t>(number.number->digits.size()) + number.number->exponent - 1;
  const Unit* best = nullptr;
  for (const Unit& unit : scale_of(dimension).units)
    if (unit.binary == 0 && unit.times == 1 &&
        (!best || (unit.decimal <= power && unit.decimal > best->decimal)))
      best = &unit;
  if (zero) return fmt::format("0 {}", best->name);
  std::string digits = number.number->digits;
  const std::int64_t exponent = number.number->exponent - best->decimal;
  const auto size = static_cast<std::int64_t>(digits.size());
  if (exponent > 20 || size + exponent < -6) {
    digits += fmt::format("e{}", exponent);
  } else if (exponent >= 0) {
    digits.append(static_cast<std::size_t>(exponent), '0');
  } else if (size + exponent > 0) {
    digits.insert(static_cast<std::size_t>(size + exponent), ".");
  } else {
    digits = "0." + std::string(static_cast<std::size_t>(-(size + exponent)), '0') + digits;
  }
  return fmt::format("{}{} {}", value < 0 ? "-" : "", digits, best->name);
}

}  // namespace

const Scale& scale_of(Dimension dimension) {
  static const Scale scales[] = {{"a size", kBytes, {"GiB", "GB"}},
                                 {"a bandwidth", kRates, {"GB/s", "Gb/s"}},
                                 {"a time", kTimes, {"us", "ms"}},
                                 {"an arithmetic rate", kFlopsRates, {"TFLOPS"}},
                                 {"a frequency", kFrequencies, {"MHz", "GHz"}},
                                 {"a power", kPowers, {"W"}}};
  return scales[static_cast<int>(dimension)];
}

std::string to_text(Bytes value) {
  const Unit* best = &kBytes[0];
  std::int64_t best_size = 1;
  for (const Unit& unit : kBytes) {
    std::int64_t size = std::int64_t{1} << unit.binary;
    for (int i = 0; i < unit.decimal; ++i) size *= 10;
    if (value.value != 0 && value.value % size == 0 && size > best_size) {
      best = &unit;
      best_size = size;
    }
  }
  return fmt::format("{} {}", value.value / best_size, best->name);
}

std::string to_text(Duration value) {
  const std::int64_t ps = value.count();
  const Unit* best = &kTimes[0];
  std::int64_t best_size = 1;
  for (const Unit& unit : kTimes) {
    std::int64_t size = unit.times;
    if (unit.times != 1 || static_cast<unsigned char>(unit.name[0]) >= 0x80) continue;
    for (int i = -12; i < unit.decimal; ++i) size *= 10;
    if (ps != 0 && ps % size == 0 && size > best_size) {
      best = &unit;
      best_size = size;
    }
  }
  return fmt::format("{} {}", ps / best_size, ps == 0 ? "s" : best->name);
}

std::string to_text(BytesPerSecond value) { return scaled_text(value.value, Dimension::rate); }
std::string to_text(FlopsPerSecond value) { return scaled_text(value.value, Dimension::flops_rate); }
std::string number_text(double value) { return fmt::format("{}", value); }
std::string frequency_text(double hertz) { return scaled_text(hertz, Dimension::frequency); }
std::string power_text(double watts) { return scaled_text(watts, Dimension::power); }

std::string example_of(Dimension dimension) {
  static const char* const kExamples[] = {
      "80 GiB or 80 GB", "900 GB/s or 400 Gb/s", "2 us or 1.5 ms", "312 TFLOPS", "1410 MHz", "700 W"};
  return kExamples[static_cast<int>(dimension)];
}

std::string unit_pattern(Dimension dimension) {
  std::string out;
  for (const Unit& unit : scale_of(dimension).units) out += (out.empty() ? "" : "|") + std::string(unit.name);
  return out;
}

}  // namespace rehearse::config
