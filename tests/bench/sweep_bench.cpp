// How fast a sweep goes: every point is read, planned and simulated as `rehearse sweep` does it, on one core.
// Bar (design, section 12): 1,000 scenarios/s/core on a typical sweep over 64 to 1,024 GPUs.
#include <benchmark/benchmark.h>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/core/freed_memory.h"
#include "sim/report/effective_config.h"
#include "sim/scenario/simulate.h"

namespace rehearse {
namespace {

using Axes = std::vector<std::pair<const char*, std::vector<const char*>>>;

const Axes kClusterAndSplit{{"cluster.nodes", {"8", "16", "32", "64", "128"}}, {"parallelism.tensor", {"1", "2", "4", "8"}}, {"parallelism.pipeline", {"1", "2", "4", "8"}}};

Axes with(Axes axes, const Axes& more) {
  axes.insert(axes.end(), more.begin(), more.end());
  return axes;
}

/// Points that are refused cost next to nothing and are not counted; about half of the others do not fit.
void sweep(benchmark::State& state, const char* text, const Axes& axes, bool shortcuts) {
  keep_freed_memory();   // as the command does
  const config::Value root = config::parse_document(text, "sweep.yaml").root;
  std::size_t points = 1;
  for (const auto& [key, values] : axes) points *= values.size();
  // Points in a fixed pseudo-random order, so that a short run sees all sizes.
  std::size_t next = 0;
  std::int64_t simulated = 0, instructions = 0;
  executor::MemoryCache memory;   // as the command has it
  for (auto _ : state) {
    for (bool done = false; !done;) {
      std::size_t point = next++ * 7919 % points;
      std::vector<std::string> overrides;
      for (const auto& [key, values] : axes) {
        overrides.push_back(std::string(key) + "=" + values[point % values.size()]);
        point /= values.size();
      }
      try {
        const scenario::Scenario s = scenario::read_scenario(config::apply_overrides(root, overrides), "sweep.yaml");
        const scenario::Result r = scenario::simulate(s, {.shortcuts = shortcuts, .memory_cache = shortcuts ? &memory : nullptr});
        benchmark::DoNotOptimize(report::hash_of(s).size());
        instructions += r.instructions;
        done = true;
      } catch (const ConfigError&) {  // an impossible combination is a point that costs nothing
      }
    }
    ++simulated;
  }
  state.SetItemsProcessed(simulated);
  state.counters["timing instructions"] = static_cast<double>(instructions) / static_cast<double>(simulated);  // per scenario
}

constexpr const char* kLlama70b =
    "model: llama-3-70b\n"
    "cluster: {node: dgx-h100, nodes: 8}\n"
    "training: {sequence_length: 8192, global_batch_size: 512, micro_batch_size: 1, precision: bf16, optimizer: adamw, framework: megatron-core}\n"
    "parallelism: {tensor: 8, pipeline: 4, sequence_parallel: true}\n"
    "data_parallel: {kind: distributed-optimizer}\n"
    "pipeline: {schedule: 1f1b}\n";
constexpr const char* kLlama8b =
    "model: llama-3-8b\n"
    "cluster: {node: dgx-h100, nodes: 8}\n"
    "training: {sequence_length: 8192, global_batch_size: 1024, micro_batch_size: 1, precision: bf16, optimizer: adamw, framework: torchtitan}\n"
    "data_parallel: {kind: fsdp2}\n";

const Axes kMegatron = with(kClusterAndSplit, {{"training.micro_batch_size", {"1", "2"}}, {"memory.recompute", {"none", "selective", "full"}}});
const Axes kFsdp{{"cluster.nodes", {"8", "16", "32", "64", "128"}}, {"training.micro_batch_size", {"1", "2", "4"}}, {"memory.recompute", {"none", "selective", "full"}}};

BENCHMARK_CAPTURE(sweep, llama3_70b_megatron, kLlama70b, kMegatron, true)->Unit(benchmark::kMillisecond)->Iterations(400);
BENCHMARK_CAPTURE(sweep, llama3_70b_megatron_no_shortcuts, kLlama70b, kMegatron, false)->Unit(benchmark::kMillisecond)->Iterations(100);
BENCHMARK_CAPTURE(sweep, llama3_8b_fsdp2, kLlama8b, kFsdp, true)->Unit(benchmark::kMillisecond)->Iterations(45);
BENCHMARK_CAPTURE(sweep, llama3_8b_fsdp2_no_shortcuts, kLlama8b, kFsdp, false)->Unit(benchmark::kMillisecond)->Iterations(45);

}  // namespace
}  // namespace rehearse
