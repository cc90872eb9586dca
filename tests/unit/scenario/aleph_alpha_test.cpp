// Aleph Alpha's framework: what its layers and its last stage keep, and what it makes for a reduction only.
#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::aleph_alpha_test {
namespace {

/// Eight layers over 4096 tokens, so that activations make the peak, on eight GPUs that share optimizer states.
Scenario job() {
  Scenario s;
  s.model = small_llama(8);
  s.strategy = small_job(8, 1, 2);
  s.strategy.training.sequence_length = 4096;
  s.strategy.data_parallel.kind = strategies::DataParallelKind::zero1;
  s.profile = strategies::load_profile("aleph-alpha-scaling");
  s.cluster = hwmodels::load_cluster("p5", 1, "rail-fat-tree", "");
  return s;
}

double peak(const Scenario& s) { return static_cast<double>(simulate(s, {.time = false}).classes[0].memory.peak_allocated.value); }

constexpr std::int64_t kTokens = 4096, kWidth = 512, kVocabulary = 4096;
constexpr double kUnsplit = 2 << 20;   // blocks keep up to 1 MiB more than was asked for

// Cosines and sines, of queries and of keys: four tensors as large as the queries for each layer, in 16 bits.
TEST(AlephAlpha, LayersKeepWhatTheyGatherByPosition) {
  Scenario broadcast = job();
  broadcast.profile.rope_form = strategies::RopeForm::rotate_half;
  EXPECT_NEAR(peak(job()) - peak(broadcast), 8 * 4 * kTokens * kWidth * 2, kUnsplit);
}

// Values that are a view keep queries and keys of the product with them, which the rotated ones do not replace.
TEST(AlephAlpha, ValuesAreAViewOfTheWholeProduct) {
  Scenario view = job();
  view.profile.rope_form = strategies::RopeForm::rotate_half;
  Scenario copied = view;
  copied.profile.value_is_view = false;
  EXPECT_NEAR(peak(view) - peak(copied), 8 * 2 * kTokens * kWidth * 2, kUnsplit);
}

// The pipeline's buffer has the 16-bit logits while the loss's gradient is made, in fp32, out of the logarithms.
TEST(AlephAlpha, TheLastStagesOutputOutlivesTheLoss) {
  Scenario dropped = job();
  dropped.profile.holds_output = false;
  EXPECT_NEAR(peak(job()) - peak(dropped), kTokens * kVocabulary * 2, kUnsplit);
}

// 4-byte sums of all gradients (fewer than a bucket's 500 million) would lie beside the activations; they come after them.
TEST(AlephAlpha, BucketsAreMadeForTheirReduction) {
  Scenario kept = job();
  kept.profile.reduces_over_all = false;
  const std::int64_t elements = 2 * kVocabulary * kWidth + 8 * (4 * kWidth * kWidth + 3 * kWidth * 1024 + 2 * kWidth) + kWidth;
  EXPECT_NEAR(peak(kept) - peak(job()), static_cast<double>(4 * elements), kUnsplit);
  // Where activations are few, the reduction is what is fullest: 16-bit gradients flattened, and widened.
  Scenario few = job(), few_kept = kept;
  few.strategy.training.sequence_length = few_kept.strategy.training.sequence_length = 16;
  EXPECT_GT(peak(few), peak(few_kept));
}

}  // namespace
}  // namespace rehearse::scenario::aleph_alpha_test
