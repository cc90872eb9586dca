#include "calibrate/probe/sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "calibrate/probe/attempt.h"
#include "calibrate/probe/statistics.h"

namespace rehearse::calibrate {
namespace {

/// Runs the work in step with the other processes: they agree on every number, so that all take the same decisions.
class Stepper {
 public:
  Stepper(Work* work, Team& team, const Clock& clock, const std::function<bool()>& interrupted)
      : work_(work), team_(team), clock_(clock), interrupted_(interrupted), begin_(clock()) {}

  struct Step {
    double seconds = 0;  // of one execution, on the slowest process
    double elapsed = 0;  // since the stepper was made
  };

  Step run(std::int64_t count) {
    double seconds = 0;
    const Attempt attempt([&] {
      if (work_ != nullptr) seconds = work_->run(count) / static_cast<double>(count);
    });
    const std::vector<double> all = team_.largest({seconds, clock_() - begin_, attempt.failure(), interrupted_() ? 1.0 : 0.0});
    attempt.throw_worst(all[2], "it failed in another process");
    if (all[3] > 0) throw Interrupted{};
    if (!(all[0] > 0)) throw NotPossible("the clock did not advance: nothing was executed");
    return {all[0], all[1]};
  }

  std::int64_t most_repeats() {
    // The least of all: the largest of the negatives.
    const double mine = work_ == nullptr ? 1e18 : static_cast<double>(std::min<std::int64_t>(work_->most_repeats(), std::int64_t{1} << 40));
    return static_cast<std::int64_t>(-team_.largest({-mine})[0]);
  }

 private:
  Work* work_;
  Team& team_;
  const Clock& clock_;
  const std::function<bool()>& interrupted_;
  double begin_;
};

}  // namespace

Clock steady_clock() {
  const auto begin = std::chrono::steady_clock::now();
  return [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
}

Series sample(Work* work, const SamplingRule& rule, Device& device, Team& team, const Clock& clock,
              const std::function<bool()>& interrupted) {
  // Warm-up. The first execution loads code and is no guide to the time of the others.
  Stepper warm_up(work, team, clock, interrupted);
  const std::int64_t most = std::max<std::int64_t>(1, warm_up.most_repeats());
  warm_up.run(1);
  Stepper::Step step = warm_up.run(1);
  std::int64_t repeats = 1;
  do {
    repeats = static_cast<std::int64_t>(std::clamp(std::ceil(rule.sample_s / step.seconds), 1.0, static_cast<double>(most)));
    if (step.elapsed >= rule.warm_up_s) break;
    step = warm_up.run(repeats);
  } while (true);

  std::vector<double> samples;
  std::set<std::string> throttle;
  double clock_sum = 0, next_look = 0;
  int looks = 0;
  const auto look = [&] {
    const ClockState now = device.clocks();
    throttle.insert(now.throttle.begin(), now.throttle.end());
    if (now.sm_clock_mhz > 0) {
      clock_sum += now.sm_clock_mhz;
      ++looks;
    }
  };

  Series out;
  out.converged = false;
  Stepper stepper(work, team, clock, interrupted);
  Summary summary;
  while (true) {
    step = stepper.run(repeats);
    samples.push_back(step.seconds);
    if (step.elapsed >= next_look) {  // looking costs time between samples, so not after each
      look();
      next_look = step.elapsed + 0.05;
    }
    const auto n = static_cast<std::int64_t>(samples.size());
    const bool capped = step.elapsed >= rule.cap_s && (n >= 3 || step.elapsed >= 10 * rule.cap_s);
    // Sorting after each of many samples would be what we time: look again when there are 10 % more.
    const bool check = capped || n >= rule.most_samples || n >= static_cast<std::int64_t>(1.1 * static_cast<double>(summary.samples));
    if (!check) continue;
    summary = summarise(samples);
    out.converged = n >= rule.least_samples && summary.relative_error <= rule.target_relative_error;
    if ((out.converged && step.elapsed >= rule.least_s) || capped || n >= rule.most_samples) break;
  }
  look();

  out.samples = static_cast<std::int64_t>(summary.samples);
  out.repeats = repeats;
  out.median_s = summary.median;
  out.mean_s = summary.mean;
  out.min_s = summary.min;
  out.max_s = summary.max;
  out.stddev_s = summary.stddev;
  out.relative_error = summary.relative_error;
  out.drift = summary.drift;
  if (looks > 0) out.sm_clock_mhz = clock_sum / looks;
  out.throttle.assign(throttle.begin(), throttle.end());
  if (work != nullptr) out.note = work->note();
  return out;
}

}  // namespace rehearse::calibrate
