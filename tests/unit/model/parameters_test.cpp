#include <gtest/gtest.h>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"

namespace rehearse::model::parameters_test {
namespace {

Shapes tiny(bool gated) {
  Shapes shapes;
  shapes.layers = 2;
  shapes.hidden = 8;
  shapes.heads = 4;
  shapes.vocab = 100;
  shapes.ffn_hidden = 16;
  shapes.gated = gated;
  shapes.max_positions = 32;
  return shapes;
}

// Llama style, h = 8, a = 4, d = 2, f = 16, v = 100, 2 layers, k = 2 key/value heads:
//   embedding 100*8 = 800, head the same; attention q 8*8 + k,v 2*8*4 + o 8*8 = 192; MLP 3*8*16 = 384;
//   norms 2*8 = 16 a layer and 8 at the end.
TEST(Parameters, LlamaStyleByHand) {
  Shapes shapes = tiny(true);
  shapes.kv_heads = 2;
  const ParameterCount count = count_parameters(make_from_shapes(shapes));
  EXPECT_EQ(count.embedding, 800);
  EXPECT_EQ(count.head, 800);
  EXPECT_EQ(count.position, 0);
  EXPECT_EQ(count.attention, 2 * 192);
  EXPECT_EQ(count.mlp, 2 * 384);
  EXPECT_EQ(count.norms, 2 * 16 + 8);
  EXPECT_EQ(count.total, 800 + 800 + 384 + 768 + 40);
  EXPECT_EQ(count.active, count.total);
}

// GPT style with f = 2h: positions 32*8; attention 4*64 + 4*8 biases = 288; MLP 2*8*16 + 16 + 8 = 280; norms
// with bias 2*2*8 = 32 a layer and 16 at the end; no head, because it is tied.
TEST(Parameters, GptStyleByHand) {
  const ParameterCount count = count_parameters(make_from_shapes(tiny(false)));
  EXPECT_EQ(count.embedding, 800);
  EXPECT_EQ(count.position, 256);
  EXPECT_EQ(count.head, 0);
  EXPECT_EQ(count.attention, 2 * 288);
  EXPECT_EQ(count.mlp, 2 * 280);
  EXPECT_EQ(count.norms, 2 * 32 + 16);
  EXPECT_EQ(count.total, 800 + 256 + 576 + 560 + 80);
}

// The usual closed form for GPT with f = 4h: layers * (12 h^2 + 13 h) + v h + s h + 2 h.
// Source: Narayanan et al. 2021, equation 2, with the position table.
TEST(Parameters, GptClosedForm) {
  for (const std::int64_t h : {768, 1600, 12288}) {
    Shapes shapes{"", 24, h, 16, 50257};
    shapes.gated = false;
    shapes.max_positions = 2048;
    EXPECT_EQ(count_parameters(make_from_shapes(shapes)).total,
              24 * (12 * h * h + 13 * h) + (50257 + 2048 + 2) * h);
  }
}

// The user's notes on Mixtral 8x7B (d_model 4096, ffn 14336, 8 experts, 32 layers, SwiGLU):
//   one expert 3 * 4096 * 14336 = 176,160,768 = 1.76e8 parameters = 352 MB in BF16;
//   a layer's experts 8 times that = 2.82 GB; all 32 layers 90.2 GB;
//   the router 4096 * 8 = 32,768 a layer, 1,048,576 in all.
TEST(Parameters, MixtralAsTheNotesCountIt) {
  const ModelDescription mixtral = load_preset("mixtral-8x7b");
  const std::int64_t expert = mlp_parameters(mixtral, mixtral.experts.ffn_hidden);
  EXPECT_EQ(expert, 176'160'768);
  const ParameterCount count = count_parameters(mixtral);
  EXPECT_EQ(count.experts, 32 * 8 * expert);
  EXPECT_NEAR(2e-6 * static_cast<double>(expert), 352, 0.5);           // MB of one expert
  EXPECT_NEAR(2e-9 * 8 * static_cast<double>(expert), 2.82, 0.005);    // GB of a layer's experts
  EXPECT_NEAR(2e-9 * static_cast<double>(count.experts), 90.2, 0.05);  // GB of all
  EXPECT_EQ(count.router, 32 * 32'768);

  // Bottom 6 layers x 2 experts and their routers: 12 experts + 6 routers, in BF16 4.23 GB; Adam's two
  // moments in FP32 are 4 times the weights, the FP32 master copy twice: 16.9 and 8.46 GB; weights +
  // gradients + both = 33.8 GB.
  const double trained = static_cast<double>(12 * expert + 6 * 32'768);
  EXPECT_NEAR(2e-9 * trained, 4.23, 0.005);
  EXPECT_NEAR(8e-9 * trained, 16.9, 0.05);
  EXPECT_NEAR(4e-9 * trained, 8.46, 0.005);
  EXPECT_NEAR(16e-9 * trained, 33.8, 0.05);

  // LoRA r = 16 on the three matrices of every expert: 3 * 16 * (4096 + 14336) = 884,736 an expert, 7.08 M a
  // layer, 226.5 M in all (the notes round before multiplying and print 226.6).
  const std::int64_t lora = 3 * 16 * (mixtral.hidden + mixtral.experts.ffn_hidden);
  EXPECT_EQ(lora, 884'736);
  EXPECT_NEAR(1e-6 * static_cast<double>(8 * lora), 7.08, 0.005);
  EXPECT_NEAR(1e-6 * static_cast<double>(32 * 8 * lora), 226.6, 0.15);
}

// Two of eight experts run: active = total - 6/8 of the experts.
TEST(Parameters, ActiveCountsOnlyTheChosenExperts) {
  const ParameterCount count = count_parameters(load_preset("mixtral-8x7b"));
  EXPECT_EQ(count.active, count.total - count.experts / 8 * 6);
  EXPECT_EQ(count.active, 12'879'925'248);  // published: 12.9 B
}

// DeepSeek-V3's MTP layer is one MoE layer more, a 2h -> h projection and three norms; embedding and head are
// shared.
//   attention 7168*1536 + 1536*128*192 + 7168*576 + 512*128*256 + 128*128*7168 = 187,105,280
//   experts 256 * 3*7168*2048, shared 3*7168*2048, router 7168*256; norms 2*7168 + 1536 + 512
//   projection 2*7168^2; norms 3*7168.
TEST(Parameters, MultiTokenPredictionIsApart) {
  const ModelDescription v3 = load_preset("deepseek-v3");
  EXPECT_EQ(attention_parameters(v3), 187'105'280);
  const std::int64_t expert = 3 * 7168 * 2048;
  const std::int64_t layer = 187'105'280 + 257 * expert + 7168 * 256 + 2 * 7168 + 1536 + 512;
  const ParameterCount count = count_parameters(v3);
  EXPECT_EQ(count.mtp, layer + 2LL * 7168 * 7168 + 3 * 7168);
  ModelDescription several = v3;
  several.mtp_layers = 3;
  EXPECT_EQ(count_parameters(several).mtp, 3 * count.mtp);
  several.mtp_repeated = true;
  EXPECT_EQ(count_parameters(several).mtp, count.mtp);
  ModelDescription without = v3;
  without.mtp_layers = 0;
  EXPECT_EQ(count_parameters(without).total, count.total);
  EXPECT_EQ(count_parameters(without).mtp, 0);
}

}  // namespace
}  // namespace rehearse::model::parameters_test
