// transformers' OPT (4.x, modeling_opt.py): attention's masked scores are held above the least number, and softmax of fp16 is in fp32.
#include <gtest/gtest.h>

#include <string>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::clamped_scores_test {
namespace {

constexpr std::int64_t kLayers = 6, kScores = std::int64_t{32} * 1024 * 1024;   // of a layer's heads

std::int64_t peak(const char* precision, bool clamps) {
  const std::string text = "model: {preset: opt-1.3b, layers: " + std::to_string(kLayers) + "}\ncluster: {node: single-gpu, gpu: h100-sxm}\ntraining: {sequence_length: 1024, global_batch_size: 1, micro_batch_size: 1, framework: huggingface, attention: unfused, precision: " +
                           precision + "}\nprofile: {clamps_scores: " + (clamps ? "true" : "false") + "}\n";
  return simulate(read_scenario(config::parse_document(text, "opt.yaml").root, "opt.yaml"), {.time = false}).classes.front().memory.peak_allocated.value;
}

// Kept beside the 16-bit probabilities: the scores, and in fp16 the fp32 softmax. The last layer's are being used at the peak: one more of each is possible.
TEST(ClampedScores, AreKeptForBackward) {
  const std::int64_t bf16 = peak("bf16", true) - peak("bf16", false), fp16 = peak("fp16", true) - peak("fp16", false);
  EXPECT_GE(bf16, kLayers * kScores * 2);
  EXPECT_LE(bf16, (kLayers + 1) * kScores * 2);
  EXPECT_GE(fp16, kLayers * kScores * 6);
  EXPECT_LE(fp16, (kLayers + 1) * kScores * 6);
}

}  // namespace
}  // namespace rehearse::scenario::clamped_scores_test
