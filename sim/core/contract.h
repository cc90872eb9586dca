// Contracts: a broken one is our bug, so the program stops with the place and the condition (exit code 4).
// Mistakes of the user are not contracts: see error.h.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace rehearse {

/// Thrown by EXPECTS / ENSURES; only cli catches it, prints it as a bug report and exits with 4.
struct ContractViolation : std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] void contract_failed(const char* kind, const char* condition, const std::string& detail,
                                  std::source_location where = std::source_location::current());

}  // namespace rehearse

#define EXPECTS(cond, ...) \
  ((cond) ? void(0) : ::rehearse::contract_failed("precondition", #cond, ::std::string{__VA_ARGS__}))
#define ENSURES(cond, ...) \
  ((cond) ? void(0) : ::rehearse::contract_failed("postcondition", #cond, ::std::string{__VA_ARGS__}))
