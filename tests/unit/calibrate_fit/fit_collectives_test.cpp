// NCCL constants from collectives of known truth.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "calibrate/fit/fit_collectives.h"
#include "hwmodels/network/network.h"

namespace rehearse::calibrate::fit_collectives_test {
namespace {

using hwmodels::ClusterDescription;
using hwmodels::CollectiveParameters;

CollectiveParameters truth() {
  CollectiveParameters p = hwmodels::collective_parameters();
  p.generations["hopper"].launch = 14, p.generations["hopper"].ring_efficiency = 0.85, p.generations["hopper"].gather_efficiency = 0.8;
  p.generations["hopper"].direct_launch = 20, p.generations["hopper"].direct_efficiency = 0.7, p.generations["hopper"].nvls_efficiency = 0.7;
  p.networks["infiniband"].ring_step_simple = 40;
  return p;
}

Observations measured(double noise, unsigned seed) {
  ClusterDescription cluster = hwmodels::load_cluster("dgx-h100", 1);
  cluster.collectives = std::make_shared<CollectiveParameters>(truth());
  cluster.nic_efficiency = 0.8;
  std::mt19937_64 draw(seed);
  std::normal_distribution<double> gauss(0, 1);
  Observations out;
  for (const auto& [ranks, nodes] : {std::pair{2, 1}, {4, 1}, {8, 1}, {16, 2}, {32, 4}})
    for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_to_all})
      for (double bytes = 8192; bytes < 5e9; bytes *= 8) {
        CollectiveObservation o;
        o.kind = kind, o.bytes = bytes, o.shape = {ranks, nodes, ranks / nodes, 1, 1, 1};
        o.operation = std::string(name_of(kind)) + (nodes > 1 ? " across" : " inside");
        cluster.nodes = nodes;
        o.seconds = to_seconds(make_network(cluster)->collective(kind, Bytes{static_cast<std::int64_t>(bytes)}, o.shape).duration) * std::exp(noise * gauss(draw));
        out.collectives.push_back(o);
      }
  return out;
}

TEST(FitCollectives, FindsWhatIsDifferentAboutAMachine) {
  const CollectiveFit fit = fit_collectives(measured(0.01, 1), hwmodels::load_cluster("dgx-h100", 1));
  EXPECT_EQ(fit.generations, std::vector<std::string>{"hopper"});
  EXPECT_EQ(fit.networks, std::vector<std::string>{"infiniband"});
  EXPECT_NEAR(fit.parameters.generations.at("hopper").ring_efficiency, 0.85, 0.03);
  EXPECT_NEAR(fit.parameters.generations.at("hopper").gather_efficiency, 0.8, 0.03);
  EXPECT_NEAR(fit.parameters.generations.at("hopper").direct_efficiency, 0.7, 0.03);
  EXPECT_NEAR(fit.parameters.generations.at("hopper").nvls_efficiency, 0.7, 0.03);
  ASSERT_TRUE(fit.nic_efficiency.has_value());
  EXPECT_NEAR(*fit.nic_efficiency, 0.8, 0.03);
  for (const OperationError& e : fit.family.errors)
    if (e.sizes.empty()) {
      EXPECT_GT(e.before.mean_absolute, 4) << e.operation;
      EXPECT_LT(e.leave_one_out.mean_absolute, 2) << e.operation;
    }
}

TEST(FitCollectives, WhatIsWrittenCanBeReadAndSaysTheSame) {
  Observations few = measured(0.01, 2);
  std::erase_if(few.collectives, [](const CollectiveObservation& o) { return o.shape.nodes > 1 || o.kind != CollectiveKind::all_gather; });
  const CollectiveFit fit = fit_collectives(few, hwmodels::load_cluster("dgx-h100", 1));
  EXPECT_TRUE(fit.networks.empty());
  EXPECT_FALSE(fit.nic_efficiency.has_value());
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "collectives.yaml";
  std::ofstream(file) << collectives_yaml(fit, "a \"test\"");
  const CollectiveParameters read = hwmodels::load_collective_parameters(file.string());
  for (const auto& n : hwmodels::generation_numbers())
    EXPECT_NEAR(read.generations.at("hopper").*n.member, fit.parameters.generations.at("hopper").*n.member, 1e-5 * std::abs(fit.parameters.generations.at("hopper").*n.member)) << n.name;
  EXPECT_EQ(read.generations.at("ampere").launch, hwmodels::collective_parameters().generations.at("ampere").launch);
}

TEST(FitCollectives, GroupsThatTheNodeCannotHoldAreNamed) {
  Observations o;
  CollectiveObservation c;
  c.bytes = 1e6, c.seconds = 1e-3, c.shape = {64, 1, 64, 1, 1, 1}, c.operation = "all_reduce 64 GPUs on 1 node";
  o.collectives.push_back(c);
  const CollectiveFit fit = fit_collectives(o, hwmodels::load_cluster("dgx-h100", 1));
  EXPECT_EQ(fit.family.rows, 0);
  ASSERT_EQ(fit.unused.size(), 1u);
  EXPECT_NE(fit.unused[0].find("has 8 GPUs"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::calibrate::fit_collectives_test
