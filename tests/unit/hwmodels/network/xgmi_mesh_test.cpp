// Eight GPUs without a switch between them: every pair has a link of its own, and a group can use those between its members.
#include <gtest/gtest.h>

#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels::xgmi_mesh_test {
namespace {

constexpr Bytes kBig{1LL << 32};

GroupShape within_a_node(int ranks) { return {ranks, 1, ranks, 1, 1, 1}; }

double gigabytes_per_second(const char* node, CollectiveKind kind, int ranks, double factor) {
  const Duration d = make_network(load_cluster(node, 1))->collective(kind, kBig, within_a_node(ranks)).duration;
  return static_cast<double>(kBig.value) * factor / to_seconds(d) * 1e-9;
}

double all_reduce(const char* node, int ranks) { return gigabytes_per_second(node, CollectiveKind::all_reduce, ranks, 2.0 * (ranks - 1) / ranks); }
double all_to_all(const char* node, int ranks) { return gigabytes_per_second(node, CollectiveKind::all_to_all, ranks, (ranks - 1.0) / ranks); }

// stas00/ml-engineering, network/README.md: all_reduce_bench.py over 4 GiB, 2 MI300X 47.7 GB/s, 8 of them 312.9.
TEST(XgmiMesh, MoreMembersHaveMoreLinks) {
  EXPECT_NEAR(all_reduce("mi300x-8", 2), 47.7, 0.06 * 47.7);
  EXPECT_NEAR(all_reduce("mi300x-8", 8), 312.9, 0.03 * 312.9);
  EXPECT_NEAR(all_reduce("mi300x-8", 4) / all_reduce("mi300x-8", 2), 3, 0.05);   // three links out of each against one
  EXPECT_NEAR(all_reduce("dgx-h100", 4) / all_reduce("dgx-h100", 2), 1, 0.35);   // a switch gives every group all links
}

// Boards of four GPUs have no NVSwitch either: two of them have a third of their links between them. NVIDIA/nccl-tests#331: 72 GB/s of sends
// between two of four A100 (four links, 100 GB/s); NCCL between two of four H200 under NV6: 109 GB/s at 1 GB.
TEST(NvlinkMesh, TwoOfFourHaveAThirdOfTheLinks) {
  for (const char* node : {"hgx-h200-4", "hgx-a100-4"}) EXPECT_GT(all_reduce(node, 4) / all_reduce(node, 2), 3) << node;
  EXPECT_NEAR(gigabytes_per_second("hgx-a100-4", CollectiveKind::send_recv, 2, 1), 72, 0.05 * 72);
  EXPECT_NEAR(all_reduce("hgx-h200-4", 2), 109, 0.08 * 109);
}

// oracle-quickstart/oci-gpu-quickstarts, MI355X, 8 and 16 GiB over 8 GPUs: all-reduce 406.8 to 408.8 GB/s, all-to-all 360.7 to 361.4.
TEST(XgmiMesh, Mi355x) {
  EXPECT_NEAR(all_reduce("mi355x-8", 8), 407.5, 0.03 * 407.5);
  EXPECT_NEAR(all_to_all("mi355x-8", 8), 361, 0.03 * 361);
}

// A message has one link: 48 of its 64 GB/s.
TEST(XgmiMesh, AMessageHasOneLink) {
  const double rate = gigabytes_per_second("mi300x-8", CollectiveKind::send_recv, 2, 1);
  EXPECT_LT(rate, 48);
  EXPECT_GT(rate, 40);
}

}  // namespace
}  // namespace rehearse::hwmodels::xgmi_mesh_test
