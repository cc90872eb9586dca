// What Transformer Engine keeps of weights whose products have 8 bits: copies beside 16-bit weights, or weights in 8 bits alone.
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::strategies::weights_in_8_bits_test {
namespace {

using scenario::small_job;
using scenario::small_llama;

struct Held {
  std::int64_t persistent = 0, gathered = 0, cast = 0;   // bytes: for the whole run; of updated parameters; read and written by casts of weights
};

Held held(Precision precision, bool in_8_bits, bool columns_apart) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  s.training.precision = precision;
  s.training.fp8_parameters = in_8_bits;
  FrameworkProfile profile = load_profile("megatron-core");
  profile.parameter_remainders = false;
  profile.transposes_fp8 = columns_apart;
  profile.dummy_weight_gradients = false;
  const plan::Plan plan = write_plan(small_llama(2), s, with_precision(with_choices(profile, s), precision), 8);
  Held out{.persistent = test_support::ByteLedger(plan, 0).step().persistent};
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].name == "parameter gather") out.gathered += plan.collectives[i.index].bytes.value;
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "cast weights") out.cast += plan.kernels[i.index].bytes_read + plan.kernels[i.index].bytes_written;
    }
  return out;
}

/// Elements of all linear layers but the output layer, which stays in 16 bits.
std::int64_t linear_elements() {
  const model::ModelDescription m = small_llama(2);
  return m.layer_count() * (model::attention_matrix_parameters(m) + model::mlp_parameters(m, m.ffn_hidden));
}

// Rows and, before Blackwell, columns of every weight stay beside its 16 bits; a step casts them once: 2 read, a byte written for each.
TEST(WeightsIn8Bits, CopiesStayBesideTheWeights) {
  const std::int64_t elements = linear_elements();
  const Held wide = held(Precision::bf16, false, true), hopper = held(Precision::fp8, false, true), blackwell = held(Precision::fp8, false, false), blocks = held(Precision::mxfp8, false, false);
  EXPECT_EQ(wide.cast, 0);
  EXPECT_EQ(hopper.persistent - wide.persistent, 2 * elements);
  EXPECT_EQ(blackwell.persistent - wide.persistent, elements);
  EXPECT_EQ(blocks.persistent - wide.persistent, 2 * (elements + elements / 32));   // a scale for every 32 along either direction
  EXPECT_EQ(hopper.cast, 4 * elements);
  EXPECT_EQ(blackwell.cast, 3 * elements);
  for (const Held& h : {hopper, blackwell, blocks}) EXPECT_EQ(h.gathered, wide.gathered);
}

// Without 16-bit weights: fp8 ones are gathered as they are, columns made of them; blocks are gathered in 16 bits and scaled on arrival.
TEST(WeightsIn8Bits, TakeThePlaceOfTheWeights) {
  const std::int64_t elements = linear_elements();
  const Held wide = held(Precision::bf16, false, true), hopper = held(Precision::fp8, true, true), blackwell = held(Precision::fp8, true, false), blocks = held(Precision::mxfp8, true, false);
  EXPECT_EQ(hopper.persistent, wide.persistent);
  EXPECT_EQ(blackwell.persistent - wide.persistent, -elements);
  EXPECT_EQ(blocks.persistent - wide.persistent, 2 * (elements / 32));
  EXPECT_EQ(wide.gathered - hopper.gathered, elements);
  EXPECT_EQ(wide.gathered - blackwell.gathered, elements);
  EXPECT_EQ(wide.gathered, blocks.gathered);
  EXPECT_EQ(hopper.cast, 2 * elements);
  EXPECT_EQ(blackwell.cast, 0);
}

