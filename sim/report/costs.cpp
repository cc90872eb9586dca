#include "sim/report/costs.h"

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "sim/scenario/stage_paces.h"

namespace rehearse::report {

executor::CostTable costs_of(const scenario::Scenario& s, const plan::Plan& plan) {
  const hwmodels::KernelModel kernels(scenario::gpu_of(s), hwmodels::ClockState::sustained, hwmodels::pace_of_slowest(s.gpus()));
  const auto network = hwmodels::make_network(s.cluster, s.communication);
  return executor::price(plan, {kernels, *network, hwmodels::host_rates(s.cluster), s.profile.collective_sm_factor, scenario::paces_of(s, plan, kernels)});
}

Counts counts_of(const plan::Plan& plan, std::size_t rank_class) {
  std::vector<std::int64_t> calls(plan.blocks.size(), 0);
  for (const plan::Call& call : plan.classes[rank_class].program.step) ++calls[call.block];
  const auto none = [](const auto& specs) { return std::vector<std::int64_t>(specs.size(), 0); };
  Counts counts{none(plan.kernels), none(plan.collectives), none(plan.messages), none(plan.copies), none(plan.host_works)};
  for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
    if (calls[b] == 0) continue;
    for (const plan::Instruction& i : plan.blocks[b].timing) {
      if (i.op == plan::Opcode::kernel) counts.kernels[i.index] += calls[b];
      if (i.op == plan::Opcode::collective) counts.collectives[i.index] += calls[b];
      if (i.op == plan::Opcode::send || i.op == plan::Opcode::recv) counts.messages[i.index] += calls[b];
      if (i.op == plan::Opcode::copy) counts.copies[i.index] += calls[b];
      if (i.op == plan::Opcode::host_work) counts.host_works[i.index] += calls[b];
    }
  }
  return counts;
}

double extrapolated_share(const plan::Plan& plan, const executor::CostTable& costs, std::size_t rank_class) {
  const Counts counts = counts_of(plan, rank_class);
  double all = 0, outside = 0;
  for (std::size_t k = 0; k < plan.kernels.size(); ++k) {
    const double time = to_seconds(costs.kernel_cost(rank_class, k).duration) * static_cast<double>(counts.kernels[k]);
    all += time;
    if (costs.kernel_cost(rank_class, k).extrapolated) outside += time;
  }
  return all > 0 ? outside / all : 0;
}

}  // namespace rehearse::report
