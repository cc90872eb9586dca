#include "hwmodels/topology/mesh.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

/// As many steps as NCCL's own search takes before it keeps what it has (src/graph/search.cc, NCCL_SEARCH_GLOBAL_TIMEOUT).
constexpr int kMostSteps = 1 << 19;

/// Rings over all members without a link in common, by depth-first search. Members are 0 to n-1 here; `free_[a * n + b]`: links left.
class RingSearch {
 public:
  explicit RingSearch(std::vector<int> links, int n) : n_(n), free_(std::move(links)) {
    most_ = std::numeric_limits<int>::max();
    for (int a = 0; a < n_; ++a) most_ = std::min(most_, std::accumulate(free_.begin() + a * n_, free_.begin() + (a + 1) * n_, 0) / 2);
  }

  int rings() {
    start(0);
    return best_;
  }

 private:
  void start(int found) {
    best_ = std::max(best_, found);
    if (best_ == most_) return;
    std::vector<bool> visited(static_cast<std::size_t>(n_), false);
    visited[0] = true;
    extend(0, 1, visited, found);
  }

  void extend(int at, int count, std::vector<bool>& visited, int found) {
    if (count == n_) {
      if (int& closing = links(at, 0); closing > 0) {
        --closing, --links(0, at);
        start(found + 1);
        ++links(at, 0), ++links(0, at);
      }
      return;
    }
    for (int next = 1; next < n_ && best_ < most_ && steps_ < kMostSteps; ++next) {
      ++steps_;
      if (visited[static_cast<std::size_t>(next)] || links(at, next) == 0) continue;
      visited[static_cast<std::size_t>(next)] = true;
      --links(at, next), --links(next, at);
      extend(next, count + 1, visited, found);
      ++links(at, next), ++links(next, at);
      visited[static_cast<std::size_t>(next)] = false;
    }
  }

  int& links(int a, int b) { return free_[static_cast<std::size_t>(a * n_ + b)]; }

  int n_, most_ = 0, best_ = 0, steps_ = 0;
  std::vector<int> free_;
};

}  // namespace

int mesh_links(const NodeDesign& node, int a, int b) {
  if (a == b) return 0;
  if (node.links.empty()) return std::max(1, node.links_per_pair);
  for (const MeshLinks& l : node.links)
    if ((l.from == a && l.to == b) || (l.from == b && l.to == a)) return l.count;
  return 0;
}

int ring_links(const NodeDesign& node, const std::vector<int>& members) {
  EXPECTS(members.size() >= 2);
  const auto n = static_cast<int>(members.size());
  if (n == 2) return mesh_links(node, members[0], members[1]);
  if (node.links.empty()) return std::max(1, node.links_per_pair) * (n - 1);
  std::vector<int> links;
  for (const int a : members)
    for (const int b : members) links.push_back(mesh_links(node, a, b));
  return 2 * RingSearch(std::move(links), n).rings();
}

}  // namespace rehearse::hwmodels
