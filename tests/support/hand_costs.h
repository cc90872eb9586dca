// A cost table written by hand: everything is free but the kernels named.
#pragma once

#include <map>
#include <string>

#include "sim/executor/costs.h"

namespace rehearse::test_support {

/// Picoseconds by kernel name; other kernels, collectives and messages take no time and disturb nobody.
inline executor::CostTable hand_costs(const plan::Plan& plan, const std::map<std::string, std::int64_t>& kernels) {
  executor::CostTable table;
  table.kernels.resize(plan.kernels.size());
  for (std::size_t k = 0; k < plan.kernels.size(); ++k)
    if (const auto it = kernels.find(plan.kernels[k].name); it != kernels.end()) table.kernels[k].duration = it->second;
  table.collectives.assign(plan.classes.size(), std::vector<executor::Priced>(plan.collectives.size()));
  table.messages.assign(plan.classes.size(), std::vector<executor::Priced>(plan.messages.size()));
  table.copies.resize(plan.copies.size());
  return table;
}

}  // namespace rehearse::test_support
