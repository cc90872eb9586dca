// The fit of one GPU as files that `gpu: ./my-gpu.yaml` reads: the GPU's own file with fitted kernel parameters, and the table
// of measured kernels beside it. Leaves out writing to disk (sim/cli/calibrate_fit.cpp).
#pragma once

#include <string>

#include "calibrate/fit/fit_copies.h"
#include "calibrate/fit/fit_kernels.h"

namespace rehearse::calibrate {

/// The base's file with every fitted value in its place, source and standard error beside it. `origin` is what the sources
/// say: who measured what, when, with which versions. `points_file`: name of the table beside it; "" = none.
std::string gpu_yaml(const KernelFit& fit, const std::vector<LinearFit>& copies, const std::string& origin, const std::string& points_file);

}  // namespace rehearse::calibrate
