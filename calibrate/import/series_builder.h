// Repeats of one thing in a log, gathered into one series with its statistics.
// Leaves out where the times come from (the importers).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

class SeriesBuilder {
 public:
  void add(const std::string& operation, const Facts& parameters, double seconds);
  /// In order of first appearance; median, mean, extremes and deviation of each.
  std::vector<Series> take();
  std::size_t size() const { return order_.size(); }

 private:
  struct Group {
    std::string operation;
    Facts parameters;
    std::vector<double> seconds;
  };
  std::map<std::string, std::size_t> index_;
  std::vector<Group> order_;
};

}  // namespace rehearse::calibrate