// AMD's recipes keep no transposed weights: a byte per element less, and one read and one written in every backward pass.
TEST(WeightsIn8Bits, TransposedOnesMayBeMadeForEachBackward) {
  constexpr int kMicroBatches = 3;
  const auto of = [](bool kept) {
    Strategy s = small_job(4, 1, kMicroBatches);
    s.data_parallel.kind = DataParallelKind::distributed_optimizer;
    s.training.precision = Precision::fp8;
    s.training.fp8_parameters = true;
    FrameworkProfile profile = load_profile("megatron-core");
    profile.parameter_remainders = profile.dummy_weight_gradients = false;
    profile.keeps_transposed_weights = kept;
    const plan::Plan plan = write_plan(small_llama(2), s, with_precision(with_choices(profile, s), s.training.precision), 8);
    std::int64_t moved = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name.ends_with("transpose weight")) moved += plan.kernels[i.index].bytes_read + plan.kernels[i.index].bytes_written;
    return std::pair{test_support::ByteLedger(plan, 0).step().persistent, moved};
  };
  const auto [kept, none] = of(true);
  const auto [freed, moved] = of(false);
  EXPECT_EQ(none, 0);
  EXPECT_EQ(kept - freed, linear_elements());
  EXPECT_EQ(moved, kMicroBatches * 2 * linear_elements());
}

struct Sharded {
  std::int64_t persistent = 0, gathered = 0, transposed = 0;   // bytes, of a step with one micro-batch
};

Sharded sharded(Precision precision, bool in_8_bits, bool columns_apart) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::megatron_fsdp;
  s.training.precision = precision;
  FrameworkProfile profile = load_profile("megatron-bridge");
  profile.fp8_parameters = in_8_bits;
  profile.transposes_fp8 = columns_apart;
  const plan::Plan plan = write_plan(small_llama(2), s, with_precision(with_choices(profile, s), precision), 8);
  Sharded out{.persistent = test_support::ByteLedger(plan, 0).step().persistent};
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].name == "parameter gather") out.gathered += plan.collectives[i.index].bytes.value;
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name.ends_with("transpose weight")) out.transposed += plan.kernels[i.index].bytes_read + plan.kernels[i.index].bytes_written;
    }
  return out;
}

// Megatron-FSDP keeps rows in 8 bits, in four shards, and gathers them for forward and for backward; before Blackwell backward turns them into columns.
// Blocks of 32, and frameworks that do not say so, are in 16 bits as ever.
TEST(WeightsIn8Bits, MegatronFsdpGathersThem) {
  const std::int64_t elements = linear_elements();
  const Sharded wide = sharded(Precision::fp8, false, true), hopper = sharded(Precision::fp8, true, true), blackwell = sharded(Precision::fp8, true, false);
  for (const Sharded& narrow : {hopper, blackwell}) {
    EXPECT_EQ(wide.persistent - narrow.persistent, elements / 4);
    EXPECT_EQ(wide.gathered - narrow.gathered, 2 * elements);
  }
  EXPECT_EQ(wide.transposed, 0);
  EXPECT_EQ(hopper.transposed, 2 * elements);
  EXPECT_EQ(blackwell.transposed, 0);
  const Sharded blocks = sharded(Precision::mxfp8, true, false);
  EXPECT_EQ(blocks.persistent, wide.persistent);
  EXPECT_EQ(blocks.gathered, wide.gathered);
}

TEST(WeightsIn8Bits, WhatHasNoneRefusesThem) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  s.training.fp8_parameters = true;
  const auto refused = [&](const char* profile) {
    for (const auto& d : problems_of(small_llama(2), s, load_profile(profile), 8))
      if (d.key == "training.fp8_parameters") return true;
    return false;
  };
  EXPECT_TRUE(refused("megatron-core"));   // bf16
  s.training.precision = Precision::fp8;
  EXPECT_FALSE(refused("megatron-core"));
  EXPECT_TRUE(refused("torchtitan"));
  s.data_parallel.kind = DataParallelKind::fsdp2;
  EXPECT_TRUE(refused("megatron-core"));
  s.data_parallel.kind = DataParallelKind::megatron_fsdp;
  EXPECT_FALSE(refused("megatron-core"));
  s.training.precision = Precision::mxfp8;
  EXPECT_TRUE(refused("megatron-core"));
}

