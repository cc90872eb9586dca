// The same work for many indices on some threads.
// Leaves out results: each index writes to a place of its own, so that the number of threads changes none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace rehearse {

/// Calls work(i) once for each i in [0, count), in their order, on `threads` threads with the caller's among them; 0: one
/// per core. When one throws, no further index is begun, and what the lowest index threw is thrown here after all threads
/// have ended: the same on any number of threads, for indices are begun in order.
template <typename Work>
void for_each_index(std::size_t count, int threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failed;
  std::size_t failed_at = count;
  std::mutex guard;
  const auto run = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(guard);
        if (i < failed_at) failed_at = i, failed = std::current_exception();
        return;
      }
    }
  };
  {
    const std::size_t wanted = threads > 0 ? static_cast<std::size_t>(threads) : std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < std::min(wanted, count); ++t) others.emplace_back(run);
    run();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace rehearse
