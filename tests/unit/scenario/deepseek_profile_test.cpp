// What DeepSeek's framework keeps and sends in fewer bits (DeepSeek-V3 technical report, section 3.3.3), and the run that it was for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "sim/model/shapes.h"
#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/support/source_dir.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::deepseek_profile_test {
namespace {

namespace st = strategies;
using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kTokens = 256, kHidden = 512, kWidth = 1024, kExperts = 16, kChosen = 2;

model::ModelDescription mixture(std::int64_t layers) {
  model::Shapes s{.name = "mixture", .layers = layers, .hidden = kHidden, .heads = 8, .vocab = 4096};
  s.experts = kExperts;
  s.top_k = kChosen;
  s.ffn_hidden = kWidth;
  return model::make_from_shapes(s);
}

st::Strategy eight_bits(int data) {
  st::Strategy s = small_job(data);
  s.training.precision = st::Precision::fp8;
  s.memory.recompute = st::Recompute::selective;
  return s;
}

st::FrameworkProfile profile() { return without_host_time(st::load_profile("deepseek")); }

StepBytes bytes_of(const model::ModelDescription& model, const st::Strategy& s, const st::FrameworkProfile& p) {
  const StepBytes bytes = ByteLedger(st::write_plan(model, s, p, 8), 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.after_step, bytes.persistent);
  return bytes;
}

/// Bytes per token that one more layer keeps for backward.
std::int64_t per_token(const st::FrameworkProfile& p) {
  const auto kept = [&](std::int64_t layers) { return bytes_of(small_llama(layers), eight_bits(1), p).after_forward; };
  return (kept(3) - kept(2)) / kTokens;
}

// Attention's output of h values waits for its own backward (2 bytes) and for the output projection's weight gradient (one, and an fp32 scale
// per 128 values); packed, for both: a byte and a half, and the scale.
TEST(DeepSeek, AttentionsOutputWaitsInTwelveBits) {
  st::FrameworkProfile p = profile();
  const std::int64_t packed = per_token(p);
  p.attention_output_bits = 0;
  EXPECT_EQ(per_token(p) - packed, 2 * kHidden + (kHidden + kHidden / 128 * 4) - (kHidden * 3 / 2 + kHidden / 128 * 4));
}

// What norms (h values each, read by q, k and v's product, and by gate and up's) and SwiGLU (f values) make is made again, and with it its
// 8-bit form; Transformer Engine keeps that. Attention's output is not made again: its 8-bit form stays, here with a scale per 128.
TEST(DeepSeek, KeepsNoEightBitFormOfWhatIsMadeAgain) {
  st::FrameworkProfile p = profile();
  p.attention_output_bits = 0;
  const std::int64_t without = per_token(p);
  p.columns_in_backward = false;
  EXPECT_EQ(per_token(p) - without, kHidden + kHidden + kWidth - kHidden / 128 * 4);
}

// Gate and up are 2 f values: two bytes each where SwiGLU is made again of them, one where it is made again of their 8-bit form.
TEST(DeepSeek, MakesSwiGluAgainOfEightBits) {
  st::FrameworkProfile p = profile();
  const std::int64_t narrow = per_token(p);
  p.remakes_from_narrow = false;
  EXPECT_EQ(per_token(p) - narrow, 2 * kWidth);
  p.narrows_activation_input = false;
  EXPECT_EQ(per_token(p) - narrow, 2 * kWidth);   // the input as it was is kept in any case
}

// The same of experts: 2 f values for each of a token's slots.
TEST(DeepSeek, MakesExpertsSwiGluAgainOfEightBits) {
  st::FrameworkProfile p = profile();
  const auto kept = [&](std::int64_t layers) { return bytes_of(mixture(layers), eight_bits(1), p).after_forward; };
  const std::int64_t narrow = kept(3) - kept(2);
  p.remakes_from_narrow = false;
  EXPECT_EQ(kept(3) - kept(2) - narrow, kTokens * kChosen * 2 * kWidth);
}

// Tokens, and gradients of what experts return, go there in a byte per value and an fp32 scale per 128; both ways back take two bytes.
TEST(DeepSeek, TokensTravelToTheirExpertsInEightBits) {
  st::Strategy s = eight_bits(8);
  s.parallelism.degrees.expert = 8;
  s.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
  const auto sent = [&](const st::FrameworkProfile& p, const std::string& name) {
    const plan::Plan plan = st::write_plan(mixture(2), s, p, 8);
    const auto found = std::find_if(plan.collectives.begin(), plan.collectives.end(), [&](const plan::CollectiveSpec& c) { return c.name == name; });
    return found == plan.collectives.end() ? -1 : found->bytes.value;
  };
  st::FrameworkProfile p = profile();
  const std::int64_t wide = kTokens * kHidden * 2, narrow = kTokens * (kHidden + kHidden / 128 * 4);
  for (const auto& [name, bytes] : {std::pair("dispatch", narrow), {"combine back", narrow}, {"combine", wide}, {"dispatch back", wide}}) EXPECT_EQ(sent(p, name), bytes) << name;
  p.narrow_dispatch = false;
  for (const char* name : {"dispatch", "combine back", "combine", "dispatch back"}) EXPECT_EQ(sent(p, name), wide) << name;
}

/// Bytes of a layer that are let go by its weight gradients, made long after the input gradients.
std::int64_t held_for_weights(const st::FrameworkProfile& p) {
  st::Strategy s = eight_bits(1);
  s.parallelism.degrees.pipeline = 2;
  s.training.global_batch_size = 4;
  s.pipeline.schedule = "zb-h1";
  const plan::Plan plan = st::write_plan(small_llama(4), s, p, 8);
  std::map<std::uint32_t, std::int64_t> made;
  std::int64_t held = 0;
  for (const char* part : {"layer forward", "layer input gradients", "layer weight gradients"}) {
    const auto block = std::find_if(plan.blocks.begin(), plan.blocks.end(), [&](const plan::Block& b) { return b.name == part; });
    if (block == plan.blocks.end()) return -1;
    const bool last = block->name == "layer weight gradients";
    for (const plan::Instruction& i : block->memory) {
      if (i.frame != plan::Frame::own) continue;
      if (i.op == plan::Opcode::alloc) made[i.index] = last ? 0 : i.value;
      if (i.op == plan::Opcode::free && last) held += made[i.index];
    }
  }
  return held;
}

// Weight gradients that wait read the copies that the input gradients' pass made for them, a byte per value of input and of gradient. Values into and
// out of a layer's products: h and 3 h of queries, keys and values, h and h of attention's output, h and 2 f of gate and up, f and h of down.
TEST(DeepSeek, DelayedWeightGradientsReadEightBits) {
  st::FrameworkProfile p = profile();
  EXPECT_EQ(held_for_weights(p), kTokens * ((kHidden + 3 * kHidden) + 2 * kHidden + (kHidden + 2 * kWidth) + (kWidth + kHidden)));
  p.columns_in_backward = false;   // the gradients in 16 bits
  EXPECT_GE(held_for_weights(p), kTokens * 2 * (3 * kHidden + kHidden + 2 * kWidth + kHidden));
}

// 14.8 T tokens took 2.664 M GPU hours on 2,048 H800 of 80 GB: 19.9 s per step of 15,360 samples (table 1), whatever interrupted it included.
TEST(DeepSeek, FitsAndTakesWhatItTook) {
  const std::string file = source_dir().string() + "/scenarios/deepseek_v3_2048xh800.yaml";
  const Result result = simulate(load_scenario(file));
  EXPECT_TRUE(result.fits);
  EXPECT_NEAR(result.step_time, 15360 * 4096 / (14.8e12 / (2.664e6 * 3600) * 2048), 2.0);
}

}  // namespace
}  // namespace rehearse::scenario::deepseek_profile_test
