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
  EXPECT_EQ(gradients(DType::fp32), 4 * st::parameters_per_stage(s.model, s.strategy, s.profile)[0]);
}

// What DeepSpeed's releases make of gradients, in bytes: ZeRO-1's buffer, 1 GB for 500,000,000 of 16 bits whatever the model has, stands through the
// backward or is made where buckets are reduced, after it; the 16-bit gradients of a micro-batch stay, or go when the next backward begins.
TEST(ProfileKeys, OfDeepSpeedsGradients) {
  Scenario s = job("deepspeed", 2);
  s.strategy.data_parallel.kind = st::DataParallelKind::zero1;
  const auto plan_with = [&](const std::string& keys) {
    const st::FrameworkProfile chosen = st::with_keys(s.profile, config::parse_document("{" + keys + "}", "key").root);
    return st::write_plan(s.model, s.strategy, st::with_choices(st::with_precision(chosen, s.strategy.training.precision), s.strategy), 8);
  };
  const auto peak = [&](const std::string& keys) { return test_support::ByteLedger(plan_with(keys), 0).step().step_peak; };
  const std::string after_loss = "buckets_late: false, zero1_gradient_buffer: ";
  EXPECT_EQ(peak(after_loss + "true") - peak(after_loss + "false"), 1'000'000'000);
  EXPECT_LT(peak("zero1_gradient_buffer: true"), peak(after_loss + "true"));   // made once the logits' gradients are gone
  const test_support::StepBytes at_once = test_support::ByteLedger(plan_with("zero1_gradient_buffer: false"), 0).step();
  EXPECT_TRUE(at_once.mistakes.empty());
  EXPECT_EQ(at_once.setup[static_cast<std::size_t>(plan::Category::communication)], 0);

  s = job("megatron-deepspeed", 2);
  s.strategy.data_parallel.kind = st::DataParallelKind::zero1;
  s.strategy.data_parallel.gradient_dtype = DType::fp32;
  const std::int64_t parameters = st::parameters_per_stage(s.model, s.strategy, s.profile)[0];
  const auto kernels = [](const plan::Plan& plan, const std::string& name) {
    std::int64_t bytes = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == name) bytes += plan.kernels[i.index].bytes_written;
    return bytes;
  };
  const plan::Plan held = plan_with("zeroes_narrow_gradients: false"), zeroed = plan_with("zeroes_narrow_gradients: true");
  const test_support::StepBytes goes = test_support::ByteLedger(held, 0).step(), stays = test_support::ByteLedger(zeroed, 0).step();
  EXPECT_TRUE(goes.mistakes.empty());
  EXPECT_TRUE(stays.mistakes.empty());
  const auto gradient = static_cast<std::size_t>(plan::Category::gradient);
  EXPECT_EQ(goes.setup[gradient], 4 * parameters);
  EXPECT_EQ(stays.setup[gradient], 6 * parameters);
  EXPECT_EQ(goes.before_update[gradient], 6 * parameters);   // let go when the next backward begins
  EXPECT_EQ(goes.after_step, goes.persistent);
  EXPECT_EQ(kernels(zeroed, "zero gradient"), 4 * 2 * parameters);   // four micro-batches
  EXPECT_EQ(kernels(held, "zero gradient"), 0);
}

// Megatron-LM's layers of 2023: orders of flash attention's operands, TorchScript's masks, rotary embedding by operators.
TEST(ProfileKeys, OfMegatronsLayersOf2023) {
  Scenario s = job("megatron-2021", 1);
  s.model.position = model::Position::rotary;
  s.strategy.training.attention = "flash";
  s.strategy.training.global_batch_size = s.strategy.training.micro_batch_size;
  const auto plan_with = [&](const std::string& keys) {
    const st::FrameworkProfile chosen = st::with_keys(s.profile, config::parse_document("{" + keys + "}", "key").root);
    return st::write_plan(s.model, s.strategy, st::with_choices(st::with_precision(chosen, s.strategy.training.precision), s.strategy), 8);
  };
  const auto count = [&](const std::string& keys, const std::string& name) {
    const plan::Plan plan = plan_with(keys);
    int kernels = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) kernels += i.op == plan::Opcode::kernel && plan.kernels[i.index].name == name;
    return kernels;
  };
  const auto kept = [&](const std::string& keys) { return test_support::ByteLedger(plan_with(keys), 0).step().after_forward; };
  constexpr int kLayers = 4;
  for (const int samples : {1, 2}) {   // of one sample only values, which are a part of the fused product, are not one block already
    s.strategy.training.micro_batch_size = s.strategy.training.global_batch_size = samples;
    EXPECT_EQ(count("orders_by_sample: true", "order by sample"), kLayers * (samples > 1 ? 3 : 1));
    EXPECT_EQ(count("orders_by_sample: true", "contiguous"), samples > 1 ? kLayers : 0);
    EXPECT_EQ(count("orders_by_sample: false", "order by sample"), 0);
  }
  // Two masks of a byte per element in each layer, though nothing is dropped.
  const std::int64_t elements = s.strategy.training.micro_batch_size * s.strategy.training.sequence_length * s.model.hidden;
  EXPECT_EQ(kept("scripted_dropout: true") - kept("scripted_dropout: false"), kLayers * 2 * elements);
  EXPECT_EQ(count("joins_unrotated: true", "rope cat parts"), 2 * kLayers);
  EXPECT_EQ(count("joins_unrotated: false", "rope cat parts"), 0);
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

// A kind that nobody has would never be offered: it is a slip.
TEST(ProfileKeys, NamesOnlyKindsOfDataParallelismThatThereAre) {
  const auto keys = [](const std::string& kinds) { return config::parse_document("{data_parallel_kinds: [" + kinds + "]}", "keys").root; };
  EXPECT_EQ(st::with_keys(st::load_profile("torchtitan"), keys("fsdp2, zero3")).data_parallel_kinds.size(), 2u);
  try {
    st::with_keys(st::load_profile("torchtitan"), keys("fsdp2, zero33"));
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(e.diagnostics().front().problem.find("'zero33'"), std::string::npos);
    EXPECT_NE(e.diagnostics().front().fix.find("zero3"), std::string::npos);
  }
}

}  // namespace
}  // namespace rehearse::scenario::profile_keys_test
