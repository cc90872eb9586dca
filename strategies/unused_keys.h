// What a strategy says that nothing in it asks for: told to the user, for no input is ignored in silence.
// Leaves out what cannot be (plan_writer.h, problems_of).
#pragma once

#include <string>
#include <vector>

#include "sim/model/description.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

struct UnusedKey {
  std::string key, why;
};

/// Keys with another value than their default that change nothing here. `given` is the profile before the strategy's choices.
std::vector<UnusedKey> unused_keys(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& given, int gpus_per_node);

}  // namespace rehearse::strategies
