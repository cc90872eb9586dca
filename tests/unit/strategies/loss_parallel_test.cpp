// The loss over a sharded vocabulary against PyTorch's own loss_parallel (tests/oracles/torch_loss_parallel.py).
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::loss_parallel_test {
namespace {

using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kTokens = 2048, kVocabulary = 32768;
constexpr int kTensor = 2;

StepBytes bytes_of(const char* profile, std::int64_t tokens, std::int64_t vocabulary) {
  Strategy s;
  s.training.sequence_length = tokens;
  s.training.global_batch_size = s.training.micro_batch_size = 1;
  s.training.precision = Precision::bf16;
  s.parallelism.degrees.tensor = kTensor;
  s.parallelism.sequence_parallel = true;
  s.data_parallel.kind = DataParallelKind::none;
  return ByteLedger(write_plan(llama_like(1, 256, 4, 4, 256, vocabulary), s, with_precision(load_profile(profile), Precision::bf16), 8), 0).step();
}

/// What grows with tokens times vocabulary, per logit of a rank: the loss alone does.
double per_logit(const char* profile, std::int64_t StepBytes::*what) {
  const auto at = [&](std::int64_t tokens, std::int64_t vocabulary) { return bytes_of(profile, tokens, vocabulary).*what; };
  const std::int64_t mixed = at(2 * kTokens, 2 * kVocabulary) - at(2 * kTokens, kVocabulary) - at(kTokens, 2 * kVocabulary) + at(kTokens, kVocabulary);
  return static_cast<double>(mixed) * kTensor / static_cast<double>(kTokens * kVocabulary);
}

TEST(LossParallel, KeepsAndPeaksAsPyTorchDoes) {
  const nlohmann::json answers = oracle("torch_loss_parallel.json")["cases"];
  for (const auto& row : answers) {
    const bool eager = row["loss"] == "eager";
    const char* profile = eager ? "torchtitan-2025" : "torchtitan-2025-compile";
    // Its logits are gone before backward.
    const double peak = eager ? row["backward peak"].get<double>() : row["kept"].get<double>() + row["gradient"].get<double>();
    EXPECT_NEAR(per_logit(profile, &StepBytes::after_forward), row["kept"].get<double>(), 0.05) << row.dump();
    EXPECT_NEAR(per_logit(profile, &StepBytes::step_peak), peak, 0.05) << row.dump();
  }
  EXPECT_EQ(answers.size(), 2u);
}

}  // namespace
}  // namespace rehearse::strategies::loss_parallel_test
