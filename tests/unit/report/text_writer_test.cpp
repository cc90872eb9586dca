#include "sim/report/text_writer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "small_scenario.h"
#include "sim/report/comparison.h"
#include "sim/report/costs.h"
#include "sim/report/explain.h"
#include "sim/report/format.h"

namespace rehearse::report::text_writer_test {
namespace {

void expect_narrow(const std::string& text, const std::string& what) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(characters(line), kWidth) << what << ": " << line;
}

TEST(TextWriter, FitsOneScreen) {
  for (const auto& scenario : {small_scenario(), pipelined_scenario(), huge_scenario(), small_scenario({"title=" + std::string(40, 'x') + std::string(200, ' ') + "y " + std::string(90, 'z')})}) {
    const std::string text = write_text(scenario, simulated(scenario));
    expect_narrow(text, scenario.title);
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 60);
    EXPECT_EQ(text.find("nan"), std::string::npos);
    EXPECT_EQ(text.find('\033'), std::string::npos);
  }
}

// What a node lacks outside its GPUs is named as clearly as what a GPU lacks.
TEST(TextWriter, SaysWhichMemoryOfTheNodeIsFull) {
  const auto job = [](const char* tier) {
    return small_scenario({"model=zero-400b", "training.framework=deepspeed", "data_parallel={kind: zero3}", "memory={recompute: full, offload: {optimizer: " + std::string(tier) + ", parameters: " + tier + "}}"});
  };
  for (const auto& [tier, what] : {std::pair{"cpu", "a node's host memory"}, std::pair{"nvme", "a node's NVMe"}}) {
    scenario::Scenario s = job(tier);
    // Enough of everything else.
    s.cluster.gpu.memory = Bytes{std::int64_t{1} << 39};
    (tier == std::string("cpu") ? s.cluster.node.nvme.capacity : s.cluster.node.cpu.memory) = Bytes{std::int64_t{1} << 50};
    if (tier == std::string("nvme")) s.cluster.node.nvme.capacity = Bytes{std::int64_t{1} << 40};
    const scenario::Result r = simulate(s);
    ASSERT_FALSE(r.fits) << tier;
    const std::string text = write_text(s, r), needs = gib_text(tier == std::string("cpu") ? r.host.ram() : r.host.nvme);
    EXPECT_NE(text.find("DOES NOT FIT: needs " + needs), std::string::npos) << text.substr(0, 600);
    EXPECT_NE(text.find(what), std::string::npos) << text.substr(0, 600);
    EXPECT_EQ(text.find("although"), std::string::npos);
  }
}

// The GPUs have room and the node has not: the verdict says which.
TEST(TextWriter, TheVerdictNamesTheMemoryThatIsFull) {
  const std::vector<std::string> offloaded{"training.framework=deepspeed", "data_parallel={kind: zero3}", "memory={recompute: full, offload: {optimizer: cpu, parameters: cpu}}"};
  scenario::Scenario s = small_scenario(offloaded);
  EXPECT_TRUE(verdict_line(s, simulated(s)).starts_with("FITS: "));
  s.cluster.node.cpu.memory = 1_MiB;
  EXPECT_NE(verdict_line(s, simulated(s)).find("of 0.00 GiB of a node's host memory"), std::string::npos) << verdict_line(s, simulated(s));
  s.cluster.gpu.memory = 1_GiB;
  EXPECT_NE(verdict_line(s, simulated(s)).find("on every GPU"), std::string::npos) << verdict_line(s, simulated(s));
}

// What a lower bound is, is said to be one.
// A verdict that the error of the prediction may turn says so.
TEST(TextWriter, TheVerdictSaysWhenLittleIsLeft) {
  scenario::Scenario s = small_scenario();
  scenario::Result r = simulated(s);
  EXPECT_EQ(verdict_line(s, r).find("expected error"), std::string::npos);
  s.cluster.gpu.memory = r.classes[r.fullest_class].peak_device();
  EXPECT_NE(verdict_line(s, r).find("0.00 GiB left (0.0 %), within the expected error of +-"), std::string::npos) << verdict_line(s, r);
}

// Frozen weights have no gradients to compute: MFU is above HFU there, and the line says why.
TEST(TextWriter, UtilisationOfFrozenModelsIsExplained) {
  const auto text = [](const scenario::Scenario& s) { return write_text(s, simulated(s)); };
  EXPECT_NE(text(small_scenario({"training.framework=huggingface", "data_parallel={kind: ddp}", "tuning={kind: lora}"})).find("as if none were frozen"), std::string::npos);
  EXPECT_EQ(text(small_scenario()).find("as if none were frozen"), std::string::npos);
  EXPECT_NE(text(small_scenario({"training.phase=evaluation"})).find("2 FLOPs per token and weight"), std::string::npos);
}

