// Speed of max-min sharing: flows per second on a fat tree under steady load, and large ring all-reduces in
// flow form.
// Bars (design, section 12): 2 M flows/s on 1,024 hosts, 1 M/s on 8,192; 1 GiB over 1,024 / 4,096 GPUs in 10
// / 40 ms.
// The counters say why a load is slow: links examined, and rates that really change, per completed flow.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>

#include "sim/core/random.h"
#include "sim/engine/flow_network.h"
#include "sim/engine/sharing.h"

namespace rehearse::engine {
namespace {

/// 0 <= result < n.
std::uint32_t below(Random& random, std::uint32_t n) { return static_cast<std::uint32_t>(random.below(n)); }

// Two layers, no oversubscription: each leaf has as many spines above it as hosts below it.
struct FatTree {
  std::uint32_t leaves, hosts_per_leaf;
  SharingSystem system;
  std::vector<ResourceId> links;

  FatTree(std::uint32_t l, std::uint32_t h) : leaves(l), hosts_per_leaf(h) {
    for (std::uint32_t i = 0; i < 4 * leaves * hosts_per_leaf; ++i) links.push_back(system.add_resource());
  }
  std::uint32_t hosts() const { return leaves * hosts_per_leaf; }
  // Host up, leaf up, leaf down, host down; the spine itself never limits.
  std::size_t route(std::uint32_t from, std::uint32_t to, std::uint32_t spine, std::array<Use, 4>& out) const {
    const std::uint32_t n = hosts(), a = from / hosts_per_leaf, b = to / hosts_per_leaf;
    std::size_t k = 0;
    out[k++] = {links[from], kWholeResource};
    if (a != b) {
      out[k++] = {links[2 * n + a * hosts_per_leaf + spine], kWholeResource};
      out[k++] = {links[3 * n + b * hosts_per_leaf + spine], kWholeResource};
    }
    out[k++] = {links[n + to], kWholeResource};
    return k;
  }
};

// Every completion starts a new flow between a random pair, sizes exponential (mean 1 MB at 50 GB/s = 20 us).
void flows_on_fat_tree(benchmark::State& state) {
  FatTree tree(static_cast<std::uint32_t>(state.range(0)), static_cast<std::uint32_t>(state.range(1)));
  Random random{1};
  auto start = [&](TimePoint now) {
    const std::uint32_t from = below(random, tree.hosts()), to = below(random, tree.hosts() - 1);
    std::array<Use, 4> uses;
    const std::size_t k = tree.route(from, to + (to >= from), below(random, tree.hosts_per_leaf), uses);
    tree.system.start({uses.data(), k}, microseconds(-20.0 * std::log(random.uniform())), now, 0);
  };
  const auto active = static_cast<std::uint32_t>(state.range(2)) * tree.hosts();
  for (std::uint32_t i = 0; i < active; ++i) start(TimePoint{});
  auto step = [&] {
    const TimePoint now = *tree.system.next_completion();
    while (tree.system.pop_completed(now)) start(now);
  };
  for (std::uint32_t i = 0; i < 2 * active; ++i) step();
  const auto before = tree.system.effort();
  for (auto _ : state) step();
  const auto& after = tree.system.effort();
  const auto n = static_cast<double>(state.iterations());
  state.SetItemsProcessed(state.iterations());
  state.counters["links/flow"] = static_cast<double>(after.examined - before.examined) / n;
  state.counters["rates/flow"] = static_cast<double>(after.rates - before.rates) / n;
}
BENCHMARK(flows_on_fat_tree)
    ->ArgNames({"leaves", "hosts_per_leaf", "flows_per_host"})
    ->Args({32, 32, 1})->Args({32, 32, 2})->Args({32, 32, 4})->Args({32, 32, 8})
    ->Args({128, 64, 1})->Args({128, 64, 2})->Args({128, 64, 4});

// Steps of a collective: all hosts send at once, each to another one (a random permutation over random spines), and the
// next step begins when the last flow has ended. Equal sizes, so that flows which share nothing end at the same instant.
void permutation_steps(benchmark::State& state) {
  FatTree tree(static_cast<std::uint32_t>(state.range(0)), static_cast<std::uint32_t>(state.range(1)));
  Random random{1};
  std::vector<std::uint32_t> to(tree.hosts());
  for (std::uint32_t i = 0; i < tree.hosts(); ++i) to[i] = i;
  TimePoint now{};
  const auto before = tree.system.effort();
  for (auto _ : state) {
    for (std::uint32_t i = tree.hosts(); i-- > 1;) std::swap(to[i], to[below(random, i + 1)]);
    for (std::uint32_t i = 0; i < tree.hosts(); ++i) {
      std::array<Use, 4> uses;
      const std::size_t k = tree.route(i, to[i], below(random, tree.hosts_per_leaf), uses);
      tree.system.start({uses.data(), k}, microseconds(20), now, 0);
    }
    while (const auto next = tree.system.next_completion()) {
      now = *next;
      while (tree.system.pop_completed(now)) {
      }
    }
  }
  const auto& after = tree.system.effort();
  const auto n = static_cast<double>(state.iterations() * tree.hosts());
  state.SetItemsProcessed(state.iterations() * tree.hosts());
  state.counters["links/flow"] = static_cast<double>(after.examined - before.examined) / n;
  state.counters["rates/flow"] = static_cast<double>(after.rates - before.rates) / n;
}
BENCHMARK(permutation_steps)->ArgNames({"leaves", "hosts_per_leaf"})->Args({32, 32})->Args({128, 64})->Unit(benchmark::kMicrosecond);

// 1 GiB over a ring of all GPUs, 8 per node, one NIC per GPU: builds the routes, folds the links and runs
// the flow.
// Links per GPU: NVLink out and in, NIC out and in.
void ring_all_reduce(benchmark::State& state) {
  const auto n = static_cast<std::uint32_t>(state.range(0));
  const bool fold = state.range(1) != 0;
  for (auto _ : state) {
    std::vector<BytesPerSecond> bandwidths(2 * n, BytesPerSecond{450e9});
    bandwidths.resize(4 * n, BytesPerSecond{50e9});
    std::vector<std::vector<LinkId>> routes(n);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t j = (i + 1) % n, base = i / 8 == j / 8 ? 0 : 2 * n;
      routes[i] = {LinkId{base + i}, LinkId{base + n + j}};
    }
    std::vector<std::vector<LinkLoad>> loads{ring_loads(routes)};
    if (fold) {
      FoldedLinks folded = fold_links(bandwidths, loads);
      bandwidths = std::move(folded.bandwidths);
      loads = std::move(folded.loads);
    }
    FlowNetwork network(BytesPerSecond{450e9});
    for (const BytesPerSecond bandwidth : bandwidths) network.add_link(bandwidth);
    network.add_folded_flow(loads[0], ring_all_reduce_bytes(1_GiB, static_cast<int>(n)), TimePoint{});
    benchmark::DoNotOptimize(network.run());
  }
}
BENCHMARK(ring_all_reduce)
    ->ArgNames({"gpus", "fold_links"})
    ->Args({1024, 0})->Args({1024, 1})->Args({4096, 0})->Args({4096, 1})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rehearse::engine
