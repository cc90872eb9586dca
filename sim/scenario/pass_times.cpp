#include "sim/scenario/pass_times.h"

#include <algorithm>
#include <utility>

#include "sim/executor/costs.h"
#include "sim/scenario/machine_profile.h"
#include "sim/scenario/simulate.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// Time of one micro-batch's calls of a phase on a class, picoseconds.
double time_of(const plan::Plan& plan, const executor::CostTable& costs, std::size_t c, plan::Phase phase) {
  std::int64_t sum = 0;
  for (const plan::Call& call : plan.classes[c].program.step) {
    if (call.micro_batch != 0 || call.phase != phase) continue;
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::kernel) sum += costs.kernel(c, i.index).duration;
      if (i.op == plan::Opcode::collective && (i.flags & plan::kComputeWaits) != 0) sum += costs.collectives[c][i.index].duration;
    }
  }
  return static_cast<double>(sum);
}

/// What one micro-batch holds after its input gradients, relative to what it held after its forward.
double kept_for_weights(const plan::Plan& plan, std::size_t c) {
  struct Slot {
    std::int64_t bytes = 0;
    bool counted = false;
  };
  std::vector<Slot> slots(plan.classes[c].program.slots);
  std::int64_t live = 0, after_forward = 0, after_input = 0;
  for (const plan::Call& call : plan.classes[c].program.step) {
    for (const plan::Instruction& i : plan.blocks[call.block].memory) {
      if (i.op == plan::Opcode::alloc_once) continue;
      Slot& slot = slots[call.frames[static_cast<std::size_t>(i.frame)] + i.index];
      if (i.op == plan::Opcode::alloc) {
        const auto category = static_cast<plan::Category>(i.flags);
        slot = {i.value, call.micro_batch == 0 && (category == plan::Category::activation || category == plan::Category::temporary)};
        live += slot.counted ? slot.bytes : 0;
      } else if (i.op == plan::Opcode::free) {
        live -= slot.counted ? slot.bytes : 0;
        slot = {};
      } else if (i.op == plan::Opcode::move) {
        Slot& from = slots[call.frames[static_cast<std::size_t>(i.frame)] + static_cast<std::uint32_t>(i.value)];
        if (&from != &slot) slot = std::exchange(from, {});
      }
    }
    if (call.micro_batch != 0) continue;
    if (call.phase == plan::Phase::forward) after_forward = live;
    if (call.phase == plan::Phase::backward) after_input = live;
  }
  return after_forward <= 0 ? 0 : std::clamp(static_cast<double>(after_input) / static_cast<double>(after_forward), 0.0, 1.0);
}

}  // namespace

bool wants_pass_times(const Scenario& s) {
  const st::PipelineSchedule* schedule = st::kPipelineSchedules.find(s.strategy.pipeline.schedule);
  return schedule != nullptr && schedule->searched && s.strategy.parallelism.degrees.pipeline > 1 && s.strategy.pipeline.times.forward.empty();
}

Scenario with_pass_times(const Scenario& given) {
  Scenario s = given;
  st::Strategy trial = given.strategy;  // a few micro-batches in an order that needs no times
  trial.pipeline.schedule = "zb-h1";
  trial.experts.routing = {};  // one time per stage: that of ranks with the mean load
  trial.training.global_batch_size = trial.training.micro_batch_size * trial.parallelism.degrees.data * trial.parallelism.degrees.pipeline;
  const plan::Plan plan = st::write_plan(s.model, trial, profile_on_machine(s), s.cluster.gpus_per_node);
  const auto network = network_of(s);
  const hwmodels::KernelModel kernels(gpu_of(s));
  const executor::CostTable costs = executor::price(plan, {kernels, *network, hwmodels::host_rates(s.cluster), s.profile.collective_sm_factor});
  st::PassTimes& times = s.strategy.pipeline.times;
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    times.forward.push_back(time_of(plan, costs, c, plan::Phase::forward));
    times.input_gradient.push_back(time_of(plan, costs, c, plan::Phase::backward));
    times.weight_gradient.push_back(time_of(plan, costs, c, plan::Phase::weight_gradient));
    for (const executor::Priced& message : costs.messages[c]) times.message = std::max(times.message, static_cast<double>(message.duration));
  }
  times.kept_for_weights = kept_for_weights(plan, plan.classes.size() / 2);
  return s;
}

}  // namespace rehearse::scenario
