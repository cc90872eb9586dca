#include "hwmodels/collective/tuning_tables.h"

#include <array>
#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::hwmodels::tuning {
namespace {

struct ByProtocol {
  double ll, ll128, simple;
  double operator[](Protocol p) const {
    return p == Protocol::ll ? ll : p == Protocol::ll128 ? ll128 : simple;
  }
};
struct ByNodes {
  double one, two, more;
  double operator()(int nodes) const { return nodes == 1 ? one : nodes == 2 ? two : more; }
};
using ByGeneration = std::array<ByNodes, 4>;  // volta, ampere, hopper, blackwell

constexpr ByGeneration kLlMax{{{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}}};
constexpr ByGeneration kRingLl128{{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {40, 40, 40}}};
constexpr ByGeneration kTreeLl128{{{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}}};
constexpr ByGeneration kTreeSimple{{{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}}};
constexpr ByGeneration kNvlsTree{{{0, 0, 0}, {0, 0, 0}, {0, 57.7, 45.5}, {0, 96, 80}}};
constexpr std::array<double, 4> kNvlsEfficiency{0, 0, 0.85, 0.74};

// Index: floor(log2(bytes / 64)).
constexpr std::array<double, 23> kTreeLl{1,  1,  1,  1,  .9, .8, .7, .7, .7, .7, .6, .5,
                                         .4, .4, .5, .6, .7, .8, .9, 1,  1,  1,  1};
constexpr std::array<double, 23> kTreeLl128Factor{1,  1,  1,  1,  1,  .9, .8, .8, .8, .7, .6, .6,
                                                  .6, .6, .6, .6, .8, .9, .9, .9, .9, 1,  1};
constexpr std::array<double, 23> kTreeSimpleFactor{.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
                                                   .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9};

double cell(const ByGeneration& table, const Group& group) {
  return table[static_cast<std::size_t>(group.generation)](group.nodes);
}

}  // namespace

double base_latency(Algorithm algorithm, Protocol protocol) {
  switch (algorithm) {
    case Algorithm::tree:
      return ByProtocol{6.8, 14.0, 8.4}[protocol];
    case Algorithm::ring:
      return ByProtocol{6.6, 14.0, 8.4}[protocol];
    case Algorithm::pat:
      return 8;
    default:
      return 0;
  }
}

double hop_latency(Algorithm algorithm, Protocol protocol, Hop hop) {
  auto pick = [&](ByProtocol nvlink, ByProtocol pcie, ByProtocol network) {
    return (hop == Hop::nvlink ? nvlink : hop == Hop::pcie ? pcie : network)[protocol];
  };
  auto simple = [&](double nvlink, double pcie, double network) {
    return hop == Hop::nvlink ? nvlink : hop == Hop::pcie ? pcie : network;
  };
  switch (algorithm) {
    case Algorithm::tree:
      return pick({0.6, 1.25, 4.0}, {1.0, 1.9, 4.0}, {5.0, 8.5, 14});
    case Algorithm::ring:
      return pick({0.6, 1.9, 3.4}, {1.0, 2.5, 5.7}, {2.7, 4.0, 14});
    case Algorithm::collnet:
      return simple(3.7, 3.7, 31);
    case Algorithm::nvls:
      return simple(25, 0, 18);
    case Algorithm::nvls_tree:
      return simple(25, 0, 20.9);
    case Algorithm::pat:
      return simple(4.0, 4.0, 14);
    default:
      break;
  }
  EXPECTS(false, "no hop latency for this algorithm");
  return 0;
}

double ll_max_bandwidth(const Group& group) {
  if (group.nodes == 1) return cell(kLlMax, group);
  // Across nodes the host's flag polling limits LL, so the row is the CPU's.
  return kLlMax[group.cpu == CpuVendor::amd ? 1 : 0](group.nodes);
}
double ring_ll128_per_channel(const Group& group) { return cell(kRingLl128, group); }
double tree_ll128_per_channel(const Group& group) { return cell(kTreeLl128, group); }
double tree_simple_per_channel(const Group& group) { return cell(kTreeSimple, group); }
double nvls_tree_per_channel(const Group& group) { return cell(kNvlsTree, group); }
double nvls_efficiency(const Group& group) {
  return kNvlsEfficiency[static_cast<std::size_t>(group.generation)];
}

double network_overhead(const Group& group, Protocol protocol) {
  double overhead = group.cpu == CpuVendor::amd ? 2.0 : 1.0;
  return protocol == Protocol::simple ? 3 * overhead : overhead;
}

double tree_correction(Protocol protocol, double bytes) {
  if (bytes < 64) return 1;
  auto index = static_cast<std::size_t>(std::ilogb(bytes / 64));
  if (index >= kTreeLl.size()) return 1;
  return protocol == Protocol::ll      ? kTreeLl[index]
         : protocol == Protocol::ll128 ? kTreeLl128Factor[index]
                                       : kTreeSimpleFactor[index];
}

bool ll128_enabled(const Group& group) {
  bool inside = group.nvlink || group.local == 1;
  bool between = group.nodes == 1 || group.network->ll128;
  return group.compute_capability >= 70 && inside && between;
}

}  // namespace rehearse::hwmodels::tuning
