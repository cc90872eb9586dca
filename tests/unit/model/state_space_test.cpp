// Hybrids: which parts their layers have, what those count, and what is said of patterns that cannot be.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/model/describe.h"
#include "sim/model/model_file.h"
#include "sim/model/presets.h"
#include "sim/model/scan_kernels.h"
#include "sim/model/shapes.h"

namespace rehearse::model::state_space_test {
namespace {

constexpr const char* kSizes = "layers: 4, hidden: 512, heads: 8, ffn_hidden: 2048, vocab: 32000, gated_mlp: false, position: none";
constexpr const char* kMixer = "state_space: {heads: 16, head_dim: 64, groups: 2, state: 128, chunk: 128}";

ModelDescription read(const std::string& more) { return read_model(config::parse_document(std::string("{") + kSizes + ", " + more + "}", "model.yaml").root, ""); }

std::string mistake(const std::string& more) {
  try {
    read(more);
  } catch (const ConfigError& e) {
    return to_string(e.diagnostics().front());
  }
  return "";
}

TEST(LayerPattern, GivesLayersTheirParts) {
  const ModelDescription model = read(std::string(kMixer) + ", hybrid_pattern: \"M*-S\"");
  EXPECT_EQ(layer_pattern_of(model), "M*-S");
  EXPECT_EQ(model.layers[0].mixer, Mixer::state_space);
  EXPECT_FALSE(model.layers[0].feed_forward);
  EXPECT_EQ(model.layers[1].mixer, Mixer::attention);
  EXPECT_EQ(model.layers[2].mixer, Mixer::none);
  EXPECT_TRUE(model.layers[3].feed_forward);
  EXPECT_TRUE(model.layers[0].one_part());
  EXPECT_FALSE(model.layers[3].one_part());
  EXPECT_EQ(layer_pattern_of(read(std::string(kMixer) + ", hybrid_pattern: MT")), "MTMT");   // repeated
  EXPECT_EQ(layer_pattern_of(load_preset("llama-3-8b")), std::string(32, 'T'));
}

// h 512, 16 heads of 64, 2 groups, 128 values: 512 x (2 x 1024 + 2 x 2 x 128 + 16) into the mixer, 1024 x 512 out of it, 1536 channels with 4 taps
// and a bias, 3 values per head, a norm of 1024; and the layer's own norm.
TEST(StateSpace, CountsItsParameters) {
  const std::int64_t mixer = 512 * 2576 + 1024 * 512 + 1536 * 5 + 3 * 16 + 1024;
  const ModelDescription model = read(std::string(kMixer) + ", hybrid_pattern: M");
  EXPECT_EQ(state_space_parameters(model), mixer);
  const ParameterCount count = count_parameters(model);
  EXPECT_EQ(count.state_space, 4 * mixer);
  EXPECT_EQ(count.norms, 5 * 512);
  EXPECT_EQ(count.attention + count.mlp, 0);
  const ModelDescription both = read(std::string(kMixer) + ", hybrid_pattern: S");
  EXPECT_EQ(count_parameters(both).mlp, 4 * 2 * 512 * 2048);
  EXPECT_EQ(count_parameters(both).norms, 9 * 512);
}

TEST(StateSpace, SaysWhatCannotBe) {
  EXPECT_NE(mistake("hybrid_pattern: MX").find("a letter X that stands for nothing"), std::string::npos);
  EXPECT_NE(mistake("hybrid_pattern: ME").find("has layers of experts, but the model has none"), std::string::npos);
  EXPECT_NE(mistake("hybrid_pattern: M").find("state_space does not say how large they are"), std::string::npos);
  EXPECT_NE(mistake(kMixer).find("no layer uses it"), std::string::npos);
  EXPECT_NE(mistake("state_space: {heads: 16, groups: 3}, hybrid_pattern: M").find("does not divide"), std::string::npos);
  EXPECT_NE(mistake("state_space: {heads: 16, sate: 3}, hybrid_pattern: M").find("Did you mean state?"), std::string::npos);
  EXPECT_NE(mistake(std::string(kMixer) + ", hybrid_pattern: S, parallel_residual: true").find("one norm before each part"), std::string::npos);
}

TEST(StateSpace, IsDescribedInAFewWords) {
  const std::string text = describe_layers(load_preset("nemotron-h-8b"));
  EXPECT_EQ(text, "24 x state space alone; 24 x MLP alone; 4 x attention alone (M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-)");
}

// Tokens are mixed with a state of N values per channel, and with those of their chunk: 2 T I N and at most 2 T Q I.
TEST(Scan, MultipliesWhatItsChunksAsk) {
  const ScanShape shape{.tokens = 8192, .heads = 64, .head_dim = 64, .groups = 8, .state = 128, .chunk = 256};
  const double values = 8192.0 * 4096;
  const ScanForward k = scan_forward(shape, false);
  EXPECT_EQ(k.state.flops, 2 * values * 128);
  EXPECT_EQ(k.output.flops, 2 * values * (128 + 192));   // three of four blocks of 128 x 128
  EXPECT_EQ(k.output.elements, 8192 * 64 * 192);
  EXPECT_EQ(k.pass.bytes_read, 32 * 4096 * 128 * 4);     // a state per chunk
  const ScanForward gated = scan_forward(shape, true);
  EXPECT_EQ(gated.output.bytes_read - k.output.bytes_read, 8192 * 4096 * 2);
  // Half the heads and groups on each of two ranks: half of everything.
  const StateSpace mixer{.heads = 64, .head_dim = 64, .groups = 8, .state = 128, .convolution = 4, .chunk = 256};
  EXPECT_EQ(2 * scan_forward(ScanShape::of(mixer, 8192, 2, DType::bf16), false).output.flops, k.output.flops);
}

}  // namespace
}  // namespace rehearse::model::state_space_test
