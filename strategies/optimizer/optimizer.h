// What an optimizer keeps for each weight and does in a step beyond one pass over parameters, gradients and states.
// Leaves out how states are sharded (data/) and where they wait (data/optimizer_offload.cpp).
#pragma once

#include <string>
#include <vector>

#include "sim/core/catalog.h"
#include "strategies/layer/tape.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

const Catalog<Optimizer>& optimizers();

/// Moments kept in the optimizer's own format (0 where they have another shape or format).
int moments_of(Optimizer optimizer);

/// Whether states have one value per parameter, so that they can be flattened and cut anywhere.
bool states_are_elementwise(Optimizer optimizer);

/// Bytes of one weight's states, without an fp32 copy of the weight. `moment`: bytes of a value of an elementwise moment.
std::int64_t state_bytes(const Weight& weight, Optimizer optimizer, std::int64_t moment);

/// How many tensors they are.
int state_tensors(const Weight& weight, Optimizer optimizer);

/// Muon: matrices of layers are orthogonalised, the rest has Adam.
bool is_orthogonalised(const Weight& weight);

/// What torch.optim's foreach form moves of what one fused pass does; 1 for optimizers that are one kernel of their own.
double foreach_passes(Optimizer optimizer);

/// Passes over memory of one step, bytes per element: read and written beyond what `elementwise` optimizers move.
struct ExtraTraffic {
  std::int64_t read = 0, written = 0;
  std::int64_t temporary = 0;          // bytes per element of the largest weight
};
ExtraTraffic extra_traffic(Optimizer optimizer);

}  // namespace rehearse::strategies
