// Attention whose sequence lies on several ranks (context parallelism): rings, gathered keys and values, all-to-alls of
// heads. Leaves out which of them a job uses (framework/profile.h) and which it may use (rules.cpp).
#pragma once

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

struct AttentionInputs {
  TensorId query, key, value;
};

/// Attention of `shape` (this rank's tokens, all heads of its tensor rank) over the tokens of the whole context group.
/// Precondition: the context-parallel degree is above 1 and rules.cpp has nothing against the kind.
TensorId context_attention(const LowerContext& context, Operators& op, Tape& tape, AttentionInputs in, AttentionShape shape);

}  // namespace rehearse::strategies
