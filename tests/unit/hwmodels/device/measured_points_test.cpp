// Kernels measured on a GPU: exact where measured, continuous around, the parametric model elsewhere, and said so.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/device/measured_points.h"
#include "sim/core/error.h"
#include "tests/support/source_dir.h"

namespace rehearse::hwmodels::measured_points_test {
namespace {

model::KernelSpec gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  model::KernelSpec s;
  s.kind = model::KernelKind::gemm;
  s.m = m, s.n = n, s.k = k;
  return s;
}

model::KernelSpec stream(std::int64_t bytes) {
  model::KernelSpec s;
  s.bytes_read = bytes / 2, s.bytes_written = bytes / 2;
  return s;
}

/// Three products, 20 % slower, 10 % faster and 5 % slower than the parameters say; one copy, 30 % slower.
Gpu measured_gpu() {
  Gpu gpu = load_gpu("h100-sxm");
  const KernelModel plain(gpu, ClockState::burst);
  const auto add = [&](const model::KernelSpec& s, double ratio) {
    gpu.measured_kernels.push_back({s, to_seconds(plain.cost(s).duration) * ratio, ClockState::burst});
  };
  add(gemm(8192, 8192, 8192), 1.2), add(gemm(8192, 8192, 12288), 0.9), add(gemm(4096, 4096, 4096), 1.05), add(stream(1 << 30), 1.3);
  return gpu;
}

double ratio(const KernelModel& with, const KernelModel& without, const model::KernelSpec& s) {
  return to_seconds(with.cost(s).duration) / to_seconds(without.cost(s).duration);
}

TEST(MeasuredPoints, APointIsMetExactly) {
  const Gpu gpu = measured_gpu();
  const KernelModel model(gpu, ClockState::burst);
  for (const MeasuredKernel& p : gpu.measured_kernels) {
    const KernelCost cost = model.cost(p.kernel);
    EXPECT_LE(std::abs(cost.duration.count() - seconds(p.seconds).count()), 1);  // picosecond
    EXPECT_TRUE(cost.measured);
    EXPECT_FALSE(cost.extrapolated);
  }
}

// The correction is of the kernel, not of the clock: the sustained model is wrong by the same factor.
TEST(MeasuredPoints, TheCorrectionHoldsAtTheOtherClock) {
  const KernelModel with(measured_gpu()), without(load_gpu("h100-sxm"));
  EXPECT_NEAR(ratio(with, without, gemm(8192, 8192, 8192)), 1.2, 1e-9);
}

TEST(MeasuredPoints, TheCorrectionIsContinuousFromPointToPointAndToNothing) {
  const KernelModel with(measured_gpu(), ClockState::burst), without(load_gpu("h100-sxm"), ClockState::burst);
  double last = 0, most_step = 0;
  bool was_measured = false, was_parametric = false;
  for (double k = 8192; k < 65536; k *= 1.0005) {
    const model::KernelSpec s = gemm(8192, 8192, static_cast<std::int64_t>(k));
    const double correction = std::log(ratio(with, without, s));
    if (last != 0) most_step = std::max(most_step, std::abs(correction - last));
    last = correction;
    (with.cost(s).measured ? was_measured : was_parametric) = true;
  }
  EXPECT_LT(most_step, 0.003);  // of a range of log(1.2) - log(0.9) = 0.29 over 4 000 steps
  EXPECT_TRUE(was_measured);
  EXPECT_TRUE(was_parametric);
}

TEST(MeasuredPoints, BetweenTwoPointsTheCorrectionLiesBetweenTheirs) {
  const KernelModel with(measured_gpu(), ClockState::burst), without(load_gpu("h100-sxm"), ClockState::burst);
  const double middle = ratio(with, without, gemm(8192, 8192, 10033));  // geometric mean: log-distance is equal
  EXPECT_NEAR(std::log(middle), (std::log(1.2) + std::log(0.9)) / 2, 0.002);
}

TEST(MeasuredPoints, BeyondTheReachTheParametersSpeakAlone) {
  const Gpu gpu = measured_gpu();
  const KernelModel with(gpu, ClockState::burst), without(load_gpu("h100-sxm"), ClockState::burst);
  for (const model::KernelSpec& s : {gemm(1024, 1024, 1024), gemm(65536, 8192, 8192), stream(1 << 27)}) {
    EXPECT_EQ(with.cost(s).duration, without.cost(s).duration);
    EXPECT_FALSE(with.cost(s).measured);
  }
  const model::KernelSpec beyond_the_fit = gemm(32, 1'000'000'000, 32);
  EXPECT_TRUE(with.cost(beyond_the_fit).extrapolated);
  model::KernelSpec other_class = gemm(8192, 8192, 8192);
  other_class.accumulate = true;
  EXPECT_EQ(with.cost(other_class).duration, without.cost(other_class).duration);
  // A kernel beyond the parameters' range that was measured is no extrapolation.
  Gpu wide = gpu;
  wide.measured_kernels.push_back({beyond_the_fit, 1e-3, ClockState::burst});
  EXPECT_FALSE(KernelModel(wide).cost(beyond_the_fit).extrapolated);
}

TEST(MeasuredPoints, RepeatsOfOneKernelCountAsTheirMean) {
  Gpu gpu = load_gpu("h100-sxm");
  gpu.measured_kernels = {{stream(1 << 28), 1e-4, ClockState::burst}, {stream(1 << 28), 4e-4, ClockState::burst}};
  EXPECT_NEAR(to_seconds(KernelModel(gpu, ClockState::burst).cost(stream(1 << 28)).duration), 2e-4, 1e-9);
}

class PointsFile : public ::testing::Test {
 protected:
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "points";
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / name) << text;
  }
  static std::string base() {
    std::ifstream in(source_dir() / "hwmodels/data/gpu/h100-sxm.yaml");
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(PointsFile, AUsersOwnGpuFileWithATableBesideItIsLoadedByPath) {
  const Gpu gpu = measured_gpu();
  write("mine.points.csv", measured_kernels_csv(gpu.measured_kernels));
  write("mine.yaml", base() + "points: {file: mine.points.csv, gemm_reach: 0.5}\n");
  const Gpu read = load_gpu((folder / "mine.yaml").string());
  ASSERT_EQ(read.measured_kernels.size(), 4u);
  EXPECT_EQ(read.reach.gemm, 0.5);
  EXPECT_EQ(read.reach.memory, Reach{}.memory);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read.measured_kernels[i].seconds, gpu.measured_kernels[i].seconds);
    EXPECT_EQ(KernelModel(read).cost(gpu.measured_kernels[i].kernel).duration, KernelModel(gpu).cost(gpu.measured_kernels[i].kernel).duration);
  }
}

