// GEMM cost: an example counted by hand, limits that physics sets, and monotonicity that holds for every shape.
#include "hwmodels/device/gemm_cost.h"

#include <gtest/gtest.h>

#include <random>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels::gemm_cost_test {
namespace {

model::KernelSpec gemm(std::int64_t m, std::int64_t n, std::int64_t k, DType type = DType::bf16) {
  model::KernelSpec s;
  s.kind = model::KernelKind::gemm;
  s.m = m, s.n = n, s.k = k, s.dtype = type;
  return s;
}

/// A GPU of 4 SMs at 1 TFLOP/s each without overheads: what remains is counting tiles.
DeviceRates plain_gpu() {
  DeviceRates r;
  r.sms = 4;
  r.hbm = 1e15;
  r.l2_bytes = 1e15;
  r.peak.fill(4e12);
  r.gemm_rate.fill(4e12);
  prepare_tiles(r);
  return r;
}

// 128 x 128 and larger tiles of a 512 x 512 result, k = 1000: with 256 x 128 there are 8 tiles, 2 waves of 4 SMs; the
// work 2 * 512 * 512 * 1000 FLOP = 524.288 MFLOP on 4 TFLOP/s takes 131.072 us, and no tile shape wastes any.
// 640 x 512: the best shapes are 128 x 128 (20 tiles, 5 full waves): 163.84 us, again without waste.
// 576 x 512: 64 x 256 (18 tiles, 4.5 waves -> 5) needs 5 * 64 * 256 * 2 * 1000 / 1e12 = 163.84 us; 64 x 64 (72 tiles,
// 18 waves) fits exactly: 18 * 64 * 64 * 2 * 1000 / 1e12 = 147.456 us.
TEST(GemmCost, WavesCountedByHand) {
  const DeviceRates gpu = plain_gpu();
  EXPECT_NEAR(gemm_cost(gpu, gemm(512, 512, 1000)).seconds * 1e6, 131.072, 1e-6);
  EXPECT_NEAR(gemm_cost(gpu, gemm(640, 512, 1000)).seconds * 1e6, 163.840, 1e-6);
  EXPECT_NEAR(gemm_cost(gpu, gemm(576, 512, 1000)).seconds * 1e6, 147.456, 1e-6);
}

// One row still costs a tile's 64 rows: 1 x 256 x 1000 has tiles of 64 x 64 on 4 SMs; splitting K would only help if
// SMs were idle. 64 * 64 * 2 * 1000 / 1e12 = 8.192 us.
TEST(GemmCost, APartialTileCostsAWholeOne) {
  EXPECT_NEAR(gemm_cost(plain_gpu(), gemm(1, 256, 1000)).seconds * 1e6, 8.192, 1e-6);
  EXPECT_NEAR(gemm_cost(plain_gpu(), gemm(64, 256, 1000)).seconds * 1e6, 8.192, 1e-6);
}

// fp32 on CUDA cores has tiles down to 32 x 32 (cuBLAS's ampere_sgemm_32x32_sliced1x4): an adapter of rank 16 costs 32 columns, not 64.
// 512 x 16 x 1000: 16 tiles of 32 x 32 on 4 SMs are 4 waves of 32 * 32 * 2 * 1000 / 1e12 = 2.048 us; as 4 tiles of 128 x 32 the same.
// On tensor units 64 x 64: 8 tiles, 2 waves of 8.192 us. Rows of 17 elements rule nothing out on CUDA cores.
TEST(GemmCost, CudaCoresHaveSmallerTiles) {
  DeviceRates gpu = plain_gpu();
  EXPECT_NEAR(gemm_cost(gpu, gemm(512, 16, 1000, DType::fp32)).seconds * 1e6, 16.384, 1e-6);
  gpu.on_cores[static_cast<std::size_t>(DType::fp32)] = true;
  EXPECT_NEAR(gemm_cost(gpu, gemm(512, 16, 1000, DType::fp32)).seconds * 1e6, 8.192, 1e-6);
  gpu.p.gemm_unaligned_fraction = 0.5;
  EXPECT_NEAR(gemm_cost(gpu, gemm(512, 17, 1000, DType::fp32)).seconds * 1e6, 8.192, 1e-6);
  EXPECT_NEAR(gemm_cost(gpu, gemm(512, 17, 1000, DType::bf16)).seconds * 1e6, 2 * 16.384, 1e-6);
}

// An SM of an RTX 4090 does 512 FLOPs per clock where an L40S's, of the same architecture, does 1,024 (165.2 TFLOPS over 128 SMs at 2520 MHz, 362 over
// 142), one of an H20 1,037 of an H100's 4,096 (148 over 78 at 1830 MHz): the same fetches keep it waiting for as many fewer.
TEST(GemmCost, FewerTensorUnitsToAnSmWaitForFewerFlops) {
  const auto wait = [](const char* name) { return rates_of(load_gpu(name), ClockState::burst).tensor_wait; };
  EXPECT_NEAR(wait("rtx-4090"), 0.5, 0.001);
  EXPECT_NEAR(wait("h20"), 1037.0 / 4096, 0.001);
  EXPECT_NEAR(wait("a40"), 0.5, 0.01);
  for (const char* name : {"h100-sxm", "h200-sxm", "a100-80gb-sxm", "b200-sxm"}) EXPECT_NEAR(wait(name), 1, 0.001) << name;
  // Of a product of few steps along K less is lost at half the rate: its prologue is as many clocks.
  const auto share = [](const char* name) {
    const KernelModel gpu(load_gpu(name), ClockState::burst);
    const auto flops = [&](std::int64_t k) { return static_cast<double>(k) / (to_seconds(gpu.cost(gemm(16384, 16384, k)).duration)); };
    return flops(512) / flops(16384);
  };
  EXPECT_GT(share("rtx-4090"), 1.1 * share("l40s"));
}

// Three RTX 5090 in loops of 8192^3 and 10240^3: 234.7 to 240.1 TFLOPS (zzc0721/torch-performance-test-data #96, #124, pull request 15), above the 209.5
// of the datasheet's clock. A lock at that clock takes the excess away.
TEST(GemmCost, GeForceRunsAboveTheDatasheetsClock) {
  Gpu gpu = load_gpu("rtx-5090");
  const auto tflops = [&] { return 2 * 8192.0 * 8192 * 8192 / to_seconds(KernelModel(gpu, ClockState::sustained).cost(gemm(8192, 8192, 8192)).duration) / 1e12; };
  EXPECT_NEAR(tflops(), 236, 0.02 * 236);
  gpu.locked_clock_mhz = gpu.boost_clock_mhz;
  EXPECT_LE(tflops(), 209.5);
  EXPECT_GE(tflops(), 0.94 * 209.5);
}

// A batch of four 512 x 17 x 1000 on the tensor units at half their rate: 32 tiles of 64 x 64 on 4 SMs are 8 waves of 2 * 8.192 us. On CUDA
// cores 64 tiles of 32 x 32 are 16 waves of 2.048 us at the same rate; aligned batches and single products keep the tensor units.
TEST(GemmCost, UnalignedBatchesMayHaveNoTensorCores) {
  DeviceRates gpu = plain_gpu();
  gpu.on_cores[static_cast<std::size_t>(DType::fp32)] = true;
  gpu.p.gemm_unaligned_fraction = 0.5;
  const auto batch = [](std::int64_t columns) {
    model::KernelSpec s = gemm(512, columns, 1000, DType::bf16);
    s.batch = 4;
    return s;
  };
  const double aligned = gemm_cost(gpu, batch(16)).seconds, single = gemm_cost(gpu, gemm(512, 17, 1000, DType::bf16)).seconds;
  EXPECT_NEAR(gemm_cost(gpu, batch(17)).seconds * 1e6, 8 * 2 * 8.192, 1e-6);
  gpu.p.gemm_unaligned_batch_on_cores = 1;
  EXPECT_NEAR(gemm_cost(gpu, batch(17)).seconds * 1e6, 16 * 2.048, 1e-6);
  EXPECT_EQ(gemm_cost(gpu, batch(16)).seconds, aligned);
  EXPECT_EQ(gemm_cost(gpu, gemm(512, 17, 1000, DType::bf16)).seconds, single);
}

// 64 x 64 x 8000 is one tile: seven of eight K-slices would wait for SMs, so four slices run at once:
// 64 * 64 * 2 * 2000 / 1e12 = 16.384 us, against 65.536 us on one SM.
TEST(GemmCost, SplitsKOverIdleSms) {
  EXPECT_NEAR(gemm_cost(plain_gpu(), gemm(64, 64, 8000)).seconds * 1e6, 16.384, 1e-3);
}

TEST(GemmCost, WavesRoundUpOrSpread) {
  EXPECT_DOUBLE_EQ(waves_of(9.0 / 4, 1), 3);
  EXPECT_DOUBLE_EQ(waves_of(9.0 / 4, 0), 2.25);
  EXPECT_DOUBLE_EQ(waves_of(1.0 / 4, 0), 1);
}

TEST(GemmCost, NothingToDoCostsTheLaunch) {
  const KernelModel h100(load_gpu("h100-sxm"));
  EXPECT_EQ(h100.cost(gemm(0, 128, 128)).duration, microseconds(h100.rates().p.gemm_launch_us));
  EXPECT_EQ(h100.cost(gemm(0, 128, 128)).bound, Bound::latency);
}

TEST(GemmCost, NeverFasterThanPeakOrMemoryAllow) {
  std::mt19937_64 random(7);
  const auto size = [&] { return std::int64_t{8} << (random() % 12); };
  for (const std::string& name : gpu_names()) {
    const KernelModel gpu(load_gpu(name), ClockState::burst);
    for (int i = 0; i < 300; ++i) {
      model::KernelSpec s = gemm(size(), size(), size(), i % 3 == 0 ? DType::fp8 : DType::bf16);
      s.batch = 1 + static_cast<std::int64_t>(random() % 4);
      s.accumulate = i % 2 == 0;
      const double t = to_seconds(gpu.cost(s).duration);
      const double peak = gpu.rates().peak[static_cast<std::size_t>(s.dtype)];
      ASSERT_GE(t, model::flops_of(s).value / peak) << name << " " << s.m << "x" << s.n << "x" << s.k;
      ASSERT_GE(t, static_cast<double>(model::traffic_of(s).value) / gpu.gpu().hbm_bandwidth.value) << name;
    }
  }
}

// Each candidate (tile, split) grows with k and with the batch, candidates only disappear, so the least grows too.
TEST(GemmCost, MoreDepthOrMoreProductsAreNeverFaster) {
  std::mt19937_64 random(11);
  const auto size = [&] { return static_cast<std::int64_t>(64 + random() % 4096 * 8); };
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200-sxm"}) {
    const KernelModel gpu(load_gpu(name));
    for (int i = 0; i < 2000; ++i) {
      model::KernelSpec s = gemm(size(), size(), size());
      const Duration base = gpu.cost(s).duration;
      model::KernelSpec deeper = s, more = s;
      deeper.k += 8 * static_cast<std::int64_t>(random() % 512);
      more.batch += static_cast<std::int64_t>(random() % 5);
      ASSERT_LE(base, gpu.cost(deeper).duration) << s.m << "x" << s.n << "x" << s.k << " -> k=" << deeper.k;
      ASSERT_LE(base, gpu.cost(more).duration) << s.m << "x" << s.n << "x" << s.k << " batch " << more.batch;
    }
  }
}

