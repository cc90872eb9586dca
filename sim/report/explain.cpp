// The list of stages, and those that only need the scenario.
#include "sim/report/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/model/describe.h"
#include "sim/report/effective_config.h"
#include "sim/report/format.h"
#include "sim/scenario/pass_times.h"
#include "strategies/pipeline/drawing.h"
#include "strategies/plan_writer.h"

namespace rehearse::report {

namespace st = strategies;

const Catalog<Stage>& stages() {
  const scenario::SimulateOptions nothing{.time = false, .memory = false};
  const scenario::SimulateOptions time{.time = true, .memory = false, .trace = true};
  const scenario::SimulateOptions memory{.time = false, .memory = true, .timeline = true};
  static const Catalog<Stage> list{"stage", {
      {"scenario", "the scenario with every default filled in, as YAML", {explain_scenario, nothing}},
      {"model", "shapes and parameters of the model", {explain_model, nothing}},
      {"layout", "how ranks are laid on nodes, and every process group", {explain_layout, nothing}},
      {"schedule", "the pipeline schedule, drawn", {explain_schedule, nothing}},
      {"plan", "the virtual CUDA program of each rank class", {explain_plan, nothing}},
      {"costs", "every distinct kernel, collective, copy and CPU work with its cost; the host thread by block", {explain_costs, nothing}},
      {"timeline", "what each stream did when", {explain_timeline, time}},
      {"memory", "memory over the step, and what is live at the peak", {explain_memory, memory}},
  }};
  return list;
}

std::string explain_scenario(const Scenario& s, const Result& r) {
  std::string text = config::to_yaml(effective_config(s));
  for (const std::string& note : r.notes) text += "# " + note + "\n";
  return text;
}

std::string explain_model(const Scenario& s, const Result&) {
  std::string text;
  for (const std::string& line : model::describe(s.model)) text += line + "\n";
  return text;
}

std::string explain_layout(const Scenario& s, const Result&) {
  const st::Degrees& d = s.strategy.parallelism.degrees;
  const std::string_view order = s.strategy.parallelism.order.empty() ? st::kMegatronOrder : std::string_view(s.strategy.parallelism.order);
  const st::Layout layout(d, s.strategy.parallelism.order);
  std::string text = wrapped("", fmt::format("{} = tensor {} x context {} x data {} x pipeline {}; order {} (fastest first); {} per node", counted(layout.world_size(), "rank"), d.tensor, d.context, d.data,
                                             d.pipeline, order, counted(s.cluster.gpus_per_node, "GPU")));
  if (d.replicate() > 1) text += fmt::format("data {} = {} replicas x {} shards\n", d.data, d.replicate(), d.shard());
  Table table({"Groups of rank 0", "ranks", "nodes", "per node", "side by side", "stride", "members"});
  table.left(6);
  for (int a = 0; a < static_cast<int>(st::Axis::count_); ++a) {
    const auto axis = static_cast<st::Axis>(a);
    if (layout.size_of(axis) <= 1) continue;
    const GroupShape g = layout.shape_of(axis, 0, s.cluster.gpus_per_node);
    const std::vector<st::Rank> members = layout.group_of(axis, 0);
    std::string list;
    for (std::size_t i = 0; i < members.size() && i < 5; ++i) list += (i == 0 ? "" : " ") + std::to_string(members[i]);
    if (members.size() > 5) list += fmt::format(" ... {}", members.back());
    table.add({"  " + std::string(name_of(axis)), std::to_string(g.ranks), std::to_string(g.nodes), std::to_string(g.ranks_per_node), std::to_string(g.groups_per_node),
               std::to_string(g.stride), list});
  }
  return table.empty() ? text + "no process group has more than one rank\n" : text + table.text(0);
}

/// What the letters of the drawing stand for, of those that it has.
std::string schedule_legend(const st::PipelineProgram& program) {
  const auto has = [&](st::ActionKind kind) {
    return std::any_of(program.ranks.begin(), program.ranks.end(), [&](const auto& rank) { return std::any_of(rank.begin(), rank.end(), [&](const st::Action& a) { return a.kind == kind; }); });
  };
  std::string text = "F forward of a micro-batch";
  if (has(st::ActionKind::backward)) text += ", B backward";
  if (has(st::ActionKind::backward_input)) text += ", I input gradients, W weight gradients";
  if (has(st::ActionKind::overlapped)) text += ", & the backward that runs beside the forward before it";
  if (program.virtual_stages > program.stages()) text += ", a b ... the rank's chunks";
  return wrapped("", text + ", - goes on, . idle");
}

std::string explain_schedule(const Scenario& s, const Result&) {
  const scenario::Scenario timed = scenario::wants_pass_times(s) ? scenario::with_pass_times(s) : s;
  const st::PipelineProgram program = st::schedule_of(timed.strategy);
  std::string text = fmt::format("{}: {}, {}{}\n", program.name, counted(program.stages(), "stage"), program.virtual_stages > program.stages() ? counted(program.virtual_stages, "virtual stage") + ", " : "", counted(program.micro_batches, "micro-batch", "micro-batches"));
  const st::PassTimes& times = timed.strategy.pipeline.times;
  for (std::size_t r = 0; r < times.forward.size(); ++r)
    text += fmt::format("stage {}: forward {:.3f} ms, input gradients {:.3f} ms, weight gradients {:.3f} ms\n", r, times.forward[r] * 1e-9, times.input_gradient[r] * 1e-9, times.weight_gradient[r] * 1e-9);
  return text + schedule_legend(program) + st::draw(program, {}, 200);
}

}  // namespace rehearse::report
