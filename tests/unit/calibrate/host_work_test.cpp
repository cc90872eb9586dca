#include "calibrate/probe/host_work.h"

#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "calibrate/operations.h"
#include "calibrate/probe/host_limits.h"
#include "calibrate/probe/host_work_kinds.h"
#include "tests/unit/calibrate/scratch.h"

namespace rehearse::calibrate::host_work_test {
namespace {

/// The same recurrence in double, by the formulas of Kingma & Ba 2015 with AdamW's decay.
TEST(HostWork, AdamIsAdam) {
  constexpr std::size_t kN = 37;
  std::vector<float> p(kN), m(kN), v(kN), g(kN);
  std::vector<std::uint16_t> half(kN);
  std::vector<double> dp(kN), dm(kN), dv(kN);
  for (std::size_t i = 0; i < kN; ++i) dp[i] = p[i] = 0.5f - 0.01f * static_cast<float>(i);
  for (int step = 1; step <= 20; ++step) {
    for (std::size_t i = 0; i < kN; ++i) {
      g[i] = std::sin(static_cast<float>(step) + static_cast<float>(i));
      const double d = g[i];
      dm[i] = 0.9 * dm[i] + 0.1 * d;
      dv[i] = 0.95 * dv[i] + 0.05 * d * d;
      dp[i] -= 1e-4 * (dm[i] / (1 - std::pow(0.9, step)) / (std::sqrt(dv[i] / (1 - std::pow(0.95, step))) + 1e-8) + 0.1 * dp[i]);
    }
    adam_step(p.data(), m.data(), v.data(), g.data(), half.data(), kN, step);
  }
  for (std::size_t i = 0; i < kN; ++i) {
    EXPECT_NEAR(p[i], dp[i], 2e-6);
    EXPECT_EQ(half[i], std::bit_cast<std::uint32_t>(p[i]) >> 16);
  }
}

// The shortest of several times each: on a busy machine any single one may be held up.
TEST(HostWork, ManyExecutionsTakeLongerThanOne) {
  // Short runs more often: on a busy machine a thread waits for its turn longer than it works.
  const auto shortest = [](Work& work, int executions, int runs) {
    double least = work.run(executions);
    for (int i = 1; i < runs; ++i) least = std::min(least, work.run(executions));
    return least;
  };
  for (const char* kernel : {"read", "write", "copy", "triad"}) {
    const auto work = prepare_host_work("host_memory", {{"kernel", std::string(kernel)}, {"bytes", std::int64_t{3} << 20}, {"threads", std::int64_t{2}}}, "");
    ASSERT_NE(work, nullptr);
    EXPECT_GT(shortest(*work, 200, 8), shortest(*work, 1, 200)) << kernel;
  }
  const auto adam = prepare_host_work("host_adam", {{"elements", std::int64_t{10000}}, {"threads", std::int64_t{3}}}, "");
  EXPECT_GT(adam->run(1), 0);
}

TEST(HostWork, FilesLeaveNothingBehindAndSayWhatIsMissing) {
  const Facts f = {{"direction", std::string("read")}, {"block_bytes", std::int64_t{65536}}, {"depth", std::int64_t{4}}, {"bytes", std::int64_t{1} << 20}};
  EXPECT_THROW(prepare_host_work("file", f, ""), NotPossible);
  EXPECT_THROW(prepare_host_work("file", f, "/no/such/folder"), NotPossible);
  const auto folder = std::filesystem::path(scratch("host_work_files"));
  std::filesystem::create_directories(folder);
  try {
    const auto work = prepare_host_work("file", f, folder.string());
    EXPECT_TRUE(std::filesystem::is_empty(folder));  // nameless already
    EXPECT_GT(work->run(2), 0);
  } catch (const NotPossible& e) {  // a file system in memory
    EXPECT_NE(std::string(e.what()).find("O_DIRECT"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

// A container of 8 GiB and 2.5 processors in a batch job of 16 GiB, as the two versions of control groups write it.
TEST(HostLimits, TheTightestOfAGroupAndThoseAboveIt) {
  const std::filesystem::path root = scratch("host_limits");
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text << "\n";
  };
  const auto of = [&](const std::string& groups) { return host_limits(groups, root.string()); };
  write("job/memory.max", "17179869184");
  write("job/step/memory.max", "8589934592");
  write("job/cpu.max", "250000 100000");
  write("job/step/cpu.max", "max 100000");
  EXPECT_EQ(of("0::/job/step\n").memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(of("0::/job/step\n").cpus, 2.5);
  EXPECT_EQ(of("0::/job\n").memory_bytes, std::int64_t{16} << 30);
  EXPECT_FALSE(of("0::/\n").memory_bytes);
  write("memory.max", "max");
  EXPECT_FALSE(of("0::/\n").memory_bytes);

  write("memory/box/memory.limit_in_bytes", "8589934592");
  write("memory/memory.limit_in_bytes", "9223372036854771712");  // none
  write("cpu/box/cpu.cfs_quota_us", "-1");
  write("cpu/box/cpu.cfs_period_us", "100000");
  write("cpu/cpu.cfs_quota_us", "150000");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(of("4:memory:/box\n1:cpu,cpuacct:/box\n").memory_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(of("4:memory:/box\n1:cpu,cpuacct:/box\n").cpus, 1.5);
  EXPECT_FALSE(of("4:memory:/not/there\n").memory_bytes);
  EXPECT_FALSE(of("").memory_bytes || of("nonsense\n").cpus);
  std::filesystem::remove_all(root);
}

TEST(HostWork, ADirectoryInMemoryIsNoDisk) {
  struct statfs kind{};
  if (::statfs("/dev/shm", &kind) != 0 || kind.f_type != TMPFS_MAGIC) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  try {
    prepare_host_work("file", {{"direction", std::string("read")}, {"block_bytes", std::int64_t{65536}}, {"depth", std::int64_t{1}}, {"bytes", std::int64_t{65536}}}, "/dev/shm");
    FAIL();
  } catch (const NotPossible& e) {
    EXPECT_NE(std::string(e.what()).find("lies in memory"), std::string::npos) << e.what();
  }
}

TEST(HostWork, OtherOperationsAreNotTheHosts) { EXPECT_EQ(prepare_host_work("gemm", {}, ""), nullptr); }

TEST(HostWork, FactsOfTheHostAreDocumentedOnes) {
  Measurements m;
  m.machine = host_facts();
  EXPECT_TRUE(m.machine.contains("cpu_cores"));
  EXPECT_EQ(measurements_from_json(to_json(m), "host"), m);
}

}  // namespace
}  // namespace rehearse::calibrate::host_work_test
