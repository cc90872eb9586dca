// Data files of the user's own, named by path in a scenario: GPU, node, collectives and framework profile.
#include <gtest/gtest.h>

#include <algorithm>
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

// A config.json by its path, by the folder that holds it (as transformers' from_pretrained takes it) and in the long form; beside the
// file that names it, also where a scenario in another folder extends that file.
TEST_F(OwnDataFiles, AModelIsAConfigJsonOrItsFolder) {
  std::filesystem::create_directories(folder / "my-llama");
  std::filesystem::create_directories(folder / "elsewhere");
  write("my-llama/config.json", R"({"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2816, "vocab_size": 32000})");
  const std::string rest = "\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: plain}\ndata_parallel: {kind: ddp}\n";
  for (const char* model : {"my-llama", "./my-llama", "my-llama/config.json", "{from: hf, path: my-llama}", "{from: hf, path: my-llama/config.json}"}) {
    write("job.yaml", "model: " + std::string(model) + rest);
    write("elsewhere/more.yaml", "extends: ../job.yaml\ntitle: more\n");
    for (const char* file : {"job.yaml", "elsewhere/more.yaml"}) {
      const Scenario s = load_scenario((folder / file).string());
      EXPECT_EQ(s.model.hidden, 1024) << model;
      EXPECT_EQ(s.model.name, "my-llama") << model;
    }
  }
  // A bundled model's name stays one beside a folder that is called so.
  std::filesystem::create_directories(folder / "llama-3-8b");
  std::filesystem::copy_file(folder / "my-llama/config.json", folder / "llama-3-8b/config.json", std::filesystem::copy_options::overwrite_existing);
  write("job.yaml", "model: llama-3-8b" + rest);
  EXPECT_EQ(load_scenario((folder / "job.yaml").string()).model.hidden, 4096);
}

TEST_F(OwnDataFiles, AModelFileThatIsNotThereIsBlamedOnTheLineThatNamesIt) {
  const std::string rest = "\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: plain}\ndata_parallel: {kind: ddp}\n";
  const auto said = [&](const std::string& model) -> std::string {
    write("job.yaml", "model: " + model + rest);
    try {
      load_scenario((folder / "job.yaml").string());
      return "nothing";
    } catch (const ConfigError& error) {
      return to_string(error.diagnostics().front());
    }
  };
  EXPECT_NE(said("{from: hf, path: gone.json}").find("job.yaml:1:25: model.path: gone.json: no such file"), std::string::npos) << said("{from: hf, path: gone.json}");
  EXPECT_NE(said("gone/config.json").find("job.yaml:1:8: model: gone/config.json: no such file"), std::string::npos) << said("gone/config.json");
  EXPECT_NE(said("{path: gone.json}").find("Write {from: hf, path: config.json}"), std::string::npos) << said("{path: gone.json}");
}

TEST_F(OwnDataFiles, ADataFileThatIsNotThereIsBlamedOnTheKeyThatNamesIt) {
  const auto said = [&](const std::string& cluster, const std::string& framework) -> std::string {
    try {
      step(cluster, framework);
      return "nothing";
    } catch (const ConfigError& error) {
      return to_string(error.diagnostics().front());
    }
  };
  for (const char* key : {"gpu", "fabric", "collectives"}) {
    const std::string text = said("node: dgx-h100, nodes: 2, " + std::string(key) + ": ./gone.yaml", "plain");
    EXPECT_NE(text.find("job.yaml:2:"), std::string::npos) << text;
    EXPECT_NE(text.find("cluster." + std::string(key) + ": ./gone.yaml: no such file"), std::string::npos) << text;
  }
  EXPECT_NE(said("node: gone.yaml", "plain").find("cluster.node: gone.yaml: no such file"), std::string::npos) << said("node: gone.yaml", "plain");
  EXPECT_NE(said("node: dgx-h100", "./gone.yaml").find("job.yaml:3:"), std::string::npos) << said("node: dgx-h100", "./gone.yaml");
}

TEST_F(OwnDataFiles, OfAMultimodalModelItIsSaidWhatIsLeftOut) {
  write("seeing.json", R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 32000, "head_dim": 256}, "vision_config": {"hidden_size": 64}})");
  write("job.yaml", "model: seeing.json\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 1024, global_batch_size: 8, framework: plain}\ndata_parallel: {kind: ddp}\n");
  const Scenario s = load_scenario((folder / "job.yaml").string());
  EXPECT_TRUE(std::any_of(s.notes.begin(), s.notes.end(), [](const std::string& note) { return note.find("its language model is simulated") != std::string::npos; }));
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

