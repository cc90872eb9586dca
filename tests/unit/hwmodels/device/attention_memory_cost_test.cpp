// Attention and memory-bound kernels: limits, ratios that follow from counting scores and bytes, and monotonicity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hwmodels/device/attention_cost.h"
#include "hwmodels/device/kernel_model.h"
#include "hwmodels/device/memory_cost.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels::attention_memory_cost_test {
namespace {

using model::AttentionKernel;
using model::KernelKind;

model::KernelSpec attention(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim = 128) {
  model::KernelSpec s;
  s.kind = KernelKind::attention_forward;
  s.batch = batch, s.heads = s.kv_heads = heads, s.query_length = s.key_length = length;
  s.head_dim = s.value_head_dim = dim;
  return s;
}

model::KernelSpec stream(KernelKind kind, std::int64_t read, std::int64_t written) {
  model::KernelSpec s;
  s.kind = kind, s.bytes_read = read, s.bytes_written = written;
  return s;
}

// Heads of 80: FlashAttention 1 has kernels of 32, 64 and 128, its successor of every 32.
TEST(AttentionCost, HeadsBetweenTheKernelsWidthsAreFilledUp) {
  const KernelModel gpu(load_gpu("a100-40gb-sxm"), ClockState::burst);
  const auto time = [&](AttentionKernel kernel, std::int64_t dim) {
    model::KernelSpec s = attention(16, 32, 2048, dim);
    s.attention = kernel, s.causal = true;
    return gpu.cost(s).duration;
  };
  EXPECT_EQ(time(AttentionKernel::flash1, 80), time(AttentionKernel::flash1, 128));
  EXPECT_EQ(time(AttentionKernel::flash2, 80), time(AttentionKernel::flash2, 96));
  EXPECT_LT(time(AttentionKernel::flash1, 64), time(AttentionKernel::flash1, 80));
}

// On an MI300X (cdna3.yaml): AOTriton's forward is Triton's whichever its backward is; the assembly backward is AITER's; flash-attn's kernels have 0.57 and
// 0.42 of AITER's speed, but for what both take to start (2 and 4 launches of 4.2 us), which is nothing here.
TEST(AttentionCost, LibrariesOnAmdDiffer) {
  const KernelModel gpu(load_gpu("mi300x"), ClockState::burst);
  const auto time = [&](AttentionKernel kernel, bool backward) {
    model::KernelSpec s = attention(8, 32, 8192);
    s.attention = kernel, s.causal = true;
    if (backward) s.kind = KernelKind::attention_backward;
    return to_seconds(gpu.cost(s).duration);
  };
  EXPECT_EQ(time(AttentionKernel::aotriton, false), time(AttentionKernel::aotriton_assembly, false));
  EXPECT_EQ(time(AttentionKernel::aotriton_assembly, true), time(AttentionKernel::flash2, true));
  EXPECT_GT(time(AttentionKernel::aotriton, true), 3 * time(AttentionKernel::flash2, true));
  EXPECT_NEAR(time(AttentionKernel::flash2, false) / time(AttentionKernel::composable, false), 0.57, 0.001);
  EXPECT_NEAR(time(AttentionKernel::flash2, true) / time(AttentionKernel::composable, true), 0.42, 0.001);
}

// Dropout: a random number per score, forward and again backward. On an H100 (hopper.yaml) 4 numbers per clock of an SM in cuDNN, 17.7 in
// FlashAttention 2: 64 heads of 16,384 x 16,384 scores over 132 SMs of 1830 MHz.
TEST(AttentionCost, DropoutDrawsANumberPerScore) {
  const KernelModel gpu(load_gpu("h100-sxm"), ClockState::burst);
  const auto drawing = [&](AttentionKernel kernel, bool backward, bool causal) {
    model::KernelSpec s = attention(2, 32, 16384);
    s.attention = kernel, s.causal = causal;
    if (backward) s.kind = KernelKind::attention_backward;
    const double without = to_seconds(gpu.cost(s).duration);
    s.dropout = true;
    return to_seconds(gpu.cost(s).duration) - without;
  };
  const double numbers_per_clock = 64 * 16384.0 * 16384.0 / (132 * 1.83e9);
  EXPECT_NEAR(drawing(AttentionKernel::cudnn, false, false), numbers_per_clock / 4, 0.001 * numbers_per_clock);
  EXPECT_NEAR(drawing(AttentionKernel::cudnn, true, false), numbers_per_clock / 4, 0.001 * numbers_per_clock);
  EXPECT_NEAR(drawing(AttentionKernel::cudnn_9_13, false, true), numbers_per_clock / 8, 0.002 * numbers_per_clock);  // and half of each diagonal tile
  EXPECT_NEAR(drawing(AttentionKernel::flash2, false, false), numbers_per_clock / 17.7, 0.001 * numbers_per_clock);
  EXPECT_EQ(drawing(AttentionKernel::flash1, false, false), 0);
  // In 32 bits the memory-efficient kernel runs whatever was asked for, and how fast that draws is not known.
  model::KernelSpec wide = attention(2, 32, 4096);
  wide.attention = AttentionKernel::flash2, wide.dtype = wide.output_dtype = DType::fp32;
  model::KernelSpec drawn = wide;
  drawn.dropout = true;
  EXPECT_EQ(gpu.cost(drawn).duration, gpu.cost(wide).duration);
}

TEST(AttentionCost, NeverFasterThanPeakOrMemoryAllow) {
  for (const std::string& name : gpu_names()) {
    const KernelModel gpu(load_gpu(name), ClockState::burst);
    // GeForce cards run above the clock that the datasheet's peak is at.
    const double peak = gpu.gpu().peak.at(DType::fp16).value * kernel_parameters_from(gpu.gpu().kernel_parameters).burst_clock;
    for (const std::int64_t length : {128, 1000, 4096, 32768})
      for (const std::int64_t heads : {1, 4, 32})
        for (const auto kernel : {AttentionKernel::flash1, AttentionKernel::flash2, AttentionKernel::flash3,
                                  AttentionKernel::cudnn, AttentionKernel::sdpa_math, AttentionKernel::mem_efficient})
          for (const bool backward : {false, true}) {
            model::KernelSpec s = attention(1, heads, length);
            s.dtype = s.output_dtype = DType::fp16;
            s.attention = kernel;
            if (backward) s.kind = KernelKind::attention_backward;
            const double t = to_seconds(gpu.cost(s).duration);
            ASSERT_GE(t, model::flops_of(s).value / peak) << name << " " << length;
            if (kernel == AttentionKernel::sdpa_math) continue;  // its traffic is the scores, not the operands
            ASSERT_GE(t, static_cast<double>(model::traffic_of(s).value) / gpu.gpu().hbm_bandwidth.value) << name;
          }
  }
}

// Measured (ROCm/flash-attention #27; benchmark_flash_attention.py has 16,384 tokens and a width of 2048 in all).
TEST(AttentionCost, FlashAttentionOnAnRtx4090IsAsMeasured) {
  const KernelModel gpu(load_gpu("rtx-4090"), ClockState::burst);
  for (const auto& [length, measured] : {std::pair{512, 150.90}, {1024, 154.49}, {2048, 171.80}, {4096, 172.81}, {8192, 172.96}, {16384, 173.04}}) {
    model::KernelSpec s = attention(16384 / length, 32, length, 64);
    s.attention = AttentionKernel::flash2, s.dtype = s.output_dtype = DType::fp16, s.causal = false;
    const double tflops = model::flops_of(s).value / to_seconds(gpu.cost(s).duration) / 1e12;
    EXPECT_NEAR(tflops / measured, 1, 0.06) << length;
  }
}

// PyTorch's attention of 32-bit numbers is the memory-efficient kernel whatever was asked for, and takes three TF32 products for one: on an H100
// 494.5 / 3 TFLOPS at the fraction that 16-bit operands reach of 989.4. Measured on an H200 (tests/accuracy/h200_vm, gpt2 b16 s1024 in fp32): forward
// 0.874 ms, backward 2.064 ms, where TF32 is switched off.
TEST(AttentionCost, Fp32IsThreeProductsOfTf32) {
  model::KernelSpec wide = attention(16, 12, 1024, 64), narrow = wide;
  wide.dtype = wide.output_dtype = DType::fp32;
  narrow.dtype = narrow.output_dtype = DType::bf16;
  narrow.attention = AttentionKernel::mem_efficient;
  const KernelModel h100(load_gpu("h100-sxm"), ClockState::burst), h200(load_gpu("h200-sxm")), v100(load_gpu("v100-32gb-sxm2"), ClockState::burst);
  const auto compute = [](const KernelModel& gpu, const model::KernelSpec& s) { return to_seconds(gpu.cost(s).duration) - kernel_parameters_from(gpu.gpu().kernel_parameters).gemm_launch_us * 1e-6; };
  for (const AttentionKernel asked : {AttentionKernel::flash2, AttentionKernel::cudnn, AttentionKernel::mem_efficient}) {
    wide.attention = asked;
    EXPECT_NEAR(compute(h100, wide) / compute(h100, narrow), 3 * 989.4 / 494.5, 0.01);
  }
  EXPECT_NEAR(compute(v100, wide) / compute(v100, narrow), 125 / 15.7, 0.1);   // no TF32: CUDA cores
  EXPECT_NEAR(to_seconds(h200.cost(wide).duration), 0.874e-3, 0.25 * 0.874e-3);
}

// Measured (tests/accuracy/h200_vm, operators.jsonl, flex): two samples of 8,192 tokens, 32 heads of 128 over 8, forward 2.766 ms and backward 7.731,
// where FlashAttention 2 takes 3.42 and 9.49. Blackwell's is Triton's too, half as fast as cuDNN's.
TEST(AttentionCost, FlexAttentionIsAsMeasured) {
  model::KernelSpec s = attention(2, 32, 8192, 128);
  s.kv_heads = 8, s.attention = AttentionKernel::flex;
  const auto seconds_on = [&](const char* gpu, KernelKind kind) {
    s.kind = kind;
    return to_seconds(KernelModel(load_gpu(gpu), ClockState::burst).cost(s).duration);
  };
  EXPECT_NEAR(seconds_on("h200-sxm", KernelKind::attention_forward) / 2.766e-3, 1, 0.05);
  EXPECT_NEAR(seconds_on("h200-sxm", KernelKind::attention_backward) / 7.731e-3, 1, 0.06);
  const double forward = seconds_on("b200-sxm", KernelKind::attention_forward), backward = seconds_on("b200-sxm", KernelKind::attention_backward);
  s.attention = AttentionKernel::cudnn_9_13;
  EXPECT_NEAR(seconds_on("b200-sxm", KernelKind::attention_forward) / forward, 0.48, 0.03);
  EXPECT_NEAR(seconds_on("b200-sxm", KernelKind::attention_backward) / backward, 0.48, 0.03);
}

// A causal mask leaves half of the scores, so a long sequence takes a little more than half of the time; a window of
// 1/16 of a long sequence takes less than a quarter of the causal time.
TEST(AttentionCost, TimeFollowsTheScoresThatAreComputed) {
  const KernelModel h100(load_gpu("h100-sxm"));
  model::KernelSpec causal = attention(1, 32, 32768), full = causal, window = causal;
  full.causal = false;
  window.window = 2048;
  const auto time = [&](const model::KernelSpec& s) { return to_seconds(h100.cost(s).duration); };
  EXPECT_NEAR(time(causal) / time(full), 0.5, 0.05);
  EXPECT_LT(time(window), time(causal) / 4);
}

TEST(AttentionCost, MoreHeadsOrKeysAreNeverFaster) {
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200-sxm"}) {
    const KernelModel gpu(load_gpu(name));
    Duration before{};
    for (std::int64_t heads = 1; heads <= 200; ++heads) {
      const Duration now = gpu.cost(attention(1, heads, 2048)).duration;
      ASSERT_GE(now, before) << name << " heads " << heads;
      before = now;
    }
    before = {};
    for (std::int64_t keys = 128; keys <= 65536; keys *= 2) {
      model::KernelSpec s = attention(2, 16, 4096);
      s.causal = false;
      s.key_length = keys;
      const Duration now = gpu.cost(s).duration;
      ASSERT_GE(now, before) << name << " keys " << keys;
      before = now;
    }
  }
}

