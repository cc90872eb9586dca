// Every collective algorithm the program knows.
// Leaves out point-to-point traffic (direct.h), which NCCL schedules apart.
#pragma once

#include "hwmodels/collective/algorithm.h"
#include "sim/core/catalog.h"

namespace rehearse::hwmodels {

/// In NCCL's order: of two equally fast ones the tuner keeps the first.
const Catalog<const CollectiveAlgorithm*>& collective_algorithms();

}  // namespace rehearse::hwmodels
