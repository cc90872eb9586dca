// Files as they stand on the hub, hand-written in the spellings of several years, and mistakes in them.
#include "sim/model/huggingface.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "sim/config/document.h"
#include "sim/model/presets.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/text_checks.h"
#include "tests/support/source_dir.h"

namespace rehearse::model::huggingface_test {
namespace {

namespace fs = std::filesystem;

ImportedModel hub(const std::string& name) {
  return import_huggingface(source_dir() / "tests/oracles/data/hf_hub" / (name + ".json"));
}
ImportedModel from_text(const std::string& json) {
  return import_huggingface(config::parse_document(json, "config.json").root, "test");
}
std::string mistakes_in(const std::string& json) {
  return error_of([&] { from_text(json); });
}
bool has_key(const std::vector<ImportNote>& notes, const std::string& key) {
  return std::any_of(notes.begin(), notes.end(), [&](const ImportNote& note) { return note.key == key; });
}

/// A small Llama with more fields.
std::string llama(const std::string& more = "") {
  return R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
 "num_attention_heads": 4, "vocab_size": 100)" +
         more + "}";
}
std::string qwen2(const std::string& more) {
  std::string text = llama(more);
  return text.replace(text.find("llama"), 5, "qwen2");
}

// Each old file restates a model that a preset restates too.
TEST(HuggingFaceHub, OldSpellingsMeanTheSameModels) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama-7b-first-generation", "llama-7b"},
      {"llama-3.1-8b", "llama-3-8b"},
      {"gemma-3-1b-old", "gemma-3-1b"},
      {"gemma-3-4b-multimodal", "gemma-3-4b"},
      {"qwen2-7b-old", "qwen2-7b"},
      {"bloom-560m-old", "bloom-560m"},
      {"falcon-7b-old", "falcon-7b"},
      {"mixtral-infinity", "mixtral-8x7b"},
      {"deepseek-v3-fp8", "deepseek-v3"},
  };
  for (const auto& [file, preset] : cases)
    EXPECT_EQ(describe_difference(hub(file).model, load_preset(preset)), "") << file;
}

TEST(HuggingFaceHub, EveryFieldIsUnderstood) {
  int files = 0;
  for (const auto& entry :
       fs::directory_iterator(source_dir() / "tests/oracles/data/hf_hub")) {
    const ImportReport report = import_huggingface(entry.path()).report;
    for (const ImportNote& note : report.not_understood) EXPECT_EQ(note.key, "made_up_field") << entry.path();
    ++files;
  }
  EXPECT_GE(files, 9);
}

// A vision-language file's text part is its family's language model.
TEST(HuggingFaceHub, TheLanguageModelOfAMultimodalFile) {
  const std::string text = R"("hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100)";
  for (const auto& [type, family] : {std::pair{"qwen2_5_vl", "qwen2"}, {"qwen3_vl", "qwen3"}}) {
    const ImportedModel nested = from_text(fmt::format(R"({{"model_type": "{0}", "vision_config": {{}}, "text_config": {{"model_type": "{0}_text", {1}}}}})", type, text));
    EXPECT_EQ(nested.model.family, family);
    EXPECT_EQ(nested.model.kv_heads, 2);
    EXPECT_TRUE(has_key(nested.report.ignored, "vision_config"));
  }
  // Qwen2-VL's first files are flat.
  const ImportedModel flat = from_text(R"({"model_type": "qwen2_vl", "vision_config": {}, )" + text + "}");
  EXPECT_EQ(flat.model.family, "qwen2");
  EXPECT_TRUE(has_key(flat.report.ignored, "vision_config"));
}

// One product for queries, keys and values; the family is remote code, which transformers does not have.
TEST(HuggingFaceHub, InternLm2) {
  const ImportedModel file = from_text(R"({"model_type": "internlm2", "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager",
 "bias": false, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
 "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 2, "pretraining_tp": 1,
 "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
 "vocab_size": 92544})");
  EXPECT_EQ(describe_difference(file.model, load_preset("internlm2-7b")), "");
  EXPECT_TRUE(file.report.not_understood.empty());
}

TEST(HuggingFaceFamilies, WhatTheyCannotSayIsRefused) {
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "no_bias": false})"), "MPT with biases"));
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"alibi": false}})"), "without alibi"));
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "stablelm", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "qk_layernorm": true})"), "qk_layernorm"));
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_layers": ["local"]})"), "another length"));
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "smollm3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "no_rope_layers": [1]})"), "another length"));
}

