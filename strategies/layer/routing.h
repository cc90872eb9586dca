// How many slots (tokens at one of their experts) each expert of a layer gets from one rank: the router's choices as a seeded
// distribution. Every rank and micro-batch chooses alike, so ranks differ by the experts they hold and by nothing else.
// Leaves out tokens as such and the noise between micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/model/description.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Share of all slots that each expert of `layer` gets, in the order of experts; they sum to 1 and none is above 1 / top_k,
/// since a token chooses an expert at most once.
std::vector<double> expert_shares(const Routing& routing, const model::Experts& experts, int layer);

/// Slots of `tokens` tokens of one rank. Without a capacity they sum to tokens * top_k.
///   capacity_factor   an expert takes at most ceil(mean * factor) of them (0: all)
std::vector<std::int64_t> expert_slots(const Routing& routing, const model::Experts& experts, int layer, std::int64_t tokens, double capacity_factor);

/// The layer's load as `ranks` equal sets of experts see it.
struct RankLoads {
  std::int64_t sent = 0;                // slots that leave each rank
  std::vector<std::int64_t> received;   // slots for each rank's experts from all of them
  std::int64_t fullest() const;
};
RankLoads rank_loads(const std::vector<std::int64_t>& slots, int ranks);

}  // namespace rehearse::strategies
