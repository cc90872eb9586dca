// torchao's fp8 with a scale per row or per tensor, mxfp8 and nvfp4: what is cast, transposed and scaled beside the products; layers that stay in 16 bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::strategies::torchao_casts_test {
namespace {

using scenario::small_job;
using scenario::small_llama;

/// Bytes that the pointwise kernels of one linear layer read and write in a step of one micro-batch, by the kernels' names.
std::int64_t traffic_of(const std::string& linear, Precision precision) {
  Strategy s = small_job(1);
  s.training.precision = precision;
  const FrameworkProfile profile = with_precision(load_profile("torchtitan-2025"), precision);
  const plan::Plan plan = write_plan(small_llama(1), s, profile, 1);
  std::int64_t bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      if ((k.kind == model::KernelKind::elementwise || k.kind == model::KernelKind::transposing) && k.name.starts_with(linear + " ")) bytes += k.bytes_read + k.bytes_written;
    }
  return bytes;
}

// m tokens, k in, n out, 2 bytes an element, 1 in fp8, fp32 scales (torchao roofline_utils.py, recipe "rowwise"):
//   input     forward 2 + 1; backward: transposed 2 + 2, cast 2 + 1          = 10 mk
//   weight    forward 2 + 1; backward: transposed 2 + 2, cast 2 + 1          = 10 kn
//   gradient  cast and transposed 2 + 1 + 2, cast along the tokens 2 + 1     =  8 mn
//   results   both gradients scaled after their products, read and written   =  4 mk + 4 kn
TEST(RowScales, EveryOperandIsCastForEachProduct) {
  const std::int64_t m = 256, k = 512, n = 512;   // small_llama's o_proj
  const std::int64_t scales = 4 * (m + n) + 4 * (k + m) + 4 * (n + k);
  EXPECT_EQ(traffic_of("o_proj", Precision::fp8_rowwise), 14 * m * k + 14 * k * n + 8 * m * n + scales);
  EXPECT_LT(traffic_of("o_proj", Precision::fp8), traffic_of("o_proj", Precision::fp8_rowwise));
  EXPECT_EQ(traffic_of("o_proj", Precision::bf16), 0);
  EXPECT_EQ(traffic_of("lm_head", Precision::fp8_rowwise), 0);   // stays in 16 bit
  // What gate and up multiply is cast once for both, in forward and, transposed before, in backward: 3 + 7 bytes an element.
  EXPECT_EQ(traffic_of("up_proj", Precision::fp8_rowwise) - traffic_of("gate_proj", Precision::fp8_rowwise), -(10 * m * k + 4 * m + 4 * k));
}

// 157 instructions an element, a product and sum counted as two operations. On an H100 (66.9 TFLOPS in fp32, 3.35 TB/s) they take four times as
// long as the 4 bytes that it reads and writes.
TEST(RowScales, ScalingAProductIsBoundByInstructions) {
  Strategy s = small_job(1);
  s.training.precision = Precision::fp8_rowwise;
  const plan::Plan plan = write_plan(small_llama(1), s, with_precision(load_profile("torchtitan"), s.training.precision), 1);
  for (const std::string product : {"data", "weight"}) {
    const auto scaling = std::find_if(plan.kernels.begin(), plan.kernels.end(), [&](const model::KernelSpec& k) { return k.name == "o_proj scale " + product + " gradient"; });
    ASSERT_NE(scaling, plan.kernels.end());
    EXPECT_DOUBLE_EQ(scaling->flops, 2 * 157 * static_cast<double>(scaling->bytes_written / 2));
    EXPECT_GT(scaling->flops / 66.9e12, 3.9 * static_cast<double>(scaling->bytes_read + scaling->bytes_written) / 3.35e12);
  }
}

// One scale per tensor (roofline_utils.py, recipe "tensorwise"; the passes that find the maxima are reductions):
//   input, gradient  cast along both directions by one kernel, 2 + 1 + 1
//   weight           cast in forward 2 + 1, along the other direction in backward 2 + 1
// What query, key and value multiply is cast once for the three.
TEST(TensorScales, OperandsAreCastInBothDirectionsAndAnInputOnce) {
  const std::int64_t m = 256, k = 512, n = 512;
  EXPECT_EQ(traffic_of("o_proj", Precision::fp8), 4 * m * k + 6 * k * n + 4 * m * n);
  EXPECT_EQ(traffic_of("q_proj", Precision::fp8) - traffic_of("o_proj", Precision::fp8), 0);
  EXPECT_EQ(traffic_of("up_proj", Precision::fp8) - traffic_of("gate_proj", Precision::fp8), -4 * m * k);
}

TEST(RowScales, TransformerEngineHasNone) {
  Strategy s = small_job(1);
  s.training.precision = Precision::fp8_rowwise;
  const auto problems = problems_of(small_llama(1), s, load_profile("megatron-core"), 8);
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems.front().key, "training.precision");
  EXPECT_TRUE(problems_of(small_llama(1), s, load_profile("torchtitan-compile"), 8).empty());
}

// mxfp8 (mx_linear.py): each operand is cast twice, along either direction, by a kernel each: 2 bytes read, 1 written, scales left out.
// nvfp4 (nvfp4_linear.py): one kernel casts along both: 2 read, 2 x 1/2 written (the passes that find the maxima are reductions).
TEST(BlockScales, EveryOperandIsCastInBothDirections) {
  const std::int64_t m = 256, k = 512, n = 512;
  EXPECT_EQ(traffic_of("o_proj", Precision::mxfp8), 6 * (m * k + k * n + m * n));
  EXPECT_EQ(traffic_of("o_proj", Precision::nvfp4), 3 * (m * k + k * n + m * n));
}

/// FLOPs of a step's products in 4 bits, and in other formats.
std::pair<double, double> narrow_and_wide(const Strategy& s, std::int64_t layers) {
  const plan::Plan plan = write_plan(small_llama(layers), s, with_precision(load_profile("torchtitan"), s.training.precision), 1);
  double narrow = 0, wide = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      if (k.kind != model::KernelKind::gemm || k.name.starts_with("lm_head")) continue;
      (k.dtype == DType::nvfp4 ? narrow : wide) += model::flops_of(k).value;
    }
  return {narrow, wide};
}

// One layer of five at the start and two at the end: two of five in 4 bits.
TEST(LayersIn16Bit, AreThoseAtTheEnds) {
  Strategy s = small_job(1);
  s.training.precision = Precision::nvfp4;
  s.training.first_layers_16bit = 1;
  s.training.last_layers_16bit = 2;
  const auto [narrow, wide] = narrow_and_wide(s, 5);
  EXPECT_GT(narrow, 0);
  EXPECT_DOUBLE_EQ(3 * narrow, 2 * wide);
  EXPECT_TRUE(problems_of(small_llama(5), s, load_profile("torchtitan-compile"), 8).empty());
  s.training.last_layers_16bit = 5;
  EXPECT_EQ(problems_of(small_llama(5), s, load_profile("torchtitan-compile"), 8).front().key, "training.first_layers_16bit");
  s.training.precision = Precision::bf16;
  s.training.first_layers_16bit = 0;
  EXPECT_EQ(problems_of(small_llama(5), s, load_profile("torchtitan-compile"), 8).front().key, "training.last_layers_16bit");
}

}  // namespace
}  // namespace rehearse::strategies::torchao_casts_test
