// What the GPU on paper writes down: a line per call in the order in which host threads made them, and how many of each kind.
// Leaves out what the calls compute: nothing does.
#pragma once

#include <cstdint>
#include <string_view>

namespace rehearse::paper_gpu {

enum class Call { kernel, product, collective, copy, fill, event, stream_wait, host_wait, allocation, release, count };

/// Counts a call, and writes `text` to PAPER_GPU_TRACE if that names a file. `stream` is CUDA's handle.
///   text    printf-like; evaluated only where a trace is written
void record(Call call, const void* stream, const char* format, ...) __attribute__((format(printf, 3, 4)));

/// Name of a kernel that a library registered under its host function; "?" for others.
std::string_view kernel_name(const void* host_function);

}  // namespace rehearse::paper_gpu
