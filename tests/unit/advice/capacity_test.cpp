// Capacity plans: every answer is checked by simulating it again, and against the arrangements it was chosen from.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "sim/advice/capacity.h"
#include "sim/config/document.h"

namespace rehearse::advice::capacity_test {
namespace {

Case job() {
  const char* text =
      "model: {layers: 8, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\n"
      "cluster: {node: dgx-h100, nodes: 2}\n"
      "training: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "data_parallel: {kind: distributed-optimizer}\n";
  return {config::parse_document(text, "job.yaml").root, "job.yaml"};
}

TEST(Capacity, TheBestIsTheFastestArrangementThatFits) {
  const std::vector<Offer> offers = plan_capacity(job(), {{"dgx-h100", 1}}, {.tokens = 1e9});
  ASSERT_EQ(offers.size(), 1u);
  ASSERT_TRUE(offers[0].best.has_value());
  const Case there(config::parse_document(
                       "model: {layers: 8, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\n"
                       "cluster: {node: dgx-h100, nodes: 1}\n"
                       "training: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
                       "data_parallel: {kind: distributed-optimizer}\n", "one.yaml").root, "one.yaml");
  const auto again = there.ask(offers[0].best->change.settings);
  ASSERT_TRUE(again && again->fits);
  EXPECT_EQ(again->tokens_per_second, offers[0].best->answer.tokens_per_second);
  for (const Change& change : arrangements(there.read(), 8, 8))
    if (const auto other = there.ask(change.settings); other && other->fits) {
      EXPECT_LE(other->tokens_per_second, again->tokens_per_second) << change.text();
    }
}

// What is ruled out by its bound would not have won: all arrangements simulated, of a dense job, of experts and of FSDP, where
// memory is plenty, short, and too little for any.
TEST(Capacity, NothingRuledOutWouldHaveWon) {
  const auto training = [](const char* framework) { return std::string("training: {sequence_length: 2048, global_batch_size: 16, micro_batch_size: 1, precision: bf16, framework: ") + framework + "}\n"; };
  const std::string cluster = "cluster: {node: dgx-h100, nodes: 1}\n";
  const std::vector<std::string> jobs{
      "model: {layers: 8, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\n" + cluster + training("megatron-core") + "data_parallel: {kind: distributed-optimizer}\n",
      "model: {layers: 8, hidden: 2048, heads: 16, ffn_hidden: 2048, vocab: 32000, experts: {count: 16, top_k: 4, ffn_hidden: 2048}}\n" + cluster + training("megatron-core") + "parallelism: {expert: 8}\ndata_parallel: {kind: distributed-optimizer}\n",
      "model: {layers: 64, hidden: 12288, heads: 96, ffn_hidden: 49152, vocab: 32000}\n" + cluster + training("megatron-core") + "data_parallel: {kind: ddp}\n",
      "model: mixtral-8x7b\n" + cluster + training("megatron-core") + "parallelism: {expert: 8}\ndata_parallel: {kind: distributed-optimizer}\n",
      "model: {layers: 8, hidden: 8192, heads: 64, ffn_hidden: 28672, vocab: 128256}\n" + cluster + training("torchtitan") + "data_parallel: {kind: fsdp2}\n",
      "model: {layers: 8, hidden: 5120, heads: 40, ffn_hidden: 13824, vocab: 32000}\n" + cluster + training("deepspeed") + "data_parallel: {kind: zero1}\n"};
  int none = 0;
  for (const std::string& text : jobs) {
    SCOPED_TRACE(text);
    const Case job(config::parse_document(text, "job.yaml").root, "job.yaml");
    const Offer offer = plan_capacity(job, {{"dgx-h100", 1}}, {.tokens = 1e9}, 2)[0];
    double fastest = 0;
    std::string name;
    std::vector<Change> all = arrangements(job.read(), 8, 8);
    all.push_back({"own", {}, false});
    for (const Change& change : all)
      if (const auto answer = job.ask(change.settings); answer && answer->fits && answer->tokens_per_second > fastest) fastest = answer->tokens_per_second, name = change.name;
    EXPECT_EQ(offer.best.has_value(), fastest > 0);
    EXPECT_EQ(offer.reason.empty(), offer.best.has_value());
    none += !offer.best;
    if (!offer.best) continue;
    EXPECT_EQ(offer.best->answer.tokens_per_second, fastest) << name;
    EXPECT_TRUE(offer.best->change.name == name || name == "own") << name;
  }
  EXPECT_GE(none, 1);   // the third
}

// Five layers of 1.5 B parameters and 45 heads: no tensor degree divides the heads, 2 and 4 stages do not divide the layers, and
// all five at 18 bytes a parameter are more than a GPU has. What the scenario says, two layers on the first of four stages, fits.
TEST(Capacity, TheScenariosOwnArrangementIsAmongThoseTried) {
  const char* text =
      "model: {layers: 5, hidden: 5760, heads: 45, ffn_hidden: 80000, vocab: 32000}\n"
      "cluster: {node: dgx-h100, nodes: 1}\n"
      "training: {sequence_length: 1024, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "parallelism: {pipeline: 4}\n"
      "pipeline: {layers_per_stage: [2, 1, 1, 1]}\n"
      "data_parallel: {kind: ddp}\n";
  const Case uneven(config::parse_document(text, "job.yaml").root, "job.yaml");
  const auto own = uneven.ask();
  ASSERT_TRUE(own && own->fits);
  const std::vector<Offer> offers = plan_capacity(uneven, {{"dgx-h100", 1}, {"dgx-h100", 2}}, {.tokens = 1e9});
  ASSERT_TRUE(offers[0].best && offers[1].best) << offers[0].reason;
  EXPECT_EQ(offers[0].best->answer.tokens_per_second, own->tokens_per_second);
  EXPECT_EQ(offers[0].best->change.name, "TP 1 PP 4 DP 2 MB 1 own");
  EXPECT_TRUE(offers[0].best->change.settings.empty());
}

// A tray has four GPUs, and NVLink joins those of eighteen trays: tensor groups of eight cross no network, and are looked at.
TEST(Capacity, TensorGroupsReachAsFarAsNvlink) {
  const Case job(config::parse_document("model: llama-3-70b\ncluster: {node: gb200-nvl72, nodes: 16}\ntraining: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n", "job.yaml").root, "job.yaml");
  const auto widest = [](const std::vector<Change>& all) {
    int tensor = 0;
    for (const Change& c : all) tensor = std::max(tensor, std::stoi(c.name.substr(3)));
    return tensor;
  };
  const scenario::Scenario s = job.read();
  EXPECT_EQ(s.cluster.linked_gpus(), 64);
  EXPECT_EQ(widest(arrangements(s, 64, 4)), 4);
  EXPECT_EQ(widest(arrangements(s, 64, 4, s.cluster.linked_gpus())), 64);
  EXPECT_TRUE(job.ask({"parallelism.tensor=8", "parallelism.sequence_parallel=true"}).has_value());
}

// 1,024 ranks may share their parameters among all or among the 64 of eight nodes; 64 ranks are eight nodes. Megatron's optimizer has
// whole parameters, and who says how many share them is not asked again.
TEST(Capacity, ParametersMayBeSharedByEightNodes) {
  const auto hybrid = [](int nodes, const std::string& rest) {
    const Case job(config::parse_document("model: llama-3-8b\ncluster: {node: dgx-h100, nodes: " + std::to_string(nodes) +
                                              "}\ntraining: {sequence_length: 4096, global_batch_size: 2048, micro_batch_size: 1, precision: bf16, framework: " + rest, "job.yaml").root, "job.yaml");
    std::ptrdiff_t out = 0;
    for (const Change& c : arrangements(job.read(), 8 * nodes, 8))
      if (c.name.find("TP 1 PP 1 ") == 0 && c.name.find(fmt::format("DP {}/64 MB 1", 8 * nodes)) != std::string::npos) out += std::count(c.settings.begin(), c.settings.end(), "parallelism.data_shard=64");
    return out;
  };
  EXPECT_EQ(hybrid(128, "torchtitan}\ndata_parallel: {kind: fsdp2}\n"), 3);   // no, selective and full recomputation
  EXPECT_EQ(hybrid(8, "torchtitan}\ndata_parallel: {kind: fsdp2}\n"), 0);
  EXPECT_EQ(hybrid(128, "torchtitan}\ndata_parallel: {kind: fsdp2}\nparallelism: {data_shard: 8}\n"), 0);
  EXPECT_EQ(hybrid(128, "megatron-core}\ndata_parallel: {kind: distributed-optimizer}\n"), 0);
}

// Qwen3-235B has 94 layers: 8 stages of 12 have two places left, 64 stages of 2 would have 34.
TEST(Capacity, StagesThatNearlyDivideTheLayersAreTried) {
  const Case qwen(config::parse_document("model: {layers: 94, hidden: 1024, heads: 8, ffn_hidden: 2816, vocab: 32000}\n"
                                         "cluster: {node: dgx-h100, nodes: 64}\n"
                                         "training: {sequence_length: 1024, global_batch_size: 512, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n", "job.yaml").root, "job.yaml");
  std::set<std::string> stages;
  for (const Change& c : arrangements(qwen.read(), 512, 8)) stages.insert(c.settings[1]);
  EXPECT_EQ(stages, (std::set<std::string>{"parallelism.pipeline=1", "parallelism.pipeline=2", "parallelism.pipeline=4", "parallelism.pipeline=8", "parallelism.pipeline=16", "parallelism.pipeline=32"}));
}

TEST(Capacity, TimeHoursAndCostFollowFromTheSpeed) {
  const Goal goal{.tokens = 1e12, .within = 1e9, .budget = 1e9, .gpu_hour = {{"dgx-h100", 2.0}}};
  for (const Offer& o : plan_capacity(job(), {{"dgx-h100", 1}, {"dgx-h100", 2}}, goal)) {
    ASSERT_TRUE(o.best.has_value());
    EXPECT_DOUBLE_EQ(o.seconds, 1e12 / o.best->answer.tokens_per_second);
    EXPECT_DOUBLE_EQ(o.gpu_hours, o.seconds / 3600 * o.gpus);
    EXPECT_DOUBLE_EQ(*o.cost, 2 * o.gpu_hours);
    EXPECT_TRUE(o.meets);
  }
}

TEST(Capacity, OffersThatAnotherBeatsInTimeAndCostAreNotWorthHaving) {
  const std::vector<Offer> offers = plan_capacity(job(), {{"dgx-a100", 1}, {"dgx-h100", 1}, {"dgx-h100", 2}}, {.tokens = 1e12, .gpu_hour = {{"dgx-a100", 5.0}, {"dgx-h100", 1.0}}});
  EXPECT_FALSE(offers[0].worth);  // slower and dearer
  EXPECT_TRUE(offers[1].worth);
  EXPECT_TRUE(offers[2].worth);   // sooner, at more GPU-hours
  EXPECT_EQ(chosen(offers), &offers[1]);
}

// A card put into the scenario's own nodes, fewer of them, a locked clock and measured efficiencies say nothing of the machines of
// another offer: each is what a scenario of those machines alone gives.
TEST(Capacity, WhatIsSaidOfTheScenariosMachinesHoldsForThemAlone) {
  const char* model = "model: {layers: 8, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\n";
  const char* rest =
      "training: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "data_parallel: {kind: distributed-optimizer}\n";
  const auto planned = [&](const std::string& cluster, const Machines& on) {
    const Case job(config::parse_document(model + cluster + rest, "job.yaml").root, "job.yaml");
    return plan_capacity(job, {on}, {.tokens = 1e12})[0];
  };
  const std::string special = "cluster: {node: dgx-h100, nodes: 2, gpu: h200-sxm, gpus_per_node: 4, gpu_clock: 1500 MHz, gpu_power: 300 W, nic_efficiency: 0.5}\n";
  for (const char* node : {"dgx-a100", "dgx-b200", "gb200-nvl72", "gh200-4"}) {
    const Offer with = planned(special, {node, 2}), plain = planned("cluster: {node: " + std::string(node) + ", nodes: 2}\n", {node, 2});
    ASSERT_TRUE(with.best && plain.best) << node << ": " << with.reason;
    EXPECT_EQ(with.gpus, plain.gpus) << node;
    EXPECT_EQ(with.seconds, plain.seconds) << node;
    EXPECT_EQ(with.architecture, plain.architecture) << node;
  }
  // Its own card named once more is still no other machine's.
  EXPECT_EQ(planned("cluster: {node: dgx-h100, nodes: 2, gpu: h100-sxm}\n", {"dgx-b200", 2}).seconds, planned("cluster: {node: dgx-b200, nodes: 2}\n", {"dgx-b200", 2}).seconds);
  const Offer own = planned(special, {"dgx-h100", 4});
  EXPECT_EQ(own.gpus, 16);
  EXPECT_NE(own.seconds, planned("cluster: {node: dgx-h100, nodes: 4, gpus_per_node: 4}\n", {"dgx-h100", 4}).seconds);
}

TEST(Capacity, ThreadsChangeNothing) {
  const std::vector<Machines> machines{{"dgx-h100", 1}, {"dgx-a100", 2}};
  const auto one = plan_capacity(job(), machines, {.tokens = 1e12}, 1), four = plan_capacity(job(), machines, {.tokens = 1e12}, 4);
  for (std::size_t i = 0; i < machines.size(); ++i) {
    EXPECT_EQ(one[i].best->change.text(), four[i].best->change.text());
    EXPECT_EQ(one[i].seconds, four[i].seconds);
    EXPECT_EQ(one[i].tried, four[i].tried);
  }
}

TEST(Capacity, WhatCannotBeHadSaysWhy) {
  // 40 GPUs: no arrangement with tensor degrees and stages of powers of two leaves a data degree that divides 64 samples.
  const std::vector<Offer> offers = plan_capacity(job(), {{"dgx-h100", 5}}, {.tokens = 1e12});
  ASSERT_EQ(offers.size(), 1u);
  EXPECT_FALSE(offers[0].best.has_value());
  EXPECT_NE(offers[0].reason.find("64"), std::string::npos);
  EXPECT_EQ(chosen(offers), nullptr);
}

}  // namespace
}  // namespace rehearse::advice::capacity_test
