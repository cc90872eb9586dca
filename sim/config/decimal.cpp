#include "sim/config/decimal.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

namespace rehearse::config {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t count_digits(std::string_view text) {
  return static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
}

Decimal normalised(bool negative, std::string digits, std::int64_t exponent) {
  const std::size_t last = digits.find_last_not_of('0');
  if (last == std::string::npos) return {negative, "", 0};
  exponent += static_cast<std::int64_t>(digits.size() - last - 1);
  digits.erase(last + 1);
  digits.erase(0, digits.find_first_not_of('0'));
  return {negative, std::move(digits), exponent};
}

}  // namespace

double Decimal::to_double(int shift) const {
  if (digits.empty()) return 0.0;
  const std::string text = fmt::format("{}{}e{}", negative ? "-" : "", digits, exponent + shift);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    const bool tiny = exponent + shift + static_cast<std::int64_t>(digits.size()) < 0;
    value = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    if (negative) value = -value;
  }
  return value;
}

NumberPrefix read_number_prefix(std::string_view text) {
  NumberPrefix out{std::nullopt, text, "", ""};
  std::string_view at = text;
  const bool negative = at.starts_with('-');
  if (negative || at.starts_with('+')) at.remove_prefix(1);

  const std::size_t whole = count_digits(at);
  std::string digits(at.substr(0, whole));
  std::int64_t exponent = 0;
  std::string_view after = at.substr(whole);
  if (after.starts_with('.')) {
    const std::size_t fraction = count_digits(after.substr(1));
    digits += after.substr(1, fraction);
    exponent = -static_cast<std::int64_t>(fraction);
    after.remove_prefix(1 + fraction);
  }
  if (digits.empty()) return out;
  if (digits.size() > 400) {
    out.problem = "a number of more than 400 digits";
    out.fix = "Round it";
    return out;
  }
  if (!after.empty() && (after[0] == 'e' || after[0] == 'E')) {
    std::size_t sign = after.size() > 1 && (after[1] == '+' || after[1] == '-') ? 1 : 0;
    const std::string_view power = after.substr(1 + sign, count_digits(after.substr(1 + sign)));
    if (!power.empty()) {
      std::int64_t value = 99999;  // stands for anything that overflows whatever comes
      if (power.size() <= 4) std::from_chars(power.data(), power.data() + power.size(), value);
      exponent += sign && after[1] == '-' ? -value : value;
      after.remove_prefix(1 + sign + power.size());
    }
  }

  if (whole > 1 && at[0] == '0') {
    const std::size_t first = at.substr(0, whole).find_first_not_of('0');
    out.problem =
        fmt::format("'{}' starts with 0, which some YAML readers take for octal", text.substr(0, 40));
    out.fix = first == std::string_view::npos ? "Write 0" : fmt::format("Write {}", at.substr(first, 40));
  } else if (whole == 1 && at.size() > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'o' || at[1] == 'b') &&
             std::isxdigit(static_cast<unsigned char>(at[2]))) {
    out.problem = fmt::format("'{}' is not a decimal number", text.substr(0, 40));
    out.fix = "Write it in decimal";
  } else if (after.size() > 1 &&
             (after[0] == '_' || after[0] == ',' || after[0] == ' ' || after[0] == '\'') &&
             is_digit(after[1])) {
    std::string joined;
    for (const char c : text.substr(0, 40))
      if (is_digit(c) || c == '-' || c == '.') joined += c;
    out.problem =
        fmt::format("'{}' groups its digits, which YAML readers disagree about", text.substr(0, 40));
    out.fix = fmt::format("Write {}", joined);
  } else {
    out.number = normalised(negative, std::move(digits), exponent);
    out.rest = after;
  }
  return out;
}

Whole to_whole(const Decimal& number, int times, int binary, int shift, Rounding rounding) {
  if (number.digits.empty()) return {};
  const Whole out_of_range{0, WholeError::range};
  std::int64_t exponent = number.exponent + shift;
  const auto size = static_cast<std::int64_t>(number.digits.size());
  if (size + exponent > 19) return out_of_range;
  // 20 digits * 4096 * 2^50 < 2^127. What is cut off below them cannot reach half a unit, but is a fraction.
  __extension__ typedef unsigned __int128 Wide;
  const std::int64_t kept = std::min<std::int64_t>(size, 19);
  bool fraction = kept < size;
  exponent += size - kept;
  Wide wide = 0;
  for (std::int64_t i = 0; i < kept; ++i) wide = wide * 10 + static_cast<unsigned>(number.digits[i] - '0');
  wide = wide * static_cast<unsigned>(times) << binary;
  const Wide limit = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
  for (; exponent > 0; --exponent) {
    if (wide > limit) return out_of_range;
    wide *= 10;
  }
  unsigned last = 0;
  for (; exponent < 0 && (wide != 0 || last != 0); ++exponent) {
    fraction = fraction || last != 0;
    last = static_cast<unsigned>(wide % 10);
    wide /= 10;
  }
  if (last >= 5) ++wide;
  fraction = fraction || last != 0;
  if (wide > limit) return out_of_range;
  const auto value = static_cast<std::int64_t>(wide);
  const bool refused = fraction && rounding == Rounding::exact;
  return {number.negative ? -value : value, refused ? WholeError::fraction : WholeError::none};
}

}  // namespace rehearse::config
