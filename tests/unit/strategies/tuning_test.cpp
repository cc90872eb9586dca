// Fine-tuning: which weights are trained, what adapters and 4-bit weights weigh, what backward leaves out.
#include "strategies/tuning/tuning.h"

#include <gtest/gtest.h>

#include <set>

#include "sim/model/shapes.h"
#include "strategies/layer/transformer_layer.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::tuning_test {
namespace {

using plan::Category;
using test_support::ByteLedger;
using test_support::StepBytes;

Strategy one_gpu_job(TuningKind kind) {
  Strategy s;
  s.training.sequence_length = 512;
  s.training.global_batch_size = 1;
  s.data_parallel.kind = DataParallelKind::none;
  s.tuning.kind = kind;
  return s;
}

std::int64_t trained_elements(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile) {
  plan::PlanBuilder builder;
  LowerContext c = make_context(model, s, profile, builder);
  std::int64_t n = embedding_tape(c, false).trainable_elements() + head_tape(c, false).trainable_elements();
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    c.layer = static_cast<int>(i);
    n += layer_tape(c, model.layers[i]).trainable_elements();
  }
  return n;
}

// Published counts of trained parameters: PEFT's MetaMathQA comparison for Llama-3.2-3B (rank 32 and 64 on q and v, rank 10
// on the MLP), LitGPT's table for phi-1.5 (rank 8 on the q and v columns of a fused projection).
TEST(Tuning, AdaptersHaveThePublishedNumberOfParameters) {
  const model::ModelDescription llama = llama_like(28, 3072, 24, 8, 8192, 128256);
  const FrameworkProfile huggingface = load_profile("huggingface"), litgpt = load_profile("litgpt");
  Strategy s = one_gpu_job(TuningKind::lora);
  s.tuning.rank = 32;
  EXPECT_EQ(trained_elements(llama, s, huggingface), 9'175'040);
  s.tuning.rank = 64;
  EXPECT_EQ(trained_elements(llama, s, huggingface), 18'350'080);
  s.tuning.rank = 10;
  s.tuning.targets = {"mlp"};
  EXPECT_EQ(trained_elements(llama, s, huggingface), 9'461'760);
  s.tuning.rank = 8;
  s.tuning.targets = {"q_proj", "v_proj"};
  EXPECT_EQ(trained_elements(llama_like(24, 2048, 32, 32, 8192, 51200), s, litgpt), 1'572'864);
}

