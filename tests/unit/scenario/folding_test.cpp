// Folding equal ranks into one class is exact: every rank simulated alone gives the same numbers to the bit.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::folding_test {
namespace {

struct Case {
  const char* name;
  const char* text;
  const char* model = "{layers: 8, hidden: 512, heads: 8, vocab: 32000}";
  const char* framework = "torchtitan";
};

constexpr const char* kDense = "{layers: 8, hidden: 512, heads: 8, vocab: 32000}";
constexpr const char* kGrouped = "{layers: 8, hidden: 512, heads: 8, kv_heads: 2, vocab: 32000}";
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
    {"experts in two steps", "parallelism: {expert: 8}\nexperts: {dispatcher: hierarchical}\ndata_parallel: {kind: fsdp2}", kMixture},
    {"ZeRO++", "parallelism: {}\ndata_parallel: {kind: zero3, quantized_weights: true, secondary_partition: 4, quantized_gradients: true, persistence_threshold: 1000}", kDense, "deepspeed"},
    {"shards in replicas", "parallelism: {data_shard: 4}\ndata_parallel: {kind: zero3, sub_group: 100000}", kDense, "deepspeed"},
    {"ring over two nodes", "parallelism: {context: 8, context_kind: ring}\ndata_parallel: {kind: ddp}"},
    {"gathered keys", "parallelism: {context: 4}\ndata_parallel: {kind: fsdp2}"},
    {"Transformer Engine's ring in a pipeline", "parallelism: {context: 2, context_kind: p2p, tensor: 2, pipeline: 2}\ndata_parallel: {kind: zero1}", kDense, "megatron-core"},
    {"Transformer Engine's all-gather", "parallelism: {context: 8, context_kind: all_gather}\ndata_parallel: {kind: ddp}", kDense, "megatron-core"},
    {"ulysses", "parallelism: {context: 4, context_kind: a2a}\ndata_parallel: {kind: zero1}", kDense, "megatron-core"},
    {"ulysses with copies", "parallelism: {context: 4}\ndata_parallel: {kind: zero2}", kGrouped, "deepspeed"},
    {"ulysses inside nodes, rings between", "parallelism: {context: 8, context_kind: a2a+p2p, context_ulysses: 4}\ndata_parallel: {kind: ddp}", kDense, "megatron-core"},
    {"uneven experts", "parallelism: {expert: 4}\nexperts: {routing: {distribution: zipf, skew: 1, seed: 3}}\ndata_parallel: {kind: zero1}", kMixture},
    {"uneven experts over nodes", "parallelism: {expert: 8}\nexperts: {dispatcher: deepep, routing: {distribution: dirichlet, concentration: 1}}\ndata_parallel: {kind: fsdp2}", kMixture},
    {"uneven experts in two steps", "parallelism: {expert: 8}\nexperts: {dispatcher: hierarchical, routing: {distribution: zipf, skew: 1}}\ndata_parallel: {kind: ddp}", kMixture},
    {"uneven experts, gathered tokens", "parallelism: {expert: 4}\nexperts: {dispatcher: all-gather, routing: {distribution: zipf, skew: 0.7}}\ndata_parallel: {kind: ddp}", kMixture},
    {"uneven experts, tensor and pipeline", "parallelism: {tensor: 2, pipeline: 2, expert: 2, sequence_parallel: true}\nexperts: {routing: {distribution: zipf, skew: 2}}\ndata_parallel: {kind: ddp}", kMixture},
    {"uneven experts across tensor groups", "parallelism: {tensor: 2, pipeline: 2, expert: 2, expert_tensor: 2, sequence_parallel: true}\nexperts: {routing: {distribution: zipf, skew: 2}}\ndata_parallel: {kind: ddp}", kMixture},
    {"uneven experts under a capacity", "parallelism: {pipeline: 2, expert: 4}\nexperts: {capacity_factor: 1.25, routing: {distribution: zipf, skew: 1}}\ndata_parallel: {kind: distributed-optimizer}", kMixture, "megatron-core"},
    {"uneven experts, looped", "parallelism: {expert: 2, context: 2}\nexperts: {routing: {distribution: dirichlet, concentration: 0.5}}\ndata_parallel: {kind: ddp}", kMixture, "huggingface"},
};

