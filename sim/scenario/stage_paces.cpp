#include "sim/scenario/stage_paces.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "strategies/layout.h"

namespace rehearse::scenario {
namespace {

/// Logarithm of the share of standard normal numbers that are at most `x`.
double log_share_below(double x) { return std::log(0.5 * std::erfc(-x / std::sqrt(2.0))); }

/// Seconds of each class's kernels in a step, one after the other.
std::vector<double> kernel_seconds(const plan::Plan& plan, const hwmodels::KernelModel& kernels) {
  std::vector<double> by_kernel, by_block, by_class;
  for (const model::KernelSpec& spec : plan.kernels)
    by_kernel.push_back(to_seconds(kernels.cost(spec).duration));
  for (const plan::Block& block : plan.blocks) {
    double sum = 0;
    for (const plan::Instruction& i : block.timing)
      if (i.op == plan::Opcode::kernel) sum += by_kernel[i.index];
    by_block.push_back(sum);
  }
  for (const plan::RankClass& c : plan.classes) {
    double sum = 0;
    for (const plan::Call& call : c.program.step) sum += by_block[call.block];
    by_class.push_back(sum);
  }
  return by_class;
}

}  // namespace

hwmodels::Pace pace_of_busiest(const std::vector<StageSeconds>& stages, int gpus_per_stage) {
  const int gpus = gpus_per_stage * static_cast<int>(stages.size());
  const double own = hwmodels::expected_largest(gpus_per_stage), all = hwmodels::expected_largest(gpus);
  const StageSeconds& busiest =
      *std::max_element(stages.begin(), stages.end(),
                        [](const StageSeconds& a, const StageSeconds& b) { return a.own < b.own; });
  // The share of jobs in which no stage takes longer than the busiest does at a pace.
  const auto log_share = [&](double pace) {
    const double seconds = busiest.own + (busiest.all - busiest.own) * (pace - own) / (all - own);
    double sum = 0;
    for (const StageSeconds& s : stages) {
      const double slowed = s.all - s.own;
      const double deviations = slowed > 0 ? own + (all - own) * (seconds - s.own) / slowed
                                           : std::numeric_limits<double>::infinity();
      sum += gpus_per_stage * log_share_below(deviations);
    }
    return sum;
  };
  const double wanted = gpus * log_share_below(all);
  double low = own, high = all;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (log_share(middle) < wanted ? low : high) = middle;
  }
  return {high};
}

std::vector<hwmodels::Pace> paces_of(const Scenario& s, const plan::Plan& plan,
                                     const hwmodels::KernelModel& kernels) {
  const strategies::Layout layout(s.strategy.parallelism.degrees, s.strategy.parallelism.order);
  const auto stages = static_cast<std::size_t>(s.strategy.parallelism.degrees.pipeline);
  if (stages <= 1) return {};
  const int gpus_per_stage = s.gpus() / static_cast<int>(stages);
  const hwmodels::Pace others = hwmodels::pace_of_slowest(gpus_per_stage);
  const std::vector<double> own = kernel_seconds(plan, kernels.at(others)),
                            all = kernel_seconds(plan, kernels);
  std::vector<StageSeconds> by_stage(stages);
  std::vector<std::size_t> stage_of;
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    StageSeconds& stage = by_stage[stage_of.emplace_back(
        static_cast<std::size_t>(layout.stage_of(plan.classes[c].representative)))];
    if (own[c] > stage.own) stage = {own[c], all[c]};
  }
  const auto busiest = static_cast<std::size_t>(
      std::max_element(by_stage.begin(), by_stage.end(),
                       [](const StageSeconds& a, const StageSeconds& b) { return a.own < b.own; }) -
      by_stage.begin());
  const hwmodels::Pace slowest = pace_of_busiest(by_stage, gpus_per_stage);
  std::vector<hwmodels::Pace> paces;
  for (const std::size_t stage : stage_of) paces.push_back(stage == busiest ? slowest : others);
  return paces;
}

}  // namespace rehearse::scenario
