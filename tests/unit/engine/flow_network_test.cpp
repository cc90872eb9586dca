#include "sim/engine/flow_network.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rehearse::engine::flow_network_test {
namespace {

TimePoint at(std::int64_t ps) { return TimePoint{Duration{ps}}; }
constexpr BytesPerSecond kFast{100e9};  // 10 ps per byte

void expect_end(FlowNetwork& network, FlowId flow, std::int64_t ps) {
  const auto ended = network.run_to_next_end();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->flow, flow);
  EXPECT_EQ(ended->time, at(ps));
}

TEST(FlowNetwork, OneFlowTakesBytesOverTheSlowestLink) {
  // 1000 bytes at 25 GB/s: 40 ps each.
  FlowNetwork network(kFast);
  const std::vector<LinkId> route{network.add_link(kFast), network.add_link(BytesPerSecond{25e9})};
  expect_end(network, network.add_flow(route, Bytes{1000}, at(7)), 40007);
}

TEST(FlowNetwork, TwoFlowsShareALink) {
  // 50 GB/s each until 1000 bytes are through at 20 ns; the other 1000 bytes then have the link: 10 ns more.
  FlowNetwork network(kFast);
  const std::vector<LinkId> route{network.add_link(kFast)};
  const FlowId longer = network.add_flow(route, Bytes{2000}, at(0)), shorter = network.add_flow(route, Bytes{1000}, at(0));
  expect_end(network, shorter, 20000);
  expect_end(network, longer, 30000);
  EXPECT_FALSE(network.run_to_next_end());
}

TEST(FlowNetwork, CapsShareInBytesNotInProportion) {
  // A flow limited to 10 GB/s leaves 90 GB/s to the other.
  FlowNetwork network(kFast);
  const std::vector<LinkId> route{network.add_link(kFast)};
  const FlowId slow = network.add_flow(route, Bytes{100}, at(0), BytesPerSecond{10e9});
  const FlowId quick = network.add_flow(route, Bytes{900}, at(0));
  expect_end(network, slow, 10000);
  expect_end(network, quick, 10000);
}

TEST(FlowNetwork, ParkingLot) {
  // Links of 100, 50, 100 GB/s; one flow through all, one on each. The middle link gives 25 + 25; the outer
  // ones 75.
  FlowNetwork network(kFast);
  const std::vector<LinkId> all{network.add_link(kFast), network.add_link(BytesPerSecond{50e9}), network.add_link(kFast)};
  const FlowId through = network.add_flow(all, Bytes{2500}, at(0));
  const FlowId first = network.add_flow(std::vector{all[0]}, Bytes{7500}, at(0));
  const FlowId middle = network.add_flow(std::vector{all[1]}, Bytes{2500}, at(0));
  const FlowId last = network.add_flow(std::vector{all[2]}, Bytes{7500}, at(0));
  for (const FlowId flow : {through, first, middle, last}) expect_end(network, flow, 100000);
}

TEST(FlowNetwork, SmallMessagesAreNotRoundedAtFullSpeed) {
  // 64 B at 900 GB/s would be 71.1 ps; at a fifth of that 355.6, not 5 * 71.
  FlowNetwork network(BytesPerSecond{900e9});
  const std::vector<LinkId> route{network.add_link(BytesPerSecond{180e9})};
  expect_end(network, network.add_flow(route, Bytes{64}, at(0)), 356);
}

// A ring of n ranks: the step-by-step form (a rank sends chunk s when chunk s - 1 has come in) against the
// folded flow.
struct Ring {
  std::vector<BytesPerSecond> bandwidths;
  std::vector<std::vector<LinkId>> routes;
};

// Each rank has its own link up and down, and pairs of neighbouring ranks share a switch link when `shared`.
Ring ring_of(std::uint32_t n, bool shared) {
  Ring ring;
  ring.bandwidths.assign(2 * n, BytesPerSecond{50e9});
  for (std::uint32_t i = 0; i < n; ++i) ring.routes.push_back({LinkId{i}, LinkId{n + (i + 1) % n}});
  if (shared) {
    ring.bandwidths.push_back(BytesPerSecond{25e9});
    for (auto& route : ring.routes) route.push_back(LinkId{2 * n});
  }
  return ring;
}