TEST_F(OwnDataFiles, OneMeasuredKernelOfDispatchLeavesTheOthersAsTheyAre) {
  write("own.yaml", "expert_dispatch:\n  combine: {source: mine, sms: 12, launch: 80}\n");
  const hwmodels::CollectiveParameters own = hwmodels::load_collective_parameters((folder / "own.yaml").string()), &usual = hwmodels::collective_parameters();
  EXPECT_EQ(own.expert_dispatch.combine.launch, 80);
  EXPECT_EQ(own.expert_dispatch.combine.rate, usual.expert_dispatch.combine.rate);
  EXPECT_EQ(own.expert_dispatch.dispatch.launch, usual.expert_dispatch.dispatch.launch);
  EXPECT_EQ(own.common.own_piece, usual.common.own_piece);
  EXPECT_EQ(own.generations.size(), usual.generations.size());
  write("odd.yaml", "expert_dispatch:\n  combine: {source: mine, sms: 0}\n");
  EXPECT_THROW(hwmodels::load_collective_parameters((folder / "odd.yaml").string()), ConfigError);
}

TEST_F(OwnDataFiles, OneMeasuredNumberLeavesTheOthersAsTheyAre) {
  write("own.yaml", "generations:\n  hopper: {source: mine, launch: 12}\nnetworks:\n  efa: {source: mine, send: 44}\nbackends:\n  gloo: {source: mine, alpha: 77}\n");
  const hwmodels::CollectiveParameters own = hwmodels::load_collective_parameters((folder / "own.yaml").string()), &usual = hwmodels::collective_parameters();
  hwmodels::GenerationTiming hopper = usual.generations.at("hopper");
  hopper.launch = 12;
  for (const auto& number : hwmodels::generation_numbers()) EXPECT_EQ(own.generations.at("hopper").*number.member, hopper.*number.member) << number.name;
  hwmodels::NetworkTiming efa = usual.networks.at("efa");
  efa.send = 44;
  for (const auto& number : hwmodels::network_numbers()) EXPECT_EQ(own.networks.at("efa").*number.member, efa.*number.member) << number.name;
  EXPECT_EQ(own.networks.at("efa").ll128, efa.ll128);
  EXPECT_EQ(own.backends.at("gloo").alpha, 77);
  EXPECT_EQ(own.backends.at("gloo").inter, usual.backends.at("gloo").inter);
}

TEST_F(OwnDataFiles, AMisspeltGenerationOrNetworkIsBlamedOnItsLine) {
  const auto said = [&](const std::string& cluster) -> std::string {
    try {
      load_scenario(scenario(cluster, "plain"));
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  write("odd.yaml", "generations:\n  hoper: {source: mine, launch: 12}\n");
  const std::string generation = said("node: dgx-h100, collectives: odd.yaml");
  EXPECT_NE(generation.find("odd.yaml:2:"), std::string::npos) << generation;
  EXPECT_NE(generation.find("Did you mean hopper?"), std::string::npos) << generation;
  write("node.yaml", changed(text_of("hwmodels/data/node/dgx-h100.yaml"), "network: infiniband", "network: infinband"));
  const std::string network = said("node: node.yaml");
  EXPECT_NE(network.find("node.yaml:12:"), std::string::npos) << network;
  EXPECT_NE(network.find("there is no network 'infinband'. Did you mean infiniband?"), std::string::npos) << network;
  // A network that the user's own file knows is one.
  write("own.yaml", "networks:\n  infinband: {source: mine, send: 20}\n");
  EXPECT_EQ(said("node: node.yaml, collectives: own.yaml"), "");
}

TEST_F(OwnDataFiles, NumbersAreNamedAsTheFileNamesThem) {
  const auto& hopper = hwmodels::collective_parameters().generations.at("hopper");
  double sum = 0;
  for (const auto& number : hwmodels::generation_numbers())
    if (number.name == "launch" || number.name == "ring_efficiency") sum += hopper.*number.member;
  EXPECT_DOUBLE_EQ(sum, hopper.launch + hopper.ring_efficiency);
  EXPECT_EQ(hwmodels::generation_numbers().size(), 26u);
  EXPECT_EQ(hwmodels::network_numbers().size(), 17u);
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