struct Gathers {
  std::int64_t bytes = 0, casts = 0, maxima = 0, maxima_bytes = 0;   // gathered; kernels that cast shards; all-reduces of maxima, their bytes
};

Gathers gathers(NarrowGather how, Precision precision = Precision::fp8) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::fsdp2;
  s.data_parallel.fp8_gather = how;
  s.training.precision = precision;
  const plan::Plan plan = write_plan(small_llama(2), s, with_precision(load_profile("torchtitan-2025"), precision), 8);
  Gathers out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::kernel) out.casts += plan.kernels[i.index].name == "cast shard";
      if (i.op != plan::Opcode::collective) continue;
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      if (c.name == "parameter gather") out.bytes += c.bytes.value;
      if (c.name == "weight maximum" || c.name == "weight maxima") ++out.maxima, out.maxima_bytes += c.bytes.value;
    }
  return out;
}

// torchao's FSDP2 weights: 7 of a layer, a byte less each element and gather, of which there are two: for forward and for backward (the
// last unit, with the head, stays). Scales: one all-reduce for each gathered weight, or one for all.
TEST(WeightsIn8Bits, Fsdp2GathersThem) {
  const Gathers wide = gathers(NarrowGather::none), one_by_one = gathers(NarrowGather::scaled_by_weight), ahead = gathers(NarrowGather::scaled_ahead);
  const std::int64_t weights = 7 * 2, times = one_by_one.casts / weights;
  EXPECT_EQ(wide.casts, 0);
  EXPECT_EQ(one_by_one.casts, times * weights);
  EXPECT_EQ(times % 2, 0) << "as often for backward as for forward";
  EXPECT_EQ(wide.bytes - one_by_one.bytes, times * linear_elements());
  EXPECT_EQ(ahead.bytes, one_by_one.bytes);
  EXPECT_EQ(one_by_one.maxima, one_by_one.casts);
  EXPECT_EQ(ahead.maxima, 1);
  EXPECT_EQ(ahead.maxima_bytes, weights * 4);
}

// What was gathered is all that a layer holds of its weight: the peak of a job of large layers is lower by about a layer's elements.
TEST(WeightsIn8Bits, Fsdp2HoldsThemInHalf) {
  const auto peak = [](NarrowGather how) {
    Strategy s = small_job(4);
    s.data_parallel.kind = DataParallelKind::fsdp2;
    s.data_parallel.fp8_gather = how;
    s.training.precision = Precision::fp8;
    return test_support::ByteLedger(write_plan(small_llama(2), s, with_precision(load_profile("torchtitan"), Precision::fp8), 8), 0).step().step_peak;
  };
  EXPECT_LT(peak(NarrowGather::scaled_ahead), peak(NarrowGather::none));
}

TEST(WeightsIn8Bits, OnlyFsdp2WithOneScaleEachGathersThem) {
  Strategy s = small_job(4);
  s.data_parallel.kind = DataParallelKind::fsdp2;
  s.data_parallel.fp8_gather = NarrowGather::scaled_ahead;
  const auto refused = [&](Precision precision, const char* profile = "torchtitan") {
    s.training.precision = precision;
    for (const auto& d : problems_of(small_llama(2), s, load_profile(profile), 8))
      if (d.key == "data_parallel.fp8_gather") return true;
    return false;
  };
  EXPECT_FALSE(refused(Precision::fp8));
  EXPECT_TRUE(refused(Precision::fp8_rowwise));
  EXPECT_TRUE(refused(Precision::bf16));
  EXPECT_TRUE(refused(Precision::mxfp8));
  s.data_parallel.kind = DataParallelKind::ddp;
  EXPECT_TRUE(refused(Precision::fp8));
}

}  // namespace
}  // namespace rehearse::strategies::weights_in_8_bits_test
