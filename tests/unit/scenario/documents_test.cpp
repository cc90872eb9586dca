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

// Over a ring each rank has a part of every document: the same scores in all, and as much on the wire as without documents.
TEST(Documents, AreDealtOutToTheRanksOfARing) {
  const auto totals = [](int context, st::ContextKind kind, std::int64_t document_length) {
    st::Strategy s = small_job(1);
    s.training.sequence_length = 4096;
    s.training.document_length = document_length;
    s.parallelism.degrees.context = context;
    s.parallelism.context_kind = kind;
    const st::FrameworkProfile profile = st::with_choices(st::load_profile("megatron-core"), s);
    EXPECT_TRUE(st::problems_of(small_llama(2), s, profile, 8).empty());
    const plan::Plan plan = st::write_plan(small_llama(2), s, profile, 8);
    std::pair<double, std::int64_t> out;   // operations of attention, bytes that travel
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].axis == plan::GroupAxis::context) out.second += plan.collectives[i.index].bytes.value;
        if (i.op != plan::Opcode::kernel) continue;
        const model::KernelSpec& k = plan.kernels[i.index];
        if (k.kind == model::KernelKind::attention_forward || k.kind == model::KernelKind::attention_backward) out.first += model::flops_of(k).value;
      }
    return out;
  };
  const auto alone = totals(1, st::ContextKind::ring, 512), ring = totals(4, st::ContextKind::ring, 512), whole = totals(4, st::ContextKind::ring, 0), heads = totals(4, st::ContextKind::ulysses, 512);
  EXPECT_NEAR(4 * ring.first / alone.first, 1, 0.02);
  EXPECT_NEAR(4 * heads.first / alone.first, 1, 0.01);
  EXPECT_EQ(ring.second, whole.second);
  EXPECT_NEAR(whole.first / ring.first, 8, 0.2);
}

}  // namespace
}  // namespace rehearse::scenario::documents_test
