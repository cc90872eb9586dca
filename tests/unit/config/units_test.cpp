#include "sim/config/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sim/config/decimal.h"

namespace rehearse::config::units_test {
namespace {

template <typename T>
std::string refusal(const Reading<T>& reading) {
  return reading ? std::string("(accepted)") : reading.problem + ". " + reading.fix;
}

TEST(Units, BytesAreExact) {
  const std::pair<const char*, std::int64_t> table[] = {
      {"80 GiB", 80LL << 30},
      {"80 GB", 80'000'000'000},
      {"80GB", 80'000'000'000},
      {"0 B", 0},
      {"1.5 GiB", 3LL << 29},
      {"0.1 GB", 100'000'000},
      {"5e8 B", 500'000'000},
      {"1.1 kB", 1100},
      {"1 KiB", 1024},
      {"0.5 KiB", 512},
      {"2 PiB", 1LL << 51},
      {"-3 MB", -3'000'000},
      {"9223372036854775807 B", std::numeric_limits<std::int64_t>::max()}};
  for (const auto& [text, expected] : table) {
    ASSERT_TRUE(parse_bytes(text)) << text;
    EXPECT_EQ(parse_bytes(text).value->value, expected) << text;
  }
}

TEST(Units, RatesTimesAndTheRest) {
  EXPECT_EQ(parse_rate("900 GB/s").value->value, 900e9);
  EXPECT_EQ(parse_rate("400 Gb/s").value->value, 50e9);
  EXPECT_EQ(parse_rate("400 Gbit/s").value->value, 50e9);
  EXPECT_EQ(parse_rate("3.35 TB/s").value->value, 3.35e12);
  EXPECT_EQ(parse_rate("1.1 GB/s").value->value, 1.1e9);  // correctly rounded: 1.1 * 1e9 is not
  EXPECT_EQ(parse_rate("1 GiB/s").value->value, 1073741824.0);
  EXPECT_EQ(parse_duration("2 us").value->count(), 2'000'000);
  EXPECT_EQ(parse_duration("2 \u00b5s").value->count(), 2'000'000);
  EXPECT_EQ(parse_duration("1.5 ms").value->count(), 1'500'000'000);
  EXPECT_EQ(parse_duration("0 s").value->count(), 0);
  EXPECT_EQ(parse_duration("1.4 ps").value->count(), 1);
  EXPECT_EQ(parse_duration("0.5 ps").value->count(), 1);
  EXPECT_EQ(parse_duration("1.5 min").value->count(), 90'000'000'000'000);
  EXPECT_EQ(parse_duration("2 h").value->count(), 7'200'000'000'000'000);
  EXPECT_EQ(parse_flops_rate("312 TFLOPS").value->value, 312e12);
  EXPECT_EQ(parse_flops_rate("989.4 TFLOP/s").value->value, 989.4e12);
  EXPECT_EQ(*parse_frequency("1410 MHz").value, 1.41e9);
  EXPECT_EQ(*parse_power("700 W").value, 700.0);
  EXPECT_EQ(*parse_power("0.7 kW").value, 700.0);
}

TEST(Units, MissingAndMisspeltUnits) {
  EXPECT_EQ(refusal(parse_bytes("80")), "'80' has no unit. Write 80 GiB, 80 GB, 80 MiB or 80 MB");
  EXPECT_EQ(refusal(parse_bytes("100 Mb")), "'Mb' is not a unit of size (B is bytes, b is bits). Write 100 MB for bytes, or an eighth of it, 12.5 MB, for bits");
  EXPECT_EQ(refusal(parse_bytes("80G")), "'G' is not a unit of size. Write 80 GB or 80 GiB");
  EXPECT_EQ(refusal(parse_bytes("80 Gi")), "'Gi' is not a unit of size. Write 80 GiB");
  EXPECT_EQ(refusal(parse_bytes("4 KB")),
            "'KB' is not a unit of size (k is 1000, Ki is 1024). Write 4 kB or 4 KiB");
  EXPECT_EQ(refusal(parse_bytes("4K")),
            "'K' is not a unit of size (k is 1000, Ki is 1024). Write 4 kB or 4 KiB");
  EXPECT_EQ(refusal(parse_bytes("4k")),
            "'k' is not a unit of size (k is 1000, Ki is 1024). Write 4 kB or 4 KiB");
  EXPECT_EQ(refusal(parse_bytes("80 Gb")), "'Gb' is not a unit of size (B is bytes, b is bits). Write 80 GB for bytes, or an eighth of it, 10 GB, for bits");
  EXPECT_EQ(refusal(parse_bytes("80 gib")),
            "'gib' is not a unit of size (B is bytes, b is bits). Write 80 GiB");
  EXPECT_EQ(refusal(parse_bytes("12 bytes")), "'bytes' is not a unit of size. Write 12 B");
  EXPECT_EQ(refusal(parse_bytes("x")), "'x' is not a size. Write a number with a unit, e.g. 80 GiB or 80 GB");
  EXPECT_EQ(refusal(parse_bytes("")), "'' is not a size. Write a number with a unit, e.g. 80 GiB or 80 GB");
  EXPECT_EQ(refusal(parse_bytes("80 GB/s")), "'GB/s' is not a unit of size. Write 80 GB");
  EXPECT_EQ(refusal(parse_rate("400")), "'400' has no unit. Write 400 GB/s or 400 Gb/s");
  EXPECT_EQ(refusal(parse_rate("900 GB")), "'GB' is not a unit of bandwidth. Write 900 GB/s or 900 Gb/s");
  EXPECT_EQ(refusal(parse_rate("400 Gbps")), "'Gbps' is not a unit of bandwidth. Write 400 Gb/s");
  EXPECT_EQ(refusal(parse_rate("400 GBps")), "'GBps' is not a unit of bandwidth. Write 400 GB/s");
  EXPECT_EQ(refusal(parse_rate("400 gbps")), "'gbps' is not a unit of bandwidth. Write 400 GB/s or 400 Gb/s");
  EXPECT_EQ(refusal(parse_duration("3")), "'3' has no unit. Write 3 us or 3 ms");
  EXPECT_EQ(refusal(parse_duration("3 sec")), "'sec' is not a unit of time. Write 3 s");
  EXPECT_EQ(refusal(parse_flops_rate("312 TFLOPs")),
            "'TFLOPs' is not a unit of arithmetic rate (upper and lower case differ). Write 312 TFLOPS");
  EXPECT_EQ(refusal(parse_frequency("1410 Mhz")),
            "'Mhz' is not a unit of frequency (upper and lower case differ). Write 1410 MHz");
  EXPECT_EQ(refusal(parse_power("700")), "'700' has no unit. Write 700 W");
}

TEST(Units, QuantitiesThatDoNotFit) {
  EXPECT_EQ(refusal(parse_bytes("0.1 GiB")), "'0.1 GiB' is not a whole number of bytes. Write 107374182 B");
  EXPECT_EQ(refusal(parse_bytes("1.5 B")), "'1.5 B' is not a whole number of bytes. Write 2 B");
  EXPECT_EQ(refusal(parse_bytes("9223372036854775808 B")), "'9223372036854775808 B' is beyond 8 EiB. ");
  EXPECT_EQ(refusal(parse_bytes("1e400 GB")), "'1e400 GB' is beyond 8 EiB. ");
  EXPECT_EQ(refusal(parse_bytes("1e-400 GB")), "'1e-400 GB' is not a whole number of bytes. Write 0 B");
  EXPECT_EQ(refusal(parse_duration("0.4 ps")), "'0.4 ps' is shorter than a picosecond. Write 0 s or 1 ps");
  EXPECT_EQ(refusal(parse_duration("10000 h")),
            "'10000 h' is longer than 106 days, the longest simulated time. ");
  EXPECT_EQ(refusal(parse_rate("1e400 GB/s")), "'1e400 GB/s' is too large. ");
  EXPECT_EQ(refusal(parse_rate("inf GB/s")),
            "'inf GB/s' is not a bandwidth. Write a number with a unit, e.g. 900 GB/s or 400 Gb/s");
}

TEST(Units, Integers) {
  const std::pair<const char*, std::int64_t> good[] = {
      {"0", 0},
      {"128", 128},
      {"-1", -1},
      {"+4", 4},
      {"5e8", 500'000'000},
      {"1.5e3", 1500},
      {"8.0", 8},
      {"1E+2", 100},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
      {"120e-1", 12},
      {"-0", 0}};
  for (const auto& [text, expected] : good) {
    ASSERT_TRUE(parse_integer(text)) << text;
    EXPECT_EQ(*parse_integer(text).value, expected) << text;
  }
  EXPECT_EQ(refusal(parse_integer("010")),
            "'010' starts with 0, which some YAML readers take for octal. Write 10");
  EXPECT_EQ(refusal(parse_integer("1_000")),
            "'1_000' groups its digits, which YAML readers disagree about. Write 1000");
  EXPECT_EQ(refusal(parse_integer("1,000")),
            "'1,000' groups its digits, which YAML readers disagree about. Write 1000");
  EXPECT_EQ(refusal(parse_integer("1 000")),
            "'1 000' groups its digits, which YAML readers disagree about. Write 1000");
  EXPECT_EQ(refusal(parse_integer("0x10")), "'0x10' is not a decimal number. Write it in decimal");
  EXPECT_EQ(refusal(parse_integer("8.5")), "'8.5' is not a whole number. ");
  EXPECT_EQ(refusal(parse_integer("128K")),
            "'128K' is not a whole number (a count has no unit). Write 128000 or 131072");
  EXPECT_EQ(refusal(parse_integer("2M")), "'2M' is not a whole number (a count has no unit). Write 2e6");
  EXPECT_EQ(refusal(parse_integer("1e30")), "'1e30' is beyond 64 bits. ");
  EXPECT_EQ(refusal(parse_integer("9223372036854775808")), "'9223372036854775808' is beyond 64 bits. ");
  for (const char* text : {"", "abc", ".", "-", "e5", "NaN", "inf", ".inf", "1e", "1 ", "--1", "1e5x"})
    EXPECT_FALSE(parse_integer(text)) << text;
}

TEST(Units, Numbers) {
  EXPECT_EQ(*parse_number("1e-5").value, 1e-5);
  EXPECT_EQ(*parse_number(".5").value, 0.5);
  EXPECT_EQ(*parse_number("5.").value, 5.0);
  EXPECT_EQ(*parse_number("0.1").value, 0.1);
  EXPECT_EQ(*parse_number("1e-5000").value, 0.0);
  for (const char* text : {"NaN", "nan", ".nan", "Infinity", "-inf", "1e999", "0x1p3", "1_0.5", "007", "1,5"})
    EXPECT_FALSE(parse_number(text)) << text;
  EXPECT_EQ(*parse_fraction("45 %").value, 0.45);
  EXPECT_EQ(*parse_fraction("45%").value, 0.45);
  EXPECT_EQ(*parse_fraction("0.45").value, 0.45);
  EXPECT_FALSE(parse_fraction("%"));
}

TEST(Units, ShownTextReadsBackToTheSameValue) {
  EXPECT_EQ(to_text(80_GiB), "80 GiB");
  EXPECT_EQ(to_text(Bytes{25'000'000}), "25 MB");
  EXPECT_EQ(to_text(Bytes{1536}), "1536 B");
  EXPECT_EQ(to_text(Bytes{0}), "0 B");
  EXPECT_EQ(to_text(BytesPerSecond{900e9}), "900 GB/s");
  EXPECT_EQ(to_text(BytesPerSecond{3.35e12}), "3.35 TB/s");
  EXPECT_EQ(to_text(FlopsPerSecond{989.4e12}), "989.4 TFLOPS");
  EXPECT_EQ(to_text(Duration{2'000'000}), "2 us");
  EXPECT_EQ(to_text(Duration{1'500'000'000}), "1500 us");
  EXPECT_EQ(to_text(Duration{0}), "0 s");
  EXPECT_EQ(frequency_text(1.41e9), "1.41 GHz");
  EXPECT_EQ(power_text(700), "700 W");
  EXPECT_EQ(power_text(0), "0 W");
  EXPECT_EQ(power_text(0.25), "250 mW");
  std::uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto n = static_cast<std::int64_t>(state >> (1 + state % 60));
    EXPECT_EQ(*parse_bytes(to_text(Bytes{n})).value, Bytes{n});
    EXPECT_EQ(*parse_bytes(to_text(Bytes{-n})).value, Bytes{-n});
    EXPECT_EQ(*parse_duration(to_text(Duration{n})).value, Duration{n});
    const double x = std::ldexp(static_cast<double>(state >> 11), static_cast<int>(state % 200) - 150);
    EXPECT_EQ(parse_rate(to_text(BytesPerSecond{x})).value->value, x);
    EXPECT_EQ(parse_flops_rate(to_text(FlopsPerSecond{-x})).value->value, -x);
    EXPECT_EQ(*parse_number(number_text(x)).value, x);
  }
}

TEST(Decimal, WholeNumbersRoundOnce) {
  const auto whole = [](const char* text, int shift, Rounding rounding) {
    return to_whole(*read_number_prefix(text).number, 1, 0, shift, rounding);
  };
  EXPECT_EQ(whole("1.4999999999999999999999999", 0, Rounding::nearest).value, 1);
  EXPECT_EQ(whole("1.5", 0, Rounding::nearest).value, 2);
  EXPECT_EQ(whole("-1.5", 0, Rounding::nearest).value, -2);
  EXPECT_EQ(whole("2.5", 0, Rounding::exact).error, WholeError::fraction);
  EXPECT_EQ(whole("1e18", 1, Rounding::exact).error, WholeError::range);
  EXPECT_EQ(whole("1e99999999999", 0, Rounding::exact).error, WholeError::range);
  EXPECT_EQ(whole("0e99999999999", 0, Rounding::exact).value, 0);
}

}  // namespace
}  // namespace rehearse::config::units_test
