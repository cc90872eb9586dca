#include "hwmodels/collective/channels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

namespace rehearse::hwmodels {
namespace {

// Per-channel speeds in GB/s that the search tries. Source: NVIDIA/nccl 2.30 src/graph/search.cc.
constexpr double kIntraOld[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
constexpr double kIntra90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
constexpr double kIntra100[] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
constexpr double kInterOld[] = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, .24, .12};
constexpr double kInter90[] = {48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, .24, .12};
constexpr double kInter100[] = {96, 86,   80, 48, 45.1, 42, 40,  30,  24,  22,
                                20, 17.5, 15, 12, 6,    3,  2.4, 1.2, .24, .12};
constexpr int kMaxSearchedRings = 32;
constexpr int kMaxChannels = 64;
constexpr int kHeadsOfOneBoard = 8;

std::span<const double> speeds(const Group& group) {
  if (group.nodes == 1) {
    if (group.compute_capability >= 100) return kIntra100;
    if (group.compute_capability >= 90) return kIntra90;
    return kIntraOld;
  }
  if (group.compute_capability >= 100) return kInter100;
  if (group.compute_capability >= 90) return kInter90;
  return kInterOld;
}

// A ring of one GPU per node crosses no NVLink.
double inside_limit(const Group& group) { return group.local > 1 ? group.ring_link : 1e9; }

}  // namespace

ChannelGraph search_rings(const Group& group) {
  ChannelGraph best;
  double best_total = 0;
  for (double speed : speeds(group)) {
    double count = std::floor(inside_limit(group) / speed + 1e-9);
    if (group.nodes > 1) count = std::min(count, group.nics * std::floor(group.nic / speed + 1e-9));
    count = std::min<double>(count, kMaxSearchedRings);
    // Equal totals: the search met the higher speed first.
    if (count * speed > best_total + 1e-9) {
      best_total = count * speed;
      best = {static_cast<int>(count), speed, speed};
    }
  }
  if (best_total == 0) {  // slower than the slowest speed in the list: one channel at what there is
    double slow = group.nodes > 1 ? group.nic : inside_limit(group);
    return {1, slow, slow};
  }
  bool fast_enough = best.speed_intra >= 25;
  bool kept_wide = group.compute_capability > 80 && best.speed_intra < 50 && best.channels > 4;
  if (fast_enough && !kept_wide) {
    best.channels *= 2;
    best.speed_intra /= 2;
    best.speed_inter /= 2;
  }
  return best;
}

ChannelGraph search_trees(const Group& group) {
  ChannelGraph graph = search_rings(group);
  if (group.nodes != 2) return graph;
  const std::span<const double> list = speeds(group);
  double intra = graph.speed_inter;
  for (auto speed = list.rbegin(); speed != list.rend() && intra < 2 * graph.speed_inter; ++speed)
    if (*speed > intra && *speed * graph.channels <= inside_limit(group) + 1e-9) intra = *speed;
  graph.speed_intra = intra;
  return graph;
}

ChannelGraph search_nvls(const Group& group) {
  // Racks have more heads than the list has slow speeds for.
  ChannelGraph graph{group.local, group.link / group.local, 0};
  if (group.local <= kHeadsOfOneBoard)
    for (double speed : speeds(group))
      if (speed * group.local <= group.link + 1e-9) {
        graph.speed_intra = speed;
        break;
      }
  if (group.nodes > 1)
    graph.speed_inter = std::min(graph.speed_intra, group.nic * group.nics / std::max(1, group.local));
  return graph;
}

int executed_ring_channels(const Group& group) {
  ChannelGraph graph = search_rings(group);
  int channels = 2 * graph.channels;
  bool again = group.compute_capability >= 90 && group.nodes > 1 && graph.speed_intra > 45 && channels < 16;
  return std::min(again ? 2 * channels : channels, kMaxChannels);
}

int executed_nvls_channels(const Group& group) {
  if (group.compute_capability < 100) return 16;
  return group.nodes == 1 ? 24 : 32;
}

int executed_p2p_channels(const Group& group) {
  return std::min<int>(kMaxChannels / 2,
                       static_cast<int>(std::bit_ceil(static_cast<unsigned>(executed_ring_channels(group)))));
}

}  // namespace rehearse::hwmodels
