// Packed documents: attention within each, everything else as before.
#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::documents_test {
namespace {

namespace st = strategies;

struct Flops {
  double products = 0, attention = 0;
  std::int64_t kernels = 0;
};

Flops flops(std::int64_t document_length) {
  st::Strategy s = small_job(1);
  s.training.sequence_length = 4096;
  s.training.document_length = document_length;
  const plan::Plan plan = st::write_plan(small_llama(2), s, st::with_choices(st::load_profile("megatron-core"), s), 1);
  Flops out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      ++out.kernels;
      if (k.kind == model::KernelKind::gemm) out.products += model::flops_of(k).value;
      if (k.kind == model::KernelKind::attention_forward || k.kind == model::KernelKind::attention_backward) out.attention += model::flops_of(k).value;
    }
  return out;
}

TEST(Documents, AttentionStaysWithinThem) {
  const Flops whole = flops(0), packed = flops(256);
  EXPECT_EQ(packed.kernels, whole.kernels);
  EXPECT_DOUBLE_EQ(packed.products, whole.products);
  // Pairs under the causal mask: n (n + 1) / 2 for each of 4096 / n documents of n tokens.
  EXPECT_NEAR(whole.attention / packed.attention, 4097.0 / 257, 0.02 * 4097 / 257);
  EXPECT_DOUBLE_EQ(flops(4096).attention, whole.attention);
  EXPECT_DOUBLE_EQ(flops(9999).attention, whole.attention);
}

}  // namespace
}  // namespace rehearse::scenario::documents_test
