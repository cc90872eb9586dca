// Fits what work that runs at once costs the GPU: SMs lost to collectives, HBM shared, and how much of their own speed
// collectives and copies keep beside kernels. Leaves out what each takes alone (fit_kernels.h, fit_collectives.h, fit_copies.h).
#pragma once

#include "calibrate/fit/fit_kernels.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::calibrate {

/// Parameters at the end of hwmodels/device/kernel_parameters.h (gemm_late_tiles instead of collective_sm_weight where it is not 0), from pairs whose sides were also measured alone.
/// Predicted is the measured time alone over the rate that the executor gives the timed side (sim/executor/contention.h).
/// `gpu`: as fitted so far; what is found is put into its parameters. `cluster`: node and collectives as fitted so far; null
/// when no collective was measured.
FamilyFit fit_interference(const Observations& observations, hwmodels::Gpu& gpu, const hwmodels::ClusterDescription* cluster);

}  // namespace rehearse::calibrate
