// How many slots (tokens at one of their experts) each expert of a layer gets from one rank: the router's choices as a seeded
// distribution. Every rank chooses alike, so ranks differ by the experts they hold and by nothing else; micro-batches may differ.
// Leaves out tokens as such.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/model/description.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Which of a step's routings: a layer's, in one of the micro-batches that are drawn (0 and on; spec.h, routing_draws).
struct RoutingDraw {
  int layer = 0, batch = 0;
};

/// Share of all slots that each expert gets, in the order of experts; they sum to 1 and none is above 1 / top_k, since a
/// token chooses an expert at most once. With a `batch_concentration` a micro-batch's shares are a Dirichlet draw around the
/// layer's: each varies by about 1 / sqrt(batch_concentration) of the mean share.
std::vector<double> expert_shares(const Routing& routing, const model::Experts& experts, RoutingDraw draw);

/// Slots of `tokens` tokens of one rank. Without a capacity they sum to tokens * top_k.
///   capacity_factor   an expert takes at most ceil(mean * factor) of them (0: all)
std::vector<std::int64_t> expert_slots(const Routing& routing, const model::Experts& experts, RoutingDraw draw, std::int64_t tokens, double capacity_factor);

/// The layer's load as `ranks` equal sets of experts see it.
struct RankLoads {
  std::int64_t sent = 0;                // slots that leave each rank
  std::vector<std::int64_t> received;   // slots for each rank's experts from all of them
  std::int64_t fullest() const;
};
RankLoads rank_loads(const std::vector<std::int64_t>& slots, int ranks);

}  // namespace rehearse::strategies
