// How the time of enqueued operations is taken, and what their operands need. Leaves out the operations.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/device.h"

namespace rehearse::calibrate {

/// Enqueues execution number i on a stream.
using Enqueue = std::function<void(cudaStream_t, std::int64_t)>;

/// Kernels: events around `count` executions that are all enqueued while the stream is held up, so that the host's speed
/// does not show, as in a training step whose host runs ahead. `most_repeats`: the launch queue holds about 1000 kernels.
std::unique_ptr<Work> kernel_work(Enqueue enqueue, std::string note, std::int64_t most_repeats = 300);

/// Time by the host's clock, from the first call until the host knows that the last has ended.
/// `act(count)`: does it all; returns the part of the time that counts, or a negative number for all of it.
std::unique_ptr<Work> host_clock_work(std::function<double(std::int64_t)> act, std::int64_t most_repeats);

using Moment = std::chrono::steady_clock;
inline double since(Moment::time_point begin) { return std::chrono::duration<double>(Moment::now() - begin).count(); }

/// Seconds between two events that have happened.
double between(cudaEvent_t begin, cudaEvent_t end);

/// Sets of operands of this GPU, of `bytes` each (rotation.h), in a quarter of the memory that is free.
std::int64_t rotating_sets(std::size_t bytes);

/// To the next multiple of 256: where cudaMalloc would put an operand of its own.
constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace rehearse::calibrate
