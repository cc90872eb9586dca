// Other programs' files: what is read, what is said to be ignored, and that no file whatever crashes.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "calibrate/import/import.h"
#include "calibrate/import/topology.h"
#include "calibrate/import/xml.h"
#include "sim/core/error.h"
#include "tests/support/error_of.h"

namespace rehearse::calibrate::import_test {
namespace {

bool mentions(const std::vector<std::string>& list, const std::string& part) {
  for (const std::string& s : list)
    if (s.find(part) != std::string::npos) return true;
  return false;
}

// The layout of NVIDIA/nccl-tests 2.13 and later, two nodes of two GPUs.
constexpr const char* kTable = R"(# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1888 on   worker-1 device  1 [0x91] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1885 on   worker-0 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1886 on   worker-0 device  1 [0x91] NVIDIA H100 80GB HBM3
NCCL version 2.25.1+cuda12.8
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.00    0.00    0.00      0     0.00    0.00    0.00      0
        1024           256     float     sum      -1    18.46    0.06    0.08      0    18.56    0.06    0.08      0
  1073741824     268435456  bfloat16     sum      -1  1.2e+04   89.48  134.22    N/A    10781   99.60  186.75    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 60.1
)";

TEST(ImportNcclTests, ReadsTheTableAndTheDevices) {
  const Imported in = import_nccl_tests_text(kTable, "t.log", {.collective = "all_reduce"});
  ASSERT_EQ(in.measurements.series.size(), 2u);
  const Series& small = in.measurements.series[0];
  EXPECT_EQ(small.operation, "collective");
  EXPECT_EQ(small.integer("bytes"), 1024);
  EXPECT_EQ(small.integer("ranks"), 4);
  EXPECT_EQ(small.integer("nodes"), 2);
  EXPECT_EQ(small.text("dtype"), "fp32");
  EXPECT_NEAR(small.median_s, 18.46e-6, 1e-12);
  EXPECT_NEAR(in.measurements.series[1].median_s, 12e-3, 1e-9);
  EXPECT_EQ(in.measurements.series[1].text("dtype"), "bf16");
  EXPECT_EQ(std::get<std::string>(in.measurements.machine.at("gpu")), "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(std::get<std::string>(in.measurements.software.at("nccl")), "2.25.1");
  EXPECT_TRUE(mentions(in.report.ignored, "1 rows of 0 bytes"));
  measurements_from_json(to_json(in.measurements), "round trip");  // what we write, we can read
}

TEST(ImportNcclTests, TheProgramsNameTellsTheCollectiveEvenBehindMpirunsTags) {
  std::string text;
  std::istringstream lines(std::string("$ mpirun ./build/all_gather_perf -b 8\n") + kTable);
  for (std::string line; std::getline(lines, line);) text += "[1,0]<stdout>:" + line + "\n";
  const Imported in = import_nccl_tests_text(text, "t.log");
  ASSERT_EQ(in.measurements.series.size(), 2u);
  EXPECT_EQ(in.measurements.series[0].text("collective"), "all_gather");
}

TEST(ImportNcclTests, OldTablesWithoutTheRootColumn) {
  const char* old =
      "#   Rank  0 Pid  71327 on 51e6e7896958 device  0 [0x1a] Tesla V100-SXM3-32GB\n#   Rank  1 Pid  71327 on 51e6e7896958 device  1 [0x1b] Tesla V100-SXM3-32GB\n"
      "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "        1048576        131072   float     sum    158.3    0.00    0.00  1e-07    158.4    0.00    0.00  0e+00\n";
  const Imported in = import_nccl_tests_text(old, "t.log", {.collective = "all_reduce"});
  ASSERT_EQ(in.measurements.series.size(), 1u);
  EXPECT_NEAR(in.measurements.series[0].median_s, 158.3e-6, 1e-12);
  EXPECT_EQ(in.measurements.series[0].integer("ranks"), 2);
}

TEST(ImportNcclTests, WhatIsMissingIsAskedFor) {
  EXPECT_NE(error_of([] { import_nccl_tests_text(kTable, "t.log"); }).find("--op"), std::string::npos);
  EXPECT_NE(error_of([] { import_nccl_tests_text("hello\n", "t.log"); }).find("t.log: holds no table"), std::string::npos);
  const char* bare = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n 8 2 float sum -1 9 0 0 0 9 0 0 0\n";
  EXPECT_NE(error_of([&] { import_nccl_tests_text(bare, "t.log", {.collective = "reduce"}); }).find("t.log:1:1: how many GPUs"), std::string::npos);
  EXPECT_EQ(import_nccl_tests_text(bare, "t.log", {.collective = "reduce", .ranks = 8}).measurements.series[0].integer("ranks"), 8);
}

TEST(ImportNcclTests, JsonKeepsSingleIterationsAndDropsTheEnvironment) {
  const std::string json = R"({"version":3,"args":["./all_reduce_perf","-J","x"],"env":["SECRET=hunter2"],"nccl_version":"2.27.7","config":{"devices":[
    {"rank":0,"hostname":"a","device_info":"NVIDIA H200"},{"rank":1,"hostname":"a","device_info":"NVIDIA H200"}]},
    "results":[{"size":1048576,"type":"bfloat16","root":" -1","out_of_place":{"time":30.5,"alg_bw":"nan"},"out_of_place_per_iter":{"times_us":[30,31,30,32,30,30,29]}},
               {"size":2048,"type":"float","out_of_place":{"cpu_time":"12.5"}},{"size":0,"type":"float","out_of_place":{"time":1}}]})";
  const Imported in = import_nccl_tests_json(json, "t.json");
  ASSERT_EQ(in.measurements.series.size(), 2u);
  EXPECT_EQ(in.measurements.series[0].samples, 7);
  EXPECT_NEAR(in.measurements.series[0].median_s, 30e-6, 1e-12);
  EXPECT_TRUE(in.measurements.series[0].relative_error.has_value());
  EXPECT_NEAR(in.measurements.series[1].median_s, 12.5e-6, 1e-12);
  EXPECT_EQ(to_json(in.measurements).find("hunter2"), std::string::npos);
  EXPECT_TRUE(mentions(in.report.ignored, "env"));
  EXPECT_NE(error_of([&] { import_nccl_tests_json(json.substr(0, json.size() - 20), "t.json"); }).find("t.json:4:"), std::string::npos);
}

