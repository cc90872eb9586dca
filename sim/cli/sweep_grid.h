// The points of a sweep: every combination of the values of some keys, in a fixed order.
// Leaves out simulating them (sweep.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/config/value.h"

namespace rehearse::cli {

struct Axis {
  std::string key;                  // dotted key of the scenario
  std::vector<std::string> values;  // YAML texts
};

constexpr std::int64_t kMostPoints = 10'000'000;

class Grid {
 public:
  /// The axes of the scenario's own `sweep:` map, then those of "key=v1,v2,..." (an axis named again is replaced).
  /// Throws ConfigError: no axis at all, an axis without values, more than kMostPoints points, a text without '='.
  Grid(const config::Value& scenario, const std::vector<std::string>& over);

  const std::vector<Axis>& axes() const { return axes_; }
  std::int64_t size() const { return size_; }
  /// Value of each axis at a point; the last axis changes fastest.
  std::vector<std::string> values(std::int64_t point) const;
  /// "key=value" of each axis, as --set takes it.
  std::vector<std::string> overrides(std::int64_t point) const;

 private:
  std::vector<Axis> axes_;
  std::int64_t size_ = 1;
};

}  // namespace rehearse::cli
