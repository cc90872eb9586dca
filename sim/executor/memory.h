// Runs a plan's allocations in host order through the simulated caching allocator and keeps the ledger by category.
// Leaves out time, but for what record_stream needs of it, and what lies outside the allocator (hwmodels/memory).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "hwmodels/memory/allocator_types.h"
#include "sim/executor/device_progress.h"
#include "sim/plan/plan.h"

namespace rehearse::hwmodels {
class CachingAllocator;
}

namespace rehearse::executor {

/// A moment of the memory timeline of one rank class, one per call.
struct MemorySample {
  std::uint32_t call = 0;
  std::int64_t allocated = 0, reserved = 0;   // highest during the call, after it
};

/// The largest live tensors at the peak.
struct LiveTensor {
  std::string name;
  plan::Category category;
  std::int64_t bytes = 0;
};

/// What the allocator took from the device during a call, which in a step in steady state it had given back before.
struct TakenAgain {
  std::uint32_t call = 0;   // index into the step program
  Bytes bytes;
  bool gave_back = false;   // during the call itself, all that it had cached: cudaFree waits for the device
};

struct ClassMemory {
  Bytes peak_allocated, peak_reserved, end_allocated;
  Bytes end_reserved;                                      // less than the peak only where cached segments had to be given back
  std::array<std::int64_t, plan::kCategories> at_peak{};   // live bytes by category when allocated was highest
  int peak_step = 0;
  std::int64_t peak_call = -1;                             // index into the step program, -1: in setup
  std::optional<hwmodels::OutOfMemory> out_of_memory;      // when the limit did not suffice
  std::int64_t failed_call = -1;                           // as peak_call
  int failed_step = 0;
  std::vector<MemorySample> timeline;                      // of the last step, if asked for
  std::vector<LiveTensor> live_at_peak;                    // if asked for, largest first
  std::vector<TakenAgain> taken_again;                     // in the last step, if asked for
  std::int64_t operations = 0;
  std::int64_t repeated = 0;                               // of these, in repeats that were counted, not run
};

/// Sees every event of the allocator together with the tensor that caused it. Changes no number.
class MemoryObserver : public hwmodels::AllocatorObserver {
 public:
  /// The events until the next call of this are due to `tensor`. Step -1 is setup.
  virtual void on_tensor(int step, const plan::Call& call, const std::string& tensor, plan::Category category) = 0;
  /// The program is over, or out of memory.
  virtual void at_end(const hwmodels::CachingAllocator& allocator) = 0;
};

struct MemoryOptions {
  hwmodels::AllocatorSettings allocator;
  int steps = 2;             // the second meets the optimizer states and the cached segments of the first
  bool timeline = false;
  bool taken_again = false;
  MemoryObserver* observer = nullptr;  // not owned
  bool shortcuts = true;     // a repeat that meets the same allocator is counted, not run. Changes no number
  /// When other streams are through with what they were given (record_stream); not owned. Without it they are at once.
  const DeviceProgress* progress = nullptr;
};

ClassMemory run_memory(const plan::Plan& plan, std::size_t rank_class, const MemoryOptions& options);

}  // namespace rehearse::executor
