#include "sim/engine/flow_network.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/core/contract.h"

namespace rehearse::engine {

LinkId FlowNetwork::add_link(BytesPerSecond bandwidth) {
  EXPECTS(bandwidth.value > 0);
  weights_.push_back(weight_of(fastest_.value / bandwidth.value));
  system_.add_resource();
  return LinkId{static_cast<std::uint32_t>(weights_.size() - 1)};
}

FlowId FlowNetwork::add_flow(std::span<const LinkId> route, Bytes bytes, TimePoint start,
                             std::optional<BytesPerSecond> cap) {
  std::vector<LinkLoad> loads;
  for (const LinkId link : route) loads.push_back({link, 1});
  return add_folded_flow(loads, bytes, start, cap);
}

FlowId FlowNetwork::add_folded_flow(std::span<const LinkLoad> loads, Bytes bytes, TimePoint start,
                                    std::optional<BytesPerSecond> cap) {
  EXPECTS(bytes.value >= 0);
  Flow flow{{}, Work::picoseconds(static_cast<double>(bytes.value) / fastest_.value * 1e12), kFullRate};
  if (cap && *cap < fastest_) {
    EXPECTS(cap->value > 0);
    const double rate = cap->value / fastest_.value * static_cast<double>(kFullRate);
    flow.cap = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rate));
  }
  for (const LinkLoad& load : loads) {
    const auto link = static_cast<std::uint32_t>(load.link);
    EXPECTS(link < weights_.size() && load.flows >= 0);
    flow.uses.push_back({ResourceId{link}, weights_[link] * load.flows});
  }
  flows_.push_back(std::move(flow));
  arrivals_.push(start, Phase::arrival, flows_.size() - 1);
  return FlowId{static_cast<std::uint32_t>(flows_.size() - 1)};
}

std::optional<FlowNetwork::Ended> FlowNetwork::run_to_next_end() {
  for (;;) {
    const auto end = system_.next_completion();
    // Ends come before arrivals of the same instant (Phase).
    if (end && (arrivals_.empty() || *end <= arrivals_.top().time)) {
      const auto done = system_.pop_completed(*end);
      ENSURES(done.has_value());
      return Ended{FlowId{static_cast<std::uint32_t>(done->tag)}, *end};
    }
    if (arrivals_.empty()) return std::nullopt;
    const TimePoint now = arrivals_.top().time;
    while (!arrivals_.empty() && arrivals_.top().time == now) {
      const std::uint64_t id = arrivals_.pop().payload;
      Flow& flow = flows_[id];
      flow.activity = system_.start(flow.uses, flow.work, now, id, flow.cap);
      flow.uses = {};
    }
  }
}

TimePoint FlowNetwork::run() {
  TimePoint last{};
  while (const auto ended = run_to_next_end()) last = ended->time;
  return last;
}

std::vector<LinkLoad> ring_loads(std::span<const std::vector<LinkId>> routes) {
  std::vector<LinkId> crossed;
  for (const auto& route : routes) crossed.insert(crossed.end(), route.begin(), route.end());
  std::sort(crossed.begin(), crossed.end());
  std::vector<LinkLoad> loads;
  for (const LinkId link : crossed) {
    if (loads.empty() || loads.back().link != link) loads.push_back({link, 0});
    ++loads.back().flows;
  }
  return loads;
}

Bytes ring_all_reduce_bytes(Bytes payload, int n) {
  EXPECTS(n >= 1 && payload.value >= 0);
  return Bytes{2 * (n - 1) * ((payload.value + n - 1) / n)};
}

FoldedLinks fold_links(std::span<const BytesPerSecond> bandwidths,
                       std::span<const std::vector<LinkLoad>> loads) {
  // The signature of a link: (flow, load) for each flow that crosses it, in order of the flows.
  std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> signature(bandwidths.size());
  for (std::size_t f = 0; f < loads.size(); ++f)
    for (const LinkLoad& load : loads[f])
      if (load.flows > 0) signature[static_cast<std::uint32_t>(load.link)].emplace_back(f, load.flows);
  FoldedLinks out;
  out.loads.resize(loads.size());
  std::map<std::pair<double, std::vector<std::pair<std::size_t, std::int64_t>>>, LinkId> known;
  for (std::size_t i = 0; i < bandwidths.size(); ++i) {
    if (signature[i].empty()) continue;
    const LinkId id{static_cast<std::uint32_t>(out.bandwidths.size())};
    const auto [entry, is_new] = known.try_emplace({bandwidths[i].value, std::move(signature[i])}, id);
    if (!is_new) continue;
    out.bandwidths.push_back(bandwidths[i]);
    for (const auto& [flow, flows] : entry->first.second) out.loads[flow].push_back({id, flows});
  }
  return out;
}

}  // namespace rehearse::engine