TEST(ImportNcclTests, ImpossibleSizesAndTextThatIsNoneAreTold) {
  const std::string json = R"({"version":3,"args":["./all_reduce_perf"],"nccl_version":"2.27.7","config":{"devices":[{"rank":0,"device_info":"G"},{"rank":1,"device_info":"G"}]},
    "results":[{"size":99999999999999999999,"type":"float","out_of_place":{"time":30.5}},{"size":64,"type":"float","out_of_place":{"time":1e300}},{"size":64,"type":"float","out_of_place":{"time":5}}]})";
  const Imported in = import_nccl_tests_json(json, "t.json");
  EXPECT_EQ(in.measurements.series.size(), 1u);
  EXPECT_TRUE(mentions(in.report.not_understood, "2 rows with impossible sizes or times"));
  std::string text = kTable;
  text.replace(text.find("2.25.1"), 6, "2.25.\xBD");
  EXPECT_EQ(std::get<std::string>(import_nccl_tests_text(text, "t.log", {.collective = "all_reduce"}).measurements.software.at("nccl")), "2.25.?");
}

constexpr const char* kTrace = R"json({"schemaVersion":1,"deviceProperties":[{"id":0,"name":"NVIDIA H100 80GB HBM3","numSms":132,"computeMajor":9,"computeMinor":0}],
 "distributedInfo":{"backend":"nccl","rank":0,"world_size":16,"nccl_version":"2.21.5"},"traceEvents":[
 {"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":9,"args":{"External id":7,"Input Dims":[[8192,4096],[4096,14336]],"Input type":["c10::BFloat16","c10::BFloat16"]}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":9,"args":{"External id":8,"Input Dims":[[8,4],[5,1]],"Input type":["float","float"]}},
 {"ph":"X","cat":"kernel","name":"nvjet_tst_128x256","ts":2,"dur":1500.5,"args":{"External id":7,"stream":7}},
 {"ph":"X","cat":"kernel","name":"odd_shapes","ts":2,"dur":10,"args":{"External id":8,"stream":7}},
 {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllGather_RING_LL(x)","ts":3,"dur":800,"args":{"External id":9,"Collective name":"_allgather_base","In msg nelems":1024,"Out msg nelems":16384,"Group size":16,"dtype":"BFloat16","Process Group Ranks":"[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]"}},
 {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","ts":3,"dur":80,"args":{"External id":10,"Collective name":"allreduce","In msg nelems":1024,"Out msg nelems":1024,"Group size":2,"dtype":"Float","Process Group Ranks":[0, 8]}},
 {"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pageable -> Device)","ts":4,"dur":20,"args":{"bytes":1048576}},
 {"ph":"X","cat":"kernel","name":"vectorized_elementwise_kernel","ts":5,"dur":3,"args":{"stream":7}},
 {"ph":"X","cat":"user_annotation","name":"ProfilerStep#3","ts":0,"dur":9999},
 {"ph":"X","cat":"python_function","name":"bad	tab","ts":0,"dur":1}, 7]})json";

TEST(ImportKineto, TakesProductsCollectivesAndCopiesAndListsTheRest) {
  const Imported in = import_kineto(kTrace, "t.json");
  ASSERT_EQ(in.measurements.series.size(), 4u);
  const Series& product = in.measurements.series[0];
  EXPECT_EQ(product.operation, "gemm");
  EXPECT_EQ(product.integer("n"), 14336);
  EXPECT_EQ(product.text("dtype"), "bf16");
  EXPECT_NEAR(product.median_s, 1500.5e-6, 1e-12);
  const Series& gather = in.measurements.series[1];
  EXPECT_EQ(gather.text("collective"), "all_gather");
  EXPECT_EQ(gather.integer("bytes"), 32768);  // of all shards, as nccl-tests counts
  EXPECT_EQ(gather.integer("nodes"), 2);
  EXPECT_EQ(in.measurements.series[2].integer("nodes"), 2);  // ranks 0 and 8
  EXPECT_EQ(in.measurements.series[3].flag("pinned"), false);
  EXPECT_TRUE(mentions(in.report.not_understood, "vectorized_elementwise_kernel"));
  EXPECT_TRUE(mentions(in.report.not_understood, "odd_shapes"));
  EXPECT_TRUE(mentions(in.report.ignored, "control characters"));
  EXPECT_TRUE(mentions(in.report.ignored, "user_annotation"));
  EXPECT_EQ(std::get<std::int64_t>(in.measurements.machine.at("sms")), 132);
  measurements_from_json(to_json(in.measurements), "round trip");
}

class Files : public ::testing::Test {
 protected:
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "import";
  Files() { std::filesystem::create_directories(folder); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder / name, std::ios::binary) << text;
    return (folder / name).string();
  }
};