// Seed case B.14: rank 16 on the three matrices of one Mixtral expert: 3 x 16 x (4096 + 14336).
TEST(Tuning, AdaptersOfOneMixtralExpert) {
  Strategy s = one_gpu_job(TuningKind::lora);
  s.tuning.rank = 16;
  s.tuning.targets = {"mlp"};
  EXPECT_EQ(trained_elements(llama_like(1, 4096, 32, 8, 14336, 32000), s, load_profile("huggingface")), 884'736);
}

// Experts that are modules of their own: two of eight in the first layer, all of them in the second.
TEST(Tuning, SomeExpertsOfALayer) {
  model::Shapes shapes{.name = "mixture", .layers = 4, .hidden = 256, .heads = 8, .vocab = 1000};
  shapes.experts = 8, shapes.top_k = 2, shapes.gated = true, shapes.ffn_hidden = 512;
  const model::ModelDescription model = model::make_from_shapes(shapes);
  Strategy s = one_gpu_job(TuningKind::frozen);
  s.tuning.trainable = {"layers.0.experts.0-1", "layers.1.experts"};
  EXPECT_EQ(trained_experts(s.tuning, 0, 8), 2);
  EXPECT_EQ(trained_experts(s.tuning, 1, 8), 8);
  EXPECT_EQ(trained_experts(s.tuning, 2, 8), 0);
  const std::int64_t one = 3LL * 256 * model.experts.ffn_hidden;
  EXPECT_EQ(trained_elements(model, s, load_profile("huggingface")), (2 + 8) * one);
  EXPECT_TRUE(tuning_problems(model, s, load_profile("huggingface")).empty());
  EXPECT_NE(tuning_problems(model, s, load_profile("plain"))[0].problem.find("all experts of a layer in one tensor"), std::string::npos);
  s.tuning.trainable = {"layers.0.experts.6-8"};
  EXPECT_NE(tuning_problems(model, s, load_profile("huggingface"))[0].problem.find("names expert 8"), std::string::npos);
  EXPECT_FALSE(parse_selector("layers.0.experts.3-2").has_value());
}

// 4 bits; one fp32 scale per 64 values: 4.5 bits; scales in 8 bits with an fp32 per 256 of them: 4.127 bits.
TEST(Tuning, BytesOfFourBitWeights) {
  const std::int64_t n = 4096 * 4096;
  EXPECT_EQ(quantised_bytes(n, false), n / 2 + n / 64 * 4);
  EXPECT_EQ(quantised_bytes(n, true), n / 2 + n / 64 + n / 64 / 256 * 4);
  EXPECT_NEAR(8.0 * static_cast<double>(quantised_bytes(n, true)) / static_cast<double>(n), 4.127, 0.001);
  EXPECT_EQ(quantised_bytes(65, false), 33 + 8);
}

TEST(Tuning, SelectorsNamePartsAndLayers) {
  EXPECT_TRUE(selects(*parse_selector("norms"), "input norm.weight", 7));
  EXPECT_TRUE(selects(*parse_selector("layers.2-4"), "q_proj.weight", 4));
  EXPECT_FALSE(selects(*parse_selector("layers.2-4"), "q_proj.weight", 5));
  EXPECT_FALSE(selects(*parse_selector("layers.2-4.mlp"), "q_proj.weight", 3));
  EXPECT_TRUE(selects(*parse_selector("layers.3.mlp"), "up_proj.weight", 3));
  EXPECT_TRUE(selects(*parse_selector("head"), "lm_head.weight", -1));
  for (const char* wrong : {"", "layers", "layers.", "layers.4-2", "layers.x", "layers.1.", "a.b"}) EXPECT_FALSE(parse_selector(wrong)) << wrong;
}

TEST(Tuning, WhatDoesNotExistIsNamedWithWhatDoes) {
  const model::ModelDescription model = llama_like(2, 256, 4, 4, 512, 1000);
  const FrameworkProfile profile = load_profile("huggingface");
  Strategy s = one_gpu_job(TuningKind::lora);
  s.tuning.targets = {"q_proj", "c_attn"};
  auto problems = tuning_problems(model, s, profile);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "tuning.targets");
  EXPECT_NE(problems[0].fix.find("down_proj"), std::string::npos);
  s = one_gpu_job(TuningKind::frozen);
  EXPECT_EQ(tuning_problems(model, s, profile)[0].problem, "nothing is trained");
  s.tuning.trainable = {"layers.0-2"};
  EXPECT_EQ(tuning_problems(model, s, profile)[0].key, "tuning.trainable");
  s.tuning.trainable = {"layers.0-1.router"};
  EXPECT_NE(tuning_problems(model, s, profile)[0].problem.find("no part of this model"), std::string::npos);
  s = one_gpu_job(TuningKind::full);
  s.tuning.trainable = {"norms"};
  EXPECT_EQ(tuning_problems(model, s, profile).size(), 1u);
}

double products(const plan::Plan& plan, plan::Phase phase) {
  double flops = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.phase == phase)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) flops += model::flops_of(plan.kernels[i.index]).value;
  return flops;
}

// Backward makes input gradients down to the lowest trained weight, and weight gradients of trained weights only.
//   h 256, 4 heads, f 512, V 1000 (no padding), s 512, 2 layers: a layer's products 2 s (4 h^2 + 3 h f), the head's 2 s h V
TEST(Tuning, BackwardStopsAtTheLowestTrainedWeight) {
  const model::ModelDescription model = llama_like(2, 256, 4, 4, 512, 1000);
  const FrameworkProfile profile = load_profile("plain");
  const double layer = 2.0 * 512 * (4 * 256 * 256 + 3 * 256 * 512), head = 2.0 * 512 * 256 * 1000;
  Strategy s = one_gpu_job(TuningKind::frozen);
  s.tuning.trainable = {"head"};
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), head);
  s.tuning.trainable = {"layers.1"};  // its norm is trained as well, so every product of the layer makes both gradients
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), head + 2 * layer);
  s.tuning.trainable = {"layers.1.attention"};  // q, k and v need no gradient of their input
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), head + layer + 2.0 * 512 * 256 * 256);
  s.tuning.trainable = {"layers.1.mlp"};
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), head + 2.0 * 512 * 4 * 256 * 512);  // gate and up: weight gradients only
  s.tuning.trainable = {"norms"};
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), head + 2 * layer);
  s.tuning.trainable = {"all"};
  EXPECT_EQ(products(write_plan(model, s, profile, 8), plan::Phase::backward), 2 * (head + 2 * layer));
}

