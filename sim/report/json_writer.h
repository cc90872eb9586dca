// The answer of `rehearse run --json`: one document with everything the text answer says, and more.
// Leaves out slices (trace_writer.h). Keys are sorted, numbers are the shortest that read back, and nothing depends on
// the moment or the machine: equal inputs give equal bytes.
#pragma once

#include <string>

#include "sim/report/accounts.h"

namespace rehearse::report {

/// Raised when a key changes its meaning or goes away; new keys may come without.
constexpr int kSchemaVersion = 1;

/// Ends in a line break. Numbers that do not exist (no step time) are null, never NaN.
std::string write_json(const Scenario& scenario, const Result& result);

}  // namespace rehearse::report
