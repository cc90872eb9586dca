// Liger's fused linear cross-entropy against Liger itself over the GPU on paper (tests/oracles/paper_linear_loss.py), and by formula.
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::linear_loss_test {
namespace {

const std::map<std::string, LinearLossForm> kForms{{"0.4.2", LinearLossForm::fp32}, {"0.5.2", LinearLossForm::scaled}, {"0.6.1", LinearLossForm::in_place}, {"0.7.0", LinearLossForm::widened}};

plan::Plan plan_of_loss(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary, bool trained, LinearLossForm form, int micro_batches = 1) {
  Strategy s;
  s.training.sequence_length = tokens;
  s.training.micro_batch_size = 1;
  s.training.global_batch_size = micro_batches;
  s.training.precision = Precision::bf16;
  s.data_parallel.kind = DataParallelKind::none;
  if (!trained) s.tuning.kind = TuningKind::lora;
  FrameworkProfile profile = with_precision(load_profile("huggingface"), s.training.precision);
  profile.norm = Fusion::fused;   // without temporaries of its own
  profile.loss = LossKind::fused_linear;
  profile.linear_loss = form;
  return write_plan(llama_like(1, hidden, 16, 16, hidden, vocabulary), s, profile, 8);
}

/// What the head does in the first micro-batch's forward.
struct Head {
  std::int64_t products = 0, kernels = 0, waits = 0, left = 0, peak = 0;
};

Head head_of(const plan::Plan& plan) {
  Head head;
  for (const plan::Call& call : plan.classes[0].program.step) {
    const plan::Block& block = plan.blocks[call.block];
    if (block.name.find("head") == block.name.npos || call.phase != plan::Phase::forward) continue;
    bool norm = true;   // the final norm comes first
    for (const plan::Instruction& i : block.timing) {
      const bool kernel = i.op == plan::Opcode::kernel;
      if (kernel && plan.kernels[i.index].name == "zero fill") norm = false;
      if (norm) continue;
      head.waits += i.op == plan::Opcode::host_wait;
      if (kernel) ++(plan.kernels[i.index].kind == model::KernelKind::gemm ? head.products : head.kernels);
    }
    std::map<std::uint32_t, std::int64_t> slots;
    for (const plan::Instruction& i : block.memory) {
      if (i.frame != plan::Frame::own) continue;   // what came before
      if (i.op == plan::Opcode::alloc && i.flags != static_cast<std::uint8_t>(plan::Category::workspace)) head.left += slots[i.index] = i.value;
      if (i.op == plan::Opcode::free) head.left -= std::exchange(slots[i.index], 0);
      head.peak = std::max(head.peak, head.left);
    }
    return head;
  }
  return head;
}

// Every product, kernel and wait of four releases; copies on the device are kernels here, and each of the host's waits has a copy of its own there.
// Live bytes within 2.5 %, which blocks of the allocator are larger than what lies in them: the peak is taken less what forward leaves, which here has neither the weight's gradient, which backward names, nor the hidden
// states, which nobody holds.
TEST(LinearLoss, AsLigerItself) {
  int rows = 0;
  const nlohmann::json answers = oracle("paper_linear_loss.json");
  for (const auto& row : answers["rows"]) {
    ++rows;
    const std::int64_t tokens = row["tokens"], hidden = row["hidden"], vocabulary = row["vocabulary"];
    const bool trained = row["trained"];
    const Head head = head_of(plan_of_loss(tokens, hidden, vocabulary, trained, kForms.at(row["release"])));
    EXPECT_EQ(head.products, row["products"].get<std::int64_t>()) << row.dump();
    EXPECT_EQ(head.waits, row["waits"].get<std::int64_t>()) << row.dump();
    EXPECT_EQ(head.kernels, row["kernels"].get<std::int64_t>() + row["copies"].get<std::int64_t>() - row["waits"].get<std::int64_t>()) << row.dump();
    const double weight = trained ? 2.0 * static_cast<double>(hidden * vocabulary) : 0, states = 2.0 * static_cast<double>(tokens * hidden), peak = row["peak"].get<double>(), left = row["left"].get<double>();
    EXPECT_NEAR((static_cast<double>(head.peak - head.left) - weight - states) / (peak - left), 1, 0.025) << row.dump();
  }
  EXPECT_EQ(rows, 20);
}

// 2 h v multiplications and additions per token, three times; twice where the output layer is not trained.
TEST(LinearLoss, MultipliesWhatTheOutputLayerDoes) {
  for (const bool trained : {false, true}) {
    const plan::Plan plan = plan_of_loss(3000, 1024, 32000, trained, LinearLossForm::widened);
    double flops = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (const model::KernelSpec* k = i.op == plan::Opcode::kernel ? &plan.kernels[i.index] : nullptr; k && k->name.starts_with("lm_head"))
          flops += 2.0 * static_cast<double>(k->m) * static_cast<double>(k->n) * static_cast<double>(k->k);
    EXPECT_DOUBLE_EQ(flops, (trained ? 6.0 : 4.0) * 3000 * 1024 * 32000);
  }
}

TEST(LinearLoss, WhatKnowsNoPiecesIsRefused) {
  Strategy s;
  s.training.sequence_length = 4096;
  s.training.global_batch_size = 8;
  s.training.cross_entropy = LossKind::fused_linear;
  s.data_parallel.kind = DataParallelKind::ddp;
  s.parallelism.degrees.data = 8;
  const model::ModelDescription model = llama_like(8, 1024, 16, 16, 4096, 32000);
  const FrameworkProfile profile = load_profile("huggingface");
  const auto refused = [&](const Strategy& strategy) { return keys_refused(model, strategy, profile); };
  EXPECT_EQ(refused(s), "");
  Strategy tensor = s, stages = s;
  tensor.parallelism.degrees.tensor = stages.parallelism.degrees.pipeline = 2;
  tensor.parallelism.degrees.data = stages.parallelism.degrees.data = 4;
  EXPECT_NE(refused(tensor).find("training.cross_entropy"), std::string::npos);
  EXPECT_NE(refused(stages).find("training.cross_entropy"), std::string::npos);

  Strategy adapted = s;
  adapted.tuning.kind = TuningKind::lora;
  adapted.tuning.targets = {"all-linear"};   // the output layer is none of them
  EXPECT_EQ(refused(adapted), "");
  adapted.tuning.targets = {"q_proj", "lm_head"};
  EXPECT_NE(refused(adapted).find("training.cross_entropy"), std::string::npos);
  adapted.tuning.targets = {"lm_head"};   // trained, but for this loss: that alone is said
  EXPECT_EQ(refused(adapted), "training.cross_entropy ");
  Strategy quantised = s;
  quantised.tuning.kind = TuningKind::qlora;
  EXPECT_EQ(refused(quantised), "");
  FrameworkProfile narrow_head = profile;
  narrow_head.quantises_head = true;
  EXPECT_NE(keys_refused(model, quantised, narrow_head).find("training.cross_entropy"), std::string::npos);
  model::ModelDescription biased = model;
  biased.head_bias = true;
  EXPECT_NE(keys_refused(biased, s, profile).find("training.cross_entropy"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::strategies::linear_loss_test
