// DeepEP's dispatch and combine inside a node against a published table; what HybridEP does otherwise.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"
#include "tests/unit/hwmodels/device/kernel_tables.h"

namespace rehearse::hwmodels::dispatch_accuracy_test {
namespace {

std::string node_of(const std::string& gpu) {
  return gpu == "gb200-nvl72" || gpu == "gb300-nvl72" ? "gb200-nvl72" : gpu == "b200-sxm" || gpu == "b300-sxm" ? "dgx-b200" : "dgx-h100";
}

TEST(DispatchAccuracy, AgainstAiconfiguratorsDeepEp) {
  struct Errors {
    int rows = 0;
    double absolute = 0, bias = 0;
  };
  std::map<std::string, Errors> errors;
  for (test::CsvRow& r : test::read_table("dispatch_deepep")) {
    const int ranks = std::stoi(r["ranks"]), hidden = std::stoi(r["hidden"]);
    const std::int64_t tokens = std::stoll(r["tokens"]);
    TokenExchange exchange{.choices = static_cast<std::uint16_t>(std::stoi(r["choices"])), .places = static_cast<std::uint16_t>(std::stoi(r["experts"])), .home = r["direction"] == "combine"};
    exchange.token_bytes = static_cast<std::uint32_t>(exchange.home ? 2 * hidden : hidden + hidden / 32);  // dispatch: fp8, an fp32 scale for 128 of them
    const auto network = make_network(load_cluster(node_of(r["gpu"]), 1, "rail-fat-tree", r["gpu"]));
    const auto cost = network->dispatch(Bytes{tokens * exchange.token_bytes}, exchange, GroupShape{ranks, 1, ranks, 1, 1, 1});
    const double e = to_seconds(cost.duration) * 1e6 / std::stod(r["time_us"]) - 1;
    Errors& g = errors[r["gpu"] + " " + r["direction"]];
    ++g.rows, g.absolute += std::abs(e), g.bias += e;
  }
  ASSERT_EQ(errors.size(), 12u);
  for (const auto& [name, e] : errors) {
    std::printf("  %-24s n=%4d  MAPE %5.1f %%  bias %+5.1f %%\n", name.c_str(), e.rows, 100 * e.absolute / e.rows, 100 * e.bias / e.rows);
    EXPECT_LT(e.absolute / e.rows, 0.19) << name;
  }
}

TEST(Dispatch, BulkCopiesAreHeldUpByLinksAlone) {
  const auto network = make_network(load_cluster("dgx-b200", 1));
  const GroupShape node{8, 1, 8, 1, 1, 1};
  TokenExchange copies{.choices = 4, .places = 128, .token_bytes = 5760}, bulk = copies;
  bulk.bulk = true;
  const Bytes bytes{16384 * 5760};
  EXPECT_GT(to_seconds(network->dispatch(bytes, copies, node).duration), 1.5 * to_seconds(network->dispatch(bytes, bulk, node).duration));
  EXPECT_EQ(network->dispatch(bytes, copies, node).use.sms, 20);
  EXPECT_EQ(network->dispatch(bytes, bulk, node).use.sms, 16);
  TokenExchange home = copies;
  home.home = true;  // sums what it reads
  EXPECT_NE(network->dispatch(bytes, copies, node).duration, network->dispatch(bytes, home, node).duration);
}

// DeepEP's README of HybridEP (41cad9444, GB200, 32 SMs, kernel alone): 4096 tokens of 7168 elements in 16 bits to 8 of 8 experts per rank. Its bandwidth counts
// tokens that arrive, from the own rank too, but no weights: it falls as the vector of weights grows with the ranks, 32 bytes for each, and as less stays at home.
TEST(Dispatch, BulkWeightsAreWhyPublishedBandwidthFallsWithRanks) {
  const auto network = make_network(load_cluster("gb200-nvl72", 18));
  const double launch = 92;
  double least = 1e9, most = 0, least_without = 1e9, most_without = 0;
  for (const auto& [ranks, published] : {std::pair{8, 764.03}, {16, 706.95}, {24, 665.97}, {32, 642.23}, {36, 632.31}}) {
    const auto experts = static_cast<std::uint16_t>(8 * ranks);
    const double arriving = 4096.0 * 14336 * places_visited(experts, 8, ranks);
    TokenExchange exchange{.choices = 8, .places = experts, .token_bytes = 14336, .bulk = true, .weights = true};
    const auto ratio = [&] {
      const double us = to_seconds(network->dispatch(Bytes{4096LL * 14336}, exchange, GroupShape{ranks, ranks / 4, 4, 1, 1, 1}).duration) * 1e6 - launch;
      return arriving / (1000 * us) / published;
    };
    least = std::min(least, ratio()), most = std::max(most, ratio());
    exchange.weights = false;
    least_without = std::min(least_without, ratio()), most_without = std::max(most_without, ratio());
  }
  EXPECT_GT(least, 0.9);
  EXPECT_LT(most, 1.1);
  EXPECT_LT(most / least, 1.035);
  EXPECT_GT(most_without / least_without, 1.06);
}

TEST(Dispatch, SmsAreWhatTheJobSays) {
  const auto network = make_network(load_cluster("dgx-b200", 1));
  const GroupShape node{8, 1, 8, 1, 1, 1};
  TokenExchange copies{.choices = 4, .places = 128, .token_bytes = 5760}, bulk = copies;
  bulk.bulk = true;
  copies.sms = bulk.sms = 32;
  const Bytes bytes{16384 * 5760};
  EXPECT_EQ(network->dispatch(bytes, copies, node).use.sms, 32);
  EXPECT_EQ(network->dispatch(bytes, bulk, node).use.sms, 32);
  const auto faster = network->dispatch(bytes, copies, node).duration;
  copies.sms = 16;   // DeepEP's warps copy token by token
  EXPECT_GT(network->dispatch(bytes, copies, node).duration, faster);
}

}  // namespace
}  // namespace rehearse::hwmodels::dispatch_accuracy_test
