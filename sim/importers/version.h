// Versions of frameworks, for defaults that changed. Leaves out pre-releases.
#pragma once

#include <charconv>
#include <string_view>

namespace rehearse::importers {

/// "0.16.4" is at least 0.16.4; an empty version is the newest. What is no number counts as 0.
inline bool at_least_version(std::string_view version, int major, int minor, int patch) {
  if (version.empty()) return true;
  const int wanted[] = {major, minor, patch};
  if (version.starts_with('v')) version.remove_prefix(1);
  for (const int part : wanted) {
    int number = 0;
    const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), number);
    if (error != std::errc{}) number = 0;
    if (number != part) return number > part;
    version.remove_prefix(static_cast<std::size_t>(end - version.data()));
    if (version.starts_with('.')) version.remove_prefix(1);
  }
  return true;
}

}  // namespace rehearse::importers
