// The network's front door: limits, sharing of NICs, measured bandwidths, host backends, memory of
// communicators.
#include "hwmodels/network/network.h"

#include <gtest/gtest.h>

#include "hwmodels/collective/direct.h"

#include "hwmodels/network/communicator_memory.h"

#include <cmath>

#include "hwmodels/topology/cluster.h"
#include "sim/core/error.h"

namespace rehearse::hwmodels::network_test {
namespace {

constexpr GroupShape kNode{8, 1, 8, 1, 1, 1};
constexpr GroupShape kFourNodes{32, 4, 8, 1, 1, 1};
constexpr Bytes kBig{1LL << 30};

double bus(const CommunicationCost& cost, double factor) {
  return static_cast<double>(kBig.value) * factor / to_seconds(cost.duration) * 1e-9;
}

TEST(Network, OneRankCostsNothing) {
  auto network = make_network(load_cluster("dgx-h100", 1));
  EXPECT_EQ(network->collective(CollectiveKind::all_reduce, kBig, GroupShape{}).duration, Duration{0});
}

// Half as fast, the same bytes load every link half as much, the GPU's PCIe link too.
TEST(Network, WhatIsSlowerLoadsItsLinksLess) {
  const CommunicationUse use = CommunicationUse{.nvlink = 0.8, .nic = 0.6, .fabric = 0.5, .pcie = 0.4, .hbm = 0.2, .sms = 16}.scaled(0.5);
  EXPECT_EQ(use.nvlink, 0.4);
  EXPECT_EQ(use.nic, 0.3);
  EXPECT_EQ(use.pcie, 0.2);
  EXPECT_EQ(use.hbm, 0.1);
  EXPECT_EQ(use.fabric, 0.5);
  EXPECT_EQ(use.sms, 16);
  const ClusterDescription cluster = load_cluster("pcie-8", 1);
  const CommunicationCost usual = make_network(cluster)->collective(CollectiveKind::all_reduce, kBig, kNode);
  CommunicationOptions options;
  options.measured.emplace();
  options.measured->world = kNode;
  options.measured->all_reduce_node = 0.5 * bus(usual, 1.75);
  const CommunicationCost slow = make_network(cluster, options)->collective(CollectiveKind::all_reduce, kBig, kNode);
  EXPECT_LT(slow.use.nvlink, 0.6 * usual.use.nvlink);
  EXPECT_GT(slow.use.pcie, 0);
  EXPECT_EQ(slow.use.pcie, slow.use.nvlink);
}

// Published: H100 466-468 GB/s with NVLS, 8 A100 228, 8 B200 722 and 632 for its all-gather.
TEST(Network, BusBandwidthOfOneGibibyte) {
  auto at = [](const char* node, CollectiveKind kind, double factor) {
    return bus(make_network(load_cluster(node, 1))->collective(kind, kBig, kNode), factor);
  };
  EXPECT_NEAR(at("dgx-h100", CollectiveKind::all_reduce, 1.75), 467, 0.03 * 467);
  EXPECT_NEAR(at("dgx-a100", CollectiveKind::all_reduce, 1.75), 228, 0.03 * 228);
  EXPECT_NEAR(at("dgx-b200", CollectiveKind::all_reduce, 1.75), 722,
              0.07 * 722);  // 64 KiB chunks cost more there than fitted
  EXPECT_NEAR(at("dgx-b200", CollectiveKind::all_gather, 0.875), 632, 0.05 * 632);
}

// Eight data-parallel groups of one rank per node use one NIC each: as fast together as alone. On a node with
// four NICs two groups share one.
TEST(Network, GroupsOfANodeShareItsNics) {
  GroupShape alone{4, 4, 1, 1, 1, 1}, together{4, 4, 1, 8, 1, 1};
  auto full = make_network(load_cluster("dgx-a100", 4)),
       half = make_network(load_cluster("hgx-a100-4nic", 4));
  auto time = [&](const Network& n, const GroupShape& g) {
    return to_seconds(n.collective(CollectiveKind::reduce_scatter, kBig, g).duration);
  };
  EXPECT_DOUBLE_EQ(time(*full, alone), time(*full, together));
  EXPECT_NEAR(time(*half, together) / time(*half, alone), 2, 0.05);
}

// bigscience-workshop/bigscience experiments/bandwidth, all_reduce_bench-a100-n4.txt and all_reduce_bench-32gb-n4.txt: 4 GB over four nodes have a bus
// bandwidth of 40.5 and 84.6 Gb/s (Omni-Path through verbs: one and two of a node's four cards). Groups of half a node take a card each.
TEST(Network, RingsThroughSomeOfTheCards) {
  const auto bus_of = [](const char* node, GroupShape shape) {
    auto network = make_network(load_cluster(node, 4));
    const Bytes bytes{4'000'000'000};
    return static_cast<double>(bytes.value) * 2 * (shape.ranks - 1) / shape.ranks / to_seconds(network->collective(CollectiveKind::all_reduce, bytes, shape).duration) * 8e-9;
  };
  EXPECT_NEAR(bus_of("jean-zay-a100", {32, 4, 8, 1, 1, 1}), 40.5, 0.05 * 40.5);
  EXPECT_NEAR(bus_of("jean-zay-v100", {16, 4, 4, 1, 1, 1}), 84.6, 0.05 * 84.6);
  EXPECT_NEAR(bus_of("jean-zay-a100", {16, 4, 4, 2, 1, 1}), 40.5, 0.05 * 40.5);
}

// Each to the next one round a ring: as long as its slowest hop, which shares the node's cards with the other rings' hops.
TEST(Network, ShiftEndsWithItsSlowestHop) {
  auto network = make_network(load_cluster("dgx-h100", 2));
  const GroupShape inside{8, 1, 8, 1, 1, 1}, across{16, 2, 8, 1, 1, 1}, many{2, 2, 1, 8, 1, 1};
  for (const Bytes bytes : {1_MiB, 64_MiB}) {
    EXPECT_EQ(network->collective(CollectiveKind::send_recv, bytes, inside).duration, network->point_to_point(bytes, true, 1).duration);
    EXPECT_EQ(network->collective(CollectiveKind::send_recv, bytes, across).duration, network->point_to_point(bytes, false, 1).duration);
    EXPECT_EQ(network->collective(CollectiveKind::send_recv, bytes, many).duration, network->point_to_point(bytes, false, 8).duration);
  }
  auto sockets = make_network(load_cluster("dgx-h100", 2), {.backend = "gloo"});
  EXPECT_EQ(sockets->collective(CollectiveKind::send_recv, 1_MiB, across).duration, sockets->point_to_point(1_MiB, false, 1).duration);
}

// Copy engines need no SMs and know nothing of the few channels that NCCL gives small messages.
TEST(Network, PeerCopiesAreNoKernelsOfNccl) {
  for (const char* node : {"dgx-a100", "dgx-h100", "dgx-b200"}) {
    auto network = make_network(load_cluster(node, 2));
    const GroupShape inside{4, 1, 4, 2, 1, 1}, across{16, 2, 8, 1, 1, 1};
    for (const Bytes bytes : {1_MiB, 12_MiB, 256_MiB}) {
      const CommunicationCost copy = network->peer_copies(bytes, inside), nccl = network->collective(CollectiveKind::send_recv, bytes, inside);
      EXPECT_LE(copy.duration, nccl.duration) << node;
      EXPECT_EQ(copy.use.sms, 0) << node;
      EXPECT_GT(nccl.use.sms, 0) << node;
    }
    EXPECT_EQ(network->peer_copies(12_MiB, across).duration, network->collective(CollectiveKind::send_recv, 12_MiB, across).duration);
  }
  // The trays of a rack are one NVLink domain.
  auto rack = make_network(load_cluster("gb200-nvl72", 2));
  EXPECT_EQ(rack->peer_copies(12_MiB, {8, 2, 4, 1, 1, 1}).duration, rack->peer_copies(12_MiB, {4, 1, 4, 1, 1, 1}).duration);
  auto blackwell = make_network(load_cluster("dgx-b200", 1));
  const GroupShape eight{8, 1, 8, 1, 1, 1};
  EXPECT_LT(3 * to_seconds(blackwell->peer_copies(12_MiB, eight).duration), to_seconds(blackwell->point_to_point(12_MiB, true, 1, eight).duration));
}

// Megatron's table of SMs to expect with registered buffers; where nothing multicasts, or nothing is gathered or scattered, as many as ever.
TEST(Network, RegisteredBuffersTakeFewerSms) {
  const GroupShape node{8, 1, 8, 1, 1, 1}, both{16, 2, 8, 1, 1, 1}, apart{2, 2, 1, 8, 1, 1};
  auto plain = make_network(load_cluster("dgx-h100", 2)), sharp = make_network(load_cluster("dgx-h100", 2), {.sharp = true}), ring = make_network(load_cluster("dgx-h100", 1), {.nvls = false}), older = make_network(load_cluster("dgx-a100", 1));
  EXPECT_EQ(plain->registered_sms(CollectiveKind::all_gather, node, 24), 4);
  EXPECT_EQ(plain->registered_sms(CollectiveKind::reduce_scatter, node, 24), 5);
  EXPECT_EQ(plain->registered_sms(CollectiveKind::all_gather, both, 24), 16);
  EXPECT_EQ(sharp->registered_sms(CollectiveKind::all_gather, both, 24), 6);
  EXPECT_EQ(plain->registered_sms(CollectiveKind::reduce_scatter, apart, 24), 4);
  EXPECT_EQ(sharp->registered_sms(CollectiveKind::reduce_scatter, apart, 24), 1);
  EXPECT_EQ(plain->registered_sms(CollectiveKind::all_reduce, node, 24), 24);
  EXPECT_EQ(plain->registered_sms(CollectiveKind::all_gather, both, 8), 8);
  EXPECT_EQ(ring->registered_sms(CollectiveKind::all_gather, node, 24), 24);
  EXPECT_EQ(older->registered_sms(CollectiveKind::all_gather, node, 24), 24);
}

// NCCL_DEBUG's own counts are not public; busbw of nccl-tests is, which jumps where the number of channels doubles (nccl_clusters.csv: H100).
TEST(Network, ChannelsOfMessages) {
  const auto channels = [](const char* node, const GroupShape& shape, Bytes bytes) {
    ClusterDescription cluster = load_cluster(node, shape.nodes);
    return message_channels(make_group(cluster, shape, collective_parameters()), static_cast<double>(bytes.value));
  };
  const GroupShape two{2, 1, 2, 1, 1, 1}, four{4, 1, 4, 1, 1, 1}, eight{8, 1, 8, 1, 1, 1};
  EXPECT_EQ(channels("dgx-h100", two, 32_MiB), 16);
  EXPECT_EQ(channels("dgx-h100", four, 128_MiB), 8);
  EXPECT_EQ(channels("dgx-h100", four, 256_MiB), 16);
  for (const auto& [mib, expected] : {std::pair{32, 4}, {64, 4}, {128, 8}, {256, 16}, {512, 32}, {4096, 32}}) EXPECT_EQ(channels("dgx-h100", eight, Bytes{std::int64_t{mib} << 20}), expected) << mib;
  // Two nodes 4, ten nodes with 1, 2 and 4 GPUs each 2, with 8 one.
  EXPECT_EQ(channels("dgx-h100", {2, 2, 1, 1, 1, 1}, 1_GiB), 4);
  EXPECT_EQ(channels("dgx-h100", {16, 2, 8, 1, 1, 1}, 1_GiB), 4);
  for (const auto& [per_node, expected] : {std::pair{1, 2}, {2, 2}, {4, 2}, {8, 1}}) EXPECT_EQ(channels("dgx-h100", {10 * per_node, 10, per_node, 1, 1, 1}, 1_GiB), expected) << per_node;
  EXPECT_EQ(channels("dgx-a100", {2, 2, 1, 1, 1, 1}, 1_GiB), 2);   // 200 Gb/s
}

// However fast a card is said to be, messages have the channels that the communicator has.
TEST(Network, ACardBeyondAllChannelsHasThemAll) {
  const GroupShape pair{2, 2, 1, 1, 1, 1};
  const ClusterDescription cluster = load_cluster("dgx-h100", 2);
  Group group = make_group(cluster, pair, collective_parameters());
  group.nic = 1'000;
  const int all = message_channels(group, 1 << 30);
  group.nic = 1e300;
  EXPECT_EQ(message_channels(group, 1 << 30), all);
  EXPECT_GT(all, 4);
}

// A message of a communicator of many ranks is slower than one of two ranks, and never faster than its card.
TEST(Network, MessagesOfLargeCommunicatorsAreSlower) {
  auto network = make_network(load_cluster("dgx-h100", 16));
  const auto rate = [&](bool inside, const GroupShape& shape) { return 256.0 * 1048576 / to_seconds(network->point_to_point(256_MiB, inside, 1, shape).duration) * 1e-9; };
  EXPECT_NEAR(rate(false, {2, 2, 1, 1, 1, 1}), 41.5, 2);
  EXPECT_NEAR(rate(false, {16, 16, 1, 1, 1, 1}), 25.2, 0.5);
  EXPECT_NEAR(rate(false, {128, 16, 8, 1, 1, 1}), 15.2, 0.3);
  EXPECT_GT(rate(true, {2, 1, 2, 1, 1, 1}), 300);
  EXPECT_NEAR(rate(true, {16, 16, 1, 1, 1, 1}), 40, 3);   // two channels within a node too
}

// What a message between stages took in runs on A100: Zero Bubble's Table 9 (tests/accuracy/tables/zero_bubble_stage_times.csv), samples x 1024 tokens x hidden in fp16.
TEST(Network, MessagesOfZeroBubblesStages) {
  auto network = make_network(load_cluster("dgx-a100", 4));
  const auto milliseconds = [&](std::int64_t values, const GroupShape& stages) { return to_seconds(network->point_to_point(Bytes{2 * values}, true, 1, stages).duration) * 1e3; };
  const GroupShape node{8, 1, 8, 1, 1, 1};
  EXPECT_NEAR(milliseconds(6 * 1024 * 2304, node), 0.60, 0.06);
  EXPECT_NEAR(milliseconds(3 * 1024 * 4096, node), 0.53, 0.06);
  EXPECT_NEAR(milliseconds(1024 * 5120, {16, 2, 8, 1, 1, 1}), 0.38, 0.08);   // means of stages on one node and of those on two
  EXPECT_NEAR(milliseconds(1024 * 6144, {32, 4, 8, 1, 1, 1}), 0.41, 0.14);
}

TEST(Network, PointToPoint) {
  auto network = make_network(load_cluster("dgx-h100", 2));
  double one = to_seconds(network->point_to_point(kBig, false, 1).duration),
         eight = to_seconds(network->point_to_point(kBig, false, 8).duration);
  EXPECT_NEAR(static_cast<double>(kBig.value) / one * 1e-9, 41.5, 2);   // one 400 Gb/s card: 39.5 to 43.2 (tests/accuracy/tables/nccl_clusters.csv)
  EXPECT_DOUBLE_EQ(one, eight);                                         // a card each
  EXPECT_NEAR(static_cast<double>(kBig.value) / to_seconds(network->point_to_point(kBig, false, 16).duration) * 1e-9, 0.95 * 25, 0.1);   // half a card
  EXPECT_LT(network->point_to_point(kBig, true, 1).duration, microseconds(4000));
  EXPECT_LT(network->point_to_point(Bytes{1024}, true, 1).duration, microseconds(15));
}

// Four pairs that stand on either side of the sockets share what one alone has; within a socket nobody shares.
// Closed form: the link's 16 GB/s for all of them; SimuMax measured 3.9 to 4.3 GB/s for each of four, 7 to 8.2 for each of two.
TEST(Network, GroupsShareTheLinkBetweenSockets) {
  const auto network = make_network(load_cluster("pcie-8", 1));
  const auto rate = [&](GroupShape shape, CollectiveKind kind = CollectiveKind::all_gather) {
    const double moved = static_cast<double>(kBig.value) * (shape.ranks - 1) / shape.ranks;
    return moved / to_seconds(network->collective(kind, kBig, shape).duration) * 1e-9;
  };
  const GroupShape pair{2, 1, 2, 1, 4, 1}, pairs{2, 1, 2, 4, 4, 1}, fours{4, 1, 4, 2, 2, 1};
  EXPECT_GT(rate(pair), 11);
  EXPECT_NEAR(rate(pairs), 4, 0.3);
  EXPECT_NEAR(rate(pairs, CollectiveKind::reduce_scatter), 4, 0.3);
  EXPECT_NEAR(rate(fours), 8, 0.6);
  EXPECT_DOUBLE_EQ(rate({2, 1, 2, 4, 1, 1}), rate({2, 1, 2, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(rate({4, 1, 4, 2, 1, 1}), rate({4, 1, 4, 1, 1, 1}));
  // Messages between stages too: stage 0 on one socket, stage 1 on the other.
  const auto message = [&](int together, const GroupShape& stages) { return static_cast<double>(kBig.value) / to_seconds(network->point_to_point(kBig, true, together, stages).duration) * 1e-9; };
  EXPECT_NEAR(message(4, pairs), 4, 0.4);
  EXPECT_GT(message(1, pairs), 11);
  EXPECT_GT(message(4, {2, 1, 2, 4, 1, 1}), 18);
  // NVSwitch has no sockets between GPUs.
  const auto switched = make_network(load_cluster("dgx-a100", 1));
  EXPECT_EQ(switched->collective(CollectiveKind::all_gather, kBig, pairs).duration, switched->collective(CollectiveKind::all_gather, kBig, pair).duration);
}

TEST(Network, UsesAreShares) {
  for (const char* node : {"dgx-a100", "dgx-h100", "gb200-nvl72", "pcie-8", "p5"}) {
    auto network = make_network(load_cluster(node, 4));
    int n = load_node(node).gpus;
    for (CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                CollectiveKind::all_to_all, CollectiveKind::broadcast})
      for (std::int64_t size : {1LL << 10, 1LL << 22, 1LL << 32}) {
        CommunicationCost cost = network->collective(kind, Bytes{size}, GroupShape{4 * n, 4, n, 1, 1, 1});
        EXPECT_GT(cost.duration.count(), 0);
        EXPECT_GT(cost.use.sms, 0);
        for (double share : {cost.use.nvlink, cost.use.nic, cost.use.fabric, cost.use.pcie, cost.use.hbm}) {
          EXPECT_GE(share, 0) << node;
          EXPECT_LE(share, 1) << node;
        }
      }
  }
}

// 4 nodes a leaf, 8 nodes: a ring crosses the spines on 1 hop of 4, but an all-to-all sends half of its bytes
// across.
TEST(Network, ThinSpinesSlowTheAllToAll) {
  ClusterDescription cluster = load_cluster("dgx-h100", 8, "leaf-spine");
  GroupShape all{64, 8, 8, 1, 1, 1};
  auto time = [&](double over) {
    cluster.oversubscription = over;
    CommunicationCost cost = make_network(cluster)->collective(CollectiveKind::all_to_all, kBig, all);
    EXPECT_EQ(cost.use.fabric > 0, over > 1);
    return to_seconds(cost.duration);
  };
  double free = time(1), thin = time(8);
  // 4 nodes x 8 ranks x 32/64 of 1 GiB each way over 4 x 400 GB/s / 8, at 0.92.
  double bound = 32 * 0.5 * static_cast<double>(kBig.value) / (4 * 400e9 / 8) / 0.92;
  EXPECT_GT(thin, free);
  EXPECT_GE(thin, bound * 0.999);
  EXPECT_LE(thin, bound * 1.2);  // ECMP is not perfectly even
}

TEST(Network, MeetsMeasuredBandwidths) {
  CommunicationOptions options;
  MeasuredBandwidth measured;
  measured.world = kFourNodes;
  measured.all_reduce_world = 94, measured.all_gather_world = 53, measured.all_reduce_node = 425;
  measured.through_lists = false;
  options.measured = measured;
  auto network = make_network(load_cluster("p5", 4), options), plain = make_network(load_cluster("p5", 4));
  EXPECT_NEAR(bus(network->collective(CollectiveKind::all_reduce, kBig, kFourNodes), 2 * 31 / 32.0), 94,
              0.01);
  EXPECT_NEAR(bus(network->collective(CollectiveKind::all_gather, kBig, kFourNodes), 31 / 32.0), 53, 0.01);
  EXPECT_NEAR(bus(network->collective(CollectiveKind::all_reduce, kBig, kNode), 1.75), 425, 0.01);
  // Not measured: as modelled.
  EXPECT_EQ(network->collective(CollectiveKind::all_gather, kBig, kNode).duration,
            plain->collective(CollectiveKind::all_gather, kBig, kNode).duration);
}

// Two of four nodes: one of two doublings, so the square root of what stretches the whole job's collectives.
TEST(Network, SmallerGroupsAreStretchedByTheirDoublings) {
  CommunicationOptions options;
  MeasuredBandwidth measured;
  measured.world = kFourNodes;
  measured.all_reduce_world = 700;   // more than modelled
  options.measured = measured;
  auto network = make_network(load_cluster("p5", 4), options), plain = make_network(load_cluster("p5", 4));
  const GroupShape two_nodes{16, 2, 8, 1, 1, 1};
  auto stretch = [&](const GroupShape& shape) {
    return to_seconds(network->collective(CollectiveKind::all_reduce, kBig, shape).duration) / to_seconds(plain->collective(CollectiveKind::all_reduce, kBig, shape).duration);
  };
  EXPECT_LT(stretch(kFourNodes), 0.9);
  EXPECT_NEAR(stretch(two_nodes), std::sqrt(stretch(kFourNodes)), 0.02);
}

// A 1 GiB all-gather over 32 GPUs at 98 GB/s takes 10.6 ms. Of these the data alone would take what the model says; the rest is waits,
// the same in each of 31 steps, so a small message over 16 GPUs waits 15 of them.
TEST(Network, RingsOverSlowNetworksWaitInEachStep) {
  CommunicationOptions options;
  MeasuredBandwidth measured;
  measured.world = kFourNodes;
  measured.all_gather_world = 98;
  measured.through_lists = false;
  options.measured = measured;
  auto network = make_network(load_cluster("p5", 4), options), plain = make_network(load_cluster("p5", 4));
  const GroupShape two_nodes{16, 2, 8, 1, 1, 1};
  const Bytes message{16 << 20};
  const auto step = [&](const Network& n) { return n.ring_step_wait(); };
  EXPECT_EQ(step(*plain), Duration{});
  EXPECT_GT(step(*network), microseconds(250));
  EXPECT_LT(step(*network), microseconds(343));   // 10.6 ms / 31, if data took no time
  const CommunicationCost slow = network->collective(CollectiveKind::all_gather, message, two_nodes), sound = plain->collective(CollectiveKind::all_gather, message, two_nodes);
  EXPECT_EQ(slow.duration - slow.waits, sound.duration);
  EXPECT_NEAR(to_seconds(slow.duration), 15 * to_seconds(step(*network)), 0.05 * to_seconds(slow.duration));
}

TEST(Network, HostBackends) {
  ClusterDescription cluster = load_cluster("dgx-a100", 2);
  CommunicationOptions options;
  options.backend = "gloo";
  GroupShape two_nodes{16, 2, 8, 1, 1, 1};
  auto gloo = make_network(cluster, options), nccl = make_network(cluster);
  EXPECT_GT(gloo->collective(CollectiveKind::all_reduce, kBig, two_nodes).duration,
            10 * nccl->collective(CollectiveKind::all_reduce, kBig, two_nodes).duration);
  options.backend = "ncll";
  EXPECT_THROW(make_network(cluster, options), ConfigError);
}

// NVIDIA/nccl 2.30: 24 ring channels x 12 MiB, NVLS 16 x 2 x 8 MiB; the first all-to-all added 2.6 GiB (nccl
// #1685).
TEST(Network, CommunicatorMemory) {
  auto network = make_network(load_cluster("dgx-h100", 1));
  CommunicationOptions no_nvls;
  no_nvls.nvls = false;
  auto ring_only = make_network(load_cluster("dgx-h100", 1), no_nvls);
  EXPECT_EQ(ring_only->communicator_memory(kNode, {CollectiveKind::all_gather}).device, 288_MiB);
  EXPECT_EQ(network->communicator_memory(kNode, {CollectiveKind::all_reduce}).device, 288_MiB + 256_MiB);
  EXPECT_EQ(ring_only->communicator_memory(kNode, {CollectiveKind::all_to_all}).device, 2688_MiB);
  EXPECT_EQ(network->communicator_memory(GroupShape{}, {CollectiveKind::all_reduce}).device, 0_MiB);
}

// Before NCCL 2.22: 24 rings and 24 chains of trees of 12 MiB each, and NVLS where it may be used, whatever the communicator runs.
TEST(Network, CommunicatorsConnectedAtOnceBeforeNccl222) {
  CommunicationOptions options;
  options.connects_at_once = true;
  const auto cluster = load_cluster("dgx-h100", 1);
  for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::all_reduce})
    EXPECT_EQ(make_network(cluster, options)->communicator_memory(kNode, {kind}).device, 288_MiB + 288_MiB + 256_MiB);
  options.nvls = false;
  EXPECT_EQ(make_network(cluster, options)->communicator_memory(kNode, {CollectiveKind::all_gather}).device, 288_MiB + 288_MiB);
}

// DeepSeek-V3's tokens of 7168 x 2 bytes, their 8 of origin, 128 choices of 8 + 4 and 128 scales of 4: 16,392 bytes. Eight ranks: 10
// channels x 8 peers x 256 tokens. 64 ranks: 288 tokens, and for 8 nodes 128 tokens of 16 bytes more each way.
TEST(CommunicatorMemory, ExpertDispatchHasBuffersOfItsOwn) {
  EXPECT_EQ(dispatch_buffers(8, Bytes{14336}).value, 10LL * 8 * 256 * 16392);
  EXPECT_EQ(dispatch_buffers(64, Bytes{14336}).value, 10LL * 8 * 288 * 16392 + 2LL * 10 * 8 * 128 * 16408);
}

}  // namespace
}  // namespace rehearse::hwmodels::network_test
