// Layers with a gated delta rule, and attention with a gate: what they keep, against Hugging Face's own classes (tests/oracles/torch_delta_live_bytes.py)
// and by formula; what tensor parallelism divides, which kernels run, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/hybrid_jobs.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::delta_net_test {
namespace {

using namespace hybrid_jobs;
using test_support::ByteLedger;
using test_support::StepBytes;

// What forward leaves, and the peaks of forward and of the step, within 1 %.
TEST(DeltaNet, WithinOnePercentOfPyTorch) {
  int rows = 0;
  const nlohmann::json answers = oracle("torch_delta_live_bytes.json");
  for (const auto& row : answers["qwen"]) {
    ++rows;
    const plan::Plan plan = plan_of(row);
    const StepBytes found = ByteLedger(plan, 0).step();
    const std::int64_t ids = row["batch"].get<std::int64_t>() * row["sequence"].get<std::int64_t>() * 8;
    const auto near = [&](const char* name, std::int64_t ours) { EXPECT_NEAR(static_cast<double>(ours) / row[name].get<double>(), 1, 0.01) << name << " of " << row.dump(); };
    near("parameter_bytes", found.setup[static_cast<std::size_t>(plan::Category::parameter)]);
    near("after_forward_bytes", found.after_forward - ids);
    near("forward_peak_bytes", found.forward_peak - ids);
    near("step_peak_bytes", found.step_peak - ids);
    near("gradient_bytes", found.before_update[static_cast<std::size_t>(plan::Category::gradient)]);
    EXPECT_TRUE(found.mistakes.empty()) << found.mistakes.front();
  }
  EXPECT_EQ(rows, 9);
}

constexpr std::int64_t kKeyHeads = 8, kValueHeads = 16, kDim = 128;

model::ModelDescription hybrid(std::int64_t layers, const std::string& pattern) {
  return hybrid_of(layers, pattern, [](model::ModelDescription& m) { m.delta_net = {.key_heads = kKeyHeads, .value_heads = kValueHeads, .key_dim = kDim, .value_dim = kDim, .convolution = 4}; });
}

// Megatron's mixer keeps the layer's input and its norm with statistics; what the convolution reads; queries and keys, one for each head of the values, and
// their lengths (before they are repeated: of the values' heads here too), values, the gate, decays' sums and step sizes with the gates that both are
// made of; inverses of chunks' triangles; the rule's output; the gated norm's output and statistics.
TEST(DeltaNet, KeepsWhatMegatronsOperatorsSave) {
  const auto peak = [](std::int64_t layers) { return ByteLedger(hybrid_plan(hybrid(layers, "G"), job(), "megatron-core"), 0).step().step_peak; };
  const std::int64_t keys = kKeyHeads * kDim, values = kValueHeads * kDim, projected = 2 * keys + 2 * values + 2 * kValueHeads;
  const std::int64_t stream = 2 * 2 * kHidden + 4, convolved = 2 * (2 * keys + values), operands = 2 * (2 * values + 2 * values) + 4 * 2 * kKeyHeads, gates = 4 * kValueHeads + 2 * kValueHeads + 2 * projected;
  const std::int64_t inside = 2 * 64 * kValueHeads + 2 * values, norm = 2 * values + 4 * kValueHeads;
  EXPECT_EQ((peak(12) - peak(8)) / 4, kTokens * (stream + convolved + operands + gates + inside + norm));
}

// Over a context group each rank has all tokens for some of the heads between the two products: what it computes and keeps is as without, at as many of its
// own tokens, but for the exchanges: of the projections and of the rule's output, each way.
TEST(DeltaNet, OverAContextGroup) {
  const auto plan_of = [](std::int64_t layers, int context) {
    Strategy s = job();
    s.training.sequence_length = kTokens * context;
    s.parallelism.degrees.context = context;
    return write_plan(hybrid(layers, "G"), s, load_profile("megatron-core"), 8);
  };
  struct Sum {
    double flops = 0;
    std::int64_t sent = 0;
  };
  const auto sum = [&](int context) {
    const plan::Plan plan = plan_of(3, context);
    Sum out;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op == plan::Opcode::kernel && (plan.kernels[i.index].kind == model::KernelKind::delta_rule || plan.kernels[i.index].kind == model::KernelKind::gemm)) out.flops += model::flops_of(plan.kernels[i.index]).value;
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].axis == plan::GroupAxis::context) out.sent += plan.collectives[i.index].bytes.value;
      }
    return out;
  };
  const Sum alone = sum(1), four = sum(4);
  EXPECT_DOUBLE_EQ(four.flops, alone.flops);
  const std::int64_t projected = 2 * kKeyHeads * kDim + 2 * kValueHeads * kDim + 2 * kValueHeads, output = kValueHeads * kDim;
  EXPECT_EQ(alone.sent, 0);
  EXPECT_EQ(four.sent, 3 * 2 * kTokens * 2 * (projected + output));
  const auto kept = [&](int context) {
    const auto after = [&](std::int64_t layers) {
      const StepBytes bytes = ByteLedger(plan_of(layers, context), 0).step();
      EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
      return bytes.after_forward;
    };
    return (after(8) - after(4)) / 4;
  };
  EXPECT_EQ(kept(4), kept(1));
}

TEST(DeltaNet, IsDividedOverTensorRanks) {
  const auto elements = [&](int tensor) { return parameters_per_stage(hybrid(4, "D"), job(tensor), load_profile("megatron-core")).front(); };
  const std::int64_t norms = 4 * (2 * kHidden + kDim) + kHidden;   // of the stream and of a head's values: whole on both
  EXPECT_EQ(2 * (elements(2) - norms), elements(1) - norms);
}

// States of all chunks of a sample follow each other, those of several samples do not.
TEST(DeltaNet, ChunksOfASampleWaitForOneAnother) {
  const auto chunks = [&](std::int64_t batch) {
    std::int64_t in_turn = 0;
    for (const model::KernelSpec& k : hybrid_plan(hybrid(1, "G"), job(1, batch), "huggingface").kernels)
      if (k.kind == model::KernelKind::delta_rule) in_turn = std::max(in_turn, k.elements);
    return in_turn;
  };
  EXPECT_EQ(chunks(1), kTokens / 64);
  EXPECT_EQ(chunks(4), kTokens / 64 / 4);
}

TEST(DeltaNet, WhatCannotBeIsRefused) {
  const auto keys = [](const Strategy& s, const std::string& profile = "megatron-core") { return keys_refused(hybrid(4, "D"), s, load_profile(profile)); };
  EXPECT_EQ(keys(job()), "");
  EXPECT_EQ(keys(job(16)), "parallelism.tensor ");   // 8 heads of keys
  Strategy context = job();
  context.parallelism.degrees.context = 3;
  EXPECT_NE(keys(context).find("parallelism.context"), std::string::npos);
  Strategy wide = job();
  wide.training.precision = Precision::fp32;
  EXPECT_EQ(keys(wide), "training.precision ");
}

}  // namespace
}  // namespace rehearse::strategies::delta_net_test