TEST(GemmCost, SustainedClockOnlySlowsDown) {
  const KernelModel burst(load_gpu("h100-sxm"), ClockState::burst), hot(load_gpu("h100-sxm"));
  const model::KernelSpec large = gemm(8192, 8192, 8192), skinny = gemm(16, 8192, 8192);
  EXPECT_LT(burst.cost(large).duration, hot.cost(large).duration);
  // Reading 134 MB of weights takes the same time at any clock, up to the part that compute leaks out of the overlap.
  EXPECT_NEAR(to_seconds(hot.cost(skinny).duration) / to_seconds(burst.cost(skinny).duration), 1, 0.05);
  EXPECT_EQ(hot.cost(large).bound, Bound::compute);
  EXPECT_EQ(hot.cost(skinny).bound, Bound::memory);
}

// Half of the highest clock: products take twice as long, streams from memory as long, and all GPUs have the same speed. A lock above what
// the power limit allows changes nothing.
TEST(GemmCost, LockedClocks) {
  Gpu gpu = load_gpu("h100-sxm");
  const model::KernelSpec large = gemm(16384, 16384, 16384);
  model::KernelSpec stream;
  stream.kind = model::KernelKind::optimizer, stream.dtype = DType::fp32, stream.bytes_read = stream.bytes_written = 1'000'000'000;
  const auto seconds_of = [&](ClockState clock, int gpus, const model::KernelSpec& s) { return to_seconds(KernelModel(gpu, clock, pace_of_slowest(gpus)).cost(s).duration); };
  const double burst = seconds_of(ClockState::burst, 1, large), hot = seconds_of(ClockState::sustained, 1024, large), streamed = seconds_of(ClockState::sustained, 1024, stream);
  gpu.locked_clock_mhz = gpu.max_clock_mhz / 2;
  EXPECT_NEAR(seconds_of(ClockState::burst, 1, large) / burst, 1.95, 0.03);   // what leaks of its HBM time stays
  EXPECT_EQ(seconds_of(ClockState::sustained, 1024, large), seconds_of(ClockState::sustained, 1, large));
  EXPECT_EQ(seconds_of(ClockState::sustained, 1024, stream), streamed);
  gpu.locked_clock_mhz = gpu.max_clock_mhz * 0.95;
  EXPECT_EQ(seconds_of(ClockState::sustained, 1024, large), hot);
}

