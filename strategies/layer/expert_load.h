// How many slots (tokens at one of their experts) a rank of an expert layer sends and receives in one micro-batch: balanced,
// more for all of them by `imbalance`, at most the capacity, or what `routing` deals to its own experts.
// Leaves out how routing is drawn (routing.h) and how slots travel (expert_layer.h).
#pragma once

#include <cstdint>
#include <vector>

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

struct ExpertLoad {
  explicit ExpertLoad(const LowerContext& context);

  std::int64_t ranks = 1, tensor = 1, local = 1;   // expert-parallel and expert-tensor degrees, experts of each rank
  std::int64_t rows = 0;       // tokens of this rank
  std::int64_t sent = 0;       // slots of this rank's tokens
  std::int64_t received = 0;   // slots of this rank's experts
  std::int64_t fullest = 0;    // slots that the busiest rank of the group sends or receives; uneven only
  std::int64_t halfway = 0, fullest_halfway = 0;   // in two steps: slots between them, here and where they are most; uneven only
  double share = 0, visits_over_mean = 1;   // of all slots, here; tokens that visit the fullest rank over the mean
  std::vector<std::int64_t> rows_of;        // slots of each local expert; empty: all alike

  bool uneven() const { return !rows_of.empty(); }
  /// Tokens of all ranks that visit this one; each is counted once however many of its experts are here.
  std::int64_t visiting_tokens() const;

 private:
  void hold_own_share(const LowerContext& context);
  double chance_of_visit(double share) const;

  std::int64_t experts_ = 1, top_k_ = 1;
  bool round_robin_ = false;
};

}  // namespace rehearse::strategies