TEST(TextWriter, WaitingIsAPipelinesBubbleOnlyWhereThereIsOne) {
  const auto label = [](const scenario::Scenario& s) { return label_of(executor::Cause::bubble, simulated(s)); };
  EXPECT_EQ(label(pipelined_scenario()), "pipeline bubble");
  EXPECT_EQ(label(small_scenario()), "waiting for other ranks");
}

TEST(TextWriter, ALowerBoundIsSaidToBeOne) {
  const scenario::Scenario s = small_scenario({"training.sequence_length=16777216", "training.global_batch_size=8"});
  EXPECT_NE(verdict_line(s, simulate(s)).find("needs more than "), std::string::npos) << verdict_line(s, simulate(s));
  const scenario::Scenario large = small_scenario({"model=llama-3-8b", "data_parallel={kind: ddp}"});   // 16 bytes for each of 8 B parameters
  EXPECT_TRUE(verdict_line(large, simulate(large)).starts_with("DOES NOT FIT: needs 1")) << verdict_line(large, simulate(large));
}

TEST(TextWriter, ColoursOnlyTheVerdictAndOnlyWhenAsked) {
  const auto scenario = small_scenario();
  const auto result = simulated(scenario);
  const std::string plain = write_text(scenario, result), coloured = write_text(scenario, result, {.colour = true});
  EXPECT_NE(coloured.find("\033[1;32mFITS\033[0m"), std::string::npos);
  std::string stripped = coloured;
  for (const std::string code : {"\033[1;32m", "\033[0m"})
    if (const auto at = stripped.find(code); at != std::string::npos) stripped.erase(at, code.size());
  EXPECT_EQ(stripped, plain);
}

TEST(TextWriter, SaysWhoLacksMemoryAndWhen) {
  const auto scenario = huge_scenario();
  const std::string text = write_text(scenario, simulated(scenario));
  // 70e9 parameters: weights alone are 141 GB in 16 bit, the GPU has 80.
  EXPECT_NE(text.find("DOES NOT FIT"), std::string::npos);
  for (const char* part : {"needs", "fails at", "asks for", "while live"}) EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(TextWriter, NotesAreAlwaysShown) {
  const auto scenario = small_scenario();
  ASSERT_FALSE(scenario.notes.empty());  // parallelism.data: auto became 8
  EXPECT_NE(write_text(scenario, simulated(scenario)).find(scenario.notes[0]), std::string::npos);
}

TEST(TextWriter, ShowsFewOfManyClasses) {
  scenario::Result result;
  result.classes.resize(64);
  result.critical_class = 30;
  result.fullest_class = 40;
  const auto shown = shown_classes(result, 10);
  EXPECT_LE(shown.size(), 10u);
  for (const std::size_t must : {0u, 30u, 40u, 63u}) EXPECT_NE(std::find(shown.begin(), shown.end(), must), shown.end()) << must;
  result.classes.resize(6);
  result.critical_class = result.fullest_class = 0;
  EXPECT_EQ(shown_classes(result, 10).size(), 6u);
}

TEST(Explain, EveryStageSaysSomething) {
  for (const auto& scenario : {small_scenario(), pipelined_scenario()}) {
    for (const auto& stage : stages().entries()) {
      const std::string text = stage.value.write(scenario, simulate(scenario, stage.value.needs));
      EXPECT_GT(text.size(), 60u) << stage.name;
      const bool whole_names = stage.name == "costs";   // rows that are cut look alike
      if (stage.name != "schedule" && stage.name != "scenario" && !whole_names) expect_narrow(text, stage.name);
      if (whole_names) { EXPECT_EQ(text.find("..."), std::string::npos) << text; }
    }
  }
}

// What an offloaded step moves stands beside what it computes: of N weights over 8 GPUs the CPU reads 16 bytes each from disks (fp32
// parameters, moments, gradients) and writes as many, and 16-bit shards come up for forward, backward's recomputation and after the update. Two GPUs share a switch.
TEST(Explain, CostsShowCopiesAndTheCpusWork) {
  const auto s = small_scenario({"training.framework=deepspeed", "data_parallel={kind: zero3, persistence_threshold: 0}", "memory={recompute: full, offload: {optimizer: nvme, parameters: cpu}}", "training.global_batch_size=8"});
  const auto r = simulated(s);
  const std::string text = explain_costs(s, r);
  const std::int64_t mine = r.classes[0].parameters / 8;
  EXPECT_NE(text.find("  NVMe " + bytes_text(16 * mine) + " read, " + bytes_text(16 * mine) + " written\n"), std::string::npos) << text;
  const Counts counts = counts_of(r.plan, 0);
  std::int64_t up = 0;
  for (std::size_t k = 0; k < counts.copies.size(); ++k)
    if (r.plan.copies[k].direction == plan::CopySpec::Direction::host_to_device) up += counts.copies[k] * r.plan.copies[k].bytes.value;
  EXPECT_NE(text.find("PCIe of the GPU: " + bytes_text(up) + " to it"), std::string::npos) << text;
  EXPECT_GE(up, 2 * 2 * mine);
  EXPECT_NE(text.find("(while all 2 GPUs of a PCIe switch copy)"), std::string::npos) << text;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.find("PCIe") != std::string::npos || line.find("NVMe") != std::string::npos || line.find("CPU") != std::string::npos) { EXPECT_LE(line.size(), static_cast<std::size_t>(kWidth)) << line; }   // tables of kernels are as wide as their names
  }
  const std::string without = explain_costs(small_scenario(), simulated(small_scenario()));
  EXPECT_EQ(without.find("CPU work"), std::string::npos);
}

