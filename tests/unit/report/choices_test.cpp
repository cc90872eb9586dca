// What the user switches in a framework profile is part of the effective scenario: written out and read again it is the same.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/report/effective_config.h"

namespace rehearse::report::choices_test {
namespace {

TEST(EffectiveConfig, KeepsChoicesWithinAProfile) {
  const char* const job = "model: gpt-3-1.3b\ncluster: {node: dgx-a100}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: megatron-core, cross_entropy: vocab-parallel-compiled, transformer_engine: false, fused_gradient_accumulation: false}\n"
                          "data_parallel: {kind: ddp, gradient_dtype: bf16}\n";
  const scenario::Scenario s = scenario::read_scenario(config::parse_document(job, "job.yaml").root, "job.yaml");
  const scenario::Scenario again = scenario::read_scenario(config::parse_document(config::to_yaml(effective_config(s)), "again.yaml").root, "again.yaml");
  EXPECT_EQ(s.profile.loss, strategies::LossKind::vocab_parallel_compiled);
  EXPECT_EQ(again.profile.loss, s.profile.loss);
  EXPECT_FALSE(again.profile.transformer_engine);
  EXPECT_FALSE(again.profile.fused_gradient_accumulation);
  EXPECT_EQ(again.profile.gradient, DType::bf16);
  EXPECT_EQ(hash_of(again), hash_of(s));
}

TEST(EffectiveConfig, KeepsTheFormatOfFourBitWeights) {
  for (const char* format : {"nf4", "gptq"}) {
    const std::string job = std::string("model: llama-2-7b\ncluster: {node: dgx-a100, gpus_per_node: 1}\ntraining: {sequence_length: 512, global_batch_size: 1, framework: huggingface}\ntuning: {kind: qlora, format: ") + format + "}\n";
    const scenario::Scenario s = scenario::read_scenario(config::parse_document(job, "job.yaml").root, "job.yaml");
    const scenario::Scenario again = scenario::read_scenario(config::parse_document(config::to_yaml(effective_config(s)), "again.yaml").root, "again.yaml");
    EXPECT_EQ(again.strategy.tuning.format, s.strategy.tuning.format) << format;
    EXPECT_EQ(hash_of(again), hash_of(s));
  }
}

}  // namespace
}  // namespace rehearse::report::choices_test
