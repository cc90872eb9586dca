// Advice and the largest batch or model: every answer is checked by simulating it again, and against its neighbours.
#include <gtest/gtest.h>

#include <algorithm>

#include "hwmodels/device/gpu.h"
#include "sim/advice/advise.h"
#include "sim/advice/largest.h"
#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "tests/support/source_dir.h"

namespace rehearse::advice::advise_test {
namespace {

Case job(const std::string& rest) {
  const std::string text =
      "model: {layers: 16, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\n"
      "cluster: {node: dgx-a100, nodes: 1}\n" + rest;
  return {config::parse_document(text, "job.yaml").root, "job.yaml"};
}

const char* kPlain = "training: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: plain}\n";

TEST(Advice, EndsWithWhatTheSettingsGive) {
  const Case start = job(kPlain);
  const Advice advice = advise(start);
  ASSERT_FALSE(advice.gave_up);
  EXPECT_TRUE(advice.end.fits);
  const auto again = start.ask(advice.settings);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->step_time, advice.end.step_time);
  EXPECT_EQ(again->peak_device, advice.end.peak_device);
  // Nothing that was looked at last is 1 % faster and fits.
  for (const Trial& t : advice.last_tried) EXPECT_FALSE(t.answer.fits && t.answer.tokens_per_second >= 1.01 * advice.end.tokens_per_second) << t.change.text();
}

// Once it fits, it goes on fitting, and each step is faster than the one before.
TEST(Advice, StepsNeverLoseWhatTheyHave) {
  const Advice advice = advise(job(kPlain));
  bool fitted = advice.start.fits;
  double speed = advice.start.tokens_per_second;
  for (const Step& step : advice.steps) {
    const Answer& a = step.tried[step.chosen].answer;
    if (fitted) {
      EXPECT_TRUE(a.fits);
      EXPECT_GT(a.tokens_per_second, speed);
    }
    fitted = a.fits;
    speed = a.tokens_per_second;
  }
  EXPECT_TRUE(fitted);
}

// One stage, 64 samples a step, no sequence parallelism: a change that leaves them as they are does not name them.
TEST(Advice, NamesOnlyWhatBecomesDifferent) {
  bool halved = false;
  for (const Change& change : changes_near(job(kPlain).read()))
    for (const std::string& setting : change.settings) {
      halved = halved || setting == "parallelism.tensor=2";
      for (const char* as_it_was : {"parallelism.tensor=1", "parallelism.pipeline=1", "parallelism.sequence_parallel=false", "pipeline.virtual_stages=1", "training.global_batch_size=64"}) EXPECT_NE(setting, as_it_was) << change.name;
    }
  EXPECT_TRUE(halved);
}

// Layer inputs of samples that no GPU holds can be cut over several of them, and back.
TEST(Advice, LongSamplesMayBeCutOverRanks) {
  const auto names = [](const std::string& more) {
    std::string all;
    for (const Change& change : changes_near(job(std::string(kPlain) + more).read())) all += change.name + ";";
    return all;
  };
  EXPECT_NE(names("").find("context 2;"), std::string::npos);
  EXPECT_EQ(names("").find("context 0;"), std::string::npos);
  EXPECT_NE(names("parallelism: {context: 2}\n").find("context 1;"), std::string::npos);
}

// Two thousand nodes: all-gathers of a layer go round 16,384 ranks, or 64 that hold all of it; a node's eight are too few, or the same again.
TEST(Advice, SharesMayStayInANodeOrEight) {
  const auto at = [](int nodes, const std::string& more = "") {
    return Case{config::parse_document("model: llama-3-8b\ncluster: {node: dgx-h100, nodes: " + std::to_string(nodes) + "}\ntraining: {sequence_length: 4096, global_batch_size: " + std::to_string(8 * nodes) +
                                           ", micro_batch_size: 1, precision: bf16, framework: torchtitan}\ndata_parallel: {kind: fsdp2}\n" + more, "job.yaml").root, "job.yaml"};
  };
  const auto names = [](const Case& start) {
    std::string all = "|";
    for (const Change& change : changes_near(start.read())) all += change.name + "|";
    return all;
  };
  EXPECT_EQ(names(at(1)).find("|shards"), std::string::npos);
  const Case large = at(2048);
  EXPECT_NE(names(large).find("|shards of 8|"), std::string::npos);
  EXPECT_NE(names(large).find("|shards of 64|"), std::string::npos);
  EXPECT_EQ(names(large).find("|shards over all|"), std::string::npos);
  const std::string shared = names(at(2048, "parallelism: {data_shard: 64}\n"));
  EXPECT_EQ(shared.find("|shards of 64|"), std::string::npos);
  EXPECT_NE(shared.find("|shards over all|"), std::string::npos);
  EXPECT_LT(large.ask({"parallelism.data_shard=64"})->step_time, 0.5 * large.ask({})->step_time);
}

// Eight ranks and eight samples a step: micro-batches of two need sixteen, and the change says that it is another training.
TEST(Advice, ALargerGlobalBatchIsSaid) {
  for (const Change& change : changes_near(job("training: {sequence_length: 4096, global_batch_size: 8, micro_batch_size: 1, precision: bf16, framework: plain}\n").read())) {
    const bool larger = std::find(change.settings.begin(), change.settings.end(), "training.global_batch_size=16") != change.settings.end();
    if (change.name.starts_with("micro-batch")) {
      EXPECT_TRUE(larger && change.name == "micro-batch 2, batch 16") << change.name;
    }
  }
}

// Megatron's optimizers are no advice for DeepSpeed's users, nor ZeRO for Megatron's and torchtitan's.
TEST(Advice, StaysWithinWhatTheFrameworkHas) {
  const auto offered = [&](const std::string& framework) {
    std::string names;
    const Case start = job("training: {sequence_length: 2048, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: " + framework + "}\ndata_parallel: {kind: ddp}\n");
    for (const Change& change : changes_near(start.read())) names += change.name + "|";
    return names;
  };
  const std::string deepspeed = offered("deepspeed"), megatron = offered("megatron-core"), titan = offered("torchtitan");
  for (const char* name : {"|distributed-optimizer|", "|megatron-fsdp|"}) {
    EXPECT_EQ(deepspeed.find(name), std::string::npos) << deepspeed;
    EXPECT_NE(megatron.find(name), std::string::npos) << megatron;
  }
  for (const char* name : {"|zero1|", "|zero2|", "|zero3|"}) {
    EXPECT_NE(deepspeed.find(name), std::string::npos) << deepspeed;
    EXPECT_EQ(megatron.find(name), std::string::npos) << megatron;
    EXPECT_EQ(titan.find(name), std::string::npos) << titan;
  }
  EXPECT_NE(titan.find("|fsdp2|"), std::string::npos) << titan;
  for (const std::string& others : {deepspeed, megatron}) EXPECT_EQ(others.find("|fsdp2|"), std::string::npos) << others;
}

// Where experts lie and who carries their tokens is looked at, each by its own key, and within what the framework has: DeepEP is
// Megatron's and torchtitan's, merged passes are Megatron's, and of several stages they need chunks.
TEST(Advice, MovesExpertsAndTheirTokens) {
  const auto offered = [](const std::string& framework, const std::string& rest) {
    const std::string text = "model: {layers: 8, hidden: 2048, heads: 16, ffn_hidden: 1024, vocab: 32000, experts: {count: 16, top_k: 4}}\ncluster: {node: dgx-h100, nodes: 2}\n"
                             "training: {sequence_length: 2048, global_batch_size: 64, framework: " + framework + "}\n" + rest;
    std::string all;
    for (const Change& change : changes_near(Case(config::parse_document(text, "job.yaml").root, "job.yaml").read())) all += "|" + change.text() + "|";
    return all;
  };
  const std::string megatron = offered("megatron-core", "parallelism: {expert: 8}\n"), torchtitan = offered("torchtitan", "parallelism: {expert: 8}\ndata_parallel: {kind: fsdp2}\n");
  for (const char* change : {"|parallelism.expert=16|", "|parallelism.expert=4|", "|experts.dispatcher=deepep|"}) {
    EXPECT_NE(megatron.find(change), std::string::npos) << change << megatron;
    EXPECT_NE(torchtitan.find(change), std::string::npos) << change << torchtitan;
  }
  for (const char* change : {"|experts.dispatcher=all-gather|", "|experts.dispatcher=hybridep|", "|experts.overlap_exchange=true|"}) {
    EXPECT_NE(megatron.find(change), std::string::npos) << change << megatron;
    EXPECT_EQ(torchtitan.find(change), std::string::npos) << change << torchtitan;
  }
  EXPECT_EQ(megatron.find("dispatcher=all-to-all"), std::string::npos) << "it has it";
  EXPECT_NE(offered("megatron-core", "parallelism: {expert: 4, pipeline: 2}\n").find("|experts.overlap_exchange=true pipeline.schedule=interleaved-1f1b pipeline.virtual_stages=2|"), std::string::npos);
  EXPECT_EQ(offered("megatron-core", "").find("dispatcher"), std::string::npos) << "no tokens travel";
  for (const Change& change : changes_near(job(kPlain).read())) EXPECT_EQ(change.text().find("expert"), std::string::npos) << "there are none";
}

// Offload that nothing asks for is taken back.
TEST(Advice, BringsBackWhatHasRoomOnTheGpu) {
  const Advice advice = advise(job("training: {sequence_length: 2048, global_batch_size: 16, micro_batch_size: 2, precision: bf16, framework: deepspeed}\ndata_parallel: {kind: zero3}\n"
                                   "memory: {recompute: full, offload: {optimizer: cpu, parameters: cpu, activations: cpu}}\n"));
  ASSERT_FALSE(advice.gave_up);
  ASSERT_FALSE(advice.steps.empty());
  EXPECT_NE(std::find(advice.settings.begin(), advice.settings.end(), "memory.offload.optimizer=none"), advice.settings.end());
  EXPECT_GT(advice.end.tokens_per_second, 1.2 * advice.start.tokens_per_second);
}

// 405 B parameters x 20 bytes are 8.1 TB of host memory, of 2 TB; on disks (30 TB) there is room, and GPUs were never the trouble. What
// frees GPUs only is no step of the way, and nothing is offered that the job does already.
TEST(Advice, FullHostsTurnToDisks) {
  const auto at = [](const std::string& places) {
    return Case{config::parse_document("model: llama-3-405b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 2048, global_batch_size: 8, micro_batch_size: 1, precision: bf16, framework: deepspeed}\n"
                                       "data_parallel: {kind: zero3}\nmemory: {recompute: full, offload: {" + places + "}}\n", "job.yaml").root, "job.yaml"};
  };
  const Case start = at("optimizer: cpu, parameters: cpu");
  const Answer before = *start.ask();
  EXPECT_EQ(before.lacks, "host memory");
  EXPECT_GT(before.headroom, 0);
  EXPECT_GT(before.excess, std::int64_t{6'000'000'000'000});   // 20 x 405.9e9 - 2.048e12 and more
  const auto fit = cheapest_fit(start);
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->change.text(), "memory.offload.optimizer=nvme");
  const Advice advice = advise(start);
  EXPECT_FALSE(advice.gave_up);
  ASSERT_FALSE(advice.steps.empty());
  EXPECT_EQ(advice.steps[0].tried[advice.steps[0].chosen].change.text(), "memory.offload.optimizer=nvme");
  for (const Change& change : changes_near(start.read()))
    for (const std::string& setting : change.settings) EXPECT_FALSE(setting == "memory.offload.optimizer=cpu" || setting == "memory.offload.parameters=cpu" || setting == "memory.offload.ratio=1") << change.name;
  // And back, one step at a time.
  std::string back;
  for (const Change& change : changes_near(at("optimizer: nvme, parameters: nvme").read())) back += change.text() + "|";
  EXPECT_NE(back.find("|memory.offload.optimizer=cpu|"), std::string::npos) << back;
  EXPECT_NE(back.find("|memory.offload.parameters=cpu|"), std::string::npos) << back;
}