// What is kept, sent and updated is what is trained: 2 bytes of gradient, 12 of states per adapter element; the base 2.
TEST(Tuning, GradientsStatesAndReductionsAreOfTrainedWeightsOnly) {
  const model::ModelDescription model = llama_like(4, 512, 8, 8, 1024, 4096);
  const FrameworkProfile profile = load_profile("plain");
  for (DataParallelKind kind : {DataParallelKind::ddp, DataParallelKind::zero2, DataParallelKind::fsdp2}) {
    Strategy s = one_gpu_job(TuningKind::lora);
    s.parallelism.degrees.data = 8;
    s.training.global_batch_size = 8;
    s.data_parallel.kind = kind;
    const std::int64_t trained = trained_elements(model, s, profile), shards = kind == DataParallelKind::ddp ? 1 : 8;
    EXPECT_EQ(trained, 4 * 2 * 8 * 1024);
    const plan::Plan plan = write_plan(model, s, profile, 8);
    const StepBytes bytes = ByteLedger(plan, 0).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::optimizer)], 12 * trained / shards);
    EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::gradient)], 2 * trained / shards);
    std::int64_t reduced = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].name == "gradient reduction") reduced += plan.collectives[i.index].bytes.value;
    EXPECT_EQ(reduced, 2 * trained);
  }
}

// LLaMA-Adapter and its second version on stablelm-base-alpha-3b (Lightning-AI/litgpt tutorials/resource-tables.md); DoRA of
// rank 32 on q and v of Llama-3.2-3B (PEFT's MetaMathQA comparison).
TEST(Tuning, PromptsAndMagnitudesHaveThePublishedNumberOfParameters) {
  const model::ModelDescription stablelm = gpt_like(16, 4096, 32, 16384, 50688, 1024, 0.0);
  Strategy s = one_gpu_job(TuningKind::adapter);
  EXPECT_EQ(trained_elements(stablelm, s, load_profile("litgpt")), 573'888);
  s.tuning.kind = TuningKind::adapter_v2;
  EXPECT_EQ(trained_elements(stablelm, s, load_profile("litgpt")), 2'125'248);
  s = one_gpu_job(TuningKind::lora);
  s.tuning.rank = 32;
  s.tuning.decomposed = true;
  EXPECT_EQ(trained_elements(llama_like(28, 3072, 24, 8, 8192, 128256), s, load_profile("huggingface")), 9'289'728);
}

// Below the first prompt nothing is recorded; the second version trains the first layer's norms, so everything is.
TEST(Tuning, PromptsBeginInTheThirdLayer) {
  const model::ModelDescription model = gpt_like(4, 256, 8, 1024, 1000, 128, 0.0);
  for (const TuningKind kind : {TuningKind::adapter, TuningKind::adapter_v2})
    for (const bool quantized : {false, true}) {
      Strategy s = one_gpu_job(kind);
      s.training.sequence_length = 128;
      s.tuning.quantized = quantized;
      const FrameworkProfile profile = load_profile("litgpt");
      ASSERT_TRUE(problems_of(model, s, profile, 1).empty());
      const plan::Plan plan = write_plan(model, s, profile, 1);
      EXPECT_TRUE(ByteLedger(plan, 0).step().mistakes.empty());
      std::set<int> layers;
      for (const plan::Call& call : plan.classes[0].program.step)
        for (const plan::Instruction& i : plan.blocks[call.block].timing)
          if (i.op == plan::Opcode::kernel && call.layer >= 0 && call.phase == plan::Phase::backward) layers.insert(call.layer);
      EXPECT_EQ(layers, kind == TuningKind::adapter ? std::set<int>({2, 3}) : std::set<int>({0, 1, 2, 3}));
    }
}

TEST(Tuning, AdaptersThatCannotBeAreRefused) {
  const model::ModelDescription model = llama_like(4, 256, 8, 4, 512, 1000);
  Strategy s = one_gpu_job(TuningKind::adapter);
  s.parallelism.degrees.tensor = 2;
  EXPECT_FALSE(problems_of(model, s, load_profile("litgpt"), 2).empty());
  s = one_gpu_job(TuningKind::frozen);
  s.tuning.trainable = {"norms"};
  s.tuning.decomposed = true;
  EXPECT_FALSE(problems_of(model, s, load_profile("huggingface"), 1).empty());
  s.tuning.decomposed = false;
  EXPECT_TRUE(problems_of(model, s, load_profile("huggingface"), 1).empty());
}

// QLoRA: linear weights in 4 bits, embedding and head as they were (upcast by PEFT's k-bit preparation), adapters in fp32.
TEST(Tuning, QloraParameterBytes) {
  const model::ModelDescription model = llama_like(2, 4096, 32, 32, 11008, 32000);
  Strategy s = one_gpu_job(TuningKind::qlora);
  const StepBytes bytes = ByteLedger(write_plan(model, s, load_profile("huggingface"), 8), 0).step();
  std::int64_t expected = 0;
  for (std::int64_t matrix : {4096 * 4096, 4096 * 4096, 4096 * 4096, 4096 * 4096, 4096 * 11008, 4096 * 11008, 4096 * 11008}) expected += 2 * quantised_bytes(matrix, true);
  expected += 4 * (2 * 32000LL * 4096 + 5 * 4096) + 4 * (2LL * 2 * 8 * 8192);
  EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::parameter)], expected);
}

