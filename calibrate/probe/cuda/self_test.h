// Does the GPU compute what the probe believes to time? Compares its GEMM layouts and kernels with double arithmetic on the host.
#pragma once

#include <string>
#include <vector>

namespace rehearse::calibrate {

/// One line per check: "ok ..." or "WRONG ...". Opens the first GPU; throws NotPossible when there is none.
std::vector<std::string> self_test();

}  // namespace rehearse::calibrate