TEST(Advice, TheCheapestFitIsTheFastestOfThoseThatFit) {
  const Case start = job("training: {sequence_length: 16384, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: plain}\ndata_parallel: {kind: ddp}\n");
  ASSERT_FALSE(start.ask()->fits);
  const auto best = cheapest_fit(start);
  ASSERT_TRUE(best.has_value());
  EXPECT_TRUE(start.ask(best->change.settings)->fits);
  for (const Change& change : changes_near(start.read())) {
    const auto other = start.ask(change.settings);
    if (!other || !other->fits || change.offloads != best->change.offloads) continue;
    EXPECT_LE(other->tokens_per_second, best->answer.tokens_per_second) << change.text();
  }
}

Case with_cluster(const std::string& cluster, const std::string& rest) {
  return {config::parse_document("model: {layers: 16, hidden: 4096, heads: 32, ffn_hidden: 11008, vocab: 32000}\ncluster: " + cluster + "\n" + rest, "job.yaml").root, "job.yaml"};
}

// The notes begin with BF16: it frees memory and is faster, so that nothing is given up for it, recomputation least of all.
TEST(Advice, Bf16ComesBeforeWhatCostsThroughput) {
  const Advice advice = advise(with_cluster("{node: single-gpu, gpu: a100-80gb-sxm}", "training: {sequence_length: 2048, global_batch_size: 8, micro_batch_size: 8, precision: fp32, framework: plain}\n"));
  ASSERT_FALSE(advice.start.fits);
  ASSERT_FALSE(advice.steps.empty());
  EXPECT_EQ(advice.steps[0].tried[advice.steps[0].chosen].change.name, "bf16");
}

