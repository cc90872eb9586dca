// What a result means once its numbers are put together: utilisation, where the step went, who is fullest, why it fails.
// Leaves out every layout of them (text_writer.h, json_writer.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/scenario/simulate.h"

namespace rehearse::report {

using scenario::Result;
using scenario::Scenario;

/// Fractions of the dense peak of the precision used; 0 when there is no step time.
///   mfu        model FLOPs, attention over the causal half (what the mask leaves)
///   mfu_full   model FLOPs, attention over the whole square (PaLM appendix B, most frameworks' logs)
///   hfu        FLOPs that the kernels execute, recomputation included
struct Utilisation {
  double mfu = 0, mfu_full = 0, hfu = 0;
  double model_flops_per_second = 0, hardware_flops_per_second = 0;  // per GPU; model: causal half
};
Utilisation utilisation_of(const Result& result);

/// Seconds of one step by executor::Cause, which sum to the step.
///   critical   of the class that waits least
///   mean       over all ranks
struct StepAccount {
  std::array<double, executor::kCauses> critical{}, mean{};
};
StepAccount account_of(const Result& result);
/// The causes that took any time, by their mean, the longest first.
std::vector<std::size_t> causes_by_time(const StepAccount& account);
/// The cause in words: waiting for other ranks is a pipeline's bubble where there is one.
std::string label_of(executor::Cause cause, const Result& result);
/// "gemm" for files: the cause as an identifier.
std::string key_of(executor::Cause cause);

/// Device memory left on the class that uses most; negative when it does not fit.
Bytes headroom_of(const Scenario& scenario, const Result& result);
/// True when the class needs more than the GPU has.
bool lacks_memory(const Scenario& scenario, const scenario::ClassResult& rank_class);

/// Slots of the fullest expert rank over the mean of the ranks with the same layers; 1: no rank has more than another.
double expert_imbalance(const plan::Plan& plan);

/// "micro-batch 3, layer 31, backward" of a call in the step program; "setup (parameters and buffers)" for -1.
std::string moment_text(const plan::Plan& plan, std::size_t rank_class, std::int64_t call);

/// Expected relative error of the step time and of peak memory for scenarios like this one, from validated runs.
struct ErrorBand {
  std::optional<double> step_time, peak_memory;
  std::string basis;  // the runs it comes from, or why there is none
};
ErrorBand error_band_of(const Scenario& scenario);

/// What the numbers rest on: "GPU" -> "NVIDIA H100 SXM5 80 GB", in a fixed order, with the data file of each.
struct Foundation {
  std::string what, value, file;
};
std::vector<Foundation> foundations_of(const Scenario& scenario);

}  // namespace rehearse::report
