// Flows of bytes over links with max-min fair bandwidth; collectives folded into one flow with link loads.
// Leaves out latency (part of the start time), routing and which links exist (hwmodels/topology).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/units.h"
#include "sim/engine/event_queue.h"
#include "sim/engine/sharing.h"

namespace rehearse::engine {

enum class LinkId : std::uint32_t {};
enum class FlowId : std::uint32_t {};

/// `flows` equal flows of one folded flow cross this link.
struct LinkLoad {
  LinkId link;
  std::int64_t flows;
  friend bool operator==(const LinkLoad&, const LinkLoad&) = default;
};

/// Bandwidth is shared by progressive filling in bytes per second: all flows of the network rise together
/// until a link is full or a flow has reached its cap.
class FlowNetwork {
 public:
  struct Ended {
    FlowId flow;
    TimePoint time;
  };

  /// `fastest`: no flow ever exceeds it, e.g. the bandwidth of the fastest link.
  explicit FlowNetwork(BytesPerSecond fastest) : fastest_(fastest) {}

  /// Precondition: 0 < bandwidth. Slower than fastest / 2^20 is out of range.
  LinkId add_link(BytesPerSecond bandwidth);

  /// A flow that crosses each link of `route` once and no other.
  ///   bytes   >= 0;  cap: its own limit, none by default;  start: not before the last end that was returned
  FlowId add_flow(std::span<const LinkId> route, Bytes bytes, TimePoint start,
                  std::optional<BytesPerSecond> cap = std::nullopt);

  /// Equal flows as one: `bytes` is what each of them carries, `cap` the limit of each, and they all run at
  /// one rate.
  FlowId add_folded_flow(std::span<const LinkLoad> loads, Bytes bytes, TimePoint start,
                         std::optional<BytesPerSecond> cap = std::nullopt);

  /// Runs to the next end; ends of the same instant come in the order in which the flows started.
  std::optional<Ended> run_to_next_end();

  /// Runs until nothing is left and returns the last end, the origin of time if there was none.
  TimePoint run();

 private:
  struct Flow {
    std::vector<Use> uses;
    Work work;
    std::uint64_t cap;
    ActivityId activity{};
  };

  BytesPerSecond fastest_;
  SharingSystem system_;
  std::vector<std::int64_t> weights_;  // by link: of one flow at `fastest_`
  std::vector<Flow> flows_;
  EventQueue arrivals_;
};

/// Load of a ring in which each member sends to the next, all at once: how many of the routes cross each
/// link, sorted by link. `routes`: one per neighbouring pair.
std::vector<LinkLoad> ring_loads(std::span<const std::vector<LinkId>> routes);

/// Bytes that each member of a ring sends during an all-reduce of `payload` bytes among n >= 1 members:
/// 2(n-1) steps of payload / n, rounded up to whole bytes per step.
Bytes ring_all_reduce_bytes(Bytes payload, int n);

/// Links that cannot be told apart are one link: same bandwidth and same load from every one of the flows.
///   bandwidths  by link;  loads: one list per folded flow
/// The flows run exactly as over the unfolded links. Links without load are dropped.
struct FoldedLinks {
  std::vector<BytesPerSecond> bandwidths;     // by folded link, in order of their first member
  std::vector<std::vector<LinkLoad>> loads;   // per flow, over folded links
};
FoldedLinks fold_links(std::span<const BytesPerSecond> bandwidths,
                       std::span<const std::vector<LinkLoad>> loads);

}  // namespace rehearse::engine
