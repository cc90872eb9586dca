// torchtitan's losses: over a sharded vocabulary against PyTorch's own loss_parallel (tests/oracles/torch_loss_parallel.py), in chunks
// against torchtitan's own ChunkedLossWrapper (tests/oracles/paper_chunked_loss.py).
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::loss_parallel_test {
namespace {

using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kTokens = 2048, kVocabulary = 32768;
constexpr int kTensor = 2;

plan::Plan plan_of(const char* profile, std::int64_t tokens, std::int64_t vocabulary, int tensor, std::int64_t chunks) {
  Strategy s;
  s.training.loss_chunks = chunks;
  s.training.sequence_length = tokens;
  s.training.global_batch_size = s.training.micro_batch_size = 1;
  s.training.precision = Precision::bf16;
  s.parallelism.degrees.tensor = tensor;
  s.parallelism.sequence_parallel = tensor > 1;
  s.data_parallel.kind = DataParallelKind::none;
  return write_plan(llama_like(1, 256, 4, 4, 256, vocabulary), s, with_precision(load_profile(profile), Precision::bf16), 8);
}

StepBytes bytes_of(const char* profile, std::int64_t tokens, std::int64_t vocabulary, int tensor, std::int64_t chunks) {
  return ByteLedger(plan_of(profile, tokens, vocabulary, tensor, chunks), 0).step();
}

/// What grows with tokens times vocabulary, per logit of a rank: the loss alone does.
double per_logit(const char* profile, std::int64_t StepBytes::*what, int tensor = kTensor, std::int64_t chunks = 8) {
  const auto at = [&](std::int64_t tokens, std::int64_t vocabulary) { return bytes_of(profile, tokens, vocabulary, tensor, chunks).*what; };
  const std::int64_t mixed = at(2 * kTokens, 2 * kVocabulary) - at(2 * kTokens, kVocabulary) - at(kTokens, 2 * kVocabulary) + at(kTokens, kVocabulary);
  return static_cast<double>(mixed) * tensor / static_cast<double>(kTokens * kVocabulary);
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

TEST(ChunkedLoss, LivesAsTorchtitansDoes) {
  const nlohmann::json answers = oracle("paper_chunked_loss.json")["cases"];
  for (const auto& row : answers) {
    const auto found = [&](std::int64_t StepBytes::*what) { return per_logit("torchtitan", what, 1, row["chunks"].get<std::int64_t>()); };
    EXPECT_NEAR(found(&StepBytes::after_forward), row["after_forward"].get<double>(), 0.01) << row.dump();
    EXPECT_NEAR(found(&StepBytes::forward_peak), row["forward_peak"].get<double>(), 0.01) << row.dump();
    EXPECT_NEAR(found(&StepBytes::step_peak), row["step_peak"].get<double>(), 0.01) << row.dump();
  }
  EXPECT_EQ(answers.size(), 6u);
}

/// Work of one step: sums over kernels or collectives that `counts`.
template <class Counts>
double sum_over(const plan::Plan& plan, Counts counts) {
  double sum = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) sum += counts(plan, i);
  return sum;
}

double products(const plan::Plan& p, const plan::Instruction& i) {
  if (i.op != plan::Opcode::kernel || p.kernels[i.index].kind != model::KernelKind::gemm) return 0;
  const model::KernelSpec& k = p.kernels[i.index];
  return static_cast<double>(k.m) * static_cast<double>(k.n) * static_cast<double>(k.k);
}

// Chunks multiply what the whole does; ranks of a tensor group sum three statistics of each chunk, gather what all chunks read and scatter
// its gradient once.
TEST(ChunkedLoss, DoesTheSameWork) {
  for (const int tensor : {1, 2}) EXPECT_EQ(sum_over(plan_of("torchtitan", kTokens, kVocabulary, tensor, 8), products), sum_over(plan_of("torchtitan-2025", kTokens, kVocabulary, tensor, 8), products));
  const auto named = [](const std::string& name) {
    return [name](const plan::Plan& p, const plan::Instruction& i) { return i.op == plan::Opcode::collective && p.collectives[i.index].name == name ? 1.0 : 0.0; };
  };
  const plan::Plan shared = plan_of("torchtitan-compile", kTokens, kVocabulary, 2, 8);
  EXPECT_EQ(sum_over(shared, named("loss statistics")), 24);
  EXPECT_EQ(sum_over(shared, named("gather hidden states")), 1);
  EXPECT_EQ(sum_over(shared, named("sum hidden gradients")), 1);
}

// Capped logits, further heads and passes without gradients have all logits at once, as before 2026.
TEST(ChunkedLoss, LeavesToOthersWhatItDoesNotKnow) {
  const model::ModelDescription plain = llama_like(1, 256, 4, 4, 256, kVocabulary);
  model::ModelDescription capped = plain;
  capped.softcapped_logits = true;
  Strategy s;
  s.training.sequence_length = kTokens;
  s.training.global_batch_size = s.training.micro_batch_size = 1;
  s.data_parallel.kind = DataParallelKind::none;
  const FrameworkProfile profile = load_profile("torchtitan");
  const auto refused = [&](const model::ModelDescription& m) { return keys_refused(m, s, profile); };
  EXPECT_EQ(refused(capped), "");   // the profile's habit
  s.training.cross_entropy = LossKind::chunked_linear;
  EXPECT_EQ(refused(plain), "");
  EXPECT_NE(refused(capped).find("training.cross_entropy"), std::string::npos);
  s.training.phase = StepKind::evaluation;
  EXPECT_NE(refused(plain).find("training.cross_entropy"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::strategies::loss_parallel_test
