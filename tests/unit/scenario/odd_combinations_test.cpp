// Keys that are right each by itself and are seldom together: they run, or are refused with a reason. Each once ended the program.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::odd_combinations_test {
namespace {

std::string job(const std::string& model, const std::string& training, const std::string& rest) {
  return "model: " + model + "\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 1024, " + training + "}\n" + rest + "\n";
}

Result run(const std::string& text) { return simulate(read_scenario(config::parse_document(text, "job.yaml").root, "job.yaml")); }

std::string mistakes(const std::string& text) {
  try {
    read_scenario(config::parse_document(text, "job.yaml").root, "job.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// Adapters are counted in layers, which a strategy with other mistakes does not have.
TEST(OddCombinations, ADegreeThatDividesNothingBesideAdapters) {
  const std::string text = job("mixtral-8x7b", "global_batch_size: 16, framework: huggingface", "parallelism: {expert: 16}\ntuning: {kind: lora, targets: [no_such_layer]}");
  EXPECT_NE(mistakes(text).find("parallelism.expert"), std::string::npos) << mistakes(text);
}

// The 4-bit weight in 16 bits lies beside what casts operands and orders them by position.
TEST(OddCombinations, FourBitWeightsUnderProductsOfEightBitsAndReorderedOperands) {
  for (const char* training : {"global_batch_size: 8, framework: huggingface, precision: fp8-rowwise", "global_batch_size: 24, micro_batch_size: 3, framework: nanotron"}) {
    SCOPED_TRACE(training);
    const Result r = run(job("llama-3.2-1b", training, "data_parallel: {kind: fsdp2}\ntuning: {kind: qlora, rank: 16}"));
    EXPECT_GT(r.step_time, 0);
  }
}

// The last layer of a stage is made again while what it sent on is still there.
TEST(OddCombinations, RecomputedOperatorsBeforeAStageThatKeepsWhatItSent) {
  for (const char* framework : {"megatron-deepspeed", "nanotron"})
    for (const char* modules : {"operators", "attention_projections"}) {
      SCOPED_TRACE(std::string(framework) + " " + modules);
      const Result r = run(job("llama-3.2-1b", std::string("global_batch_size: 16, framework: ") + framework, std::string("parallelism: {pipeline: 2}\nmemory: {recompute: selective, recompute_modules: [") + modules + "]}"));
      EXPECT_GT(r.step_time, 0);
    }
}

// A norm that is made again, of which experts on a latent, a region of their own, and shared experts read the output.
TEST(OddCombinations, AnOutputMadeAgainForARegionToo) {
  const auto peak = [](const std::string& model, const std::string& modules) {
    const Result r = run(job("{preset: " + model + ", layers: 4, hybrid_pattern: MEM*}", "global_batch_size: 16, framework: megatron-core", "parallelism: {expert: 8}\nmemory: {recompute: selective, recompute_modules: [" + modules + "]}"));
    EXPECT_GT(r.step_time, 0);
    return r.classes.front().memory.peak_allocated.value;
  };
  for (const char* model : {"nemotron-3-super-120b-a12b", "nemotron-3-nano-30b-a3b"}) {
    SCOPED_TRACE(model);
    EXPECT_LE(peak(model, "layernorm, moe"), peak(model, "moe"));
    EXPECT_LE(peak(model, "layernorm, moe, shared_experts"), peak(model, "moe, shared_experts"));
  }
}

TEST(OddCombinations, DeferredHeadGradientsWhereTheGraphIsKept) {
  const auto with = [](const char* framework) {
    return job("llama-3.2-1b", std::string("global_batch_size: 16, fused_gradient_accumulation: true, framework: ") + framework, "parallelism: {pipeline: 2}\npipeline: {deferred_head_gradients: 1}");
  };
  EXPECT_NE(mistakes(with("torchtitan")).find("pipeline.deferred_head_gradients"), std::string::npos);
  EXPECT_EQ(mistakes(with("megatron-core")), "");
}

}  // namespace
}  // namespace rehearse::scenario::odd_combinations_test
