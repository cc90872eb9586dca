// Rates of work that shares one GPU, against hand-made cases.
#include "sim/executor/contention.h"

#include <gtest/gtest.h>

#include <vector>

#include "hwmodels/topology/cluster.h"
#include "sim/executor/costs.h"

namespace rehearse::executor::contention_test {
namespace {

Priced kernel(float sm, float hbm) { return {1000, {.sm = sm, .hbm = hbm}, false}; }
Priced collective(float sm, float nvlink, float nic) { return {1000, {.sm = sm, .nvlink = nvlink, .nic = nic}, true}; }

std::vector<double> rates(const std::vector<Priced>& all) {
  std::vector<const Priced*> work;
  for (const Priced& p : all) work.push_back(&p);
  std::vector<double> rate(all.size());
  share_gpu(work, rate);
  return rate;
}

// 0.25 of the SMs are held by channels; a kernel that wants all of them runs on 0.75.
TEST(Contention, CollectivesHoldTheirSms) {
  const auto r = rates({kernel(1, 0), collective(0.25f, 0.5f, 0)});
  EXPECT_DOUBLE_EQ(r[0], 0.75);
  EXPECT_DOUBLE_EQ(r[1], 1);
}

// 1 + 1 of one NIC: half each. The third uses another link only and is not slowed.
TEST(Contention, OneLinkIsSharedEqually) {
  const auto r = rates({collective(0, 0, 1), collective(0, 0, 1), collective(0, 1, 0)});
  EXPECT_DOUBLE_EQ(r[0], 0.5);
  EXPECT_DOUBLE_EQ(r[1], 0.5);
  EXPECT_DOUBLE_EQ(r[2], 1);
}

// A product whose tiles are dealt out to all SMs beforehand keeps its rate; the tiles of held SMs are late.
TEST(Contention, TilesDealtOutBeforehandAreLateWhereSmsAreHeld) {
  Priced product = kernel(1, 0);
  product.late_tiles = 0.7f;
  EXPECT_DOUBLE_EQ(rates({product, collective(0.25f, 0.5f, 0)})[0], 1);
  EXPECT_TRUE(tiles_are_late(product, 0.25));
  EXPECT_FALSE(tiles_are_late(product, 0));
  EXPECT_FALSE(tiles_are_late(kernel(1, 0), 0.25));
  product.load.sm = 0.7f;   // there are free SMs enough
  EXPECT_FALSE(tiles_are_late(product, 0.25));
}

// Two kernels that could each fill the GPU take twice as long beside each other, products among them: tiles dealt out beforehand are late where
// channels hold SMs, not where another kernel's blocks run. Of what 0.25 held SMs leave, 1 + 1 is wanted: 0.375 each for kernels of many blocks.
TEST(Contention, KernelsBesideEachOtherShareTheGpu) {
  Priced product = kernel(1, 0);
  product.late_tiles = 0.7f;
  const auto two = rates({product, kernel(1, 0)});
  EXPECT_DOUBLE_EQ(two[0], 0.5);
  EXPECT_DOUBLE_EQ(two[1], 0.5);
  const auto beside = rates({product, kernel(1, 0), collective(0.25f, 0.5f, 0)});
  EXPECT_DOUBLE_EQ(beside[0], 0.5);
  EXPECT_DOUBLE_EQ(beside[1], 0.375);
  const auto small = rates({product, kernel(0, 0.3f)});   // moves bytes and takes no SM that counts
  EXPECT_DOUBLE_EQ(small[0], 1);
}

// MI300X: a product and a collective at once save 21 % of what they could at best (arXiv 2412.14335). Of a long product C beside a collective
// M that could be M; so the product makes 0.21 of its way while the collective runs.
TEST(Contention, OverlapOnAnMi300xSavesAFifthOfWhatItCould) {
  const hwmodels::KernelModel mi300x(hwmodels::load_gpu("mi300x"));
  const auto network = hwmodels::make_network(hwmodels::load_cluster("mi300x-8", 1, "rail-fat-tree", "mi300x"), {});
  const hwmodels::CommunicationCost gather = network->collective(CollectiveKind::all_gather, 416_MiB, {.ranks = 8, .ranks_per_node = 8});
  const Interference interference(mi300x);
  const auto r = rates({interference.kernel_of(mi300x.cost({.kind = model::KernelKind::gemm, .m = 8192, .n = 14336, .k = 4096})), interference.collective_of(gather)});
  EXPECT_NEAR(r[0], 0.21, 0.01);
}

// Experts' products run on several streams: one's late tiles run beside the next one.
TEST(Contention, GroupedProductsHaveNoLateTiles) {
  const hwmodels::KernelModel h100(hwmodels::load_gpu("h100-sxm"));
  const auto network = hwmodels::make_network(hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "h100-sxm"), {});
  plan::Plan plan;
  plan.kernels = {{.kind = model::KernelKind::gemm, .m = 4096, .n = 4096, .k = 4096}, {.kind = model::KernelKind::grouped_gemm, .batch = 8, .m = 4096, .n = 4096, .k = 4096}};
  const CostTable table = price(plan, {h100, *network});
  EXPECT_GT(table.kernels[0].late_tiles, 0);
  EXPECT_EQ(table.kernels[1].late_tiles, 0);
}

// Pieces of a product too, but for the last one, beside which nothing runs.
TEST(Contention, PiecesOfAProductHaveNoLateTilesWhileAnotherFollows) {
  const hwmodels::KernelModel h100(hwmodels::load_gpu("h100-sxm"));
  const auto network = hwmodels::make_network(hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "h100-sxm"), {});
  plan::Plan plan;
  plan.kernels = {{.kind = model::KernelKind::gemm, .staggered = true, .m = 1024, .n = 4096, .k = 4096}, {.kind = model::KernelKind::gemm, .m = 1024, .n = 4096, .k = 4096}};
  const CostTable table = price(plan, {h100, *network});
  EXPECT_EQ(table.kernels[0].late_tiles, 0);
  EXPECT_GT(table.kernels[1].late_tiles, 0);
  EXPECT_EQ(table.kernels[0].duration, table.kernels[1].duration);
}

