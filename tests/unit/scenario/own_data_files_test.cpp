// Data files of the user's own, named by path in a scenario: GPU, node, collectives and framework profile.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hwmodels/collective/parameters.h"
#include "sim/core/error.h"
#include "sim/scenario/simulate.h"
#include "tests/support/source_dir.h"

namespace rehearse::scenario::own_data_files_test {
namespace {

class OwnDataFiles : public ::testing::Test {
 protected:
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "own_data";
  OwnDataFiles() { std::filesystem::create_directories(folder); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder / name) << text; }
  static std::string text_of(const char* file) {
    std::ifstream in(source_dir() / file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string changed(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  std::string scenario(const std::string& cluster, const std::string& framework) {
    write("job.yaml", "model: {layers: 2, hidden: 1024, heads: 8, ffn_hidden: 2816, vocab: 32000}\ncluster: {" + cluster +
                          "}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: " + framework + "}\ndata_parallel: {kind: ddp}\n");
    return (folder / "job.yaml").string();
  }
  double step(const std::string& cluster, const std::string& framework = "plain") { return simulate(load_scenario(scenario(cluster, framework))).step_time; }
};

TEST_F(OwnDataFiles, AGpuFileBesideTheScenarioIsUsed) {
  const std::string original = text_of("hwmodels/data/gpu/h100-sxm.yaml");
  write("same.yaml", original);
  write("slow.yaml", changed(original, "sustained_clock: {value: 0.753", "sustained_clock: {value: 0.4"));
  const double usual = step("node: dgx-h100");
  EXPECT_EQ(step("node: dgx-h100, gpu: ./same.yaml"), usual);
  EXPECT_GT(step("node: dgx-h100, gpu: slow.yaml"), 1.05 * usual);
  EXPECT_EQ(load_scenario((folder / "job.yaml").string()).cluster.gpu.name, (folder / "slow.yaml").string());
}

TEST_F(OwnDataFiles, ANodeFileNamesItsGpuFileBesideIt) {
  write("slow.yaml", changed(text_of("hwmodels/data/gpu/h100-sxm.yaml"), "sustained_clock: {value: 0.753", "sustained_clock: {value: 0.4"));
  write("node.yaml", changed(text_of("hwmodels/data/node/dgx-h100.yaml"), "gpu: h100-sxm", "gpu: slow.yaml"));
  EXPECT_EQ(step("node: node.yaml"), step("node: dgx-h100, gpu: slow.yaml"));
}

TEST_F(OwnDataFiles, CollectiveConstantsOfOneGenerationReplaceOurs) {
  std::string nccl = text_of("hwmodels/data/collective/nccl.yaml");
  const std::size_t hopper = nccl.find("  hopper:"), end = nccl.find("  blackwell:");
  const std::string own = "generations:\n" + nccl.substr(hopper, end - hopper);
  write("same.yaml", own);
  write("late.yaml", changed(own, "nvls_launch: 26.2", "nvls_launch: 888"));
  const double usual = step("node: dgx-h100");
  EXPECT_EQ(step("node: dgx-h100, collectives: same.yaml"), usual);
  EXPECT_GT(step("node: dgx-h100, collectives: late.yaml"), usual + 500e-6);
  write("odd.yaml", changed(own, "hopper:", "hoper:"));
  EXPECT_THROW(step("node: dgx-h100, collectives: odd.yaml"), ConfigError);
}

TEST_F(OwnDataFiles, NumbersAreNamedAsTheFileNamesThem) {
  const auto& hopper = hwmodels::collective_parameters().generations.at("hopper");
  double sum = 0;
  for (const auto& number : hwmodels::generation_numbers())
    if (number.name == "launch" || number.name == "ring_efficiency") sum += hopper.*number.member;
  EXPECT_DOUBLE_EQ(sum, hopper.launch + hopper.ring_efficiency);
  EXPECT_EQ(hwmodels::generation_numbers().size(), 26u);
  EXPECT_EQ(hwmodels::network_numbers().size(), 14u);
}

TEST_F(OwnDataFiles, AProfileThatExtendsOursStatesOnlyWhatDiffers) {
  write("same.yaml", "extends: torchtitan\ntitle: mine\nsource: a test\n");
  write("late.yaml", "extends: same.yaml\nsource: a test\nstep_host: 500 ms\n");
  const double usual = step("node: dgx-h100", "torchtitan");
  EXPECT_EQ(step("node: dgx-h100", "./same.yaml"), usual);
  EXPECT_GT(step("node: dgx-h100", "late.yaml"), usual + 0.4);
  write("odd.yaml", "extends: torchtitans\ntitle: x\nsource: y\n");
  try {
    step("node: dgx-h100", "odd.yaml");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("odd.yaml:1:"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("Did you mean torchtitan?"), std::string::npos) << e.what();
  }
}

TEST_F(OwnDataFiles, AMissingFileIsNamed) {
  try {
    step("node: dgx-h100, gpu: ./none.yaml");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("none.yaml"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace rehearse::scenario::own_data_files_test
