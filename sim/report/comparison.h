// Two scenarios side by side: what is different about them, and what that does to speed and memory.
// Leaves out a ranking of many (sim/cli/sweep.cpp).
#pragma once

#include <string>
#include <vector>

#include "sim/report/accounts.h"

namespace rehearse::report {

struct Change {
  std::string key, before, after;  // "" where the key is absent
};
/// Keys of the effective configurations whose values differ, in the order of the scenario file; titles do not count.
std::vector<Change> changes_between(const Scenario& a, const Scenario& b);

struct Side {
  const Scenario& scenario;
  const Result& result;
};
std::string write_comparison(const Side& a, const Side& b);
std::string write_comparison_json(const Side& a, const Side& b);

}  // namespace rehearse::report
