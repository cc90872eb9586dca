// FLOPs of one step against PyTorch's FlopCounterMode (tests/oracles/torch_flops.py): matrix products and attention,
// recomputation included. FlopCounterMode counts fused attention as if it were not causal; so do we here.
#include <gtest/gtest.h>

#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::flops_test {
namespace {

struct Count {
  double forward = 0, step = 0;
};

Count flops_of_plan(const plan::Plan& plan) {
  Count count;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      model::KernelSpec k = plan.kernels[i.index];
      const bool attention = k.kind == model::KernelKind::attention_forward || k.kind == model::KernelKind::attention_backward;
      if (k.kind != model::KernelKind::gemm && !attention) continue;
      k.causal = false;
      const double flops = model::flops_of(k).value;
      count.step += flops;
      if (call.phase == plan::Phase::forward) count.forward += flops;
    }
  return count;
}

// Whole numbers below 2^53 add up exactly in doubles: equal, not near.
TEST(Flops, EqualToPyTorchsCount) {
  const nlohmann::json answers = oracle("torch_flops.json");
  int rows = 0;
  for (const auto& row : answers["cases"]) {
    const Count ours = flops_of_plan(plan_of(row));
    EXPECT_EQ(ours.forward, row["forward_flops"].get<double>()) << row.dump();
    EXPECT_EQ(ours.step, row["step_flops"].get<double>()) << row.dump();
    ++rows;
  }
  EXPECT_EQ(rows, 48);
}

}  // namespace
}  // namespace rehearse::strategies::flops_test
