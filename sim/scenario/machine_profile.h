// A scenario's framework on its machines: which kernels the GPUs give it, what the host's speed makes of its times, and the network that its
// collectives go through. Leaves out what depends on the plan (simulate.cpp).
#pragma once

#include <memory>

#include "hwmodels/network/network.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// The scenario's profile with the attention kernel, workspaces and formats that its GPUs take, and host times at its CPUs' speed.
strategies::FrameworkProfile profile_on_machine(const Scenario& s);

std::unique_ptr<hwmodels::Network> network_of(const Scenario& s);

}  // namespace rehearse::scenario
