#include "strategies/stage_layers.h"

#include <gtest/gtest.h>

#include "sim/model/shapes.h"

namespace rehearse::strategies::stage_layers_test {
namespace {

model::ModelDescription llama(std::int64_t layers, std::int64_t hidden) {
  model::Shapes s{.name = "llama", .layers = layers, .hidden = hidden, .heads = 32, .vocab = 131072};
  s.ffn_hidden = 8192;
  return model::make_from_shapes(s);
}

Strategy stages(int n) {
  Strategy s;
  s.parallelism.degrees.pipeline = n;
  return s;
}

std::vector<int> counts(const std::vector<StageLayers>& stages) {
  std::vector<int> out;
  for (const StageLayers& s : stages) out.push_back(s.count);
  return out;
}

// A layer costs 2048 (4 x 2048 + 3 x 8192) = 67,108,864, the head 131072 x 2048 = 4 layers: 20 layers in all, 2.5 per stage. A
// stage ends with the layer that reaches its share: 3 > 2.5, 5, 8 > 7.5, 10, 13 > 12.5, 15; layer 16 is short of the next (17.5).
// The last stage has the head and the loss alone.
TEST(StageLayers, ByCostTheHeadMayHaveAStageOfItsOwn) {
  const auto dealt = stage_layers(llama(16, 2048), stages(8), load_profile("nanotron"), 8);
  EXPECT_EQ(counts(dealt), (std::vector<int>{3, 2, 3, 2, 3, 2, 1, 0}));
  EXPECT_TRUE(dealt[7].head && dealt[7].loss);
}

// Two stages: 10 layers each, four of the second's are the head.
TEST(StageLayers, ByCostTheHeadCountsAsLayers) {
  const auto dealt = stage_layers(llama(16, 2048), stages(2), load_profile("nanotron"), 2);
  EXPECT_EQ(counts(dealt), (std::vector<int>{10, 6}));
  EXPECT_TRUE(dealt[1].head && dealt[1].loss);
}

// Four stages of 5 layers' cost. nanotron's public code begins the next stage beyond the share, not on it: 6 > 5, 11 > 10, 16 > 15, and the head alone.
TEST(StageLayers, ByCostAStageMayHaveToPassItsShare) {
  FrameworkProfile profile = load_profile("nanotron");
  EXPECT_EQ(counts(stage_layers(llama(16, 2048), stages(4), profile, 4)), (std::vector<int>{5, 5, 5, 1}));
  profile.passes_share = true;
  EXPECT_EQ(counts(stage_layers(llama(16, 2048), stages(4), profile, 4)), (std::vector<int>{6, 5, 5, 0}));
  // 28 layers of width 3072 and a head of 3.56: no share falls on a layer's end, so both rules agree.
  EXPECT_EQ(counts(stage_layers(llama(28, 3072), stages(4), profile, 4)), counts(stage_layers(llama(28, 3072), stages(4), load_profile("nanotron"), 4)));
}

// 16 stages of 1.25 layers: the layers end on stage 12 (2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 1); stages 14 and 13 take one each from the
// nearest before them that can spare it.
TEST(StageLayers, NoStageBeforeTheLastIsLeftWithNothing) {
  const auto dealt = stage_layers(llama(16, 2048), stages(16), load_profile("nanotron"), 16);
  EXPECT_EQ(counts(dealt), (std::vector<int>{2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_TRUE(dealt[15].head && dealt[15].loss);
}

}  // namespace
}  // namespace rehearse::strategies::stage_layers_test
