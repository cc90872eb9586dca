// The names of the data-parallel strategies, as users write them.
#pragma once

#include "sim/core/catalog.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

const Catalog<DataParallelKind>& data_parallel_kinds();

}  // namespace rehearse::strategies
