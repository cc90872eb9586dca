// Every config.json that transformers wrote, imported and counted, against transformers' own count.
// Regenerate the data with tests/oracles/transformers_parameters.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "sim/config/document.h"
#include "sim/model/huggingface.h"
#include "sim/model/presets.h"
#include "tests/support/source_dir.h"

namespace rehearse::model::huggingface_oracle_test {
namespace {

namespace fs = std::filesystem;

const fs::path kData = source_dir() / "tests" / "oracles" / "data";

const config::Value& answers() {
  static const config::Document document = config::load_document(kData / "transformers_parameters.json");
  return *document.root.find("models");
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const auto& entry : answers().entries()) list.push_back(entry.key);
  return list;
}

class HuggingFaceOracle : public testing::TestWithParam<std::string> {};

TEST_P(HuggingFaceOracle, CountsWhatTransformersCounts) {
  const ImportedModel imported = import_huggingface(kData / "hf" / (GetParam() + ".json"));
  const ParameterCount count = count_parameters(imported.model);
  const config::Value& answer = *answers().find(GetParam());
  EXPECT_EQ(std::to_string(count.total), answer.find("total")->text());

  // Our parts carry the same names; a part that transformers does not have is 0 with us too.
  const std::map<std::string, std::int64_t> ours = {{"embedding", count.embedding},
                                                    {"position", count.position},
                                                    {"attention", count.attention},
                                                    {"state_space", count.state_space},
                                                    {"delta_net", count.delta_net},
                                                    {"mlp", count.mlp},
                                                    {"experts", count.experts},
                                                    {"shared_experts", count.shared_experts},
                                                    {"router", count.router},
                                                    {"norms", count.norms},
                                                    {"head", count.head}};
  for (const auto& [part, value] : ours) {
    const config::Value* theirs = answer.find("parts")->find(part);
    EXPECT_EQ(std::to_string(value), theirs == nullptr ? "0" : theirs->text()) << part;
  }
}

TEST_P(HuggingFaceOracle, UnderstandsEveryFieldThatTransformersWrites) {
  const ImportReport report = import_huggingface(kData / "hf" / (GetParam() + ".json")).report;
  for (const ImportNote& note : report.not_understood) ADD_FAILURE() << note.key << ": " << note.note;
  for (const ImportNote& note : report.used) EXPECT_GT(note.at.line, 0) << note.key;
}

// A preset with the oracle's name restates the same model, so the two readings must be one description.
class HuggingFacePreset : public testing::TestWithParam<std::string> {};

TEST_P(HuggingFacePreset, AgreesWithTransformers) {
  ModelDescription preset = load_preset(GetParam());
  const ModelDescription imported = import_huggingface(kData / "hf" / (GetParam() + ".json")).model;
  if (preset.family == "nemotron_h") preset.mtp_layers = imported.mtp_layers, preset.mtp_repeated = false;   // transformers has no further heads of hybrids
  EXPECT_EQ(describe_difference(preset, imported), "");
}

/// The rest are odd corners of a file format, or models that nobody asked a preset of.
std::vector<std::string> names_of_presets() {
  const std::vector<std::string> presets = preset_names();
  std::vector<std::string> list = names();
  std::erase_if(list, [&](const std::string& n) { return std::find(presets.begin(), presets.end(), n) == presets.end(); });
  return list;
}

std::string test_name(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Transformers, HuggingFaceOracle, testing::ValuesIn(names()), test_name);
INSTANTIATE_TEST_SUITE_P(Transformers, HuggingFacePreset, testing::ValuesIn(names_of_presets()), test_name);

TEST(HuggingFaceOracleData, CoversWhatWasAskedFor) {
  EXPECT_GE(names().size(), 110u);
  EXPECT_GE(names_of_presets().size(), 90u);
}

}  // namespace
}  // namespace rehearse::model::huggingface_oracle_test
