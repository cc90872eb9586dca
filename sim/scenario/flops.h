// Operations of a step as MFU and HFU count them.
#pragma once

#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// Of one step and GPU, a multiply-add as two. How they are counted stands in the report's legend.
struct FlopCount {
  double model_causal = 0;       // forward and, in training, 2 x backward; attention over the causal half
  double model_full = 0;         // the same with the whole attention square (PaLM)
  double hardware = 0;           // what kernels of products, attention and scans execute, recomputation included
  double hardware_at_peak = 0;   // the same, operations in a format with a higher peak than the job's counted as the part of the job's peak that they can fill
};

FlopCount count_flops(const Scenario& s, const plan::Plan& plan);

}  // namespace rehearse::scenario
