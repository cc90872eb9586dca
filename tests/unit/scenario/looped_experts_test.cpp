// Modelling code that loops over experts issues a program for each: where its tokens are, picked out, weighed, added up, and in backward the
// gradients of what indices picked. The counts are those of transformers 4.51 and PyTorch 2.6 over the GPU on paper
// (calibrate/ground_truth/looped_experts_host.py): 9 launches in forward besides torch.where's, 33 in backward.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::looped_experts_test {
namespace {

/// Kernels of a block.
int kernels(const Result& r, const std::string& block) {
  for (const plan::Block& b : r.plan.blocks)
    if (b.name == block) {
      int n = 0;
      for (const plan::Instruction& i : b.timing) n += i.op == plan::Opcode::kernel;
      return n;
    }
  ADD_FAILURE() << "no block " << block;
  return 0;
}

Scenario mixtral(std::int64_t experts, int tokens) {
  const std::string text = "model: mixtral-8x7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: " + std::to_string(tokens) + ", global_batch_size: 8, micro_batch_size: 1, framework: huggingface-4}\ndata_parallel: {kind: zero3}\n";
  Scenario s = read_scenario(config::parse_document(text, "loop.yaml").root, "loop.yaml");
  s.model.experts.experts = experts;
  return s;
}

TEST(LoopedExperts, IssueWhatTheLoopIssues) {
  const Result four = simulate(mixtral(4, 256)), eight = simulate(mixtral(8, 256));
  // torch.where's four besides. Gate and up are one product here, so one launch less in forward; in backward two less, and no sum of their inputs' gradients.
  EXPECT_EQ((kernels(eight, "layer forward") - kernels(four, "layer forward")) / 4, 9 + 4 - 1);
  EXPECT_EQ((kernels(eight, "layer backward") - kernels(four, "layer backward")) / 4, 33 - 3);
}

// Beyond some thousand indices a sort takes eight launches, not one: twice an expert and pass.
TEST(LoopedExperts, SortManyIndicesInSeveralKernels) {
  const Result few = simulate(mixtral(8, 1024)), many = simulate(mixtral(8, 16384));
  EXPECT_EQ(kernels(many, "layer backward") - kernels(few, "layer backward"), 8 * 2 * 7);
}

// transformers 5: grouped_mm, whose launches do not depend on the number of experts.
TEST(LoopedExperts, AreGroupedProductsSinceTransformersFive) {
  const auto grouped = [](std::int64_t experts) {
    Scenario s = mixtral(experts, 256);
    s.profile = strategies::load_profile("huggingface");
    return kernels(simulate(s), "layer backward");
  };
  EXPECT_EQ(grouped(4), grouped(8));
}

TEST(LoopedExperts, TakeTheHostPerExpertAndMatrix) {
  Scenario s = mixtral(8, 256);
  ASSERT_GT(s.profile.grouped_host, Duration{});
  const Result with = simulate(s);
  const Duration each = s.profile.grouped_host;
  s.profile.grouped_host = Duration{};
  const Result without = simulate(s);
  const auto host = [](const Result& r) {
    std::int64_t sum = 0;
    const auto layer = std::find_if(r.plan.blocks.begin(), r.plan.blocks.end(), [](const plan::Block& b) { return b.name == "layer forward"; });
    for (const plan::Instruction& i : layer->timing) sum += i.op == plan::Opcode::host ? i.value : 0;
    return sum;
  };
  EXPECT_EQ(host(with) - host(without), 8 * 2 * each.count());
}

}  // namespace
}  // namespace rehearse::scenario::looped_experts_test