TEST(HuggingFaceHub, NamesComeFromTheFileOrItsStem) {
  EXPECT_EQ(hub("llama-3.1-8b").model.name, "meta-llama/Llama-3.1-8B");
  EXPECT_EQ(hub("qwen2-7b-old").model.name, "qwen2-7b-old");
}

TEST(HuggingFaceReport, SortsEveryFieldOnce) {
  const ImportReport report = hub("mixtral-infinity").report;
  EXPECT_TRUE(has_key(report.used, "hidden_size"));
  EXPECT_TRUE(has_key(report.used, "num_experts"));
  EXPECT_TRUE(has_key(report.used, "sliding_window"));
  EXPECT_TRUE(has_key(report.assumed, "tie_word_embeddings"));
  EXPECT_TRUE(has_key(report.ignored, "dtype"));
  EXPECT_TRUE(has_key(report.ignored, "router_jitter_noise"));
  ASSERT_EQ(report.not_understood.size(), 1u);
  EXPECT_EQ(report.not_understood[0].key, "made_up_field");
  EXPECT_EQ(report.not_understood[0].at.line, 21);
  // The file has 20 fields.
  EXPECT_EQ(report.used.size() + report.ignored.size() + report.not_understood.size(), 20u);
  EXPECT_EQ(strict_diagnostics(report).size(), 1u);
  EXPECT_TRUE(has_line(to_lines(report), "not understood (1)"));
}

TEST(HuggingFaceReport, SaysThatItWentIntoTextConfig) {
  const ImportReport report = hub("gemma-3-4b-multimodal").report;
  EXPECT_TRUE(has_key(report.used, "text_config"));
  EXPECT_TRUE(has_key(report.used, "text_config.hidden_size"));
  EXPECT_TRUE(has_key(report.assumed, "text_config.num_attention_heads"));
  EXPECT_TRUE(has_key(report.ignored, "vision_config"));
  EXPECT_TRUE(report.not_understood.empty());
}

TEST(HuggingFaceFields, NullKeyValueHeadsMeanAllHeads) {
  EXPECT_EQ(from_text(llama(R"(, "num_key_value_heads": null)")).model.kv_heads, 4);
  EXPECT_EQ(from_text(llama()).model.kv_heads, 4);
  EXPECT_EQ(from_text(llama(R"(, "num_key_value_heads": 2)")).model.kv_heads, 2);
}

// Present and different from hidden / heads: the query projection is heads * head_dim wide.
TEST(HuggingFaceFields, HeadDimWins) {
  const ModelDescription model = from_text(llama(R"(, "head_dim": 32)")).model;
  EXPECT_EQ(model.query_width(), 128);
  EXPECT_EQ(attention_parameters(model), 64 * (128 + 2 * 128) + 128 * 64);
}

TEST(HuggingFaceFields, SlidingWindowsOfQwenNeedTheSwitch) {
  const char* off = R"(, "sliding_window": 16, "max_window_layers": 1, "use_sliding_window": false)";
  const char* on = R"(, "sliding_window": 16, "max_window_layers": 1, "use_sliding_window": true)";
  EXPECT_EQ(from_text(qwen2(off)).model.layers[1].window, 0);
  EXPECT_EQ(from_text(qwen2(on)).model.layers[0].window, 0);
  EXPECT_EQ(from_text(qwen2(on)).model.layers[1].window, 16);
}

TEST(HuggingFaceFields, LayerTypesWin) {
  const std::string types = R"(, "sliding_window": 16, "use_sliding_window": true,
    "layer_types": ["sliding_attention", "attention"])";
  const ModelDescription model = from_text(qwen2(types)).model;
  EXPECT_EQ(model.layers[0].window, 16);
  EXPECT_EQ(model.layers[1].window, 0);
}

TEST(HuggingFaceFields, ScoutAlternatesChunksAndGlobalLayersWithoutPositions) {
  const ModelDescription scout =
      import_huggingface(source_dir() / "tests/oracles/data/hf/llama-4-scout.json").model;
  EXPECT_TRUE(scout.layers[0].chunked && scout.layers[0].rotary && scout.layers[0].window == 8192);
  EXPECT_TRUE(!scout.layers[3].chunked && !scout.layers[3].rotary && scout.layers[3].window == 0);
}

