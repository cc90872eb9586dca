// How fast the GPUs of each pipeline stage are: no two are alike, and a stage waits for the slowest of its
// own. Leaves out what a pace does to a kernel (hwmodels/device/device_rates.h).
#pragma once

#include <vector>

#include "hwmodels/device/kernel_model.h"
#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

/// Seconds that a stage's kernels take in a step: with the slowest of as many GPUs as the stage has, of as
/// many as the job has.
struct StageSeconds {
  double own = 0, all = 0;
};

/// The pace of the stage that is busy longest, from which follows the mean of what the job waits for: every
/// stage has `gpus_per_stage` GPUs of speeds of their own, and the job waits in each micro-batch for the
/// stage that then takes longest. Stages of equal work wait for the slowest GPU of all; a stage that is far
/// busier than the others waits for its own. The quantile is expected_largest's. Precondition: no stage takes
/// less time at the slower pace.
hwmodels::Pace pace_of_busiest(const std::vector<StageSeconds>& stages, int gpus_per_stage);

/// By class of the plan; empty without stages. `kernels`: at the pace of the slowest of all GPUs. The other
/// stages, which the job waits for only while the pipeline fills and drains, have the pace of the slowest of
/// their own.
std::vector<hwmodels::Pace> paces_of(const Scenario& scenario, const plan::Plan& plan,
                                     const hwmodels::KernelModel& kernels);

}  // namespace rehearse::scenario