// At half of its power a card keeps 0.5^0.266 of its sustained clock, as the H100 of 350 W does of the one of 700 W (tests/accuracy/tables/
// gemm_torch_loops.csv, 0.626 against 0.753). Short kernels and streams do not reach the limit.
TEST(GemmCost, PowerLimits) {
  Gpu gpu = load_gpu("h100-sxm");
  EXPECT_EQ(gpu.own_watts, 700);
  const model::KernelSpec large = gemm(16384, 16384, 16384);
  model::KernelSpec stream;
  stream.kind = model::KernelKind::optimizer, stream.dtype = DType::fp32, stream.bytes_read = stream.bytes_written = 1'000'000'000;
  const auto seconds_of = [&](ClockState clock, const model::KernelSpec& s) { return to_seconds(KernelModel(gpu, clock).cost(s).duration); };
  const double burst = seconds_of(ClockState::burst, large), hot = seconds_of(ClockState::sustained, large), streamed = seconds_of(ClockState::sustained, stream), clock = power_limited_clock_mhz(gpu);
  gpu.limit_watts = 350;
  EXPECT_NEAR(power_limited_clock_mhz(gpu) / clock, 0.8316, 0.0001);
  EXPECT_NEAR(power_limited_clock_mhz(gpu) / gpu.highest_clock_mhz(), kernel_parameters_from(load_gpu("h100-pcie").kernel_parameters).sustained_clock, 0.01);
  EXPECT_NEAR(seconds_of(ClockState::sustained, large) / hot, 1 / 0.8316, 0.01);
  EXPECT_EQ(seconds_of(ClockState::burst, large), burst);
  EXPECT_EQ(seconds_of(ClockState::sustained, stream), streamed);
  gpu.limit_watts = gpu.own_watts;
  EXPECT_EQ(seconds_of(ClockState::sustained, large), hot);
}

