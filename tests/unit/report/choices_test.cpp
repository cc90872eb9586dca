// What the user switches in a framework profile is part of the effective scenario: written out and read again it is the same.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/core/error.h"
#include "sim/report/effective_config.h"
#include "sim/scenario/simulate.h"

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

const char* const kJob = "model: gpt-3-1.3b\ncluster: {node: dgx-a100}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: megatron-core}\ndata_parallel: {kind: ddp}\n";

scenario::Scenario with(const std::string& more) { return scenario::read_scenario(config::parse_document(kJob + more, "job.yaml").root, "job.yaml"); }

TEST(EffectiveConfig, HasTheKeysInWhichAProfileDiffers) {
  const scenario::Scenario own = with(""), faster = with("profile: {layer_host: 0.1 ms, bucket_elements: 1000000, loss: vocab-parallel-compiled}\n");
  EXPECT_EQ(effective_config(own).find("profile"), nullptr);
  const config::Value config = effective_config(faster);
  const config::Value* keys = config.find("profile");
  ASSERT_NE(keys, nullptr);
  EXPECT_EQ(keys->entries().size(), 3u);
  EXPECT_EQ(keys->find("loss")->text(), "vocab-parallel-compiled");
  EXPECT_NE(hash_of(faster), hash_of(own));
  EXPECT_NE(scenario::simulate(faster).step_time, scenario::simulate(own).step_time);
  EXPECT_EQ(std::count(faster.notes.begin(), faster.notes.end(), "profile: not as megatron-core has it: layer_host, bucket_elements, loss"), 1);
  // A value that the profile has anyway is no difference.
  EXPECT_EQ(effective_config(with("profile: {loss: vocab-parallel}\n")).find("profile"), nullptr);
}

TEST(EffectiveConfig, PointsAtTheProfilesKeyThatIsNone) {
  try {
    with("profile:\n  layer_hosts: 1 ms\n  kernel_host: -1 us\n");
    FAIL();
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.diagnostics().size(), 2u);
    EXPECT_EQ(error.diagnostics()[0].at.line, 6);
    EXPECT_EQ(error.diagnostics()[0].key, "profile.layer_hosts");
    EXPECT_NE(error.diagnostics()[0].fix.find("layer_host"), std::string::npos);
    EXPECT_EQ(error.diagnostics()[1].at.line, 7);
  }
  EXPECT_THROW(with("profile: megatron-core\n"), ConfigError);
  EXPECT_THROW(with("profile: {layer_host: 2 s}\n"), ConfigError);   // calls are many: sums of thousands would not be times any more
  EXPECT_NO_THROW(with("profile: {step_host: 2 s}\n"));
}

TEST(EffectiveConfig, KeepsTheCardsAndTheMeasuredNetwork) {
  const scenario::Scenario changed = scenario::read_scenario(config::apply_overrides(config::parse_document(kJob, "job.yaml").root, {"cluster.nodes=2", "training.global_batch_size=16", "cluster.nics=2", "cluster.nic_bandwidth=100 Gb/s", "cluster.measured_bandwidth.all_reduce=20 GB/s"}), "job.yaml");
  EXPECT_EQ(changed.cluster.node.nic.count, 2);
  EXPECT_DOUBLE_EQ(changed.cluster.node.nic.bandwidth.value, 12.5e9);
  ASSERT_TRUE(changed.communication.measured);
  EXPECT_DOUBLE_EQ(changed.communication.measured->all_reduce_world, 20);
  EXPECT_EQ(changed.communication.measured->world.ranks, 16);
  EXPECT_FALSE(with("").communication.measured);
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
