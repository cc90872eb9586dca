// NCCL's own decisions: channels, enablement, the choice by size, shrinking.
#include <gtest/gtest.h>

#include "hwmodels/collective/catalog.h"
#include "hwmodels/collective/tuner.h"
#include "hwmodels/collective/tuning_tables.h"

namespace rehearse::hwmodels::choice_test {
namespace {

Group group_on(const std::string& node, int nodes, int local, const std::string& gpu = "") {
  GroupShape shape{nodes * local, nodes, local, 1, 1, 1};
  return make_group(load_cluster(node, nodes, "rail-fat-tree", gpu), shape, collective_parameters());
}

// 32 nodes have one leaf per rail; a 33rd, or neighbours that stand far apart, are reached over the spines.
TEST(Groups, MeetAtTheSpineBeyondALeaf) {
  const double leaf = group_on("hgx-a100-4x100", 32, 8).network_bandwidth();
  EXPECT_DOUBLE_EQ(group_on("hgx-a100-4x100", 33, 8).network_bandwidth(), 0.7 * leaf);
  EXPECT_DOUBLE_EQ(group_on("dgx-a100", 33, 8).network_bandwidth(), group_on("dgx-a100", 32, 8).network_bandwidth());
  ClusterDescription cluster = load_cluster("hgx-a100-4x100", 64, "rail-fat-tree");
  const auto bandwidth = [&](int stride) { return make_group(cluster, GroupShape{.ranks = 64, .nodes = 8, .ranks_per_node = 8, .node_stride = stride}, collective_parameters()).network_bandwidth(); };
  EXPECT_DOUBLE_EQ(bandwidth(1), leaf);
  EXPECT_DOUBLE_EQ(bandwidth(8), 0.7 * leaf);
  cluster.nic_efficiency = 0.8;   // what the user says holds everywhere
  EXPECT_DOUBLE_EQ(bandwidth(8), bandwidth(1));
}

// NVIDIA/nccl 2.30: searched rings x speed, executed channels, ring bus bandwidth.
TEST(Channels, MatchTheSearchOnReferenceSystems) {
  struct Case {
    const char* node;
    int nodes, executed;
    double bus;
  };
  for (const Case& c :
       {Case{"dgx-a100", 1, 24, 240}, Case{"dgx-h100", 1, 24, 360}, Case{"dgx-h100", 4, 16, 360},
        Case{"dgx-a100", 4, 16, 192}, Case{"dgx-b200", 4, 16, 384}, Case{"p4d", 2, 8, 48}}) {
    Group group = group_on(c.node, c.nodes, 8);
    ChannelGraph graph = search_rings(group);
    EXPECT_EQ(executed_ring_channels(group), c.executed) << c.node << " x" << c.nodes;
    EXPECT_NEAR(graph.channels * graph.speed_intra, c.bus, 1e-9) << c.node << " x" << c.nodes;
  }
}

// Over two nodes each card carries an all-reduce's data once on a tree and 2(n-1)/n times on a ring: trees go on to higher speeds inside, as far as NVLink
// has them. Measured: 123 GB/s of bus bandwidth over four 25 GB/s cards of Alps' nodes (nccl_published.csv), 183 over eight of a DGX A100 (Echo).
TEST(Channels, TreesOverTwoNodesAreFasterInside) {
  const Group alps = group_on("gh200-4", 2, 4);
  EXPECT_EQ(search_trees(alps).channels, search_rings(alps).channels);
  EXPECT_DOUBLE_EQ(search_trees(alps).speed_intra, 48);
  EXPECT_DOUBLE_EQ(search_trees(alps).speed_inter, 24);
  const Group four = group_on("gh200-4", 4, 4);
  EXPECT_DOUBLE_EQ(search_trees(four).speed_intra, search_rings(four).speed_intra);
  EXPECT_EQ(choose(alps, CollectiveKind::all_reduce, 134217728, {}).algorithm->id(), Algorithm::tree);
  EXPECT_EQ(choose(four, CollectiveKind::all_reduce, 134217728, {}).algorithm->id(), Algorithm::ring);
  EXPECT_EQ(choose(group_on("dgx-a100", 2, 8), CollectiveKind::all_reduce, 8e9, {}).algorithm->id(), Algorithm::ring);
}

// Measured on H200 (stas00/ml-engineering, NCCL 2.27.7): LL ring up to 1 MiB, NVLS from 2 MiB.
TEST(Choice, HopperSwitchesFromLlRingToNvls) {
  Group group = group_on("dgx-h200", 1, 8);
  for (double size : {1024.0, 65536.0, 262144.0}) {
    Choice choice = choose(group, CollectiveKind::all_reduce, size, {});
    EXPECT_EQ(choice.protocol, Protocol::ll) << size;
    EXPECT_EQ(choice.algorithm->id(), Algorithm::ring) << size;
  }
  for (double size : {2097152.0, 16777216.0, 8589934592.0})
    EXPECT_EQ(choose(group, CollectiveKind::all_reduce, size, {}).algorithm->id(), Algorithm::nvls) << size;
}

TEST(Choice, FourHopperGpusStayOnTheRingAndFiveReduceInTheSwitch) {
  for (int n : {2, 3, 4})
    EXPECT_EQ(choose(group_on("dgx-h200", 1, n), CollectiveKind::all_reduce, 8e9, {}).algorithm->id(),
              Algorithm::ring)
        << n;
  for (int n : {5, 6, 7, 8})
    EXPECT_EQ(choose(group_on("dgx-h200", 1, n), CollectiveKind::all_reduce, 8e9, {}).algorithm->id(),
              Algorithm::nvls)
        << n;
}

TEST(Choice, ShardsTravelOnRingsAndTreesServeSmallMessagesAcrossNodes) {
  EXPECT_EQ(choose(group_on("dgx-h200", 1, 8), CollectiveKind::all_gather, 1e9, {}).algorithm->id(),
            Algorithm::ring);
  EXPECT_EQ(choose(group_on("dgx-a100", 16, 8), CollectiveKind::all_reduce, 65536, {}).algorithm->id(),
            Algorithm::tree);
  EXPECT_EQ(choose(group_on("dgx-a100", 16, 8), CollectiveKind::all_reduce, 8e9, {}).algorithm->id(),
            Algorithm::ring);
  EXPECT_EQ(choose(group_on("dgx-h100", 4, 8), CollectiveKind::all_reduce, 1e9, {}).algorithm->id(),
            Algorithm::nvls_tree);
}

TEST(Choice, ObeysTheUser) {
  Group group = group_on("dgx-h100", 1, 8);
  CommunicationOptions options;
  options.nvls = false;
  EXPECT_EQ(choose(group, CollectiveKind::all_reduce, 1e9, options).algorithm->id(), Algorithm::ring);
  options.forced_algorithm = true, options.algorithm = Algorithm::tree;
  options.forced_protocol = true, options.protocol = Protocol::simple;
  Choice choice = choose(group, CollectiveKind::all_reduce, 1e3, options);
  EXPECT_EQ(choice.algorithm->id(), Algorithm::tree);
  EXPECT_EQ(choice.protocol, Protocol::simple);
  // A tree cannot gather: the wish is dropped for that kind.
  EXPECT_EQ(choose(group, CollectiveKind::all_gather, 1e9, options).algorithm->id(), Algorithm::ring);
}

TEST(Enablement, FollowsNccl) {
  auto enabled = [](const CollectiveAlgorithm& a, const Group& g, CollectiveKind k, Protocol p) {
    return a.enabled(g, k, p);
  };
  Group one = group_on("dgx-h100", 1, 8), many = group_on("dgx-h100", 4, 8),
        rail = group_on("dgx-h100", 4, 1);
  Group pcie = group_on("pcie-8", 1, 8), ampere = group_on("dgx-a100", 1, 8), efa = group_on("p5", 4, 8);
  EXPECT_FALSE(enabled(nvls_tree_algorithm(), one, CollectiveKind::all_reduce, Protocol::simple));
  EXPECT_FALSE(enabled(nvls_algorithm(), many, CollectiveKind::all_reduce,
                       Protocol::simple));  // no SHARP in the fabric
  EXPECT_FALSE(enabled(nvls_algorithm(), ampere, CollectiveKind::all_reduce, Protocol::simple));
  EXPECT_FALSE(enabled(ring_algorithm(), pcie, CollectiveKind::all_reduce, Protocol::ll128));
  EXPECT_FALSE(enabled(ring_algorithm(), efa, CollectiveKind::all_reduce, Protocol::ll128));
  EXPECT_TRUE(enabled(pat_algorithm(), rail, CollectiveKind::all_gather, Protocol::simple));
  EXPECT_FALSE(enabled(pat_algorithm(), many, CollectiveKind::all_gather, Protocol::simple));
}

// Hand calculation for 8 A100: LL base 6.6 + 14 steps x 0.6; Simple 8.4 + 14 x 3.4; bus bandwidths 87.7 (LL
// ceiling) and 240.
TEST(Tuner, RingOnEightAmpereGpus) {
  Group group = group_on("dgx-a100", 1, 8);
  const CollectiveAlgorithm& ring = ring_algorithm();
  EXPECT_NEAR(ring.tuner_latency(group, CollectiveKind::all_reduce, Protocol::ll), 15.0, 1e-9);
  EXPECT_NEAR(ring.tuner_latency(group, CollectiveKind::all_reduce, Protocol::simple), 56.0, 1e-9);
  EXPECT_NEAR(ring.tuner_bandwidth(group, CollectiveKind::all_reduce, Protocol::ll), 87.7 * 8 / 14, 1e-9);
  EXPECT_NEAR(ring.tuner_bandwidth(group, CollectiveKind::all_reduce, Protocol::simple), 240.0 * 8 / 14,
              1e-9);
}

// 64 bytes x 512 threads x 24 channels = 768 KiB keep all channels of a Simple ring; half of that halves
// them.
TEST(Shrinking, HalvesChannelsOfSmallMessages) {
  Group group = group_on("dgx-a100", 1, 8);
  auto left = [&](double bytes) {
    return shrunk_channels(ring_algorithm(), group, CollectiveKind::all_reduce, bytes, Protocol::simple);
  };
  EXPECT_EQ(left(64.0 * 512 * 24), 24);
  EXPECT_EQ(left(64.0 * 512 * 24 - 1), 12);
  EXPECT_EQ(left(1), 1);
}

// Every algorithm, wherever it is enabled: positive times, and a longer message is never faster beyond chunk
// steps.
TEST(Catalog, TimesArePositiveAndGrow) {
  for (const char* node :
       {"dgx-a100", "dgx-h100", "dgx-b200", "p5", "pcie-8", "gb200-nvl72", "mi300x-8", "dgx-1v"})
    for (int nodes : {1, 2, 40}) {
      NodeDesign design = load_node(node);
      Group group = group_on(node, nodes, design.gpus);
      for (const auto& entry : collective_algorithms().entries())
        for (CollectiveKind kind :
             {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::broadcast})
          for (Protocol protocol : {Protocol::ll, Protocol::ll128, Protocol::simple}) {
            if (!entry.value->enabled(group, kind, protocol)) continue;
            double last = 0;
            for (double bytes = 1024; bytes < 1e10; bytes *= 4) {
              double time = entry.value->time(group, kind, bytes, protocol);
              EXPECT_GT(time, last) << node << ' ' << entry.name << ' ' << bytes;
              last = time;
            }
          }
    }
}

}  // namespace
}  // namespace rehearse::hwmodels::choice_test
