#include "sim/model/model_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/model/describe.h"
#include "sim/model/presets.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/text_checks.h"

namespace rehearse::model::model_file_test {
namespace {

ModelDescription read(const std::string& yaml) {
  return read_model(config::parse_document(yaml, "m.yaml").root, "m");
}
std::string mistakes_in(const std::string& yaml) {
  return error_of([&] { read(yaml); });
}

TEST(ModelFile, FourSizesAreEnough) {
  const ModelDescription model = read("{layers: 32, hidden: 4096, heads: 32, vocab: 32000}");
  EXPECT_EQ(describe_difference(model, load_preset("llama-2-7b")), "");
  EXPECT_EQ(model.name, "m");
}

TEST(ModelFile, SizesBelowOneAreNamedWhereTheyStand) {
  const std::string text = mistakes_in("{layers: -1, hidden: 4096, heads: 0, vocab: 32000}");
  EXPECT_NE(text.find("m.yaml:1:10: layers: \"-1\" is not at least 1"), std::string::npos) << text;
  EXPECT_NE(text.find("m.yaml:1:35: heads: \"0\" is not at least 1"), std::string::npos) << text;
}

// So are words that stand for nothing; what is missing stands at its map.
TEST(ModelFile, WordsThatStandForNothingAreShownWhereTheyStand) {
  const std::string text = mistakes_in("{layers: 2, hidden: 64, heads: 4, vocab: 100, activation: foo}");
  EXPECT_NE(text.find("m.yaml:1:59: activation: \"foo\" is unknown"), std::string::npos) << text;
  EXPECT_NE(mistakes_in("{layers: 2, hidden: 64, heads: 4, vocab: 100, experts: {top_k: 2}}").find("m.yaml:1:56: experts.count: missing"), std::string::npos);
}

// DeepSeek-V3's groups: as many experts in each, some of them per token, and enough experts in these.
TEST(ModelFile, GroupsOfExpertsHaveToHoldTheChoices) {
  const auto with = [](const std::string& experts) { return mistakes_in("{layers: 2, hidden: 64, heads: 4, vocab: 100, experts: {count: 64, ffn_hidden: 32, " + experts + "}}"); };
  EXPECT_EQ(with("top_k: 8, groups: 8, groups_per_token: 4"), "");
  EXPECT_NE(with("top_k: 8, groups: 7, groups_per_token: 4").find("7 groups do not divide the 64 experts"), std::string::npos);
  EXPECT_NE(with("top_k: 8, groups: 8, groups_per_token: 9").find("more than the 8 groups"), std::string::npos);
  EXPECT_NE(with("top_k: 9, groups: 8, groups_per_token: 1").find("top_k 9 is more than the 8 experts of 1 groups"), std::string::npos);
}

// Learned positions are not a matter of style.
TEST(ModelFile, ALlamaWithLearnedPositionsHasTheirRows) {
  EXPECT_EQ(read("{layers: 2, hidden: 64, heads: 4, vocab: 100, position: learned, max_positions: 128}").max_positions, 128);
  EXPECT_EQ(read("{layers: 2, hidden: 64, heads: 4, vocab: 100, max_positions: 128}").max_positions, 0);
}

// Every key that is read stands among those that the reference page shows, in maps within the model too.
TEST(ModelFile, UnknownKeysOfInnerMapsAreShownTheirOwn) {
  const auto said = [](const std::string& rest) -> std::string {
    try {
      read_model(config::parse_document("{layers: 4, hidden: 256, heads: 4, vocab: 1000, " + rest + "}", "m.yaml").root);
    } catch (const ConfigError& error) {
      return error.diagnostics().front().key + ": " + error.diagnostics().front().fix;
    }
    return "";
  };
  EXPECT_EQ(said("experts: {count: 8, top_k: 2, ffn_hidden: 64, shared_ffn_hidden: 64, shared_gate: true, router_bias: true, groups: 4, groups_per_token: 2, dense_first: 1, every: 1}, "
                 "latent_attention: {q_lora_rank: 16, kv_lora_rank: 16, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}, windows: {size: 64, pattern: LG, chunked: true}"),
            "");
  EXPECT_EQ(said("experts: {count: 8, topk: 2}"),
            "experts.topk: Did you mean top_k? Valid: count, top_k, ffn_hidden, shared_ffn_hidden, latent, shared_gate, router_bias, groups, groups_per_token, dense_first, every");
  EXPECT_EQ(said("windows: {size: 64, layers: LG}"), "windows.layers: Valid: size, pattern, chunked");
  EXPECT_EQ(said("experts: {count: 8}, layer: 4"), "layer: Did you mean layers?");
}

TEST(ModelFile, WindowPatternRepeats) {
  const ModelDescription model =
      read("{layers: 5, hidden: 64, heads: 4, vocab: 100, windows: {size: 16, pattern: LLG}}");
  std::string seen;
  for (const Layer& layer : model.layers) seen += layer.window == 16 ? 'L' : 'G';
  EXPECT_EQ(seen, "LLGLL");
}

TEST(ModelFile, ExpertsEverySecondLayerAfterTheDenseOnes) {
  const ModelDescription model =
      read("{layers: 6, hidden: 64, heads: 4, vocab: 100, experts: {count: 4, dense_first: 2, every: 2}}");
  std::string seen;
  for (const Layer& layer : model.layers) seen += layer.moe ? 'M' : 'd';
  EXPECT_EQ(seen, "dddMdM");
  EXPECT_EQ(model.experts.ffn_hidden, model.ffn_hidden);
}

TEST(ModelFile, LettersSayWindowsAndPositionsOfLayers) {
  const auto layers = [](const std::string& windows) {
    std::string seen;
    for (const Layer& layer : read("{layers: 5, hidden: 64, heads: 4, vocab: 100, windows: " + windows + "}").layers)
      seen += fmt::format("{}{} ", layer.window, layer.rotary ? "r" : "-");
    return seen;
  };
  EXPECT_EQ(layers("{size: 16, pattern: LLN}"), "16r 16r 0- 16r 16r ");
  EXPECT_EQ(layers("{pattern: GN}"), "0r 0- 0r 0- 0r ");
  EXPECT_TRUE(says(mistakes_in("{layers: 2, hidden: 64, heads: 4, vocab: 100, windows: {pattern: LG}}"), "windows.size: missing"));
}

TEST(ModelFile, NormsMayFollowAndSpanAllHeads) {
  const std::string sizes = "layers: 2, hidden: 64, heads: 4, kv_heads: 2, vocab: 100, ffn_hidden: 128";
  const auto norms = [&](const std::string& more) { return count_parameters(read("{" + sizes + more + "}")).norms; };
  EXPECT_EQ(norms(""), 2 * 2 * 64 + 64);
  EXPECT_EQ(norms(", norms_after: true"), 2 * 2 * 64 + 64);
  EXPECT_EQ(norms(", qk_norm: true"), 2 * (2 * 64 + 2 * 16) + 64);
  EXPECT_EQ(norms(", qk_norm: true, joint_qk_norm: true"), 2 * (2 * 64 + 64 + 32) + 64);   // 4 and 2 heads of 16
  EXPECT_EQ(norms(", norm: layer_norm, norm_weight: false"), 0);
  EXPECT_TRUE(says(mistakes_in("{" + sizes + ", joint_qk_norm: true}"), "joint_qk_norm without qk_norm"));
  EXPECT_TRUE(says(mistakes_in("{" + sizes + ", norms_after: true, norms_per_layer: 4}"), "norms_after means two norms per layer"));
}

TEST(ModelFile, MistakesAllAtOnce) {
  const std::string said = mistakes_in(R"(layers: 2
hiden: 64
hidden: 64
heads: 4
vocab: 100
activation: selu
experts: {count: 4, topk: 2}
windows: {size: 16, pattern: LX}
biases: [qkv, output]
)");
  EXPECT_TRUE(says(said, "m.yaml:2:8: hiden: unknown key. Did you mean hidden?"));
  EXPECT_TRUE(says(said, "\"selu\" is unknown"));
  EXPECT_TRUE(says(said, "experts.topk: unknown key"));
  EXPECT_TRUE(says(said, "\"LX\" is not made of L (local), G (global) and N (global, no positions)"));
  EXPECT_TRUE(says(said, "\"output\" is unknown"));
}

TEST(ModelFile, ProblemsOfTheShapes) {
  EXPECT_TRUE(
      says(mistakes_in("{layers: 2, hidden: 100, heads: 3, vocab: 10}"), "not a multiple of heads 3"));
  EXPECT_TRUE(says(mistakes_in("{layers: 400000000, hidden: 64, heads: 4, vocab: 10}"), "layers"));
  EXPECT_TRUE(says(mistakes_in("{layers: 2, hidden: 64, heads: 4}"), "vocab: missing"));
}

TEST(Describe, NamesShapesAndCounts) {
  const std::vector<std::string> lines = describe(load_preset("gemma-3-27b"));
  EXPECT_TRUE(has_line(lines, "62: 10 x (5 x window 1024; 1 x full attention); 2 x window 1024"));
  EXPECT_TRUE(has_line(lines, "32 heads of 128, 16 key/value heads (grouped), q/k norm"));
  EXPECT_TRUE(has_line(lines, "27009346304  27.01 B"));
}

// Maverick: dense and expert layers in turn, every fourth without positions.
TEST(Describe, PatternsOfMoreThanTwoKindsAreOneGroup) {
  EXPECT_TRUE(has_line(describe(load_preset("llama-4-maverick")),
                       "48: 12 x (1 x dense, chunk 8192; 1 x experts, chunk 8192; 1 x dense, chunk 8192; 1 x experts, full attention, no positions)"));
  EXPECT_TRUE(has_line(describe(load_preset("llama-4-scout")), "48: 12 x (3 x experts, chunk 8192; 1 x experts, full attention, no positions)"));
}

TEST(Describe, ExpertsAndLatentAttention) {
  const std::vector<std::string> lines = describe(load_preset("deepseek-v3"));
  EXPECT_TRUE(has_line(lines, "61: 3 x dense, full attention; 58 x experts, full attention"));
  EXPECT_TRUE(has_line(lines, "256 experts of width 2048, 8 per token, shared 2048, 4 of 8 groups"));
  EXPECT_TRUE(has_line(lines, "active"));
  EXPECT_TRUE(has_line(lines, "1 multi-token-prediction layers"));
}

TEST(Describe, HumanCounts) {
  EXPECT_EQ(human_count(4096), "4096");
  EXPECT_EQ(human_count(124'439'808), "124.4 M");
  EXPECT_EQ(human_count(8'030'261'248), "8.03 B");
  EXPECT_EQ(human_count(1'026'000'000'000), "1.03 T");
}

}  // namespace
}  // namespace rehearse::model::model_file_test
