#include "sim/model/presets.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/model/describe.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/text_checks.h"

namespace rehearse::model::presets_test {
namespace {

class Presets : public testing::TestWithParam<std::string> {};

TEST_P(Presets, LoadsAndHasASource) {
  const ModelDescription model = load_preset(GetParam());
  EXPECT_EQ(model.name, GetParam());
  EXPECT_FALSE(model.family.empty());
  EXPECT_TRUE(problems_of(model).empty()) << testing::PrintToString(problems_of(model));
  EXPECT_FALSE(preset_facts(GetParam()).source.empty());
  EXPECT_FALSE(describe(model).empty());
}

// Exact totals must be exact. Rounded ones may be off by 2 % (papers round to one or two digits and differ in
// whether biases and positions count); active ones by 10 %, because half of the publishers leave the
// embedding out. A preset without either would be unchecked.
TEST_P(Presets, CountsWhatWasPublished) {
  const PresetFacts facts = preset_facts(GetParam());
  const ParameterCount count = count_parameters(load_preset(GetParam()));
  ASSERT_TRUE(facts.parameters || facts.published_billions) << "nothing to check the shapes against";
  if (facts.parameters) {
    EXPECT_EQ(count.total, *facts.parameters);
  }
  if (facts.published_billions) {
    EXPECT_NEAR(1e-9 * static_cast<double>(count.total) / *facts.published_billions, 1, 0.02);
  }
  if (facts.published_active_billions) {
    const double all = 1e-9 * static_cast<double>(count.active);
    const double without_embedding = all - 1e-9 * static_cast<double>(count.embedding);
    const double published = *facts.published_active_billions;
    EXPECT_TRUE(std::abs(all / published - 1) < 0.1 || std::abs(without_embedding / published - 1) < 0.1)
        << all << " or " << without_embedding << ", published " << published;
  }
}

TEST_P(Presets, EveryAliasFindsIt) {
  EXPECT_EQ(preset_for(GetParam()), GetParam());
  for (const std::string& alias : preset_facts(GetParam()).aliases)
    EXPECT_EQ(preset_for(alias), GetParam()) << alias;
}

INSTANTIATE_TEST_SUITE_P(All, Presets, testing::ValuesIn(preset_names()), [](const auto& param) {
  std::string name = param.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

TEST(PresetNames, AsTablesWriteThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"Llama-3.1-8B", "llama-3-8b"},
      {"Llama-2-7b-hf", "llama-2-7b"},
      {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
      {"llama3-70b (12 layers)", "llama-3-70b"},
      {"GPT-OSS-120B", "gpt-oss-120b"},
      {"Qwen-7B", "qwen-7b"},
      {"Qwen3-30B-A3B (tokendrop)", "qwen3-30b-a3b"},
      {"DeepSeek-V3 671B (37B active)", "deepseek-v3"},
      {"Mixtral 8x22B", "mixtral-8x22b"},
      {"MPT-7b", "mpt-7b"},
      {"MT-NLG 530B", "mt-nlg-530b"},
      {"Gemma-2-9b", "gemma-2-9b"},
      {"phi-1_5", "phi-1.5"},
      {"bigscience/bloomz-7b1", "bloom-7b1"},
      {"GPT-2-style 52B", "bigscience-gpt2-52b"},
      {"Pythia 1.4B", "pythia-1.4b"},
      {"Kimi-K2", "kimi-k2"},
      {"Llama-4-Scout", "llama-4-scout"},
      {"stablelm-base-alpha-3b", "stablelm-base-alpha-3b"},
  };
  for (const auto& [written, preset] : cases) EXPECT_EQ(preset_for(written), preset) << written;
}

// A near name is another model: never a guess.
TEST(PresetNames, NoGuessing) {
  for (const char* name : {"Llama-3-9B", "GPT 410B", "", "(7B)", "llama", "hf"})
    EXPECT_EQ(preset_for(name), std::nullopt);
}

TEST(PresetNames, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_TRUE(says(error_of([] { load_preset("llama-3-8c"); }), "Did you mean llama-3-8b"));
}

TEST(PresetDifference, SeesEveryField) {
  const ModelDescription model = load_preset("llama-3-8b");
  ModelDescription other = model;
  other.name = "something else";
  EXPECT_EQ(describe_difference(model, other), "");
  other.layers[5].window = 7;
  EXPECT_TRUE(says(describe_difference(model, other), "pattern"));
  other = model;
  other.tied_embeddings = true;
  EXPECT_EQ(describe_difference(model, other), "tied_embeddings false / true");
}

config::Value map_of(const std::string& yaml) { return config::parse_document(yaml, "changes.yaml").root; }

TEST(ChangedPreset, HasWhatStandsBesideItsName) {
  ModelDescription expected = load_preset("llama-3-8b");
  const ModelDescription eight = load_preset("llama-3-8b", map_of("layers: 8"));
  EXPECT_EQ(eight.name, "llama-3-8b with layers 8");
  EXPECT_EQ(eight.layer_count(), 8);
  const std::int64_t layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096;
  EXPECT_EQ(count_parameters(expected).total - count_parameters(eight).total, 24 * layer);
  const ModelDescription same = load_preset("Meta-Llama-3-8B", map_of("{}"));
  EXPECT_EQ(same.name, expected.name);
  EXPECT_EQ(describe_difference(same, expected), "");
  EXPECT_EQ(load_preset("llama-3-8b", map_of("{layers: 8, name: proxy}")).name, "proxy");
}

// Of a map inside, what is not named stays; an empty key takes away.
TEST(ChangedPreset, MapsMergeKeyByKey) {
  const ModelDescription sixteen = load_preset("mixtral-8x7b", map_of("experts: {count: 16}"));
  const ModelDescription eight = load_preset("mixtral-8x7b");
  EXPECT_EQ(sixteen.name, "mixtral-8x7b with experts");
  EXPECT_EQ(count_parameters(sixteen).total - count_parameters(eight).total, 32LL * (8 * 3 * 4096 * 14336 + 8 * 4096));
  EXPECT_EQ(count_parameters(load_preset("gpt2", map_of("{dropout: ~, attention_dropout: ~}"))).total, count_parameters(load_preset("gpt2")).total);
  EXPECT_EQ(load_preset("gpt2", map_of("dropout: ~")).dropout, 0);
}

TEST(ChangedPreset, MistakesStandWhereTheChangeDoes) {
  const std::string heads = error_of([] { load_preset("llama-3-8b", map_of("heads: 31")); });
  EXPECT_NE(heads.find("kv_heads 8 does not divide heads 31"), std::string::npos) << heads;
  EXPECT_NE(heads.find("changes.yaml"), std::string::npos) << heads;
  EXPECT_EQ(heads.find("llama.yaml"), std::string::npos) << heads;
  const std::string unknown = error_of([] { load_preset("llama-3-8b", map_of("laers: 8")); });
  EXPECT_NE(unknown.find("Did you mean layers?"), std::string::npos) << unknown;
}

}  // namespace
}  // namespace rehearse::model::presets_test
