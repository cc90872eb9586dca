// Parameters of an operation by name, with what stands in for those that are absent. Leaves out checking them, which the
// reader and the plan have done.
#pragma once

#include <string>
#include <string_view>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

inline std::int64_t whole(const Facts& facts, std::string_view key, std::int64_t fallback = 0) {
  const auto at = facts.find(key);
  return at == facts.end() ? fallback : std::get<std::int64_t>(at->second);
}
inline std::string text(const Facts& facts, std::string_view key, const char* fallback = "") {
  const auto at = facts.find(key);
  return at == facts.end() ? fallback : std::get<std::string>(at->second);
}
inline bool flag(const Facts& facts, std::string_view key, bool fallback = false) {
  const auto at = facts.find(key);
  return at == facts.end() ? fallback : std::get<bool>(at->second);
}

}  // namespace rehearse::calibrate
