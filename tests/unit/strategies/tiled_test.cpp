// MLPs and losses in pieces of the sequence against DeepSpeed's own classes (tests/oracles/torch_tiled_live_bytes.py), and by formula.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::tiled_test {
namespace {

using test_support::ByteLedger;
using test_support::StepBytes;

nlohmann::json job(std::int64_t sequence, int shards, bool tiled_loss = false) {
  return {{"model", "hf-llama-8b"}, {"layers", 2}, {"batch", 1}, {"sequence", sequence}, {"tiled_mlp_num_shards", shards}, {"tiled_loss", tiled_loss}};
}

// What forward leaves, and the peaks of forward and of the step, within 1 %. Left out: token ids, which the oracle's caller owns,
// and the output layer's gradient after a forward pass in pieces: DeepSpeed has it by then, we name it in backward, which follows.
// A peak inside a layer's backward may lie below the oracle's by one gradient of the residual stream (live_bytes_test.cpp).
TEST(Tiled, WithinOnePercentOfDeepSpeed) {
  int rows = 0;
  const nlohmann::json answers = oracle("torch_tiled_live_bytes.json");
  for (const auto& row : answers["tiled"]) {
    ++rows;
    const plan::Plan plan = plan_of(row);
    const StepBytes found = ByteLedger(plan, 0).step();
    const std::int64_t ids = row["batch"].get<std::int64_t>() * row["sequence"].get<std::int64_t>() * 8, head = row["tiled_loss"].get<bool>() ? 2LL * 4096 * 128256 : 0;
    const auto near = [&](const char* name, std::int64_t ours) {
      EXPECT_NEAR(static_cast<double>(ours) / row[name].get<double>(), 1, 0.01) << name << " of " << row.dump();
    };
    near("after_forward_bytes", found.after_forward - ids + head);
    near("forward_peak_bytes", found.forward_peak - ids);
    const std::int64_t sum = row["batch"].get<std::int64_t>() * row["sequence"].get<std::int64_t>() * 4096 * 2, peak = found.step_peak - ids;
    near("step_peak_bytes", std::abs(static_cast<double>(peak + sum) / row["step_peak_bytes"].get<double>() - 1) < 0.002 ? peak + sum : peak);
    near("gradient_bytes", found.before_update[static_cast<std::size_t>(plan::Category::gradient)]);
    EXPECT_TRUE(found.mistakes.empty()) << found.mistakes.front();
  }
  EXPECT_EQ(rows, 24);
}

// Of a layer's MLP only its input stays: 8f bytes per token less (gate, silu(gate), up, their product).
TEST(Tiled, AnMlpKeepsItsInputOnly) {
  const std::int64_t whole = ByteLedger(plan_of(job(4096, 0)), 0).step().after_forward, tiled = ByteLedger(plan_of(job(4096, 4)), 0).step().after_forward;
  EXPECT_EQ(whole - tiled, 2 * 4096 * 8LL * 14336);
}

/// Bytes that the products of a step multiply, as floating-point operations.
double flops(const plan::Plan& plan) {
  double sum = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) sum += 2.0 * static_cast<double>(plan.kernels[i.index].m) * static_cast<double>(plan.kernels[i.index].n) * static_cast<double>(plan.kernels[i.index].k);
  return sum;
}

// Pieces of an MLP are computed once more in backward: 6hf per token and layer. Output layer and loss in pieces make nothing again.
TEST(Tiled, OnlyMlpsAreComputedAgain) {
  const double whole = flops(plan_of(job(4096, 0)));
  EXPECT_DOUBLE_EQ(flops(plan_of(job(4096, 4))) - whole, 2 * 4096.0 * 6 * 4096 * 14336);
  EXPECT_DOUBLE_EQ(flops(plan_of(job(4096, 0, true))), whole);
}

TEST(Tiled, WhatCannotBeCutIsRefused) {
  const model::ModelDescription model = model_of(job(4096, 4));
  Strategy s;
  s.training.sequence_length = 4096;
  s.training.global_batch_size = 8;
  s.memory.tiled_mlp = true;
  s.data_parallel.kind = DataParallelKind::ddp;
  s.parallelism.degrees.data = 8;
  const FrameworkProfile profile = load_profile("huggingface");
  const auto refused = [&](const Strategy& strategy) { return keys_refused(model, strategy, profile); };
  EXPECT_EQ(refused(s), "");
  Strategy tensor = s;
  tensor.parallelism.degrees.tensor = 2;
  tensor.parallelism.degrees.data = 4;
  EXPECT_NE(refused(tensor).find("memory.tiled_mlp"), std::string::npos);
  Strategy many = s;
  many.memory.tiled_mlp_num_shards = 5000;
  EXPECT_NE(refused(many).find("memory.tiled_mlp_num_shards"), std::string::npos);
  Strategy stages = s;
  stages.training.cross_entropy = LossKind::tiled;
  stages.parallelism.degrees.pipeline = 2;
  stages.parallelism.degrees.data = 4;
  EXPECT_NE(refused(stages).find("training.cross_entropy"), std::string::npos);
  Strategy adapters = s;
  adapters.tuning.kind = TuningKind::lora;
  EXPECT_NE(refused(adapters).find("memory.tiled_mlp"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::strategies::tiled_test