TEST(AttentionCost, NewerKernelsAreFasterAndMissingOnesAreSaid) {
  const KernelModel h100(load_gpu("h100-sxm")), a100(load_gpu("a100-80gb-sxm"));
  model::KernelSpec s = attention(2, 32, 8192);
  Duration before = seconds(1);
  for (const auto kernel : {AttentionKernel::sdpa_math, AttentionKernel::flash1, AttentionKernel::flash2,
                            AttentionKernel::flash3}) {
    s.attention = kernel;
    const KernelCost c = h100.cost(s);
    EXPECT_LT(c.duration, before);
    EXPECT_FALSE(c.extrapolated);
    before = c.duration;
  }
  EXPECT_TRUE(a100.cost(s).extrapolated) << "FlashAttention-3 has no Ampere kernels: flash2 stands in";
}

// Products lose a quarter of the clock in training; FlashAttention 2, which leaves more than half of Hopper's tensor units idle, hardly any.
TEST(AttentionCost, LosesClockByThePowerThatTheTensorUnitsDraw) {
  const KernelModel hot(load_gpu("h200-sxm")), cold(load_gpu("h200-sxm"), ClockState::burst);
  const KernelParameters& p = hot.rates().p;
  const auto kept = [&](AttentionKernel kernel) {
    model::KernelSpec s = attention(1, 32, 65536);
    s.attention = kernel;
    return to_seconds(cold.cost(s).duration) / to_seconds(hot.cost(s).duration);
  };
  const auto expected = [&](const AttentionParameters& a) {  // 4 * 128 FLOPs of products per score, beside its softmax
    const double busy = a.forward_fraction * 512 / (512 + a.softmax_flops);
    return std::min(1.0, p.sustained_clock * p.attention_clock_ratio * std::pow(p.gemm_peak_fraction / busy, 0.266));
  };
  for (const auto& [kernel, parameters] : {std::pair(AttentionKernel::flash2, p.flash2), {AttentionKernel::flash3, p.flash3}, {AttentionKernel::cudnn, p.cudnn}})
    EXPECT_NEAR(kept(kernel), expected(parameters), 1e-3);
  EXPECT_GT(kept(AttentionKernel::flash2), 0.98);
  // Loops of 1.7 s and 0.8 s, full and causal, over those under 0.1 s (tests/accuracy/tables/attention_sdpa_loops.csv): 0.871 and 0.877.
  EXPECT_NEAR(kept(AttentionKernel::cudnn), 0.874, 0.01);
}

