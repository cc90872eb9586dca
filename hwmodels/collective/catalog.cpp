#include "hwmodels/collective/catalog.h"

namespace rehearse::hwmodels {

const Catalog<const CollectiveAlgorithm*>& collective_algorithms() {
  static const Catalog<const CollectiveAlgorithm*> algorithms{
      "collective algorithm",
      {
          {"tree", "double binary tree across nodes, chain inside", &tree_algorithm()},
          {"ring", "every GPU passes 1/n to its neighbour", &ring_algorithm()},
          {"collnet", "reduction in the fabric's switches (SHARP)", &collnet_algorithm()},
          {"nvls", "reduction and multicast in the NVSwitches", &nvls_algorithm()},
          {"nvls_tree", "NVLS inside a node, tree across nodes", &nvls_tree_algorithm()},
          {"pat", "log2(n) rounds of all-gather or reduce-scatter, one GPU per node", &pat_algorithm()},
      }};
  return algorithms;
}

}  // namespace rehearse::hwmodels
