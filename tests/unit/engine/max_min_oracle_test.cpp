// Rates against linear programming (tests/oracles/max_min_linprog.py); the answers are a file, no Python is
// needed.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/engine/sharing.h"
#include "tests/support/source_dir.h"

namespace rehearse::engine::max_min_oracle_test {
namespace {

TEST(SharingOracle, AgreesWithLinearProgramming) {
  std::ifstream file(source_dir() / "tests/oracles/data/max_min.json");
  const auto answers = nlohmann::json::parse(file);
  ASSERT_GE(answers["cases"].size(), 40u);
  for (const auto& item : answers["cases"]) {
    const auto weights = item["weights"].get<std::vector<std::vector<double>>>();
    const auto caps = item["caps"].get<std::vector<double>>();
    SharingSystem system;
    std::vector<ResourceId> resources;
    for (std::size_t r = 0; r < weights.size(); ++r) resources.push_back(system.add_resource());
    std::vector<ActivityId> activities;
    for (std::size_t a = 0; a < caps.size(); ++a) {
      std::vector<Use> uses;
      for (std::size_t r = 0; r < weights.size(); ++r) uses.push_back({resources[r], weight_of(weights[r][a])});
      const auto cap = static_cast<std::uint64_t>(caps[a] * static_cast<double>(kFullRate));
      activities.push_back(system.start(uses, Duration{1000}, TimePoint{}, a, cap));
    }
    for (std::size_t a = 0; a < caps.size(); ++a)
      EXPECT_NEAR(rate_as_double(system.rate_of(activities[a])), item["rates"][a].get<double>(), 1e-7) << item.dump();
  }
}

}  // namespace
}  // namespace rehearse::engine::max_min_oracle_test
