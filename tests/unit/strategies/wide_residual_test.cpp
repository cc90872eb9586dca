// A 32-bit residual stream whose norms add, drop out and normalise in one kernel, and products with bias and gelu inside.
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::wide_residual_test {
namespace {

using test_support::ByteLedger;

plan::Plan plan_of(const FrameworkProfile& profile, std::int64_t layers, std::int64_t tokens, std::int64_t hidden) {
  Strategy s;
  s.training.sequence_length = tokens;
  s.training.global_batch_size = s.training.micro_batch_size = 1;
  s.training.precision = Precision::bf16;
  s.data_parallel.kind = DataParallelKind::none;
  return write_plan(gpt_like(layers, hidden, 4, 4 * hidden, 1024, 4096, 0.1), s, with_precision(profile, Precision::bf16), 8);
}

std::int64_t kept(const FrameworkProfile& profile, std::int64_t layers, std::int64_t tokens, std::int64_t hidden) {
  return ByteLedger(plan_of(profile, layers, tokens, hidden), 0).step().after_forward;
}

/// What a layer keeps per token and hidden element, bytes: what grows with layers, tokens and hidden size at once.
double per_element(const FrameworkProfile& profile) {
  const auto more_hidden = [&](std::int64_t layers, std::int64_t tokens) { return kept(profile, layers, tokens, 512) - kept(profile, layers, tokens, 256); };
  const std::int64_t mixed = more_hidden(2, 2048) - more_hidden(2, 1024) - more_hidden(1, 2048) + more_hidden(1, 1024);
  return static_cast<double>(mixed) / (1024.0 * 256);
}

std::int64_t traffic(const plan::Plan& plan, const std::string& word) {
  std::int64_t bytes = 0;
  for (const model::KernelSpec& k : plan.kernels)
    if (k.name.find(word) != std::string::npos) bytes += k.bytes_read + k.bytes_written;
  return bytes;
}

// Two sums of the stream in fp32 with a byte of mask each (10), what both norms give (4), queries, keys and values (6), attention's output
// (2), gelu's input and output (16). In 16 bits the sums are 4 bytes less.
TEST(WideResidual, KeepsSumsOfTheStreamInFp32) {
  FrameworkProfile profile = load_profile("flash-attention");
  EXPECT_NEAR(per_element(profile), 38, 1e-6);
  profile.wide_residual = false;
  EXPECT_NEAR(per_element(profile), 34, 1e-6);
}

// Per element, forward: branch (2) and stream (4) in, stream (4), mask (1) and result (2) out. Backward: the result's gradient (2), the sum (4)
// and the stream's gradient (4 + 4 in the tape's sum, which writes none) in; stream (4) and branch (2) out, the mask (1) in.
TEST(WideResidual, AddsAndNormalisesInOnePass) {
  const std::int64_t tokens = 1024, hidden = 256;
  const plan::Plan plan = plan_of(load_profile("flash-attention"), 1, tokens, hidden);
  const std::int64_t elements = tokens * hidden;
  const auto named = [&](const std::string& name) {
    for (const model::KernelSpec& k : plan.kernels)
      if (k.name == name) return (k.bytes_read + k.bytes_written) / elements;
    return std::int64_t{-1};
  };
  EXPECT_EQ(named("bias dropout add"), 2 + 4 + 4 + 1);
  EXPECT_EQ(named("mlp norm"), 2);
  EXPECT_EQ(named("mlp norm backward"), 2 + 4 + 4);
  EXPECT_EQ(named("dropout backward"), 1 + 2);
}

// Forward writes the second tensor, backward reads the first; bias gradients are sums of products' own results.
TEST(WideResidual, FusedDenseLeavesActivationAndBiasToProducts) {
  FrameworkProfile profile = load_profile("flash-attention");
  const std::int64_t tokens = 1024, hidden = 256, activations = tokens * 4 * hidden * 2;
  const plan::Plan fused = plan_of(profile, 1, tokens, hidden);
  profile.fused_dense = false;
  const plan::Plan apart = plan_of(profile, 1, tokens, hidden);
  EXPECT_EQ(traffic(fused, "gelu"), 2 * activations);
  EXPECT_EQ(traffic(apart, "gelu"), 5 * activations);
  EXPECT_EQ(traffic(apart, "fc1 bias gradient") - traffic(fused, "fc1 bias gradient"), activations);
}

}  // namespace
}  // namespace rehearse::strategies::wide_residual_test
