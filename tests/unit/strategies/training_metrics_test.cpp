// Losses that a training loop takes again of a micro-batch's logits, to log them.
#include <gtest/gtest.h>

#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::training_metrics_test {
namespace {

constexpr std::int64_t kTokens = 512, kVocabulary = 1024;

plan::Plan plan_with(int metrics, Precision precision, int stages = 1) {
  Strategy s;
  s.training.sequence_length = kTokens;
  s.training.global_batch_size = 2;   // two micro-batches
  s.training.micro_batch_size = 1;
  s.training.precision = precision;
  s.data_parallel.kind = DataParallelKind::none;
  s.parallelism.degrees.pipeline = stages;
  FrameworkProfile profile = with_precision(load_profile("plain"), precision);
  profile.training_metrics = metrics;
  return write_plan(llama_like(2, 256, 4, 4, 256, kVocabulary), s, profile, 8);
}

std::int64_t bytes_moved(const plan::Plan& plan) {
  std::int64_t bytes = 0;
  for (const plan::RankClass& ranks : plan.classes)
    for (const plan::Call& call : ranks.program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel) bytes += plan.kernels[i.index].bytes_read + plan.kernels[i.index].bytes_written;
  return bytes;
}

// torch.nn.CrossEntropyLoss under autocast: an fp32 copy of the 16-bit logits (2 bytes read, 4 written), their log-softmax (read three times, written once), and of each
// token one fp32 number read and one written. In fp32 there is no copy.
TEST(TrainingMetrics, AreLossesOfEachMicroBatch) {
  const auto added = [](int metrics, Precision precision) { return bytes_moved(plan_with(metrics, precision)) - bytes_moved(plan_with(0, precision)); };
  EXPECT_EQ(added(2, Precision::bf16), 2 * 2 * kTokens * (kVocabulary * (2 + 4 + 3 * 4 + 4) + 8));
  EXPECT_EQ(added(1, Precision::fp32), 2 * kTokens * (kVocabulary * (3 * 4 + 4) + 8));
}

TEST(TrainingMetrics, AreLeftOutUnderPipelineStages) { EXPECT_EQ(bytes_moved(plan_with(2, Precision::bf16, 2)), bytes_moved(plan_with(0, Precision::bf16, 2))); }

TEST(TrainingMetrics, LeaveNothingBehind) {
  const plan::Plan with = plan_with(2, Precision::bf16), without = plan_with(0, Precision::bf16);
  const test_support::StepBytes metrics = test_support::ByteLedger(with, 0).step();
  EXPECT_TRUE(metrics.mistakes.empty());
  EXPECT_EQ(metrics.after_step, test_support::ByteLedger(without, 0).step().after_step);
}

}  // namespace
}  // namespace rehearse::strategies::training_metrics_test
