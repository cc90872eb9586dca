// What a user is told: the text of a ConfigError.
#pragma once

#include <string>

#include "sim/core/error.h"

namespace rehearse {

/// All diagnostics of the ConfigError that `act` throws, one per line; "" when it throws none.
template <typename Act>
std::string error_of(Act act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

}  // namespace rehearse
