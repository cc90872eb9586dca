// How fast a whole scenario is simulated: plan, costs, time and memory, as `run` and `sweep` do it.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "sim/config/document.h"
#include "sim/executor/costs.h"
#include "sim/executor/timing.h"
#include "sim/scenario/simulate.h"
#include "strategies/plan_writer.h"
#include "tests/support/source_dir.h"

namespace rehearse {
namespace {

scenario::Scenario load(const char* name) { return scenario::load_scenario(source_dir().string() + "/scenarios/" + name); }

void one_step(benchmark::State& state, const char* name) {
  const scenario::Scenario s = load(name);
  std::int64_t instructions = 0;
  for (auto _ : state) {
    const scenario::Result r = scenario::simulate(s);
    benchmark::DoNotOptimize(r.step_time);
    instructions += r.instructions;
  }
  state.counters["timing instructions/s"] = benchmark::Counter(static_cast<double>(instructions), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(one_step, llama3_8b_on_8_gpus, "llama3_8b_8xh100.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_step, llama3_405b_on_16384_gpus, "llama3_405b_16384xh100.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_step, deepseek_v3_on_2048_gpus, "deepseek_v3_2048xh800.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_step, four_million_tokens_on_8_gpus, "llama3_8b_4m_tokens_8xa100.yaml")->Unit(benchmark::kMillisecond);

/// The executor alone: host thread, streams, events and contention of a plan that is already priced.
void executor_alone(benchmark::State& state, const char* name, bool shortcuts) {
  const scenario::Scenario s = load(name);
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  const auto network = hwmodels::make_network(s.cluster, s.communication);
  const hwmodels::KernelModel kernels(s.cluster.gpu);
  const executor::CostTable costs = executor::price(plan, {kernels, *network});
  std::int64_t instructions = 0;
  for (auto _ : state) {
    const executor::TimingResult r = executor::run_timing(plan, costs, {.shortcuts = shortcuts});
    benchmark::DoNotOptimize(r.step);
    instructions += r.instructions;
  }
  state.counters["timing instructions/s"] = benchmark::Counter(static_cast<double>(instructions), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(executor_alone, llama3_8b_on_8_gpus, "llama3_8b_8xh100.yaml", true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, llama3_8b_on_8_gpus_no_shortcuts, "llama3_8b_8xh100.yaml", false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, llama3_405b_on_16384_gpus, "llama3_405b_16384xh100.yaml", true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, llama3_405b_on_16384_gpus_no_shortcuts, "llama3_405b_16384xh100.yaml", false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, deepseek_v3_on_2048_gpus, "deepseek_v3_2048xh800.yaml", true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, four_million_tokens_on_8_gpus, "llama3_8b_4m_tokens_8xa100.yaml", true)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(executor_alone, four_million_tokens_on_8_gpus_no_shortcuts, "llama3_8b_4m_tokens_8xa100.yaml", false)->Unit(benchmark::kMillisecond);

void write_plan(benchmark::State& state, const char* name) {
  const scenario::Scenario s = load(name);
  for (auto _ : state) benchmark::DoNotOptimize(strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node).blocks.size());
}
BENCHMARK_CAPTURE(write_plan, llama3_8b_on_8_gpus, "llama3_8b_8xh100.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_plan, llama3_405b_on_16384_gpus, "llama3_405b_16384xh100.yaml")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(write_plan, deepseek_v3_on_2048_gpus, "deepseek_v3_2048xh800.yaml")->Unit(benchmark::kMillisecond);

/// Every rank by itself: 1,024 programs that meet in their collectives. About a million timing instructions in two steps.
void unfolded_1024(benchmark::State& state) {
  const char* text =
      "model: {layers: 8, hidden: 4096, heads: 32, vocab: 32000}\n"
      "cluster: {node: dgx-h100, nodes: 128}\n"
      "training: {sequence_length: 2048, global_batch_size: 128, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "parallelism: {tensor: 8, pipeline: 4, sequence_parallel: true}\n"
      "data_parallel: {kind: distributed-optimizer}\n";
  const scenario::Scenario s = scenario::read_scenario(config::parse_document(text, "unfolded.yaml").root, "unfolded.yaml");
  std::int64_t instructions = 0;
  for (auto _ : state) {
    const scenario::Result r = scenario::simulate(s, {.memory = false, .unfold = true});
    benchmark::DoNotOptimize(r.step_time);
    instructions = r.instructions;
  }
  state.counters["timing instructions"] = static_cast<double>(instructions);
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  state.counters["most memory, MB"] = static_cast<double>(used.ru_maxrss) * 1024e-6;  // of the process so far: run it alone
}
BENCHMARK(unfolded_1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rehearse
