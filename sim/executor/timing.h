// Runs a plan in time: host thread, streams, events, rendezvous and contention, in integer picoseconds.
// Leaves out memory (memory.h) and what work costs (costs.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/executor/costs.h"

namespace rehearse::executor {

/// Why the compute stream stood still, or what it was doing.
enum class Cause : std::uint8_t {
  gemm, attention, scan, memory_bound, optimizer, other_compute,      // busy
  tensor, context, expert, data, pipeline_message,              // exposed communication
  bubble,                                                       // waited for another rank to get there: a pipeline's bubble, or an uneven load
  host,                                                         // waited for the host thread to issue
  host_work,                                                    // the same, while that was at work itself: the optimizer on the CPU
  copy, idle,                                                   // waited for a copy; nothing left to do
  count_
};
constexpr int kCauses = static_cast<int>(Cause::count_);
std::string_view name_of(Cause c);

/// One slice on one stream, for traces.
struct Slice {
  std::uint16_t rank_class;
  plan::Stream stream;
  plan::Opcode op;
  std::uint32_t spec;
  std::uint32_t call;       // index into the class's step program
  std::int64_t start, end;  // picoseconds since the start of the traced step
};

/// Work of the host thread itself (plan::HostSpec), for traces.
struct HostSlice {
  std::uint32_t spec;       // index into the plan's host_works
  std::uint32_t call;       // index into the class's step program
  std::int64_t start, end;  // picoseconds since the start of the reported step
};

struct ClassTiming {
  std::int64_t step = 0;                        // picoseconds, last step
  std::array<std::int64_t, kCauses> time{};     // sums to `step` (property test)
  std::array<std::int64_t, plan::kStreams> busy{};
  std::vector<HostSlice> host_works;            // of the last step
  std::vector<std::int64_t> call_host;          // host clock at the start of each call of the last step
  // Only if asked for (progress), of the last step:
  std::vector<std::int64_t> call_device;        // when the compute stream was through with each call; 0: it had no part in it
  std::array<std::vector<std::int64_t>, plan::kStreams> done;   // when each work of the other streams ended, in their order
};

struct TimingResult {
  std::int64_t step = 0;                        // picoseconds of one step in steady state
  std::vector<ClassTiming> classes;
  std::vector<Slice> trace;                     // only if asked for
  std::int64_t instructions = 0;                // timing instructions that were executed
  std::int64_t replayed = 0;                    // of these, in blocks that were replayed in one stroke
  std::int64_t again = 0;                       // stretches that came again in a steady rhythm, and were counted instead of run
  std::string deadlock;                         // empty: the program ran to its end
};

struct TimingOptions {
  int steps = 2;           // the last one is reported: the first has nothing to overlap with from the step before
  bool trace = false;
  bool progress = false;   // keep when the device was through with what: for memory that other streams use (device_progress.h)
  bool shortcuts = true;   // replay blocks that meet no other traffic; off: every instruction runs. Changes no number
};

TimingResult run_timing(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options = {});

}  // namespace rehearse::executor
