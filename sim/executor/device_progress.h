// When the host thread comes to each call of a step and when the device is through with what it issued: what memory needs
// of time. A block that was given to another stream (record_stream) is free again once that stream has got there, as seen
// at the host's next allocation. Leaves out the simulation of time itself (timing.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/executor/timing.h"

namespace rehearse::executor {

/// Launches that wait on the device before the next one blocks the host thread.
/// Source: forums.developer.nvidia.com/t/68937 and stackoverflow.com/questions/53970187 (about 1000 before launches block;
/// streams share the queue under CUDA_DEVICE_MAX_CONNECTIONS=1, as tensor-parallel jobs set it).
constexpr std::int64_t kLaunchQueue = 1024;

/// Does any block give a tensor to another stream?
bool records_streams(const plan::Plan& plan);

class DeviceProgress {
 public:
  /// `timing` of this class, with progress (TimingOptions).
  DeviceProgress(const plan::Plan& plan, const plan::Program& program, const ClassTiming& timing);

  /// Picoseconds of one step.
  std::int64_t step() const { return step_; }
  /// When the host is `part` (0 to 1) of the way through issuing a call.
  std::int64_t host(std::size_t call, double part) const;
  /// When the `ordinal`-th work (from 1) that a call gives to `stream` is done; 0: what the calls before it gave.
  std::int64_t done(std::size_t call, plan::Stream stream, std::int64_t ordinal) const;
  /// The same in the first step. The next pipeline stage loads and compiles its kernels in its first forward pass; a message
  /// to it beyond the first waits for that, and so does the device with all that comes after, while the host goes on.
  std::int64_t done_at_first(std::size_t call, plan::Stream stream, std::int64_t ordinal) const;

 private:
  std::int64_t device(std::int64_t launch) const;

  std::int64_t step_ = 0;
  std::vector<std::int64_t> host_;       // at the start of each call, and of the next step
  std::vector<std::int64_t> device_;     // compute stream through with each call
  std::vector<std::int64_t> launches_;   // before each call, and in all
  std::array<std::vector<std::int64_t>, plan::kStreams> works_;  // given before each call
  std::size_t stalls_from_ = 0, stalls_until_ = 0;   // calls of the first step that the device comes to late
  const ClassTiming& timing_;
};

}  // namespace rehearse::executor