// A window of 128 keys costs two masked edges, each as much as the diagonal of a causal mask.
TEST(AttentionCost, EveryEdgeOfTheMaskWastesAsMuch) {
  const KernelModel gpu(load_gpu("b200-sxm"));
  const KernelParameters& p = gpu.rates().p;
  model::KernelSpec s = attention(64, 64, 4096, 64);
  s.attention = AttentionKernel::cudnn;
  const double launch = p.gemm_launch_us * 1e-6, whole = to_seconds(gpu.cost(s).duration) - launch;
  s.window = 128;
  const double window = to_seconds(gpu.cost(s).duration) - launch;
  const double seen = 4097.0 / 2, seen_of_window = 128 - 128 * 127 / (2 * 4096.0);
  EXPECT_NEAR(window / whole, (seen_of_window + p.cudnn.key_ramp + 2 * p.cudnn.causal_waste) / (seen + p.cudnn.key_ramp + p.cudnn.causal_waste), 2e-3);
}

// In 8 bits a score costs its products and what softmax and casts take, which backward is more: 2 (d + dv) and 5 (d + dv) products. One
// long head after the other, so that the tiles' ends do not count; both at the 8-bit peak.
TEST(AttentionCost, NarrowKernelsHaveACostPerScoreOfBackwardsOwn) {
  const KernelModel gpu(load_gpu("gb200-nvl72"), ClockState::burst);
  const KernelParameters& p = gpu.rates().p;
  for (const auto& [kernel, a, type] : {std::tuple(AttentionKernel::cudnn_fp8, p.cudnn_fp8, DType::fp8), {AttentionKernel::cudnn_mxfp8, p.cudnn_mxfp8, DType::mxfp8}})
    for (const std::int64_t dim : {64, 128, 192}) {
      model::KernelSpec s = attention(152, 8, 1 << 17, dim);
      s.attention = kernel, s.dtype = type, s.causal = false;
      const double forward = to_seconds(gpu.cost(s).duration), scores = 152.0 * 8 * static_cast<double>(1 << 17) * (static_cast<double>(1 << 17) + a.key_ramp);
      s.kind = KernelKind::attention_backward;
      const double backward = to_seconds(gpu.cost(s).duration), per_head = static_cast<double>(dim);
      EXPECT_NEAR(forward / (scores * (4 * per_head + a.softmax_flops) / (5e15 * a.forward_fraction)), 1, 1e-3) << dim;
      EXPECT_NEAR(backward / (scores * (10 * per_head + a.backward_softmax_flops) / (5e15 * a.backward_fraction)), 1, 1e-3) << dim;   // wide heads are no slower
    }
}

