// What a collective is, apart from how it is carried out: its kind and the shape of the group that runs it.
// Plans write these; hwmodels say what they cost.
#pragma once

#include <cstdint>
#include <numeric>
#include <string_view>

namespace rehearse {

enum class CollectiveKind : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send_recv, scatter, gather };

constexpr std::string_view name_of(CollectiveKind k) {
  switch (k) {
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::all_to_all: return "all_to_all";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::reduce: return "reduce";
    case CollectiveKind::send_recv: return "send_recv";
    case CollectiveKind::scatter: return "scatter";
    case CollectiveKind::gather: return "gather";
  }
  return "?";
}

/// How one communicator lies on the machines, and how many like it run at the same moment.
///   ranks              members; 1 costs nothing
///   nodes              nodes that hold a member
///   ranks_per_node     members on one node (the largest number where it is uneven)
///   groups_per_node    communicators of the same axis that share a node, this one included: they share its NICs
///   stride             distance between neighbouring members in local GPU numbers (1 = adjacent GPUs)
///   node_stride        distance between neighbouring member nodes, in nodes
struct GroupShape {
  int ranks = 1;
  int nodes = 1;
  int ranks_per_node = 1;
  int groups_per_node = 1;
  int stride = 1;
  int node_stride = 1;
  friend bool operator==(const GroupShape&, const GroupShape&) = default;
};

/// An exchange of tokens with the ranks of their experts by kernels that send a token once to each place (DeepEP, HybridEP):
/// each token goes to `choices` of `places` experts, spread evenly over the group. Where these come in equal `groups` of
/// neighbours, they are of at most `group_limit` of them (DeepSeek-V3's n_group and topk_group; 0: of any). `round_robin`: of any,
/// and token after token takes the next `choices` experts in their order, as gates do that only measure.
struct TokenExchange {
  std::uint16_t choices = 0, places = 0, groups = 0, group_limit = 0;
  std::uint32_t token_bytes = 0;  // of one token
  bool home = false;              // on the way back, where the copies of a token are summed
  bool bulk = false;              // HybridEP: bulk copies, which keep links busy with few SMs; else warps copy token by token
  bool round_robin = false;       // a token's experts are neighbours
  bool weights = false;           // bulk: with each token goes a weight in fp32 for every expert of the NVLink domain, chosen or not
  std::uint16_t sms = 0;          // that the kernel holds; 0: what its library takes
  friend bool operator==(const TokenExchange&, const TokenExchange&) = default;
};

/// Of `groups` equal parts of `places`, how many does a token visit on average that chooses `choices` different places with
/// equal chance? groups x (1 - C(places - places/groups, choices) / C(places, choices)).
constexpr double places_visited(std::int64_t places, std::int64_t choices, std::int64_t groups) {
  if (groups <= 1) return 1;
  const std::int64_t part = places / groups;
  double missed = 1;
  for (std::int64_t i = 0; i < choices; ++i) missed *= places - i > 0 ? static_cast<double>(places - part - i > 0 ? places - part - i : 0) / static_cast<double>(places - i) : 0;
  return static_cast<double>(groups) * (1 - missed);
}

/// The same where token after token takes the next `choices` places in their order, and after the last the first again: exact, as
/// the mean over all places where a token can begin.
constexpr double places_in_turn(std::int64_t places, std::int64_t choices, std::int64_t groups) {
  if (groups <= 1 || choices < 1) return 1;
  const std::int64_t part = places > groups ? places / groups : 1, begins = places / std::gcd(places, choices);
  std::int64_t visited = 0;
  for (std::int64_t i = 0; i < begins; ++i) {
    const std::int64_t first = i * choices % places, parts = (first + choices - 1) / part - first / part + 1;
    visited += parts < groups ? parts : groups;
  }
  return static_cast<double>(visited) / static_cast<double>(begins);
}

/// The same of either kind of exchange, without a limit of groups.
constexpr double places_visited(const TokenExchange& exchange, std::int64_t groups) {
  return exchange.round_robin ? places_in_turn(exchange.places, exchange.choices, groups) : places_visited(exchange.places, exchange.choices, groups);
}

/// The same of an exchange whose tokens may be limited to some groups of experts: of `parts` equal parts of the experts.
///   several parts to a group    in each group that it visits, the token spreads its share of the choices over the group's parts
///   several groups to a part    the parts that hold the chosen groups, as if each got a choice
constexpr double parts_visited(const TokenExchange& exchange, std::int64_t parts) {
  const std::int64_t groups = exchange.groups, limit = exchange.group_limit < exchange.choices ? exchange.group_limit : exchange.choices;
  const double free = places_visited(exchange, parts);
  if (exchange.round_robin || groups < 2 || limit < 1 || limit >= groups || parts < 2) return free;
  double limited = static_cast<double>(limit);
  if (parts % groups == 0) limited *= places_visited(exchange.places / groups, (exchange.choices + limit - 1) / limit, parts / groups);
  else if (groups % parts == 0) limited = places_visited(groups, limit, parts);
  return limited < free ? limited : free;
}

}  // namespace rehearse