// PyTorch's own live bytes (tests/oracles/torch_lora_live_bytes.py).
TEST(Tuning, LiveBytesWithinOnePercentOfPyTorch) {
  int rows = 0;
  const nlohmann::json answers = oracle("torch_lora_live_bytes.json");
  for (const auto& row : answers["cases"]) {
    SCOPED_TRACE(row.dump());
    const model::ModelDescription model = model_of(row);
    Strategy s = one_gpu_job(row["rank"] == 0 ? TuningKind::frozen : TuningKind::lora);
    s.training.sequence_length = row["sequence"];
    s.training.global_batch_size = s.training.micro_batch_size = row["batch"];
    s.memory.recompute = row["checkpointing"].get<bool>() ? Recompute::full : Recompute::none;
    if (row["rank"] > 0) s.tuning.rank = row["rank"];
    s.tuning.dropout = row["dropout"];
    s.tuning.targets = row["targets"].get<std::vector<std::string>>();
    for (std::string part : row["trainable"]) s.tuning.trainable.push_back(part == "lm_head" ? "head" : part == "norm" ? "norms" : "layers.2");
    FrameworkProfile profile = load_profile("huggingface");
    profile.adapter = row["adapter"] == "fp32" ? DType::fp32 : DType::bf16;
    profile.adapter_autocast = false;
    ASSERT_TRUE(problems_of(model, s, profile, 8).empty());
    EXPECT_EQ(trained_elements(model, s, profile), row["trained_parameters"].get<std::int64_t>());
    const StepBytes found = ByteLedger(write_plan(model, s, profile, 8), 0).step();
    EXPECT_TRUE(found.mistakes.empty()) << found.mistakes.front();
    const std::int64_t stream = row["batch"].get<std::int64_t>() * row["sequence"].get<std::int64_t>() * model.hidden * 2;
    auto near = [&](const char* name, std::int64_t ours, double tolerance) {
      EXPECT_NEAR(static_cast<double>(ours) / row[name].get<double>(), 1, tolerance) << name;
    };
    near("after_forward_bytes", found.after_forward, 0.01);
    near("forward_peak_bytes", found.forward_peak, 0.01);
    // The tracker sums two gradients into a third tensor (live_bytes_test.cpp).
    const double third = static_cast<double>(stream) / row["step_peak_bytes"].get<double>();
    near("step_peak_bytes", found.step_peak, 0.01 + third);
    near("gradient_bytes", found.before_update[static_cast<std::size_t>(Category::gradient)], 1e-9);
    near("parameter_bytes", found.setup[static_cast<std::size_t>(Category::parameter)], 1e-9);
    ++rows;
  }
  EXPECT_EQ(rows, 26);
}

}  // namespace
}  // namespace rehearse::strategies::tuning_test
