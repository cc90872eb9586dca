// A decimal number as typed, before it becomes binary: so that 0.1 GB is exactly 100,000,000 bytes.
// Leaves out units (units.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rehearse::config {

/// digits * 10^exponent, with sign. `digits` has no leading or trailing zeros and is empty for zero.
struct Decimal {
  bool negative = false;
  std::string digits;
  std::int64_t exponent = 0;

  /// The nearest double to this times 10^shift.
  double to_double(int shift = 0) const;
};

/// A number at the start of a text, and what follows it. `problem` is set when it starts like one but is a
/// trap.
struct NumberPrefix {
  std::optional<Decimal> number;
  std::string_view rest;
  std::string problem;
  std::string fix;
};
NumberPrefix read_number_prefix(std::string_view text);

enum class Rounding : std::uint8_t { exact, nearest };
enum class WholeError : std::uint8_t { none, fraction, range };
struct Whole {
  std::int64_t value = 0;
  WholeError error = WholeError::none;  // with `fraction`, `value` is the nearest whole number
};
/// number * times * 2^binary * 10^shift as a whole number; 1 <= times <= 4096, 0 <= binary <= 50.
Whole to_whole(const Decimal& number, int times, int binary, int shift, Rounding rounding);

}  // namespace rehearse::config
