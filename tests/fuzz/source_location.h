// std::source_location for Clang 14, which lacks the builtin that GCC's library asks for. Only the fuzzers
// use it.
#pragma once

#include <source_location>
#ifndef __cpp_lib_source_location
namespace std {
struct source_location {
  static constexpr source_location current() noexcept { return {}; }
  constexpr unsigned line() const noexcept { return 0; }
  constexpr unsigned column() const noexcept { return 0; }
  constexpr const char* file_name() const noexcept { return "?"; }
  constexpr const char* function_name() const noexcept { return "?"; }
};
}  // namespace std
#endif
