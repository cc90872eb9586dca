// Folding equal ranks into one class is exact: every rank simulated alone gives the same numbers to the bit.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario {
namespace {

struct Case {
  const char* name;
  const char* text;
  const char* model = "{layers: 8, hidden: 512, heads: 8, vocab: 32000}";
};

constexpr const char* kMixture = "{layers: 8, hidden: 512, heads: 8, vocab: 32000, experts: {count: 8, top_k: 2, ffn_hidden: 512}}";

const Case kCases[] = {
    {"data parallel", "parallelism: {}\ndata_parallel: {kind: ddp}"},
    {"FSDP over two nodes", "parallelism: {}\ndata_parallel: {kind: fsdp2}"},
    {"tensor and sequence", "parallelism: {tensor: 4, sequence_parallel: true}\ndata_parallel: {kind: ddp}"},
    {"pipeline", "parallelism: {pipeline: 4}\ndata_parallel: {kind: zero1}"},
    {"three axes", "parallelism: {tensor: 2, pipeline: 2, sequence_parallel: true}\ndata_parallel: {kind: zero1}"},
    {"interleaved", "parallelism: {tensor: 2, pipeline: 2}\npipeline: {schedule: interleaved-1f1b, virtual_stages: 2}\ndata_parallel: {kind: ddp}"},
    {"zero bubble", "parallelism: {pipeline: 4}\npipeline: {schedule: zb-h2, post_validation: true}\ndata_parallel: {kind: zero1}"},
    {"zero bubble in a V", "parallelism: {tensor: 2, pipeline: 2}\npipeline: {schedule: zb-v}\ndata_parallel: {kind: fsdp2}"},
    {"both directions", "parallelism: {tensor: 2, pipeline: 2}\npipeline: {schedule: dualpipe}\ndata_parallel: {kind: zero1}"},
    {"both directions in a V", "parallelism: {pipeline: 4}\npipeline: {schedule: dualpipev}\ndata_parallel: {kind: ddp}"},
    {"hybrid sharding", "parallelism: {data_shard: 2}\ndata_parallel: {kind: fsdp2}"},
    {"experts", "parallelism: {expert: 4}\ndata_parallel: {kind: zero1}", kMixture},
    {"experts over nodes", "parallelism: {expert: 8}\nexperts: {dispatcher: deepep}\ndata_parallel: {kind: fsdp2}", kMixture},
    {"experts, tensor and pipeline", "parallelism: {tensor: 2, pipeline: 2, expert: 2, expert_tensor: 2, sequence_parallel: true}\ndata_parallel: {kind: ddp}", kMixture},
};

Scenario scenario_of(const Case& c) {
  const std::string text = std::string("model: ") + c.model + "\n"
                                       "cluster: {node: dgx-h100, nodes: 2, gpus_per_node: 4}\n"
                                       "training: {sequence_length: 1024, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: torchtitan}\n" +
                           c.text + "\n";
  return read_scenario(config::parse_document(text, "folding.yaml").root, "folding.yaml");
}

TEST(Folding, EveryRankAloneGivesTheSameNumbersToTheBit) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Scenario scenario = scenario_of(c);
    const Result folded = simulate(scenario), unfolded = simulate(scenario, {.unfold = true});
    ASSERT_EQ(folded.deadlock, "");
    ASSERT_EQ(unfolded.deadlock, "");
    ASSERT_EQ(unfolded.classes.size(), static_cast<std::size_t>(scenario.gpus()));
    EXPECT_EQ(folded.step_time, unfolded.step_time);
    // Ranks of one stage follow each other in the usual order: rank r is of stage r * stages / world.
    for (std::size_t r = 0; r < unfolded.classes.size(); ++r) {
      const ClassResult& one = unfolded.classes[r];
      const ClassResult& whole = folded.classes[r * folded.classes.size() / unfolded.classes.size()];
      EXPECT_EQ(one.memory.peak_allocated, whole.memory.peak_allocated);
      EXPECT_EQ(one.memory.peak_reserved, whole.memory.peak_reserved);
      EXPECT_EQ(one.timing.busy, whole.timing.busy);
    }
  }
}

}  // namespace
}  // namespace rehearse::scenario
