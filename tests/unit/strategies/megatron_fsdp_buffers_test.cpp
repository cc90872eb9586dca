// Megatron-FSDP's double buffers, and collectives over buffers that NCCL knows.
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::strategies::megatron_fsdp_buffers_test {
namespace {

using scenario::small_job;
using scenario::small_llama;

constexpr int kLayers = 6;

Strategy job(bool doubled, bool registered = false) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::megatron_fsdp;
  s.data_parallel.double_buffer = doubled;
  s.data_parallel.registered_buffers = registered;
  return s;
}

plan::Plan plan_of(const Strategy& s, bool fused = true) {
  FrameworkProfile profile = load_profile("megatron-core");
  profile.fused_gradient_accumulation = fused;
  return write_plan(small_llama(kLayers), s, with_choices(profile, s), 8);
}

std::int64_t layer_elements() {
  const model::ModelDescription m = small_llama(kLayers);
  return model::attention_matrix_parameters(m) + model::mlp_parameters(m, m.ffn_hidden) + 2 * m.hidden;
}

// Two layers in bf16, and two layers' gradients: both where they are copied into buckets, one where products make the other as they go.
TEST(DoubleBuffers, LastForTheWholeRun) {
  for (const bool fused : {true, false}) {
    const std::int64_t usual = test_support::ByteLedger(plan_of(job(false), fused), 0).step().persistent, doubled = test_support::ByteLedger(plan_of(job(true), fused), 0).step().persistent;
    const std::int64_t gradient = load_profile("megatron-core").gradient == DType::fp32 ? 4 : 2;
    EXPECT_EQ(doubled - usual, layer_elements() * (2 * 2 + (fused ? 1 : 2) * gradient)) << fused;
  }
}

/// The most gathers of layers that were issued before any compute of the layer that the first of them is for.
int most_gathered_ahead(const plan::Plan& plan) {
  int ahead = 0, most = 0;
  for (const plan::Call& call : plan.classes[0].program.step) {
    const std::string& name = plan.blocks[call.block].name;
    if (name.starts_with("gather")) most = std::max(most, ++ahead);
    else if (name.starts_with("use gathered")) --ahead;
  }
  return most;
}

// Half a billion elements are the whole of a small model; two buffers hold the layer in use and the next.
TEST(DoubleBuffers, OneLayerIsGatheredAhead) {
  EXPECT_GE(most_gathered_ahead(plan_of(job(false))), kLayers);
  EXPECT_LE(most_gathered_ahead(plan_of(job(true))), 3);   // in use, next, and what belongs to no layer
}

TEST(RegisteredBuffers, AreThoseOfDataParallelGathersAndScatters) {
  for (const DataParallelKind kind : {DataParallelKind::megatron_fsdp, DataParallelKind::distributed_optimizer})
    for (const bool on : {false, true}) {
      Strategy s = job(false, on);
      s.data_parallel.kind = kind;
      const plan::Plan plan = plan_of(s);
      int registered = 0;
      for (const plan::CollectiveSpec& c : plan.collectives) {
        const bool moves_shards = c.axis == plan::GroupAxis::data && (c.kind == CollectiveKind::all_gather || c.kind == CollectiveKind::reduce_scatter);
        EXPECT_EQ(c.registered, on && moves_shards) << c.name;
        registered += c.registered;
      }
      EXPECT_EQ(registered > 0, on);
    }
}

// Megatron's own rule: nccl_ub switches fsdp_double_buffer on.
TEST(RegisteredBuffers, AreDoubleBuffers) {
  EXPECT_EQ(test_support::ByteLedger(plan_of(job(false, true)), 0).step().persistent, test_support::ByteLedger(plan_of(job(true)), 0).step().persistent);
}

}  // namespace
}  // namespace rehearse::strategies::megatron_fsdp_buffers_test