// Stages on neighbouring GPUs and stages four GPUs apart: messages of equal size, of which those of the second go from socket to socket.
TEST(Contention, MessagesArePricedByTheWholeShapeOfTheirCommunicator) {
  const hwmodels::KernelModel kernels(hwmodels::load_gpu("a100-40gb-pcie"));
  const auto network = hwmodels::make_network(hwmodels::load_cluster("pcie-8", 1), {});
  plan::Plan plan;
  plan.messages = {{.bytes = Bytes{64 << 20}}};
  const GroupShape near{.ranks = 2, .nodes = 1, .ranks_per_node = 2, .groups_per_node = 4, .stride = 1}, far{.ranks = 2, .nodes = 1, .ranks_per_node = 2, .groups_per_node = 4, .stride = 4};
  for (const GroupShape& shape : {near, far}) plan.classes.emplace_back().groups[static_cast<std::size_t>(plan::GroupAxis::pipeline)] = shape;
  const CostTable table = price(plan, {kernels, *network});
  EXPECT_EQ(table.messages[0][0].duration, network->point_to_point(Bytes{64 << 20}, true, 4, near).duration.count());
  EXPECT_EQ(table.messages[1][0].duration, network->point_to_point(Bytes{64 << 20}, true, 4, far).duration.count());
  EXPECT_NE(table.messages[0][0].duration, table.messages[1][0].duration);
}

// NVLink: A 1, B 1 -> level 1/2. NIC: B 1, C 0.5: at B's 1/2 there is room for C at rate 1.
TEST(Contention, WhatABottleneckLeavesGoesToTheOthers) {
  const auto r = rates({collective(0, 1, 0), collective(0, 1, 1), collective(0, 0, 0.5f)});
  EXPECT_DOUBLE_EQ(r[0], 0.5);
  EXPECT_DOUBLE_EQ(r[1], 0.5);
  EXPECT_DOUBLE_EQ(r[2], 1);
}

// A collective that keeps 0.6 of its speed beside kernels: so it does while one runs, and the link that it leaves is free.
TEST(Contention, CollectivesBesideKernelsKeepTheirShareOfSpeed) {
  Priced slow = collective(0.2f, 1, 0);
  slow.beside_kernels = 0.6f;
  EXPECT_DOUBLE_EQ(rates({slow, collective(0, 1, 0)})[0], 0.5);  // no kernel: the link alone decides
  const auto r = rates({kernel(1, 0), slow});
  EXPECT_FLOAT_EQ(static_cast<float>(r[1]), 0.6f);
  EXPECT_FLOAT_EQ(static_cast<float>(r[0]), 0.8f);
  EXPECT_FLOAT_EQ(static_cast<float>(rates({kernel(1, 0), slow, collective(0, 0.4f, 0)})[2]), 1.0f);  // 0.6 + 0.4 of the link
}

TEST(Contention, NothingIsSlowedWhereThereIsRoom) {
  const auto r = rates({kernel(0.5f, 0.4f), collective(0.2f, 0.9f, 0.1f)});
  EXPECT_DOUBLE_EQ(r[0], 1);
  EXPECT_DOUBLE_EQ(r[1], 1);
}

}  // namespace
}  // namespace rehearse::executor::contention_test
