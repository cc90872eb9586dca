#include "calibrate/fit/logged_runs.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "sim/scenario/simulate.h"

namespace rehearse::calibrate {

using Eigen::VectorXd;

const VectorXd& LoggedRunSimulator::log_steps(const VectorXd& values) {
  for (const auto& [x, steps] : known_)
    if (x == values) return steps;
  VectorXd out(static_cast<Eigen::Index>(runs_.size()));
  std::vector<std::size_t> order(runs_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return cost_[a] > cost_[b]; });
  std::atomic<std::size_t> next{0};
  std::exception_ptr failed;
  std::mutex guard;
  const auto work = [&] {
    try {
      for (std::size_t k = next++; k < order.size(); k = next++) {
        const auto begin = std::chrono::steady_clock::now();
        const std::size_t i = order[k];
        scenario::Scenario s = runs_[i].scenario;
        s.profile = with_constants(s.profile, constants_, values);
        out[static_cast<Eigen::Index>(i)] = std::log(std::max(simulate(s, {.time = true, .memory = false}).step_time, 1e-9));
        cost_[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
    } catch (...) {
      const std::lock_guard lock(guard);
      failed = std::current_exception();
      next = order.size();
    }
  };
  {
    std::vector<std::jthread> others;
    const unsigned threads = std::min<unsigned>(std::max(1u, std::thread::hardware_concurrency()), static_cast<unsigned>(runs_.size()));
    for (unsigned t = 1; t < threads; ++t) others.emplace_back(work);
    work();
  }
  if (failed) std::rethrow_exception(failed);
  return known_.emplace_back(values, std::move(out)).second;
}

}  // namespace rehearse::calibrate