Scenario scenario_of(const Case& c) {
  const std::string text = std::string("model: ") + c.model + "\n"
                                       "cluster: {node: dgx-h100, nodes: 2, gpus_per_node: 4}\n"
                                       "training: {sequence_length: 1024, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: " +
                           c.framework + "}\n" + c.text + "\n";
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
    // Ranks of one stage follow each other in the usual order: rank r is of stage r * stages / world. Uneven experts split them.
    const auto& classes = folded.plan.class_of_rank;
    for (std::size_t r = 0; r < unfolded.classes.size(); ++r) {
      const ClassResult& one = unfolded.classes[r];
      const ClassResult& whole = folded.classes[!classes.empty() ? classes[r] : r * folded.classes.size() / unfolded.classes.size()];
      EXPECT_EQ(one.memory.peak_allocated, whole.memory.peak_allocated);
      EXPECT_EQ(one.memory.peak_reserved, whole.memory.peak_reserved);
      EXPECT_EQ(one.timing.busy, whole.timing.busy);
      EXPECT_EQ(one.timing.time, whole.timing.time);
    }
  }
}

constexpr const char* kUneven = "parallelism: {expert: 8}\nexperts: {dispatcher: all-to-all, routing: {distribution: zipf, skew: 1, seed: 3}}\ndata_parallel: {kind: zero1}";

// Skew 0 is the balanced job to the bit, on one class; with skew the rank that holds the popular experts computes longest and
// keeps most, and the step is as long as it makes it.
TEST(Routing, SkewMakesRanksDifferInTimeAndMemory) {
  const auto with = [](const std::string& routing) { return simulate(scenario_of({"", ("parallelism: {expert: 8}\nexperts: {dispatcher: all-to-all" + routing + "}\ndata_parallel: {kind: zero1}").c_str(), kMixture, "torchtitan-compile"})); };
  const Result balanced = with(""), zero = with(", routing: {distribution: zipf, skew: 0, seed: 5}"), uneven = with(", routing: {distribution: zipf, skew: 1, seed: 3}");
  EXPECT_EQ(balanced.step_time, zero.step_time);
  ASSERT_EQ(zero.classes.size(), 1U);
  EXPECT_EQ(balanced.classes[0].memory.peak_reserved, zero.classes[0].memory.peak_reserved);
  EXPECT_EQ(balanced.classes[0].timing.time, zero.classes[0].timing.time);
  ASSERT_EQ(uneven.classes.size(), 8U);
  EXPECT_GT(uneven.step_time, balanced.step_time);
  std::size_t fullest = 0, emptiest = 0;
  for (std::size_t i = 1; i < 8; ++i) {
    if (uneven.plan.classes[i].expert_load > uneven.plan.classes[fullest].expert_load) fullest = i;
    if (uneven.plan.classes[i].expert_load < uneven.plan.classes[emptiest].expert_load) emptiest = i;
  }
  // The step ends when the fullest has ended: it waits least.
  const auto waits = [&](std::size_t i) { return uneven.classes[i].timing.step - uneven.classes[i].timing.busy[0]; };
  for (std::size_t i = 0; i < 8; ++i) EXPECT_LE(waits(fullest), waits(i));
  EXPECT_GT(uneven.classes[fullest].memory.peak_allocated, balanced.classes[0].memory.peak_allocated);
  EXPECT_LT(uneven.classes[emptiest].memory.peak_allocated, balanced.classes[0].memory.peak_allocated);
  EXPECT_GT(uneven.classes[fullest].timing.busy[0], uneven.classes[emptiest].timing.busy[0]);
}

// The same seed, the same numbers; another seed, other ranks are full.
TEST(Routing, SeedsReproduceWholeResults) {
  const Scenario s = scenario_of({"", kUneven, kMixture});
  Scenario other = s;
  other.strategy.experts.routing.seed = 4;
  EXPECT_EQ(simulate(s).step_time, simulate(s).step_time);
  const Result a = simulate(s), b = simulate(other);
  std::vector<double> loads_a, loads_b;
  for (const auto& c : a.plan.classes) loads_a.push_back(c.expert_load);
  for (const auto& c : b.plan.classes) loads_b.push_back(c.expert_load);
  EXPECT_NE(loads_a, loads_b);
}

}  // namespace
}  // namespace rehearse::scenario::folding_test