TEST(HuggingFaceFields, FalconHeadsOfThreeGenerations) {
  const std::string base = R"({"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 8, "vocab_size": 100, "num_kv_heads": 4, )";
  EXPECT_EQ(from_text(base + R"("new_decoder_architecture": true, "multi_query": true})").model.kv_heads, 4);
  EXPECT_EQ(from_text(base + R"("new_decoder_architecture": false, "multi_query": true})").model.kv_heads, 1);
  EXPECT_EQ(from_text(base + R"("new_decoder_architecture": false, "multi_query": false})").model.kv_heads,
            4);
}

TEST(HuggingFaceFields, PartialRotaryInEitherPlace) {
  const std::string base =
      R"({"model_type": "phi", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 128,
    "num_attention_heads": 4, "vocab_size": 100)";
  EXPECT_EQ(from_text(base + "}").model.rotary_dim, 8);  // the class's 0.5 of 16
  EXPECT_EQ(from_text(base + R"(, "partial_rotary_factor": 0.25})").model.rotary_dim, 4);
  EXPECT_EQ(from_text(base + R"(, "rope_parameters": {"partial_rotary_factor": 0.75}})").model.rotary_dim,
            12);
}

TEST(HuggingFaceMistakes, AllAtOnceWithTheirPlaces) {
  const std::string said = mistakes_in(R"({"model_type": "llama",
 "hidden_size": "wide",
 "num_attention_heads": 4.5,
 "vocab_size": 100, "tie_word_embeddings": 1})");
  EXPECT_TRUE(says(said, "config.json:2:17: hidden_size: \"wide\" is not a whole number"));
  EXPECT_TRUE(says(said, "config.json:3:25: num_attention_heads: \"4.5\" is not a whole number"));
  EXPECT_TRUE(says(said, "num_hidden_layers: missing"));
  EXPECT_TRUE(says(said, "tie_word_embeddings: \"1\" is not true or false"));
}

TEST(HuggingFaceMistakes, UnusableSizes) {
  EXPECT_TRUE(
      says(mistakes_in(llama(R"(, "num_key_value_heads": 3)")), "kv_heads 3 does not divide heads 4"));
  EXPECT_TRUE(says(mistakes_in(llama(R"(, "head_dim": -8)")), "head_dim is -8"));
  EXPECT_TRUE(
      says(mistakes_in(llama(R"(, "head_dim": 4000000000000000000)")), "not a size that a model can have"));
  std::string deep = llama();
  deep.replace(deep.find("_layers\": 2"), 11, "_layers\": 400000000");
  EXPECT_TRUE(says(mistakes_in(deep), "no transformer is this large"));
}

TEST(HuggingFaceMistakes, UnknownFamilies) {
  EXPECT_TRUE(says(mistakes_in(R"({"model_type": "lama", "hidden_size": 8})"), "Supported: llama"));
  // qwen3 is near in letters and another model: nobody is to try it.
  EXPECT_FALSE(says(mistakes_in(R"({"model_type": "qwen3_next", "hidden_size": 8})"), "Did you mean"));
  const std::string said = mistakes_in(R"({"model_type": "mamba2", "hidden_size": 8})");
  for (const HuggingFaceFamily& family : huggingface_families()) EXPECT_TRUE(says(said, family.model_type));
  EXPECT_TRUE(says(mistakes_in(R"({"hidden_size": 8})"), "model_type: missing"));
  EXPECT_TRUE(says(mistakes_in("[1, 2]"), "not a config.json"));
}

TEST(HuggingFaceMistakes, WhatADescriptionCannotState) {
  EXPECT_TRUE(says(mistakes_in(llama(R"(, "per_layer_config": {"3": {"hidden_size": 1}})")), "per-layer"));
  EXPECT_EQ(mistakes_in(llama(R"(, "per_layer_config": null)")), "");
  EXPECT_TRUE(says(mistakes_in(llama(R"(, "is_encoder_decoder": true)")), "encoder"));
  EXPECT_TRUE(says(mistakes_in(llama(R"(, "hidden_act": "xielu")")), "not a known activation"));
  EXPECT_TRUE(says(mistakes_in(qwen2(R"(, "layer_types": ["linear_attention", "full_attention"])")),
                   "\"linear_attention\" is not supported"));
  EXPECT_TRUE(says(mistakes_in(qwen2(R"(, "layer_types": ["full_attention"])")), "1 entries for 2 layers"));
}

}  // namespace
}  // namespace rehearse::model::huggingface_test
