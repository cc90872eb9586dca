// Keys of framework profiles that no other test turns: each changes what a job that it concerns takes or keeps.
#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/config/document.h"
#include "sim/model/presets.h"
#include "sim/scenario/simulate.h"
#include "strategies/framework/profile.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::profile_keys_test {
namespace {

namespace st = strategies;

/// A small job of `profile` on `gpus` GPUs of a node.
Scenario job(const std::string& profile, int data, int tensor = 1, int pipeline = 1, const std::string& node = "dgx-h100", const std::string& gpu = "h100-sxm") {
  Scenario s;
  s.model = small_llama(4);
  s.profile = st::load_profile(profile);
  s.strategy = small_job(data, pipeline, 4);
  s.strategy.parallelism.degrees.tensor = tensor;
  s.strategy.parallelism.sequence_parallel = tensor > 1;
  s.strategy.training.micro_batch_size = 2;
  s.strategy.training.global_batch_size *= 2;
  s.cluster = hwmodels::load_cluster(node, 1, "rail-fat-tree", gpu);
  s.cluster.gpus_per_node = data * tensor * pipeline;
  return s;
}

/// What of a job somebody would see: its step's time, and every class's memory.
std::vector<double> answer(Scenario s) {
  s.profile = st::with_choices(st::with_precision(std::move(s.profile), s.strategy.training.precision), s.strategy);
  const Result result = simulate(s);
  std::vector<double> out{result.step_time};
  for (const ClassResult& c : result.classes) out.insert(out.end(), {static_cast<double>(c.memory.peak_allocated.value), static_cast<double>(c.memory.peak_reserved.value), static_cast<double>(c.peak_device().value)});
  return out;
}

void expect_change(const Scenario& s, const std::string& key, const std::string& off, const std::string& on) {
  const auto with = [&](const std::string& value) {
    Scenario other = s;
    other.profile = st::with_keys(std::move(other.profile), config::parse_document("{" + key + ": " + value + "}", "key").root);
    return answer(std::move(other));
  };
  EXPECT_NE(with(off), with(on)) << key;
}

// A buffer for each micro-batch's gradient: 8 of them on the first stage, less the one in hand, 256 tokens x 512 in 16 bits each.
TEST(ProfileKeys, OfReceiveBuffers) {
  Scenario s = job("torchtitan", 1, 1, 2);
  s.strategy.training.global_batch_size = 8 * s.strategy.training.micro_batch_size * s.strategy.parallelism.degrees.data;
  const auto parameters = [&](bool buffers) {
    s.profile.receives_into_buffers = buffers;
    return test_support::ByteLedger(st::write_plan(s.model, s.strategy, s.profile, 8), 0).step().persistent;
  };
  const std::int64_t message = s.strategy.training.micro_batch_size * s.strategy.training.sequence_length * s.model.hidden * 2;
  EXPECT_EQ(parameters(true) - parameters(false), 7 * message);
}

TEST(ProfileKeys, OfPipelinesAndRowParallelLayers) {
  expect_change(job("nanotron", 1, 2), "asynchronous_row", "false", "true");
  expect_change(job("megatron-deepspeed", 1, 1, 2), "wide_bf16_in_stages", "false", "true");
  expect_change(job("megatron-deepspeed", 2, 1, 2), "wide_bf16_reduce", "fp32", "bf16");
}

// ZeRO-1 that is asked for fp32 gradients has them whole, 4 bytes per parameter, beside the 16-bit ones of the micro-batch (DeepSpeed's BF16_Optimizer).
TEST(ProfileKeys, WideGradientsThatAreAskedFor) {
  Scenario s = job("megatron-deepspeed", 2);
  s.strategy.data_parallel.kind = st::DataParallelKind::zero1;
  const auto gradients = [&](std::optional<DType> asked) {
    s.strategy.data_parallel.gradient_dtype = asked;
    const st::FrameworkProfile profile = st::with_choices(st::with_precision(s.profile, s.strategy.training.precision), s.strategy);
    return test_support::ByteLedger(st::write_plan(s.model, s.strategy, profile, 8), 0).step().setup[static_cast<std::size_t>(plan::Category::gradient)];
  };
  EXPECT_EQ(gradients(std::nullopt), 0);
  EXPECT_EQ(gradients(DType::fp32), 4 * st::parameters_per_class(s.model, s.strategy, s.profile)[0]);
}

TEST(ProfileKeys, OfExperts) {
  Scenario s = job("torchtitan", 1, 1, 1, "dgx-b200", "b200-sxm");
  model::Shapes shapes{.name = "experts", .layers = 2, .hidden = 512, .heads = 8, .vocab = 4096};
  shapes.experts = 4, shapes.top_k = 2, shapes.moe_ffn_hidden = 1024, shapes.ffn_hidden = 1024;
  s.model = model::make_from_shapes(shapes);
  s.profile = without_host_time(std::move(s.profile));   // which hides what products of this size take
  expect_change(s, "native_grouped", "false", "true");
  expect_change(s, "weighs_wide_outputs", "false", "true");
  Scenario oss = job("megatron-core", 1);
  oss.model = model::load_preset("gpt-oss-20b");   // experts with biases and a clamped activation
  oss.model.layers.resize(2);
  expect_change(oss, "separate_expert_bias", "false", "true");
  expect_change(oss, "separate_clamp", "false", "true");
}

TEST(ProfileKeys, OfAdapters) {
  Scenario s = job("litgpt", 1);
  s.strategy.tuning.kind = st::TuningKind::lora;
  s.strategy.tuning.targets = {"q_proj", "v_proj", "mlp"};
  expect_change(s, "adapter_per_part", "false", "true");
  Scenario checkpointed = job("huggingface", 1);
  checkpointed.strategy.tuning.kind = st::TuningKind::lora;
  checkpointed.strategy.memory.recompute = st::Recompute::full;
  expect_change(checkpointed, "input_require_gradients", "false", "true");
  checkpointed.strategy.tuning.trainable = {"lm_head"};
  expect_change(checkpointed, "keeps_original_of_trained", "false", "true");
}

TEST(ProfileKeys, OfZero) {
  Scenario s = job("deepspeed", 2);
  s.strategy.data_parallel.kind = st::DataParallelKind::zero1;
  s.strategy.training.precision = st::Precision::fp16;
  expect_change(s, "widens_gradients", "false", "true");
  Scenario first = job("deepspeed-2020", 2);
  first.strategy.data_parallel.kind = st::DataParallelKind::zero1;
  first.strategy.training.precision = st::Precision::fp16;
  expect_change(first, "scatters_gradients", "false", "true");
  expect_change(first, "joins_scattered", "false", "true");
}

// The host's work between steps, here 200 us and all that the host does, is hidden by the device's work that is still ahead; where the host waits for the
// device first, all of it is added to the step.
TEST(ProfileKeys, AWaitAtTheStepsEndExposesTheHostsWorkBetweenSteps) {
  Scenario s = job("torchtitan", 1);
  s.profile = without_host_time(std::move(s.profile));
  s.profile.gradient_norm_sync = s.profile.reads_loss = s.profile.blocking_input = false;
  const auto step = [&](bool waits, double host) {
    s.profile.waits_after_step = waits;
    s.profile.step_host = seconds(host);
    return answer(s).front();
  };
  const double device = step(false, 0);
  ASSERT_GT(device, 400e-6);
  EXPECT_NEAR(step(false, 200e-6), device, 1e-9);
  EXPECT_NEAR(step(true, 0), device, 20e-6);   // what is launched first after the wait
  EXPECT_NEAR(step(true, 200e-6) - step(true, 0), 200e-6, 1e-9);
}

TEST(ProfileKeys, OfTheDevice) { expect_change(job("plain", 1), "misc_device", "0 MiB", "300 MiB"); }

// Blackwell's cuDNN has no backward in a fixed order that drops out: attention is not fused there.
TEST(ProfileKeys, OfDeterminism) {
  Scenario s = job("megatron-core", 1, 1, 1, "dgx-b200", "b200-sxm");
  s.model.attention_dropout = 0.1;
  s.profile.dropout = true;
  expect_change(s, "deterministic_attention", "false", "true");
}

}  // namespace
}  // namespace rehearse::scenario::profile_keys_test