// Volta and Turing have no bf16.
TEST(Advice, SixteenBitsAreFp16WhereThereIsNoBf16) {
  for (const char* gpu : {"v100-32gb-sxm2", "t4"}) {
    std::string names;
    for (const Change& change : changes_near(with_cluster(std::string("{node: single-gpu, gpu: ") + gpu + "}", "training: {sequence_length: 2048, global_batch_size: 8, micro_batch_size: 1, precision: fp32, framework: plain}\n").read())) names += change.name + "|";
    EXPECT_EQ(names.substr(0, 5), "fp16|") << gpu;
  }
}

// What was tried in vain before offload is not in the way of what offload needs: 70 B parameters on one node.
TEST(Advice, OffloadStartsWhereThroughputWasFirstGivenUp) {
  const std::string text = "model: llama-3-70b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 2048, global_batch_size: 8, micro_batch_size: 1, precision: bf16, framework: torchtitan}\ndata_parallel: {kind: fsdp2}\n";
  const Case start{config::parse_document(text, "job.yaml").root, "job.yaml"};
  const Advice advice = advise(start);
  ASSERT_FALSE(advice.gave_up);
  EXPECT_FALSE(advice.abandoned.empty());
  for (const Step& step : advice.abandoned)
    for (const Trial& t : step.tried) EXPECT_FALSE(t.change.offloads || t.answer.fits) << t.change.name;
  bool offloaded = false;
  for (const Step& step : advice.steps) offloaded = offloaded || step.tried[step.chosen].change.offloads;
  EXPECT_TRUE(offloaded);
  EXPECT_EQ(start.ask(advice.settings)->step_time, advice.end.step_time);
}

