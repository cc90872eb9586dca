#include "calibrate/measurements.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "calibrate/operations.h"
#include "sim/core/contract.h"
#include "sim/core/error.h"
#include "tests/support/error_of.h"
#include "tests/support/source_dir.h"
#include "tests/unit/calibrate/scratch.h"

namespace rehearse::calibrate::measurements_test {
namespace {

Measurements example() {
  Measurements m;
  m.source = "test \"quoted\" µ";
  m.machine = {{"gpu", std::string("NVIDIA H200")}, {"gpu_count", std::int64_t{8}}, {"ecc", true},
               {"topology", std::vector<std::string>{"GPU0 NV18", "GPU1 NV18"}}};
  m.software = {{"nccl", std::string("2.27.7")}};
  m.options = {{"budget_s", 180.5}, {"complete", false}};
  m.warnings = {"another process holds memory on GPU 0"};
  m.skipped = {{"memory_kernel",
                {{"kernel", std::string("copy")}, {"elements", std::int64_t{1}}, {"bytes_read", std::int64_t{2}}, {"bytes_written", std::int64_t{2}}},
                "too little memory"}};
  Series s;
  s.operation = "gemm";
  s.parameters = {{"m", std::int64_t{8192}}, {"n", std::int64_t{4096}}, {"k", std::int64_t{1024}}, {"dtype", std::string("bf16")},
                  {"origin", std::string("grid")}};
  s.samples = 20;
  s.repeats = 4;
  s.median_s = 1.0 / 3e4;
  s.mean_s = 3.4e-5;
  s.min_s = 3.2e-5;
  s.max_s = 5e-5;
  s.stddev_s = 0;
  s.relative_error = 0.004;
  s.drift = -0.01;
  s.converged = false;
  s.sm_clock_mhz = 1740.5;
  s.throttle = {"power cap"};
  s.note = "n";
  m.series = {s};
  Series least;
  least.operation = "host_adam";
  least.parameters = {{"elements", std::int64_t{1} << 40}, {"threads", std::int64_t{16}}};
  least.samples = 1;
  least.median_s = 0.25;
  m.series.push_back(least);
  return m;
}

std::string refusal(const std::string& text) {
  return error_of([&] { measurements_from_json(text, "m.json"); });
}

std::string file_with(const std::string& series) {
  return "{\"schema\": \"rehearse-measurements/1\",\n \"series\": [\n" + series + "]}";
}

TEST(Measurements, ReadsBackWhatItWrote) {
  EXPECT_EQ(measurements_from_json(to_json(example()), "m.json"), example());
  EXPECT_EQ(measurements_from_json(to_json(Measurements{}), "m.json"), Measurements{});
}

TEST(Measurements, OneSeriesPerLine) {
  const std::string text = to_json(example());
  EXPECT_NE(text.find("\n  {\"operation\":\"gemm\""), std::string::npos);
  EXPECT_NE(text.find("\n  {\"operation\":\"host_adam\""), std::string::npos);
}

TEST(Measurements, ParametersByNameAndTheirDefaults) {
  const Series s = example().series[0];
  EXPECT_EQ(s.integer("m"), 8192);
  EXPECT_EQ(s.integer("batch"), 1);
  EXPECT_EQ(s.text("role"), "forward");
  EXPECT_FALSE(s.flag("accumulate"));
  EXPECT_THROW(s.integer("dtype"), ContractViolation);
  EXPECT_THROW(s.integer("rows"), ContractViolation);
}

TEST(Measurements, IdentityNeitherDependsOnDefaultsNorOnOrigin) {
  Facts f = {{"m", std::int64_t{1}}, {"n", std::int64_t{2}}, {"k", std::int64_t{3}}, {"dtype", std::string("bf16")}};
  const std::string plain = identity("gemm", f);
  EXPECT_EQ(plain, "gemm m=1 n=2 k=3 dtype=bf16");
  f["batch"] = std::int64_t{1};
  f["origin"] = std::string("grid");
  EXPECT_EQ(identity("gemm", f), plain);
  f["batch"] = std::int64_t{2};
  EXPECT_NE(identity("gemm", f), plain);
}

TEST(Measurements, MistakesNameTheirLineAndTheFix) {
  EXPECT_EQ(refusal(file_with(R"(  {"operation": "gem", "samples": 1, "median_s": 1})")),
            "m.json:3:17: series[0].operation: \"gem\" is no operation. Did you mean gemm?");
  EXPECT_EQ(refusal(file_with(R"({"operation": "host_adam", "parameters": {"elements": 5, "thread": 2, "threads": 1}, "samples": 1, "median_s": 1})")),
            "m.json:3:68: series[0].parameters.thread: unknown key. Did you mean threads?");
  EXPECT_EQ(refusal(file_with(R"({"operation": "host_adam", "parameters": {"elements": 5}, "samples": 1, "median_s": 1})")),
            "m.json:3:42: series[0].parameters.threads: is missing. threads: host threads");
  EXPECT_EQ(refusal(file_with(R"({"operation": "host_adam", "parameters": {"elements": -5, "threads": 1}, "samples": 0, "median_s": -1})")),
            "m.json:3:55: series[0].parameters.elements: an integer that is not negative was expected. elements: parameters\n"
            "m.json:3:85: series[0].samples: an integer of 1 or more was expected. Count the samples that were timed\n"
            "m.json:3:100: series[0].median_s: is too small (-1). Times are above 0, deviations not below 0");
  EXPECT_EQ(refusal(file_with(R"({"operation": "host_adam", "parameters": {"elements": 5, "threads": 1}, "samples": 1, "median_s": 1, "max_s": 0.5})")),
            "m.json:3:111: series[0].max_s: is below median_s. One of the two is of another series");
  EXPECT_EQ(refusal("{\"schema\": \"rehearse-measurements/9\", \"series\": []}"),
            "m.json:1:12: schema: \"rehearse-measurements/9\" is not a format that this version reads. It reads "
            "\"rehearse-measurements/1\"");
  EXPECT_EQ(refusal("{\"schema\": \"rehearse-measurements/1\", \"series\": [\n\n  {\"operation\": \"gemm\",}]}").substr(0, 31),
            "m.json:3:24: is not JSON (synta");
}

TEST(Measurements, WordsOfTextParametersAreChecked) {
  EXPECT_EQ(refusal(file_with(R"({"operation": "host_memory", "parameters": {"kernel": "tirad", "bytes": 1, "threads": 1}, "samples": 1, "median_s": 1})")),
            "m.json:3:55: series[0].parameters.kernel: \"tirad\" is not one of its words. Known: read, write, copy, triad");
}

TEST(Measurements, AKeyThatStandsTwiceIsNamedWithItsPlace) {
  EXPECT_EQ(refusal("{\"schema\": \"rehearse-measurements/1\", \"warnings\": [\"a\"], \"series\": [\n"
                    "{\"operation\": \"host_adam\", \"parameters\": {\"elements\": 5, \"threads\": 1}, \"samples\": 1, \"median_s\": 1},\n"
                    "{\"operation\": \"host_adam\", \"parameters\": {\"elements\": 5, \"threads\": 1,\n\"elements\": 6}, \"samples\": 1, \"median_s\": 1}]}"),
            "m.json:4:13: series[1].parameters.elements: stands twice in one object. Keep one of the two");
}

TEST(Measurements, AnOperationWithoutANameIsNone) {
  std::string text = to_json(example());
  text.replace(text.find("\"gemm\""), 6, "\"\"");
  EXPECT_NE(refusal(text).find("\"\" is no operation"), std::string::npos) << refusal(text);
}

// A device's name may hold anything.
TEST(Measurements, BytesThatAreNoTextAreReplaced) {
  Measurements m = example();
  m.machine["gpu"] = std::string("GPU \xBD");
  EXPECT_EQ(std::get<std::string>(measurements_from_json(to_json(m), "m.json").machine.at("gpu")), "GPU \xEF\xBF\xBD");
}

TEST(Measurements, HugeIntegersAreRefusedNotWrapped) {
  EXPECT_NE(refusal(file_with(R"({"operation": "host_adam", "parameters": {"elements": 18446744073709551615, "threads": 1}, "samples": 1, "median_s": 1})")), "");
}

TEST(Measurements, EveryWrongShapeIsAnErrorAndNoCrash) {
  for (const char* text : {"", "[]", "1", "null", "{}", "{\"schema\": 1, \"series\": {}}", "{\"schema\":\"rehearse-measurements/1\",\"series\":[1]}",
                           "{\"schema\":\"rehearse-measurements/1\",\"machine\":[],\"series\":[]}",
                           "{\"schema\":\"rehearse-measurements/1\",\"machine\":{\"gpu\":1},\"series\":[]}",
                           "{\"schema\":\"rehearse-measurements/1\",\"warnings\":[1],\"series\":[]}",
                           "{\"schema\":\"rehearse-measurements/1\",\"skipped\":[{}],\"series\":[]}"})
    EXPECT_NE(refusal(text), "") << text;
}

// Cut off anywhere it is refused with the line where it ends; with any byte changed it is refused with a line, or is still a
// file that says something else and writes back.
TEST(Measurements, CutOffOrCorruptedItIsRefusedWithItsLine) {
  const std::string text = to_json(example());
  const auto lines = [](const std::string& t) { return static_cast<int>(std::count(t.begin(), t.end(), '\n')) + 1; };
  for (std::size_t n = 0; n + 2 < text.size(); ++n) {
    const std::string part = text.substr(0, n);
    try {
      measurements_from_json(part, "cut.json");
      FAIL() << "accepted the first " << n << " bytes";
    } catch (const ConfigError& e) {
      ASSERT_FALSE(e.diagnostics().empty());
      EXPECT_EQ(e.diagnostics()[0].at.file, "cut.json");
      EXPECT_GE(e.diagnostics()[0].at.line, std::max(1, lines(part) - 1)) << n;
      EXPECT_LE(e.diagnostics()[0].at.line, lines(part)) << n;
      EXPECT_NE(std::string(e.what()).find("goes on where it stopped"), std::string::npos);
    }
  }
  std::mt19937 draw(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = text;
    const std::size_t at = draw() % bad.size();
    bad[at] = static_cast<char>(draw() % 256);
    try {
      const Measurements m = measurements_from_json(bad, "bad.json");
      EXPECT_EQ(measurements_from_json(to_json(m), "again"), m);
    } catch (const ConfigError& e) {
      ASSERT_FALSE(e.diagnostics().empty());
      EXPECT_GT(e.diagnostics()[0].at.line, 0) << e.what();
    }
  }
}

TEST(Measurements, FilesAreReplacedWholeAndMissingOnesSaid) {
  const auto folder = std::filesystem::path(scratch("measurements_test"));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "m.json").string();
  write_measurements(path, Measurements{});
  write_measurements(path, example());
  EXPECT_EQ(read_measurements(path), example());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);  // nothing left beside it
  EXPECT_THROW(read_measurements((folder / "none.json").string()), ConfigError);
  EXPECT_THROW(read_measurements(folder.string()), ConfigError);
  EXPECT_THROW(write_measurements((folder / "no/m.json").string(), example()), ConfigError);
  EXPECT_THROW(write_measurements(folder.string(), example()), ConfigError);
  std::filesystem::remove_all(folder);
}

TEST(Operations, EveryKeyIsDocumentedAndItsDefaultIsOfItsKind) {
  for (const Operation& o : operations()) {
    EXPECT_FALSE(o.meaning.empty()) << o.name;
    for (const Key& k : o.keys) {
      EXPECT_FALSE(k.meaning.empty()) << o.name << " " << k.name;
      EXPECT_EQ(o.find(k.name), &k) << o.name << " names " << k.name << " twice";
      if (!k.fallback || k.words.empty()) continue;
      EXPECT_NE(std::find(k.words.begin(), k.words.end(), std::get<std::string>(*k.fallback)), k.words.end()) << o.name << " " << k.name;
    }
  }
}

TEST(Operations, ThePageHoldsTheTablesOfTheProgram) {
  std::ifstream in(source_dir() / "calibrate" / "measurements.md");
  const std::string readme{std::istreambuf_iterator<char>(in), {}};
  ASSERT_FALSE(readme.empty());
  EXPECT_NE(readme.find(operations_as_markdown()), std::string::npos)
      << "calibrate/measurements.md should end with:\n" << operations_as_markdown();
}

}  // namespace
}  // namespace rehearse::calibrate::measurements_test
