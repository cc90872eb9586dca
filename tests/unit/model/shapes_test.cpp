#include "sim/model/shapes.h"

#include <gtest/gtest.h>

#include "sim/core/contract.h"
#include "sim/model/presets.h"

namespace rehearse::model::shapes_test {
namespace {

// 8/3 * 4096 = 10922.67, rounded up to a multiple of 256: 11008, which is Llama-2-7B's width.
TEST(Shapes, LlamaStyleFillsInLlama) {
  ModelDescription model = make_from_shapes({"llama-2-7b", 32, 4096, 32, 32000});
  EXPECT_EQ(describe_difference(model, load_preset("llama-2-7b")), "");
}

TEST(Shapes, GptStyleFillsInGpt3) {
  Shapes shapes{"", 96, 12288, 96, 50257};
  shapes.gated = false;
  shapes.max_positions = 2048;
  EXPECT_EQ(describe_difference(make_from_shapes(shapes), load_preset("gpt-3-175b")), "");
}

TEST(Shapes, MixtralFromATableRow) {
  Shapes shapes{"", 32, 4096, 32, 32000};
  shapes.kv_heads = 8;
  shapes.ffn_hidden = 14336;
  shapes.experts = 8;
  shapes.top_k = 2;
  EXPECT_EQ(describe_difference(make_from_shapes(shapes), load_preset("mixtral-8x7b")),
            "family llama / mixtral");
}

TEST(Shapes, AnIndivisibleHiddenSizeIsLeftForProblemsOf) {
  const ModelDescription model = make_from_shapes({"", 2, 100, 3, 1000});
  EXPECT_EQ(model.head_dim, 0);
  EXPECT_FALSE(problems_of(model).empty());
}

TEST(Shapes, CuttingKeepsTheFirstLayers) {
  const ModelDescription v3 = load_preset("deepseek-v3");  // 3 dense layers, then experts
  const ModelDescription cut = with_layers(v3, 5);
  ASSERT_EQ(cut.layer_count(), 5);
  EXPECT_FALSE(cut.layers[2].moe);
  EXPECT_TRUE(cut.layers[3].moe);
  EXPECT_THROW(with_layers(v3, 0), ContractViolation);
}

// Growing repeats the pattern: Gemma 3 has five local layers, then a global one; DeepSeek-V3 grows by expert
// layers.
TEST(Shapes, GrowingRepeatsThePattern) {
  const ModelDescription gemma = with_layers(load_preset("gemma-3-27b"), 80);
  for (std::size_t i = 0; i < 80; ++i) EXPECT_EQ(gemma.layers[i].window == 0, (i + 1) % 6 == 0) << i;
  const ModelDescription v3 = with_layers(load_preset("deepseek-v3"), 70);
  EXPECT_TRUE(v3.layers[69].moe);
  EXPECT_EQ(with_layers(load_preset("llama-3-8b"), 40).layer_count(), 40);
}

TEST(Shapes, StatedSizesReplaceANamedModels) {
  Shapes row{"", 12, 0, 0, 0};
  const ModelDescription cut = with_sizes(load_preset("llama-3-70b"), row);
  EXPECT_EQ(describe_difference(cut, with_layers(load_preset("llama-3-70b"), 12)), "");

  // Pythia 6.9B as a paper lists it: padded vocabulary aside, everything of the style stays.
  Shapes pythia{"", 32, 4096, 32, 50304};
  ModelDescription expected = load_preset("pythia-6.9b");
  expected.vocab = 50304;
  EXPECT_EQ(describe_difference(with_sizes(load_preset("pythia-6.9b"), pythia), expected), "");

  // Half the heads: each is twice as wide, where the width was hidden / heads; Qwen3's 128 is its own and
  // stays.
  Shapes half;
  half.heads = 16;
  EXPECT_EQ(with_sizes(load_preset("llama-2-7b"), half).head_dim, 256);
  EXPECT_EQ(with_sizes(load_preset("llama-2-7b"), half).rotary_dim, 256);
  EXPECT_EQ(with_sizes(load_preset("llama-2-7b"), half).kv_heads, 16);
  EXPECT_EQ(with_sizes(load_preset("qwen3-4b"), half).head_dim, 128);
}

}  // namespace
}  // namespace rehearse::model::shapes_test