// One GPU keeps whole states, which PyTorch updates there: offload comes with the strategy that can.
TEST(Advice, OneGpuMayOffloadToo) {
  std::vector<std::string> settings;
  const Case start = with_cluster("{node: single-gpu, gpu: rtx-4090}", "training: {sequence_length: 1024, global_batch_size: 1, micro_batch_size: 1, precision: bf16, framework: huggingface}\n");
  for (const Change& change : changes_near(start.read()))
    if (change.name == "offload states") settings = change.settings;
  ASSERT_EQ(settings, (std::vector<std::string>{"data_parallel.kind=zero2", "memory.offload.optimizer=cpu"}));
  EXPECT_TRUE(start.ask(settings).has_value());
}

// Segments that grow are a change for jobs that do not have them; AMD's are left alone.
TEST(Advice, SegmentsMayGrow) {
  const auto offered = [](const std::string& cluster, const std::string& training) {
    const Case start = with_cluster(cluster, "training: {sequence_length: 1024, global_batch_size: 64, micro_batch_size: 1, precision: bf16, " + training + "}\n");
    for (const Change& change : changes_near(start.read()))
      if (change.name == "expandable segments") return start.ask(change.settings).has_value();
    return false;
  };
  EXPECT_TRUE(offered("{node: dgx-a100}", "framework: huggingface"));
  EXPECT_FALSE(offered("{node: dgx-h100}", "framework: torchtitan"));
  EXPECT_FALSE(offered("{node: mi300x-8}", "framework: huggingface"));
}

