// What cannot be of DeepSpeed's ZeRO and ZeRO++. Part of the rules (rules.cpp); an empty list: nothing stands against it.
#pragma once

#include <vector>

#include "sim/core/error.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

std::vector<Diagnostic> zero_problems(const Strategy& strategy, int gpus_per_node);

}  // namespace rehearse::strategies