// Two micro-batches of two layers, each with 4 ms of Python around its forward and 6 around its backward: 16 and 24 ms; launches cost nothing here.
TEST(Explain, CostsShowTheHostThread) {
  const auto s = small_scenario({"data_parallel.kind=ddp", "model.layers=2", "training.global_batch_size=16", "training.micro_batch_size=1",
                                 "profile={layer_host: 4 ms, layer_backward_host: 6 ms, kernel_host: 0 us, backward_kernel_host: 0 us}"});
  const std::string text = explain_costs(s, simulated(s));
  const auto row = [&](const std::string& block) {
    const std::size_t at = text.find("\n  " + block + " ", text.find("Host thread"));
    return at == text.npos ? text : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  };
  EXPECT_NE(row("layer forward").find("4.000 ms      4  4.000 ms  16.00 ms"), std::string::npos) << row("layer forward");
  EXPECT_NE(row("layer backward").find("6.000 ms      4  6.000 ms  24.00 ms"), std::string::npos) << row("layer backward");
}

TEST(Comparison, NamesWhatChangedAndWhoIsFaster) {
  const auto a = small_scenario(), b = small_scenario({"memory.recompute=full"});
  const auto ra = simulated(a), rb = simulated(b);
  const auto changes = changes_between(a, b);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].key, "memory.recompute");
  const std::string text = write_comparison({a, ra}, {b, rb});
  EXPECT_NE(text.find("A is "), std::string::npos);  // recomputation costs time
  EXPECT_NE(text.find("times faster than B"), std::string::npos);
  expect_narrow(text, "comparison");
  EXPECT_NE(write_comparison({a, ra}, {a, ra}).find("The scenarios are the same."), std::string::npos);
}

TEST(Format, UnitsAndDigits) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(1.23456), "1.235 s");
  EXPECT_EQ(seconds_text(0.0123456), "12.35 ms");
  EXPECT_EQ(seconds_text(0.99996), "1.000 s");  // not "1000 ms"
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(3LL << 30), "3.00 GiB");
  EXPECT_EQ(si_text(989.4e12, "FLOPS"), "989.4 TFLOPS");
  EXPECT_EQ(si_text(450e9, "B/s"), "450.0 GB/s");
  EXPECT_EQ(count_text(2e12), "2.000 T");
  EXPECT_EQ(count_text(41800), "41.80 k");
  EXPECT_EQ(count_text(512), "512.0");
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(8, "GPU"), "8 GPUs");
  EXPECT_EQ(counted(2, "micro-batch", "micro-batches"), "2 micro-batches");
  EXPECT_EQ(percent_text(0.4325), "43.2 %");
  EXPECT_EQ(percent_text(-1e-6), "0.0 %");
  EXPECT_EQ(signed_text(-0.04), "+0.0");
  EXPECT_EQ(signed_text(-0.06), "-0.1");
  EXPECT_EQ(signed_text(1.234, 2), "+1.23");
  EXPECT_EQ(gib_text(Bytes{-1}), "0.00");
}

TEST(Format, TablesAlignAndGiveWay) {
  Table table({"name", "value"});
  table.add({"a", "1"});
  table.add({std::string(150, 'n'), "12"});
  std::istringstream lines(table.text());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), kWidth);
}

}  // namespace
}  // namespace rehearse::report::text_writer_test
