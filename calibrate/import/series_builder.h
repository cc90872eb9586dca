// Repeats of one thing in a log, gathered into one series with its statistics.
// Leaves out where the times come from (the importers).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

/// A number of a log as a whole one: what no int64 holds becomes the nearest that a double holds exactly; NaN becomes 0.
std::int64_t whole_number(double v);

class SeriesBuilder {
 public:
  /// Refused, and counted, are sizes below 0 or beyond 2^53, and times outside a picosecond to a million seconds.
  void add(const std::string& operation, const Facts& parameters, double seconds);
  /// In order of first appearance; median, mean, extremes and deviation of each.
  std::vector<Series> take();
  std::size_t size() const { return order_.size(); }
  /// "3 rows with impossible sizes or times", for the report; empty when there are none.
  std::string refused() const;

 private:
  struct Group {
    std::string operation;
    Facts parameters;
    std::vector<double> seconds;
  };
  std::map<std::string, std::size_t> index_;
  std::vector<Group> order_;
  int refused_ = 0;
};

}  // namespace rehearse::calibrate