// A module's limit leaves the GPU what its CPU does not take: 548 of 680 W in nodes of four GH200 (their file), none in a GH200 alone.
TEST(GemmCost, NodesHoldTheirGpusToLessThanTheyDraw) {
  const ClusterDescription four = load_cluster("gh200-4", 1, "rail-fat-tree", "");
  EXPECT_EQ(four.gpu.limit_watts, 548);
  EXPECT_EQ(load_gpu("gh200-96gb").limit_watts, 0);
  EXPECT_NEAR(power_limited_clock_mhz(four.gpu), 1396, 5);   // ROMEO's nvidia-smi shows 1,390 to 1,450 MHz in loops of products
  EXPECT_EQ(load_cluster("gh200-4", 1, "rail-fat-tree", "a100-40gb-sxm").gpu.limit_watts, 0);   // draws less than that anywhere
}

TEST(GemmCost, SmallerFormatsAreFasterAndMissingOnesAreSaid) {
  const KernelModel h100(load_gpu("h100-sxm")), v100(load_gpu("v100-32gb-sxm2"));
  EXPECT_LT(h100.cost(gemm(8192, 8192, 8192, DType::fp8)).duration, h100.cost(gemm(8192, 8192, 8192)).duration);
  EXPECT_FALSE(h100.cost(gemm(8192, 8192, 8192)).extrapolated);
  EXPECT_TRUE(h100.cost(gemm(8192, 8192, 8192, DType::nvfp4)).extrapolated);  // runs as fp8
  EXPECT_TRUE(h100.cost(gemm(8, 8192, 8192)).extrapolated);                   // smaller than any table
  EXPECT_FALSE(v100.cost(gemm(4096, 4096, 4096, DType::fp16)).extrapolated);  // DeepBench
  EXPECT_TRUE(KernelModel(load_gpu("rtx-a6000")).cost(gemm(4096, 4096, 4096)).extrapolated);  // Ampere, but no A100
}

