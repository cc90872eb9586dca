// Tensor-parallel collectives in pieces under their products: the same bytes and FLOPs, and what was exposed is hidden.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::tensor_overlap_test {
namespace {

namespace st = strategies;

constexpr int kTensor = 4;

st::Strategy job(bool overlap, st::Precision precision = st::Precision::bf16) {
  st::Strategy s = small_job(1);
  s.parallelism.degrees.tensor = kTensor;
  s.parallelism.sequence_parallel = true;
  s.parallelism.overlap_tensor = overlap;
  s.training.precision = precision;
  return s;
}

struct Traffic {
  double tensor_bytes = 0;  // that each rank sends, ring algorithms counted
  double flops = 0;
};

Traffic traffic(const st::Strategy& s) {
  const model::ModelDescription model = small_llama(3);
  const st::FrameworkProfile profile = st::with_choices(st::load_profile("megatron-core"), s);
  const plan::Plan plan = st::write_plan(model, s, profile, kTensor);
  Traffic out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) {
        const model::KernelSpec& k = plan.kernels[i.index];
        out.flops += 2.0 * static_cast<double>(k.m) * static_cast<double>(k.n) * static_cast<double>(k.k);
      }
      if (i.op != plan::Opcode::collective || plan.collectives[i.index].axis != plan::GroupAxis::tensor) continue;
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      const auto bytes = static_cast<double>(c.bytes.value);
      const double share = (kTensor - 1.0) / kTensor;
      out.tensor_bytes += c.kind == CollectiveKind::send_recv ? bytes : c.kind == CollectiveKind::all_reduce ? 2 * share * bytes : share * bytes;
    }
  return out;
}

TEST(TensorOverlap, MovesAndComputesTheSame) {
  const Traffic whole = traffic(job(false)), pieces = traffic(job(true));
  EXPECT_GT(whole.tensor_bytes, 0);
  EXPECT_DOUBLE_EQ(pieces.tensor_bytes, whole.tensor_bytes);
  EXPECT_DOUBLE_EQ(pieces.flops, whole.flops);
}

// Of a product in as many pieces as there are ranks all but the last have another beside them; whole products have none.
TEST(TensorOverlap, AllPiecesButTheLastAreStaggered) {
  const auto count = [](bool overlap) {
    const st::Strategy s = job(overlap);
    const plan::Plan plan = st::write_plan(small_llama(3), s, st::with_choices(st::load_profile("megatron-core"), s), kTensor);
    std::map<std::string, std::array<int, 2>> out;   // by name: last ones and staggered ones of a layer
    for (const plan::Block& block : plan.blocks)
      for (const plan::Instruction& i : block.timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) ++out[plan.kernels[i.index].name][plan.kernels[i.index].staggered ? 1 : 0];
    return out;
  };
  for (const auto& [name, found] : count(false)) EXPECT_EQ(found[1], 0) << name;
  const auto pieces = count(true);
  for (const char* name : {"qkv", "o_proj", "o_proj data gradient"}) EXPECT_EQ(pieces.at(name)[1], (kTensor - 1) * pieces.at(name)[0]) << name;
  for (const char* name : {"qkv data gradient", "qkv weight gradient", "lm_head"}) EXPECT_EQ(pieces.at(name)[1], 0) << name;
}

TEST(TensorOverlap, EightBitOperandsTravelAsSuch) {
  // Forward and backward of a layer: two inputs gathered in each, two gradients gathered, and four results scattered in 16 bit.
  const double wide = traffic(job(false)).tensor_bytes, narrow = traffic(job(false, st::Precision::fp8)).tensor_bytes;
  EXPECT_LT(narrow, wide);
  EXPECT_GT(narrow, 0.5 * wide);
}

TEST(TensorOverlap, OperandsWithRowScalesTravelInSixteenBit) {
  EXPECT_DOUBLE_EQ(traffic(job(false, st::Precision::fp8_rowwise)).tensor_bytes, traffic(job(false)).tensor_bytes);
}

double seconds_of(const char* overlap) {
  const char* job =
      "model: llama-3-70b\n"
      "cluster: {node: dgx-h100, nodes: 4}\n"
      "training: {sequence_length: 8192, global_batch_size: 32, micro_batch_size: 1, precision: bf16, framework: megatron-core}\n"
      "parallelism: {tensor: 8, pipeline: 4, sequence_parallel: true}\n";
  const config::Value base = config::parse_document(job, "overlap.yaml").root;
  return simulate(read_scenario(config::apply_override(base, overlap), "overlap.yaml")).step_time;
}

TEST(TensorOverlap, HidesMostOfWhatWasExposed) {
  const double whole = seconds_of("parallelism.overlap_tensor=false"), pieces = seconds_of("parallelism.overlap_tensor=true");
  EXPECT_LT(pieces, 0.98 * whole);
  EXPECT_GT(pieces, 0.8 * whole);   // the products take no less for it
}

/// Bytes on the wire of the tensor group and seconds of a step, of a profile with one habit changed.
std::pair<double, double> with_habit(const char* job, void (*change)(st::FrameworkProfile&)) {
  Scenario s = read_scenario(config::parse_document(job, "habit.yaml").root, "habit.yaml");
  change(s.profile);
  const plan::Plan plan = st::write_plan(s.model, s.strategy, s.profile, 8);
  double bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].axis == plan::GroupAxis::tensor) bytes += static_cast<double>(plan.collectives[i.index].bytes.value);
  return {bytes, simulate(s).step_time};
}

constexpr const char* kWhole =
    "model: llama-2-7b\n"
    "cluster: {node: dgx-a100, nodes: 1}\n"
    "training: {sequence_length: 2048, global_batch_size: 2, micro_batch_size: 1, precision: bf16, framework: aleph-alpha-scaling}\n"
    "parallelism: {tensor: 8}\n";

TEST(TensorOverlap, GatheredLogitsTravelOnceInForward) {
  const auto [whole, slow] = with_habit(kWhole, [](st::FrameworkProfile& p) { p.gathers_logits = true; });
  const auto [shards, fast] = with_habit(kWhole, [](st::FrameworkProfile& p) { p.gathers_logits = false; });
  EXPECT_DOUBLE_EQ(whole - shards, 2 * 2048.0 * 32000 * 2);   // micro-batches, tokens, vocabulary, bytes
  EXPECT_GT(slow, fast);
}

TEST(TensorOverlap, InputGradientsThatAreWaitedForTakeLonger) {
  const auto [waited, slow] = with_habit(kWhole, [](st::FrameworkProfile& p) { p.waits_for_input_gradients = true; });
  const auto [beside, fast] = with_habit(kWhole, [](st::FrameworkProfile& p) { p.waits_for_input_gradients = false; });
  EXPECT_DOUBLE_EQ(waited, beside);
  EXPECT_GT(slow, 1.02 * fast);
}

TEST(TensorOverlap, NeedsSequenceParallelism) {
  st::Strategy s = job(true);
  s.parallelism.sequence_parallel = false;
  const auto problems = st::problems_of(small_llama(3), s, st::load_profile("megatron-core"), 8);
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems.front().key, "parallelism.overlap_tensor");
}

}  // namespace
}  // namespace rehearse::scenario::tensor_overlap_test