// Both together fit where neither does alone: out of memory names them, and they do.
TEST(Advice, TwoChangesTogetherWhereNoneAloneFits) {
  const Case start = with_cluster("{node: dgx-a100, gpu: a100-40gb-sxm}", "training: {sequence_length: 16384, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: deepspeed}\ndata_parallel: {kind: ddp}\n");
  ASSERT_FALSE(start.ask()->fits);
  for (const Change& change : changes_near(start.read()))
    if (const auto answer = start.ask(change.settings); !change.offloads && answer) {
      ASSERT_FALSE(answer->fits) << change.name;
    }
  const auto best = cheapest_fit(start);
  ASSERT_TRUE(best.has_value());
  EXPECT_FALSE(best->change.offloads);
  EXPECT_NE(best->change.name.find(" + "), std::string::npos);
  EXPECT_TRUE(start.ask(best->change.settings)->fits);
}

TEST(Advice, BothKeepsEachKeyOnce) {
  const auto one = both({"a", {"x=1", "d=auto"}}, {"b", {"y=2", "d=auto"}, true});
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->settings, (std::vector<std::string>{"x=1", "d=auto", "y=2"}));
  EXPECT_TRUE(one->offloads);
  EXPECT_FALSE(both({"a", {"x=1"}}, {"b", {"x=2"}}).has_value());
}

// Embedding and head are as long as some layers: the ends of the pipeline give layers to the stages between them.
TEST(Advice, MovesTheCutOfAPipeline) {
  const std::string text = "model: {layers: 32, hidden: 2048, heads: 16, ffn_hidden: 5632, vocab: 256000}\ncluster: {node: dgx-h100, gpus_per_node: 4}\n"
                           "training: {sequence_length: 4096, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: megatron-core}\nparallelism: {pipeline: 4}\n";
  const Case start{config::parse_document(text, "job.yaml").root, "job.yaml"};
  const Change* cut = nullptr;
  const std::vector<Change> near = changes_near(start.read());
  for (const Change& change : near)
    if (change.name == "last stage a layer less") cut = &change;
  ASSERT_NE(cut, nullptr);
  EXPECT_EQ(cut->settings, std::vector<std::string>{"pipeline.layers_per_stage=[8, 8, 9, 7]"});
  EXPECT_LT(start.ask(cut->settings)->step_time, start.ask()->step_time);
  // Other numbers of stages have other cuts.
  for (const Change& change : changes_near(start.with(*cut).read()))
    if (change.name == "tensor 1 pipeline 2") {
      EXPECT_NE(std::find(change.settings.begin(), change.settings.end(), "pipeline.layers_per_stage=[]"), change.settings.end());
    }
}

