// Kernels that write gradients over what they read (linkedin/Liger-Kernel ops/swiglu.py, swiglu_backward).
#include <gtest/gtest.h>

#include <string>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::gradients_in_place_test {
namespace {

constexpr std::int64_t kTokens = 65536, kMlp = kTokens * 14336 * 2;

std::int64_t peak(bool in_place) {
  const std::string text = "model: {preset: llama-3-8b, layers: 4}\ncluster: {node: single-gpu, gpu: h200-sxm}\ntraining: {sequence_length: " + std::to_string(kTokens) +
                           ", global_batch_size: 1, micro_batch_size: 1, framework: huggingface-liger}\nmemory: {recompute: full}\nprofile: {gradients_in_place: " + (in_place ? "true" : "false") + "}\n";
  return simulate(read_scenario(config::parse_document(text, "liger.yaml").root, "liger.yaml"), {.time = false}).classes.front().memory.peak_allocated.value;
}

// A long sequence's peak is in a recomputed layer's backward: gate, up, the result's gradient and two new gradients; or, in place, gate, up, the
// activation that the down product's gradient still reads and the result's gradient.
TEST(GradientsInPlace, TakeTheirOperandsPlaces) { EXPECT_EQ(peak(false) - peak(true), kMlp); }

}  // namespace
}  // namespace rehearse::scenario::gradients_in_place_test