TEST_F(PointsFile, EveryAttentionKernelHasAName) {
  std::vector<MeasuredKernel> points;
  for (const model::AttentionKernel kernel : model::all_attention_kernels()) {
    EXPECT_EQ(model::attention_kernel_named(name_of(kernel)), kernel);
    model::KernelSpec s{.kind = model::KernelKind::attention_forward, .attention = kernel};
    s.batch = 1, s.heads = s.kv_heads = 8, s.query_length = s.key_length = 1024, s.head_dim = s.value_head_dim = 64;
    points.push_back({s, 1e-3, ClockState::burst});
  }
  write("attention.csv", measured_kernels_csv(points));
  const std::vector<MeasuredKernel> read = read_measured_kernels(folder / "attention.csv");
  ASSERT_EQ(read.size(), points.size());
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i].kernel.attention, points[i].kernel.attention);
}

TEST_F(PointsFile, MistakesAreToldByLine) {
  write("bad.csv",
        "kernel,dtype,m,n,k,seconds\n"
        "gemm,bf16,128,128,128,1e-5\n"
        "gem,bf16,128,128,128,1e-5\n"
        "gemm,bf17,128,0,x,-1\n"
        "elementwise,bf16,,,,1e-5\n");
  try {
    read_measured_kernels(folder / "bad.csv");
    FAIL();
  } catch (const ConfigError& e) {
    const std::string text = e.what();
    for (const char* wanted : {"bad.csv:3:", "unknown kind of kernel 'gem'", "bad.csv:4:", "unknown number format 'bf17'", "is not a positive time", "bad.csv:5:", "moves nothing"})
      EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
    EXPECT_GE(e.diagnostics().size(), 6u);
  }
}

}  // namespace
}  // namespace rehearse::hwmodels::measured_points_test