// NVLink joins the trays of a rack: tensor parallelism over two of them crosses no network.
TEST(Advice, TensorGroupsFillARack) {
  const auto names = [](const char* node) {
    std::string all = "|";
    for (const Change& change : changes_near(with_cluster(std::string("{node: ") + node + ", nodes: 4}", "training: {sequence_length: 4096, global_batch_size: 64, micro_batch_size: 1, precision: bf16, framework: megatron-core}\nparallelism: {tensor: 4, sequence_parallel: true}\n").read())) all += change.name + "|";
    return all;
  };
  EXPECT_NE(names("gb200-nvl72").find("|tensor 8 pipeline 1|"), std::string::npos);
  EXPECT_EQ(names("hgx-a100-4").find("|tensor 8 pipeline 1|"), std::string::npos);
}

// Experts may lie on more ranks, and come back; dense models have none to move.
TEST(Advice, ExpertsMayLieOnMoreRanks) {
  const auto has = [](const std::string& model, const std::string& name) {
    const Case start{config::parse_document("model: " + model + "\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 2048, global_batch_size: 16, framework: megatron-core}\n", "job.yaml").root, "job.yaml"};
    const std::vector<Change> near = changes_near(start.read());
    return std::any_of(near.begin(), near.end(), [&](const Change& c) { return c.name == name; });
  };
  EXPECT_TRUE(has("mixtral-8x7b", "experts over 2"));
  EXPECT_FALSE(has("llama-2-7b", "experts over 2"));
}

// 24 B parameters on 320 GB: more nodes, fewer trained weights; each of them does fit.
TEST(Advice, SaysWhatFitsBeyond) {
  const std::string text = "model: {layers: 24, hidden: 8192, heads: 64, ffn_hidden: 28672, vocab: 32000}\ncluster: {node: dgx-a100, gpu: a100-40gb-sxm}\n"
                           "training: {sequence_length: 2048, global_batch_size: 8, micro_batch_size: 1, precision: bf16, framework: torchtitan}\ndata_parallel: {kind: fsdp2}\n";
  const Case start{config::parse_document(text, "job.yaml").root, "job.yaml"};
  const Advice advice = advise(start);
  ASSERT_FALSE(advice.beyond.empty());
  for (const Trial& t : advice.beyond) {
    const auto again = start.ask(t.change.settings);
    ASSERT_TRUE(again.has_value()) << t.change.text();
    EXPECT_TRUE(again->fits) << t.change.text();
    EXPECT_EQ(again->tokens_per_second, t.answer.tokens_per_second) << t.change.text();
    EXPECT_FALSE(t.change.offloads) << t.change.text();
  }
}

// ZeRO-3 over PCIe waits for its gathers: NVLink between the same GPUs is named, and comes first.
TEST(Advice, NamesFasterLinksWhereCommunicationBindsIt) {
  const Advice advice = advise(with_cluster("{node: pcie-8, nodes: 4}", "training: {sequence_length: 1024, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: torchtitan}\nparallelism: {tensor: 2, sequence_parallel: true}\ndata_parallel: {kind: fsdp2}\n"));
  ASSERT_GT(advice.end.communication, kBoundByCommunication);
  ASSERT_FALSE(advice.links.empty());
  EXPECT_NE(advice.links[0].change.text().find("cluster.gpu=a100-80gb-pcie"), std::string::npos);
  for (const Trial& t : advice.links) {
    EXPECT_GT(t.answer.tokens_per_second, advice.end.tokens_per_second) << t.change.name;
    EXPECT_LE(t.answer.tokens_per_second, advice.links[0].answer.tokens_per_second) << t.change.name;
  }
}

// A setting that a later one took back, or that says what is so anyway, is not in the command to run.
TEST(Advice, EverySettingOfTheEndChangesSomething) {
  const Case start = job(kPlain);
  const Advice advice = advise(start);
  for (std::size_t i = 0; i < advice.settings.size(); ++i) {
    std::vector<std::string> less = advice.settings;
    less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
    const auto answer = start.ask(less);
    EXPECT_TRUE(!answer || answer->step_time != advice.end.step_time || answer->peak_device != advice.end.peak_device) << advice.settings[i];
  }
}