TEST_F(Files, GzippedTracesAreUnpackedAndTheKindIsSeenByContent) {
  const std::string file = (folder / "t.json.gz").string();
  gzFile out = gzopen(file.c_str(), "wb");
  gzwrite(out, kTrace, static_cast<unsigned>(std::char_traits<char>::length(kTrace)));
  gzclose(out);
  EXPECT_EQ(import_file(file).measurements.series.size(), 4u);
  std::ifstream whole(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(whole), {}};
  const std::string cut = write("cut.json.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_NE(error_of([&] { import_file(cut); }).find("cut.json.gz"), std::string::npos);
  EXPECT_EQ(import_file(write("t.log", std::string("all_reduce_perf\n") + kTable)).measurements.series.size(), 2u);
}

// A small file can unpack to more than the machine has, and a line without an end is no line of a table.
TEST_F(Files, WhatIsTooLargeOrNoFileIsRefusedByWhatItIs) {
  const std::string file = (folder / "zeros.gz").string();
  gzFile out = gzopen(file.c_str(), "wb1");
  const std::string zeros(std::size_t{3} << 20, '\0');
  gzwrite(out, zeros.data(), static_cast<unsigned>(zeros.size()));
  gzclose(out);
  EXPECT_NE(error_of([&] { read_maybe_gzip(file, std::size_t{2} << 20); }).find("holds more than 2 MiB"), std::string::npos);
  EXPECT_EQ(read_maybe_gzip(file).size(), zeros.size());
  EXPECT_NE(error_of([&] { import_file(file); }).find("holds no table"), std::string::npos);
  EXPECT_NE(error_of([&] { import_file(folder.string()); }).find("is a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { import_file((folder / "none").string()); }).find("no such file"), std::string::npos);
  EXPECT_LE(read_maybe_gzip(write("large.sqlite", "SQLite format 3" + zeros)).size(), std::size_t{1} << 20);
  EXPECT_EQ(import_nccl_tests_text(zeros + "\nall_reduce_perf\n" + kTable, "t.log").measurements.series.size(), 2u);
}

TEST_F(Files, NsysExportsGiveCopiesAndNameKernels) {
  const std::string file = (folder / "t.sqlite").string();
  std::filesystem::remove(file);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
  const char* sql =
      "CREATE TABLE StringIds(id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'gemm_kernel');"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, shortName INTEGER); INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 5000, 1), (6000, 9000, 1);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER, end INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (0, 20000, 1000000, 1, 1, 3), (0, 10000, 1000000, 1, 2, 3), (0, 12000, 1000000, 1, 2, 3), (0, 1, 5, 3, 2, 3);"
      "CREATE TABLE TARGET_INFO_GPU(name TEXT); INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H200'); CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start INTEGER);";
  ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const Imported in = import_file(file);
  ASSERT_EQ(in.measurements.series.size(), 2u);
  EXPECT_EQ(in.measurements.series[0].flag("pinned"), false);
  EXPECT_EQ(in.measurements.series[1].samples, 2);
  EXPECT_NEAR(in.measurements.series[1].median_s, 11e-6, 1e-12);
  EXPECT_TRUE(mentions(in.report.not_understood, "gemm_kernel: 2 times, 0.008 ms"));
  EXPECT_TRUE(mentions(in.report.ignored, "copies of other kinds"));
  EXPECT_TRUE(mentions(in.report.ignored, "MEMSET"));
  EXPECT_NE(error_of([&] { import_nsys(write("not.sqlite", "SQLite format 3 but not really, and longer than a header would be ........................................................")); }).find("SQLite"), std::string::npos);
}

constexpr const char* kMatrix =
    "\t\033[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\033[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tPXB\tNODE\t0-55\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tNODE\tPXB\t0-55\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\t56-111\t1\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\t56-111\t1\t\tN/A\n"
    "NIC0\tPXB\tNODE\tSYS\tSYS\t X \tNODE\n"
    "NIC1\tNODE\tPXB\tSYS\tSYS\tNODE\t X \n\nLegend:\n  X = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n";

TEST(ImportTopology, EighteenLinksToEveryPeerAreASwitch) {
  const ImportedNode node = import_topology_matrix(kMatrix, "topo.txt", {"h100-sxm", "400 Gb/s"});
  for (const char* line : {"scale_up: nvswitch", "gpus: 4", "nvls: true", "sockets: 2", "count: 2", "bandwidth: 400 Gb/s"}) EXPECT_NE(node.yaml.find(line), std::string::npos) << line << "\n" << node.yaml;
  const ImportedNode quiet = import_topology_matrix(kMatrix, "topo.txt", {"h100-sxm", ""});
  EXPECT_EQ(quiet.yaml.find("nic:"), std::string::npos);
  EXPECT_TRUE(mentions(quiet.report.not_understood, "--nic-bandwidth"));
}

TEST(ImportTopology, FourOfTwelveLinksToEveryPeerAreAMeshAndPairsABridge) {
  const char* mesh = "     GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity\nGPU0 X NV4 NV4 NV4 0-31 0\nGPU1 NV4 X NV4 NV4 0-31 0\nGPU2 NV4 NV4 X NV4 32-63 1\nGPU3 NV4 NV4 NV4 X 32-63 1\n";
  const std::string yaml = import_topology_matrix(mesh, "topo.txt", {"a100-80gb-sxm", ""}).yaml;
  EXPECT_NE(yaml.find("scale_up: mesh\nlinks_per_pair: 4"), std::string::npos) << yaml;
  const char* pairs = "     GPU0 GPU1 GPU2 GPU3 CPU Affinity\nGPU0 X NV12 PXB SYS 0-31 0\nGPU1 NV12 X SYS SYS 0-31 0\nGPU2 PXB SYS X NV12 0-31 0\nGPU3 SYS SYS NV12 X 0-31 0\n";
  const std::string bridge = import_topology_matrix(pairs, "topo.txt", {"a100-80gb-pcie", ""}).yaml;
  EXPECT_NE(bridge.find("scale_up: bridge"), std::string::npos) << bridge;
  EXPECT_NE(bridge.find("gpus_per_switch: 2"), std::string::npos) << bridge;
}

TEST(ImportTopology, PairsThatDifferAreWrittenOneByOne) {
  const char* uneven = "     GPU0 GPU1 GPU2 GPU3 CPU Affinity\nGPU0 X NV1 NV2 SYS 0-31 0\nGPU1 NV1 X SYS NV2 0-31 0\nGPU2 NV2 SYS X NV1 0-31 0\nGPU3 SYS NV2 NV1 X 0-31 0\n";
  const ImportedNode node = import_topology_matrix(uneven, "topo.txt", {"v100-16gb-sxm2", ""});
  EXPECT_NE(node.yaml.find("scale_up: mesh\nlinks:\n  - {from: 0, to: 1, count: 1}\n  - {from: 0, to: 2, count: 2}\n  - {from: 1, to: 3, count: 2}\n  - {from: 2, to: 3, count: 1}\n"), std::string::npos) << node.yaml;
}

TEST(ImportTopology, MistakesAreToldByLine) {
  EXPECT_NE(error_of([] { import_topology_matrix("     GPU0 GPU1 CPU Affinity\nGPU0 X\n", "topo.txt", {"h100-sxm", ""}); }).find("topo.txt:2:1: "), std::string::npos);
  EXPECT_NE(error_of([] { import_topology_matrix("hello", "topo.txt", {"h100-sxm", ""}); }).find("holds no matrix"), std::string::npos);
  EXPECT_NE(error_of([] { import_topology_matrix(kMatrix, "topo.txt", {}); }).find("--gpu"), std::string::npos);
  EXPECT_NE(error_of([] { import_nccl_topology("<system>\n<cpu>\n</gpu>\n</system>", "t.xml", {"h100-sxm", ""}); }).find("t.xml:3:1: "), std::string::npos);
}

TEST(ImportTopology, NcclsDump) {
  const char* xml = R"(<?xml version="1.0"?>
<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:80:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:81:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:82:00.0" class="0x030200"><gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
      <pci busid="0000:83:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" latency="0.0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>
    </pci>
    <nic><net name="mlx5_9" dev="9" speed="25000"/></nic>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD"/>
</system>)";
  const ImportedNode node = import_nccl_topology(xml, "t.xml", {"h100-sxm", ""});
  for (const char* line : {"scale_up: nvswitch", "gpus: 2", "vendor: amd", "sockets: 2", "count: 1", "bandwidth: 400 Gb/s", "gpus_per_switch: 2"}) EXPECT_NE(node.yaml.find(line), std::string::npos) << line << "\n" << node.yaml;
  EXPECT_TRUE(mentions(node.report.ignored, "mlx5_9"));
}

