// How a capacity plan is told: one line per offer, and the one to take.
#pragma once

#include <string>

#include "sim/advice/capacity.h"

namespace rehearse::report {

/// The offers as a table, those worth having marked, with the expected error of their times; then the cheapest that meets the
/// goal, with what runs it. `job`: the scenario as it is, whose strategy and batch every offer keeps.
std::string write_capacity(const std::vector<advice::Offer>& offers, const advice::Goal& goal, const scenario::Scenario& job);
std::string write_capacity_json(const std::vector<advice::Offer>& offers, const advice::Goal& goal, const scenario::Scenario& job);

}  // namespace rehearse::report