TEST(Largest, TheNextMicroBatchDoesNotFit) {
  const Case start = job(std::string(kPlain) + "data_parallel: {kind: zero3}\nmemory: {recompute: full}\n");
  const Largest largest = largest_micro_batch(start);
  ASSERT_TRUE(largest.largest.has_value());
  ASSERT_TRUE(largest.bounded);
  const std::int64_t size = largest.tried[*largest.largest].size, accumulation = 64 / 8;
  const auto next = start.ask({"training.micro_batch_size=" + std::to_string(size + 1), "training.global_batch_size=" + std::to_string((size + 1) * 8 * accumulation)});
  ASSERT_TRUE(next.has_value());
  EXPECT_FALSE(next->fits);
  EXPECT_GE(largest.tried[*largest.fastest].answer.tokens_per_second, largest.tried[*largest.largest].answer.tokens_per_second);
}

// ZeRO-3 and recomputation train more parameters than DDP without them, on the same GPUs.
TEST(Largest, BetterTechniquesTrainLargerModels) {
  const auto parameters = [](const std::string& rest) {
    const Largest l = largest_model(job(kPlain + rest));
    EXPECT_TRUE(l.largest.has_value());
    return l.largest ? l.tried[*l.largest].answer.parameters : 0;
  };
  const auto plain = parameters("data_parallel: {kind: ddp}\n"), sharded = parameters("data_parallel: {kind: zero3}\nmemory: {recompute: full}\n");
  EXPECT_GT(sharded, 4 * plain);
}

// The models that are tried are dense: degrees that only experts have are left out.
TEST(Largest, OfAJobWithExpertsIsDense) {
  const std::string text = "model: mixtral-8x7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 4096, global_batch_size: 8, framework: huggingface}\nparallelism: {expert: 8}\ndata_parallel: {kind: fsdp2}\n";
  const Largest l = largest_model({config::parse_document(text, "job.yaml").root, "job.yaml"});
  ASSERT_TRUE(l.largest.has_value()) << l.refusal;
  const std::vector<std::string>& settings = l.tried[*l.largest].settings;
  EXPECT_NE(std::find(settings.begin(), settings.end(), "parallelism.expert=1"), settings.end());
}

// The user's notes, B.13: about 7, 20 and 70 B parameters, and hundreds of billions. States alone are 16 bytes per parameter on one
// GPU; 4.25 in the update of ZeRO-2 over 8, whose shard of the gradients is widened for it; with the optimizer on the CPU, 18 bytes of
// host memory end it: fp32 parameters, moments and gradients, and 16-bit sums of gradients.
TEST(Largest, OnTheMachinesOfTheNotes) {
  auto billions = [](const char* name) {
    const std::string path = (source_dir() / "scenarios" / "notes" / (std::string(name) + ".yaml")).string();
    const Largest found = largest_model({config::load_layered(path), path});
    return found.largest ? static_cast<double>(found.tried[*found.largest].answer.parameters) / 1e9 : 0;
  };
  const double one = billions("b13_1xa100"), eight = billions("b13_8xa100_40gb"), offloaded = billions("b13_8xh100_offload"), cluster = billions("b13_fsdp_cluster");
  const auto gpu = [](const char* name) { return 1e-9 * static_cast<double>(hwmodels::load_gpu(name).memory.value); };
  const double one_at_most = gpu("a100-80gb-sxm") / 16, eight_at_most = gpu("a100-40gb-sxm") / 4.25, host_at_most = 2048.0 / 18;
  EXPECT_LT(one, one_at_most);
  EXPECT_GT(one, 0.9 * one_at_most);
  EXPECT_LT(eight, eight_at_most);
  EXPECT_GT(eight, 0.8 * eight_at_most);   // buckets and activations as well
  EXPECT_LT(offloaded, host_at_most);
  EXPECT_GT(offloaded, 0.9 * host_at_most);
  EXPECT_GT(cluster, 200);
}

}  // namespace
}  // namespace rehearse::advice::advise_test