TEST(MemoryCost, BytesOverBandwidthPlusFloor) {
  const KernelModel h100(load_gpu("h100-sxm"));
  const KernelParameters& p = h100.rates().p;
  const std::int64_t gigabyte = 1'000'000'000;
  const double expected = p.memory_launch_us * 1e-6 + 2e9 / (3.35e12 * p.elementwise_fraction);
  EXPECT_NEAR(to_seconds(h100.cost(stream(KernelKind::elementwise, gigabyte, gigabyte)).duration), expected, 1e-12);
  EXPECT_EQ(h100.cost(stream(KernelKind::elementwise, 0, 0)).duration, microseconds(p.memory_launch_us));
}

// Elements loaded one by one: what the memory takes and what the SMs take to issue them, root of the sum of squares. A gigabyte read and
// one written are a quarter of a billion elements in fp32, and four times as many in 8 bits, whose issue takes four times as long.
TEST(MemoryCost, StridedOperandsAreIssuedOneByOne) {
  const std::int64_t gigabyte = 1'000'000'000;
  const KernelModel a100(load_gpu("a100-80gb-sxm"));
  const KernelParameters& p = a100.rates().p;
  const double memory = 2e9 / (a100.gpu().hbm_bandwidth.value * p.elementwise_fraction), issue = 0.25e9 / (p.strided_elements_per_clock * 108 * 1.41e9);
  for (const int narrower : {1, 2, 4}) {
    model::KernelSpec s = stream(KernelKind::strided, gigabyte, gigabyte);
    s.elements = gigabyte / 4 * narrower;
    EXPECT_NEAR(to_seconds(a100.cost(s).duration), p.memory_launch_us * 1e-6 + std::sqrt(memory * memory + narrower * narrower * issue * issue), 1e-11);
  }
}

