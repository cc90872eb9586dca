// Runs a function on several threads at once and times it from the first one's begin to the last one's end.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace rehearse::calibrate {

/// act(thread number) on each of `threads` threads; making the threads is not timed. The first exception is thrown here.
template <typename Act>
double timed_on_threads(std::size_t threads, Act act) {
  using Moment = std::chrono::steady_clock::time_point;
  std::vector<Moment> begin(threads), end(threads);
  std::vector<std::exception_ptr> errors(threads);
  std::barrier start(static_cast<std::ptrdiff_t>(threads));
  const auto body = [&](std::size_t i) {
    start.arrive_and_wait();
    begin[i] = std::chrono::steady_clock::now();
    try {
      act(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
    end[i] = std::chrono::steady_clock::now();
  };
  {
    std::vector<std::jthread> crew;
    for (std::size_t i = 1; i < threads; ++i) crew.emplace_back(body, i);
    body(0);
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end())).count();
}

}  // namespace rehearse::calibrate