TimePoint detailed(const Ring& ring, Bytes payload) {
  const auto n = static_cast<std::uint32_t>(ring.routes.size());
  FlowNetwork network(kFast);
  for (const BytesPerSecond bandwidth : ring.bandwidths) network.add_link(bandwidth);
  const Bytes chunk{payload.value / n};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> of;  // flow -> rank, step
  std::vector<std::uint32_t> sent(n, 1), received(n, 0);    // chunks whose sending has ended or runs; that have come in
  std::vector<bool> sending(n, true);
  for (std::uint32_t i = 0; i < n; ++i) {
    network.add_flow(ring.routes[i], chunk, TimePoint{});
    of.emplace_back(i, 0);
  }
  TimePoint last{};
  while (const auto ended = network.run_to_next_end()) {
    last = ended->time;
    const std::uint32_t rank = of[static_cast<std::uint32_t>(ended->flow)].first, next = (rank + 1) % n;
    sending[rank] = false;
    ++received[next];
    for (const std::uint32_t r : {rank, next}) {
      if (sending[r] || sent[r] == 2 * (n - 1) || received[r] < sent[r]) continue;
      network.add_flow(ring.routes[r], chunk, last);
      of.emplace_back(r, sent[r]++);
      sending[r] = true;
    }
  }
  EXPECT_EQ(of.size(), std::size_t{n} * 2 * (n - 1));
  return last;
}

TimePoint folded(const Ring& ring, Bytes payload, bool fold) {
  const std::vector<std::vector<LinkLoad>> loads{ring_loads(ring.routes)};
  FlowNetwork network(kFast);
  const Bytes bytes = ring_all_reduce_bytes(payload, static_cast<int>(ring.routes.size()));
  if (!fold) {
    for (const BytesPerSecond bandwidth : ring.bandwidths) network.add_link(bandwidth);
    network.add_folded_flow(loads[0], bytes, TimePoint{});
    return network.run();
  }
  const FoldedLinks links = fold_links(ring.bandwidths, loads);
  EXPECT_LE(links.bandwidths.size(), 2u);
  for (const BytesPerSecond bandwidth : links.bandwidths) network.add_link(bandwidth);
  network.add_folded_flow(links.loads[0], bytes, TimePoint{});
  return network.run();
}

TEST(FlowNetwork, RingAllReduceFoldedIsTheDetailedOneAndTheClosedForm) {
  for (const std::uint32_t n : {2u, 3u, 4u, 8u, 16u})
    for (const bool shared : {false, true}) {
      const Ring ring = ring_of(n, shared);
      const Bytes payload{4800 * n};
      // 2(n-1) chunks of 4800 bytes at 50 GB/s, or at 25/n GB/s through the shared link.
      const std::int64_t ps_per_chunk = shared ? 4800 * 40 * std::int64_t{n} : 4800 * 20;
      const TimePoint expected = at(2 * (n - 1) * ps_per_chunk);
      EXPECT_EQ(folded(ring, payload, false), expected);
      EXPECT_EQ(folded(ring, payload, true), expected);
      EXPECT_EQ(detailed(ring, payload), expected);
    }
}

TEST(FlowNetwork, RingWithOneSlowEdgeIsPacedByIt) {
  // The slow edge carries 2(n-1) chunks one after another; the others wait for it or run ahead, never more
  // than the n - 1 steps that the pipeline needs to fill, so the detailed form ends within those of the
  // folded one.
  const std::uint32_t n = 6;
  Ring ring = ring_of(n, false);
  ring.bandwidths[2] = BytesPerSecond{10e9};
  const Bytes payload{4800 * n};
  const TimePoint flow = folded(ring, payload, false), steps = detailed(ring, payload);
  EXPECT_EQ(flow, at(2 * (n - 1) * 4800 * 100));
  EXPECT_GE(steps, flow);
  EXPECT_LE(steps, flow + Duration{(n - 1) * 4800 * 20});
}

TEST(FlowNetwork, LinksWithTheSameLoadsAreOne) {
  const std::vector<BytesPerSecond> bandwidths{BytesPerSecond{1e9}, BytesPerSecond{1e9}, BytesPerSecond{2e9},
                                               BytesPerSecond{1e9}, BytesPerSecond{1e9}};
  const std::vector<std::vector<LinkLoad>> loads{{{LinkId{0}, 1}, {LinkId{1}, 1}, {LinkId{2}, 1}, {LinkId{3}, 2}},
                                                 {{LinkId{3}, 1}}};
  const FoldedLinks folded_links = fold_links(bandwidths, loads);
  EXPECT_EQ(folded_links.bandwidths.size(), 3u);  // 0 = 1; 2 is faster; 3 is busier; 4 is unused
  EXPECT_EQ(folded_links.loads[0], (std::vector<LinkLoad>{{LinkId{0}, 1}, {LinkId{1}, 1}, {LinkId{2}, 2}}));
  EXPECT_EQ(folded_links.loads[1], (std::vector<LinkLoad>{{LinkId{2}, 1}}));
}

TEST(FlowNetwork, RingBytes) {
  EXPECT_EQ(ring_all_reduce_bytes(Bytes{1000}, 1), Bytes{0});
  EXPECT_EQ(ring_all_reduce_bytes(Bytes{1000}, 4), Bytes{1500});
  EXPECT_EQ(ring_all_reduce_bytes(Bytes{1001}, 4), Bytes{1506});
}

}  // namespace
}  // namespace rehearse::engine::flow_network_test