// Sums of Hopper's fp8 gradients leave the tensor units on the way: 0.87 of their speed, less than 1 % of the time being what operands take
// beside (overlap_leak). Other formats and chips have no such choice.
TEST(GemmCost, Fp8GradientsOnHopperAreSummedExactly) {
  const auto slower = [](const char* name, DType type) {
    const KernelModel model(load_gpu(name), ClockState::burst);
    model::KernelSpec s = gemm(16384, 16384, 16384, type);
    const double forward = to_seconds(model.cost(s).duration);
    s.role = model::GemmRole::data_gradient;
    return to_seconds(model.cost(s).duration) / forward;
  };
  EXPECT_NEAR(slower("h100-sxm", DType::fp8) / slower("h100-sxm", DType::bf16), 1 / 0.87, 0.01);
  EXPECT_NEAR(slower("b200-sxm", DType::fp8) / slower("b200-sxm", DType::bf16), 1, 0.005);
}

// At the power limit a draw of three quarters is a clock of 0.75^-0.266 = 1.08 times; where nothing throttles, bits change nothing.
TEST(GemmCost, ProductsInEightBitsKeepMoreOfTheClock) {
  const auto kept = [](const char* name, DType type) {
    const model::KernelSpec s = gemm(16384, 16384, 16384, type);
    return to_seconds(KernelModel(load_gpu(name), ClockState::burst).cost(s).duration) / to_seconds(KernelModel(load_gpu(name)).cost(s).duration);
  };
  EXPECT_NEAR(kept("h100-sxm", DType::fp8) / kept("h100-sxm", DType::bf16), 1.0795, 0.01);
  EXPECT_NEAR(kept("b200-sxm", DType::fp8) / kept("b200-sxm", DType::bf16), 1.0795, 0.01);
  EXPECT_NEAR(kept("gb200-nvl72", DType::fp8) / kept("gb200-nvl72", DType::bf16), 1.0166, 0.005);   // aiconfigurator's long products: 1.016
  EXPECT_DOUBLE_EQ(kept("h20", DType::fp8), kept("h20", DType::bf16));
  EXPECT_DOUBLE_EQ(clock_at_power(1, 2), 1);
  EXPECT_DOUBLE_EQ(clock_at_power(0.9, 0.1), 1);   // never above the burst clock
}

// A head of 50257 tokens: the forward result's rows are no multiple of 16 bytes, nor are backward's operands. Rows of 50304 are.
TEST(GemmCost, UnalignedVocabularyIsSlowWhereItIsALeadingDimension) {
  const KernelModel a100(load_gpu("a100-80gb-sxm"));
  const auto ratio = [&](model::GemmRole role, model::KernelSpec odd, model::KernelSpec even) {
    odd.role = even.role = role;
    return to_seconds(a100.cost(odd).duration) / to_seconds(a100.cost(even).duration);
  };
  using model::GemmRole;
  EXPECT_GT(ratio(GemmRole::forward, gemm(8192, 50257, 768), gemm(8192, 50304, 768)), 1.5);  // the result's
  EXPECT_GT(ratio(GemmRole::data_gradient, gemm(8192, 768, 50257), gemm(8192, 768, 50304)), 1.5);
  EXPECT_GT(ratio(GemmRole::weight_gradient, gemm(50257, 768, 8192), gemm(50304, 768, 8192)), 1.5);
  EXPECT_LT(ratio(GemmRole::weight_gradient, gemm(768, 768, 8190), gemm(768, 768, 8192)), 1.05);  // K is rows
}

TEST(GemmCost, GroupsCostMoreThanOneProductOfTheirSum) {
  for (const char* name : {"a100-80gb-sxm", "h100-sxm", "b200-sxm"}) {
    const KernelModel gpu(load_gpu(name));
    model::KernelSpec groups = gemm(256, 4096, 2048);
    groups.kind = model::KernelKind::grouped_gemm;
    groups.batch = 32;
    EXPECT_GT(gpu.cost(groups).duration, gpu.cost(gemm(256 * 32, 4096, 2048)).duration) << name;
  }
}

// Copies of padded operands go before the product: what they move is time and traffic alike.
TEST(GemmCost, CopiesOfOperandsAreTraffic) {
  DeviceRates gpu = plain_gpu();
  gpu.hbm = 1e12;
  model::KernelSpec s = gemm(512, 512, 512);
  const CostParts product = gemm_cost(gpu, s);
  s.bytes_read = 3'000'000, s.bytes_written = 1'000'000;
  const CostParts padded = gemm_cost(gpu, s);
  EXPECT_DOUBLE_EQ(padded.hbm_bytes - product.hbm_bytes, 4e6);
  EXPECT_NEAR(padded.seconds - product.seconds, 4e6 / (1e12 * gpu.p.gemm_hbm_fraction), 1e-12);
  EXPECT_NEAR(padded.memory_seconds - product.memory_seconds, padded.seconds - product.seconds, 1e-12);
}

}  // namespace
}  // namespace rehearse::hwmodels::gemm_cost_test
