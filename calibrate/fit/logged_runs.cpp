#include "calibrate/fit/logged_runs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "sim/core/parallel.h"
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
  for_each_index(order.size(), 0, [&](std::size_t k) {
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t i = order[k];
    scenario::Scenario s = runs_[i].scenario;
    s.profile = with_constants(s.profile, constants_, values);
    out[static_cast<Eigen::Index>(i)] = std::log(std::max(simulate(s, {.time = true, .memory = false}).step_time, 1e-9));
    cost_[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  return known_.emplace_back(values, std::move(out)).second;
}

}  // namespace rehearse::calibrate
