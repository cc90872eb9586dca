// Quantities with a meaning: time in integer picoseconds, bytes, FLOPs and their rates.
// Leaves out parsing and printing of units for people (sim/config/units.h).
#pragma once

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>

namespace rehearse {

/// Simulated time. Range +-106 days; 64 bytes at 900 GB/s is 71 ps.
using Duration = std::chrono::duration<std::int64_t, std::pico>;

/// The simulation's own clock: no wall-clock time can be mixed in by accident.
struct SimClock {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<SimClock>;
  static constexpr bool is_steady = true;
};
using TimePoint = SimClock::time_point;

/// Rounds once, to the nearest picosecond. Precondition: |s| < 9e6.
inline Duration seconds(double s) { return Duration{std::llround(s * 1e12)}; }
inline Duration microseconds(double us) { return Duration{std::llround(us * 1e6)}; }
constexpr double to_seconds(Duration d) { return static_cast<double>(d.count()) * 1e-12; }

/// A number of bytes; a size, never a rate. Signed, so that differences make sense.
struct Bytes {
  std::int64_t value = 0;

  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t v) : value(v) {}
  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  constexpr Bytes& operator+=(Bytes o) { value += o.value; return *this; }
  constexpr Bytes& operator-=(Bytes o) { value -= o.value; return *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.value + b.value}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.value - b.value}; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t k) { return Bytes{a.value * k}; }
  friend constexpr Bytes operator*(std::int64_t k, Bytes a) { return a * k; }
  friend constexpr double operator/(Bytes a, Bytes b) { return static_cast<double>(a.value) / static_cast<double>(b.value); }
};
constexpr double gib(Bytes b) { return static_cast<double>(b.value) / (1024.0 * 1024.0 * 1024.0); }
constexpr Bytes operator""_KiB(unsigned long long v) { return Bytes{static_cast<std::int64_t>(v) << 10}; }
constexpr Bytes operator""_MiB(unsigned long long v) { return Bytes{static_cast<std::int64_t>(v) << 20}; }
constexpr Bytes operator""_GiB(unsigned long long v) { return Bytes{static_cast<std::int64_t>(v) << 30}; }

/// Floating-point operations (a multiply-add counts two). A double: one large step exceeds int64.
struct Flops {
  double value = 0;
  constexpr Flops() = default;
  constexpr explicit Flops(double v) : value(v) {}
  friend constexpr auto operator<=>(Flops, Flops) = default;
  constexpr Flops& operator+=(Flops o) { value += o.value; return *this; }
  friend constexpr Flops operator+(Flops a, Flops b) { return Flops{a.value + b.value}; }
  friend constexpr Flops operator*(Flops a, double k) { return Flops{a.value * k}; }
};

struct BytesPerSecond {
  double value = 0;
  constexpr BytesPerSecond() = default;
  constexpr explicit BytesPerSecond(double v) : value(v) {}
  friend constexpr auto operator<=>(BytesPerSecond, BytesPerSecond) = default;
  friend constexpr BytesPerSecond operator*(BytesPerSecond a, double k) { return BytesPerSecond{a.value * k}; }
};

struct FlopsPerSecond {
  double value = 0;
  constexpr FlopsPerSecond() = default;
  constexpr explicit FlopsPerSecond(double v) : value(v) {}
  friend constexpr auto operator<=>(FlopsPerSecond, FlopsPerSecond) = default;
  friend constexpr FlopsPerSecond operator*(FlopsPerSecond a, double k) { return FlopsPerSecond{a.value * k}; }
};

/// Precondition for both: the rate is positive. Rounded once, to the nearest picosecond.
inline Duration operator/(Bytes b, BytesPerSecond r) { return seconds(static_cast<double>(b.value) / r.value); }
inline Duration operator/(Flops f, FlopsPerSecond r) { return seconds(f.value / r.value); }

}  // namespace rehearse
