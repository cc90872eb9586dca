// Shortcuts change no number: full execution is their oracle, here on jobs of real size (combinations_test.cpp has the
// small ones of every kind). And they are worth having: most of the work is not done twice.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/executor/costs.h"
#include "strategies/plan_writer.h"
#include "tests/support/same_result.h"
#include "tests/support/source_dir.h"

namespace rehearse::shortcuts_test {
namespace {

scenario::Scenario job(const std::string& changes) {
  const char* text =
      "model: {layers: 8, hidden: 4096, heads: 32, kv_heads: 8, ffn_hidden: 14336, vocab: 32000}\n"
      "cluster: {node: dgx-h100, nodes: 2}\n"
      "training: {sequence_length: 2048, global_batch_size: 128, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "parallelism: {tensor: 2, pipeline: 2, sequence_parallel: true}\n"
      "data_parallel: {kind: distributed-optimizer}\n"
      "pipeline: {schedule: 1f1b}\n"
      "memory: {recompute: none}\n";
  std::vector<std::string> overrides;
  for (std::size_t at = 0; at < changes.size();) {
    const std::size_t end = std::min(changes.find(' ', at), changes.size());
    overrides.push_back(changes.substr(at, end - at));
    at = end + 1;
  }
  return scenario::read_scenario(config::apply_overrides(config::parse_document(text, "job.yaml").root, overrides), "job.yaml");
}

struct Share {
  double time = 0, memory = 0;   // of instructions and operations that were not executed
  std::int64_t again = 0;        // stretches of micro-batches that were counted
};

Share compare(const scenario::Scenario& s) {
  const scenario::Result full = scenario::simulate(s, {.shortcuts = false});
  const scenario::Result quick = scenario::simulate(s);
  test_support::expect_same(full, quick);
  double operations = 0, repeated = 0;
  for (const scenario::ClassResult& c : quick.classes) {
    operations += static_cast<double>(c.memory.operations);
    repeated += static_cast<double>(c.memory.repeated);
  }
  for (const scenario::ClassResult& c : full.classes) EXPECT_EQ(c.memory.repeated, 0);
  const auto network = hwmodels::make_network(s.cluster, s.communication);
  const hwmodels::KernelModel kernels(s.cluster.gpu);
  const executor::TimingResult t = executor::run_timing(quick.plan, executor::price(quick.plan, {kernels, *network}));
  return {static_cast<double>(t.replayed) / static_cast<double>(t.instructions), repeated / operations, t.again};
}

TEST(Shortcuts, BundledScenariosAreTheSameToTheBit) {
  for (const char* name : {"llama3_8b_8xh100.yaml", "llama3_405b_16384xh100.yaml"}) {
    SCOPED_TRACE(name);
    compare(scenario::load_scenario(source_dir().string() + "/scenarios/" + name));
  }
}

TEST(Shortcuts, JobsOfEveryKindAreTheSameToTheBit) {
  for (const char* changes :
       {"", "memory.recompute=full", "memory.recompute=selective", "parallelism.tensor=8", "parallelism.pipeline=8 parallelism.tensor=1 parallelism.sequence_parallel=false",
        "pipeline.schedule=interleaved-1f1b pipeline.virtual_stages=2", "pipeline.schedule=gpipe", "parallelism.pipeline=1", "parallelism.pipeline=1 data_parallel.kind=ddp",
        "parallelism.pipeline=1 parallelism.tensor=1 parallelism.sequence_parallel=false data_parallel.kind=fsdp2 training.framework=torchtitan",
        "parallelism.pipeline=1 parallelism.tensor=1 parallelism.sequence_parallel=false data_parallel.kind=zero3 training.framework=deepspeed",
        "data_parallel.kind=ddp training.framework=nanotron", "training.global_batch_size=8", "cluster.nodes=1 cluster.gpu=h100-pcie"}) {
    SCOPED_TRACE(changes);
    compare(job(changes));
  }
}

// Hosts wait for each micro-batch's messages, then run hundreds of kernels ahead.
TEST(Shortcuts, ExpertsInPipelinesFindTheirRhythm) {
  const std::string file = source_dir().string() + "/scenarios/deepseek_v3_2048xh800.yaml";
  for (const char* change : {"memory.recompute=full", "pipeline.schedule=1f1b"}) {
    SCOPED_TRACE(change);
    EXPECT_GT(compare(scenario::read_scenario(config::apply_overrides(config::load_layered(file), {change}), file)).again, 40);   // of 120 micro-batches in each of two steps
  }
}

// The host thread waits for each chunk: between two such waits a layer does the same each time. Micro-batches have a rhythm instead.
TEST(Shortcuts, LayersOfChunksAreMeasuredOnce) {
  const std::string file = source_dir().string() + "/scenarios/llama3_8b_4m_tokens_8xa100.yaml";
  for (const auto& [change, share] : {std::pair{"training.global_batch_size=1", 0.5}, {"memory.offload.activations=none", 0.5}, {"training.global_batch_size=4", -1.0}}) {
    SCOPED_TRACE(change);
    EXPECT_GT(compare(scenario::read_scenario(config::apply_overrides(config::load_layered(file), {"training.sequence_length=524288", change}), file)).time, share);
  }
}

// Kernels bound these jobs, not the launching host: blocks that a host is late for are not replayed.
// One stage: the second micro-batch finds the allocator as the first left it, and nearly all blocks run by themselves.
TEST(Shortcuts, MostWorkOfManyMicroBatchesIsNotDoneTwice) {
  const Share share = compare(job("parallelism.pipeline=1 parallelism.tensor=8 training.global_batch_size=256 training.framework=plain"));
  EXPECT_GT(share.time, 0.9);
  EXPECT_GT(share.memory, 0.9);
}

// In a pipeline with tensor collectives, messages cross nodes and leave the collectives inside them alone.
TEST(Shortcuts, BlocksBesideMessagesAreReplayed) { EXPECT_GT(compare(job("parallelism.tensor=8 training.framework=plain")).time, 0.8); }

// A memory limit that is just missed is missed in the same call.
TEST(Shortcuts, OutOfMemoryHappensAtTheSamePlace) {
  const scenario::Scenario s = job("parallelism.pipeline=1 parallelism.tensor=8 training.global_batch_size=256");
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  executor::MemoryOptions options;
  options.allocator.limit = 80_GiB;
  const Bytes needed = executor::run_memory(plan, 0, options).peak_reserved;
  int failed = 0;
  for (int percent = 50; percent <= 100; percent += 5) {
    options.allocator.limit = Bytes{needed.value / 100 * percent};
    options.shortcuts = true;
    const executor::ClassMemory quick = executor::run_memory(plan, 0, options);
    options.shortcuts = false;
    const executor::ClassMemory full = executor::run_memory(plan, 0, options);
    EXPECT_EQ(quick.out_of_memory.has_value(), full.out_of_memory.has_value()) << percent;
    EXPECT_EQ(quick.failed_call, full.failed_call);
    EXPECT_EQ(quick.failed_step, full.failed_step);
    EXPECT_EQ(quick.peak_reserved, full.peak_reserved);
    failed += full.out_of_memory.has_value() ? 1 : 0;
  }
  EXPECT_GT(failed, 3);
}

}  // namespace
}  // namespace rehearse::shortcuts_test
