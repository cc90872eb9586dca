// Steps of logged runs as the program predicts them with other constants of their framework's profile: simulated on all
// cores, each choice of constants once. Leaves out the fit (against.h).
#pragma once

#include <deque>
#include <vector>

#include "calibrate/fit/against.h"

namespace rehearse::calibrate {

class LoggedRunSimulator {
 public:
  LoggedRunSimulator(const std::vector<LoggedRun>& runs, const std::vector<FrameworkConstant>& constants) : runs_(runs), constants_(constants), cost_(runs.size(), 0) {}

  /// log of each run's step, in the order of the runs, whatever the number of threads.
  const Eigen::VectorXd& log_steps(const Eigen::VectorXd& values);
  int simulated() const { return static_cast<int>(known_.size()); }  // choices of constants

 private:
  const std::vector<LoggedRun>& runs_;
  const std::vector<FrameworkConstant>& constants_;
  std::vector<double> cost_;  // seconds that simulating each took: the dearest begin first
  std::deque<std::pair<Eigen::VectorXd, Eigen::VectorXd>> known_;  // answers are handed out by reference
};

}  // namespace rehearse::calibrate