// Every prefix and many random damages of good files: a result or a ConfigError, never anything else.
TEST(Import, DamagedFilesNeverCrash) {
  const std::vector<std::string> files{kTable, kTrace, kMatrix, "<system><cpu numaid=\"0\"><pci busid=\"1\"><gpu dev=\"0\"/></pci></cpu></system>"};
  std::mt19937_64 draw(1);
  int refused = 0, read = 0;
  const auto attempt = [&](const auto& act) {
    try {
      act();
      ++read;
    } catch (const ConfigError&) {
      ++refused;
    }
  };
  for (const std::string& good : files)
    for (int i = 0; i < 300; ++i) {
      std::string text = good.substr(0, i < 100 ? draw() % good.size() : good.size());
      for (int d = 0; i >= 100 && d < 5; ++d) text[draw() % text.size()] = static_cast<char>(draw() % 256);
      attempt([&] { import_nccl_tests_text(text, "x", {.collective = "all_reduce", .ranks = 4}); });
      attempt([&] { import_nccl_tests_json(text, "x", {.collective = "all_reduce", .ranks = 4}); });
      attempt([&] { import_kineto(text, "x"); });
      attempt([&] { import_topology_matrix(text, "x", {"h100-sxm", "400 Gb/s"}); });
      attempt([&] { import_nccl_topology(text, "x", {"h100-sxm", ""}); });
    }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 300);
}

}  // namespace
}  // namespace rehearse::calibrate::import_test