// Casts of PyTorch before and after they were vectorised: pytorch/pytorch pull requests 137053 (fp32 to fp16, H100 PCIe) and 195542 (bf16 to fp32,
// A100 of 40 GB), 134,217,728 and 67,108,864 elements. Vectors go at the memory's speed; one by one operands and results are converted by the SMs.
TEST(MemoryCost, CastsOfPyTorch) {
  struct Row {
    const char* gpu;
    std::int64_t elements;
    double one_by_one, vectors;   // us
  };
  for (const Row& row : {Row{"h100-pcie", 134'217'728, 552.6, 437.5}, Row{"a100-40gb-sxm", 67'108'864, 362.5, 322.1}}) {
    const KernelModel gpu(load_gpu(row.gpu));
    model::KernelSpec cast = stream(KernelKind::elementwise, 2 * row.elements, 4 * row.elements);
    EXPECT_NEAR(to_seconds(gpu.cost(cast).duration) * 1e6 / row.vectors, 1, 0.05) << row.gpu;
    cast.kind = KernelKind::converting;
    cast.elements = 2 * row.elements;
    EXPECT_NEAR(to_seconds(gpu.cost(cast).duration) * 1e6 / row.one_by_one, 1, 0.07) << row.gpu;
  }
}

TEST(MemoryCost, NeverFasterThanMemoryAndNeverFasterWithMoreBytes) {
  for (const std::string& name : gpu_names()) {
    const KernelModel gpu(load_gpu(name));
    for (int kind = static_cast<int>(KernelKind::elementwise); kind <= static_cast<int>(KernelKind::memset); ++kind) {
      Duration before{};
      for (double bytes = 1e4; bytes < 2e10; bytes *= 1.3) {
        const auto s = stream(static_cast<KernelKind>(kind), static_cast<std::int64_t>(bytes), 0);
        const KernelCost c = gpu.cost(s);
        ASSERT_GE(c.duration, before) << name;
        before = c.duration;
        ASSERT_LE(c.hbm_share, 1);
        ASSERT_LE(c.sm_share, 1);
        if (bytes <= 2 * gpu.rates().l2_bytes) continue;
        ASSERT_GE(to_seconds(c.duration), bytes / gpu.gpu().hbm_bandwidth.value);
      }
    }
  }
}

TEST(MemoryCost, SmallTensorsComeFromTheL2) {
  const KernelModel rtx(load_gpu("rtx-4090"));  // 72 MB of L2
  const double small = to_seconds(rtx.cost(stream(KernelKind::elementwise, 15'000'000, 15'000'000)).duration);
  EXPECT_LT(small, 30e6 / rtx.gpu().hbm_bandwidth.value);
  EXPECT_EQ(rtx.cost(stream(KernelKind::elementwise, 15'000'000, 15'000'000)).hbm_share, 0);
}

TEST(KernelModel, NegativeSizesAreOurBug) {
  const KernelModel gpu(load_gpu("h100-sxm"));
  EXPECT_THROW(gpu.cost(stream(KernelKind::elementwise, -1, 0)), ContractViolation);
  model::KernelSpec s;
  s.kind = KernelKind::gemm;
  s.m = -1, s.n = 8, s.k = 8;
  EXPECT_THROW(gpu.cost(s), ContractViolation);
}

}  // namespace
}  // namespace rehearse::hwmodels::attention_memory_cost_test
