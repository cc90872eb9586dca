// The units of each dimension: the one table behind reading, writing, messages and schemas.
// Leaves out numbers (decimal.h) and what to do with both (units.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/config/units.h"

namespace rehearse::config {

/// One unit is times * 2^binary * 10^decimal of the base unit (byte, byte/s, second, FLOP/s, hertz, watt).
struct Unit {
  const char* name;
  int decimal = 0;
  int binary = 0;
  int times = 1;
};

struct Scale {
  const char* what;  // "a size"
  std::span<const Unit> units;
  std::vector<std::string> usual;  // offered when the unit is missing
};

const Scale& scale_of(Dimension dimension);

}  // namespace rehearse::config
