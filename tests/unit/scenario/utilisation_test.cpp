// What MFU counts of a model is what the kernels of a step execute, where nothing is recomputed: both are counted apart, from shapes and from the program.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::utilisation_test {
namespace {

FlopCount flops(const std::string& model, const std::string& training, const std::string& rest = "") {
  const std::string text = "model: " + model + "\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 2048, global_batch_size: 8, " + training + "}\nmemory: {recompute: none}\n" + rest + "\n";
  return simulate(read_scenario(config::parse_document(text, "job.yaml").root, "job.yaml"), {.memory = false}).flops;
}

// A narrow embedding with projections around it, layers that predict further tokens, scans and delta rules. Attention's backward makes its scores anew
// (2.5 forwards where the model has 2), scans of chunks take more operations than those of one token after the other, vocabularies are padded.
TEST(Utilisation, ModelsAreCountedAsTheirKernelsAre) {
  const struct {
    const char *model, *training, *rest;
  } jobs[] = {{"opt-350m", "framework: huggingface", ""},
              {"llama-3.2-1b", "framework: huggingface", ""},
              {"{preset: llama-3.2-1b, embedding_width: 128, tied_embeddings: false}", "framework: huggingface", ""},
              {"nemotron-h-8b", "framework: megatron-bridge", "data_parallel: {kind: distributed-optimizer}"},
              {"{preset: deepseek-v3, layers: 4}", "framework: megatron-core, multi_token_prediction: true", "parallelism: {expert: 8}\ndata_parallel: {kind: distributed-optimizer}"},
              {"{preset: deepseek-v3, layers: 4}", "framework: megatron-core, multi_token_prediction: false", "parallelism: {expert: 8}\ndata_parallel: {kind: distributed-optimizer}"}};
  for (const auto& job : jobs) {
    SCOPED_TRACE(std::string(job.model) + " " + job.training);
    const FlopCount count = flops(job.model, job.training, job.rest);
    EXPECT_LE(count.model_causal, count.hardware);
    EXPECT_GE(count.model_causal, 0.93 * count.hardware);
    EXPECT_DOUBLE_EQ(count.hardware_at_peak, count.hardware);
  }
}

// Muon's products run in bf16 whatever the job's format: of an fp32 job's peak they can fill a fraction.
TEST(Utilisation, ProductsOfANarrowerFormatCountWithTheirOwnPeak) {
  const FlopCount adam = flops("llama-3.2-1b", "framework: plain, precision: fp32"), muon = flops("llama-3.2-1b", "framework: plain, precision: fp32, optimizer: muon");
  EXPECT_GT(muon.hardware, adam.hardware);
  EXPECT_LT(muon.hardware_at_peak - adam.hardware_at_peak, 0.2 * (muon.hardware - adam.hardware));
}

}  // namespace
}  // namespace rehearse::scenario::utilisation_test
