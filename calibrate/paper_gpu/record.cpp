#include "calibrate/paper_gpu/record.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace rehearse::paper_gpu {
namespace {

constexpr const char* kNames[] = {"kernel", "product", "collective", "copy", "fill", "event", "stream_wait", "host_wait", "allocation", "release"};
std::atomic<std::int64_t> counts[static_cast<int>(Call::count)];

std::FILE* trace() {
  static std::FILE* const file = [] {
    const char* path = std::getenv("PAPER_GPU_TRACE");
    return path == nullptr ? nullptr : std::fopen(path, "w");
  }();
  return file;
}
std::mutex writing;

}  // namespace

void record(Call call, const void* stream, const char* format, ...) {
  counts[static_cast<int>(call)].fetch_add(1, std::memory_order_relaxed);
  std::FILE* file = trace();
  if (file == nullptr) return;
  const std::lock_guard lock(writing);
  std::fprintf(file, "%s\t%p\t", kNames[static_cast<int>(call)], stream);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(file, format, arguments);
  va_end(arguments);
  std::fputc('\n', file);
}

}  // namespace rehearse::paper_gpu

extern "C" {
/// How many calls of a kind ("kernel", "event", ...) there have been; -1 for a kind that there is not. For ctypes.
std::int64_t paper_gpu_calls(const char* kind) {
  for (int i = 0; i < static_cast<int>(rehearse::paper_gpu::Call::count); ++i)
    if (std::strcmp(kind, rehearse::paper_gpu::kNames[i]) == 0) return rehearse::paper_gpu::counts[i];
  return -1;
}
/// Writes a line of the caller's own into the trace: where a step or a layer begins. For ctypes.
void paper_gpu_mark(const char* text) {
  std::FILE* file = rehearse::paper_gpu::trace();
  if (file == nullptr) return;
  const std::lock_guard lock(rehearse::paper_gpu::writing);
  std::fprintf(file, "mark\t-\t%s\n", text);
  std::fflush(file);
}
}
