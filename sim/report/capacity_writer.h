// How a capacity plan is told: one line per offer, and the one to take.
#pragma once

#include <string>

#include "sim/advice/capacity.h"

namespace rehearse::report {

/// The offers as a table, those worth having marked; then the cheapest that meets the goal, with what runs it.
std::string write_capacity(const std::vector<advice::Offer>& offers, const advice::Goal& goal, const std::string& file);
std::string write_capacity_json(const std::vector<advice::Offer>& offers, const advice::Goal& goal);

}  // namespace rehearse::report
