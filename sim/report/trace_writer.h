// A step as a Chrome trace in the dialect of PyTorch's profiler (Kineto): opens in Perfetto, chrome://tracing and HTA.
// Leaves out running the step: simulate with `trace` on. One rank per class: its representative.
//
// pid = global rank, tid = stream number; times in us with three decimals, relative to the step's start; slices of one tid
// never overlap. Flow events join a send with its receive; counters show memory when the timeline was kept.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>

#include "sim/report/accounts.h"

namespace rehearse::report {

/// Browsers' viewers fail between 256 MB and 1 GB: say so before writing more than this.
constexpr std::int64_t kLargeTraceBytes = 200'000'000;

/// Within a factor of two of what write_trace will write.
std::int64_t estimated_trace_bytes(const Result& result);

/// Precondition: result.trace was asked for. The stream's own state tells about failures. `only`: one rank class alone, as
/// analysers want a file per rank.
void write_trace(const Scenario& scenario, const Result& result, std::ostream& out, std::optional<std::size_t> only = {});

}  // namespace rehearse::report
