// Fine-tuning: which weights are trained, what adapters and 4-bit weights weigh, what backward leaves out.
#include "strategies/tuning/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sim/model/shapes.h"
#include "strategies/layer/tape_emitter.h"
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

// A projection that holds queries, keys and values (Qwen's c_attn, 4096 -> 12288) is one module to PEFT: 64 x (4096 + 12288); LitGPT has
// a pair of matrices for each part that is enabled: 2 x 64 x (4096 + 4096) for queries and values.
TEST(Tuning, FusedProjectionsHaveOneAdapterButInLitgpt) {
  const model::ModelDescription model = llama_like(1, 4096, 32, 32, 11008, 32000);
  FrameworkProfile profile = load_profile("huggingface");
  profile.fused_qkv = true;
  Strategy s = one_gpu_job(TuningKind::lora);
  s.tuning.rank = 64;
  s.tuning.targets = {"qkv"};
  EXPECT_EQ(trained_elements(model, s, profile), 64 * (4096 + 12288));
  s.tuning.targets = {"q_proj", "v_proj"};
  EXPECT_EQ(trained_elements(model, s, load_profile("litgpt")), 2 * 64 * (4096 + 4096));
}

/// How often a kernel of this name runs in a step's phase.
std::int64_t runs_of(const plan::Plan& plan, const std::string& name, plan::Phase phase) {
  std::int64_t n = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.phase == phase)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) n += i.op == plan::Opcode::kernel && plan.kernels[i.index].name == name;
  return n;
}

/// Host time of a step beyond what launches take.
Duration host_of(const plan::Plan& plan) {
  std::int64_t picoseconds = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) picoseconds += i.op == plan::Opcode::host ? i.value : 0;
  return Duration{picoseconds};
}

// GPTQ weights: unpacked before each of the seven products of a layer; backward multiplies by what forward kept. Bytes: half a byte
// per weight, and 2.5 per group of 128 (4.156 bits per weight, which the rows of such models round to 4.16).
TEST(Tuning, GptqWeightsAreUnpackedInForwardOnly) {
  Tuning tuning;
  tuning.format = FourBit::gptq;
  EXPECT_EQ(quantised_bytes(4096 * 4096, tuning), 4096 * 2048 + 4096 * 32 * 2 + 4096 * 16);
  EXPECT_NEAR(8.0 * static_cast<double>(quantised_bytes(4096 * 4096, tuning)) / (4096.0 * 4096), 4.156, 0.001);

  const model::ModelDescription model = llama_like(3, 256, 8, 8, 512, 1000);
  Strategy s = one_gpu_job(TuningKind::qlora);
  s.tuning.format = FourBit::gptq;
  const FrameworkProfile profile = load_profile("huggingface");
  ASSERT_TRUE(problems_of(model, s, profile, 1).empty());
  const plan::Plan plan = write_plan(model, s, profile, 1);
  EXPECT_TRUE(ByteLedger(plan, 0).step().mistakes.empty());
  EXPECT_EQ(runs_of(plan, "scale weight", plan::Phase::forward), 3 * 7);
  EXPECT_EQ(runs_of(plan, "scale weight", plan::Phase::backward), 0);
  s.memory.recompute = Recompute::full;   // the first forward keeps nothing, so the second unpacks again
  EXPECT_EQ(runs_of(write_plan(model, s, profile, 1), "scale weight", plan::Phase::backward), 3 * 7);
  FrameworkProfile free = profile;   // each time the operators take host time beyond their launches
  free.unpack_host = Duration{};
  EXPECT_GT(profile.unpack_host, Duration{});
  EXPECT_EQ(host_of(write_plan(model, s, profile, 1)) - host_of(write_plan(model, s, free, 1)), 2 * 3 * 7 * profile.unpack_host);
  s.tuning.kind = TuningKind::adapter;
  s.tuning.quantized = true;
  EXPECT_FALSE(problems_of(model, s, load_profile("litgpt"), 1).empty());
}

// What TorchInductor makes of a layer with adapters: no kernel of its backward adds gradients only, and a checkpoint around it runs all
// its products again, where a plain layer's stops before the last.
TEST(Tuning, CompiledLayersAddInsideOtherKernels) {
  const nlohmann::json answers = oracle("torch_compiled_layer.json");
  for (const std::string kernel : answers["passes"][1]["kernels"])
    EXPECT_TRUE(kernel.find("mul") != kernel.npos || kernel.find("attention") != kernel.npos) << kernel;
  for (const auto& row : answers["checkpoint"]) {
    const int again = row["run"].get<int>() - row["of_backward"].get<int>();
    EXPECT_EQ(load_profile(row["compiled"].get<bool>() ? "torchtune-compile" : "torchtune").early_stop_recompute, again == 1);
  }
  const model::ModelDescription model = llama_like(2, 256, 8, 2, 512, 1000);
  Strategy s = one_gpu_job(TuningKind::lora);
  const plan::Plan eager = write_plan(model, s, load_profile("torchtune"), 1), compiled = write_plan(model, s, load_profile("torchtune-compile"), 1);
  EXPECT_GT(runs_of(eager, "gradient add", plan::Phase::backward), 0);
  EXPECT_EQ(runs_of(compiled, "gradient add", plan::Phase::backward), 0);
  for (const model::KernelSpec& k : compiled.kernels) {
    if (k.name == "adapter scaled add" || k.name == "gradient sum") {
      EXPECT_EQ(k.bytes_written, 0);
    } else if (k.name == "adapter scale backward") {
      EXPECT_EQ(k.bytes_read, 0) << "targets are queries and values";
    }
  }
}

// TorchInductor makes no kernels of complex numbers: of torchtitan's rotary embedding it leaves one product per pass to PyTorch, in fp32,
// 4 bytes read and 4 written of each element. A layer has two rotations. torchtitan's Qwen 3 rotates halves.
TEST(Tuning, CompiledRotationsOfComplexNumbersKeepAProductApart) {
  const auto compiled = oracle("torch_compiled_layer.json");
  ASSERT_FALSE(compiled["complex_rotation"].empty());
  for (const auto& row : compiled["complex_rotation"]) EXPECT_EQ(row["eager_products"], 1);
  model::ModelDescription model = llama_like(1, 256, 8, 2, 512, 1000);
  Strategy s = one_gpu_job(TuningKind::full);
  s.memory.recompute = Recompute::none;
  const plan::Plan plan = write_plan(model, s, load_profile("torchtitan-compile"), 1);
  EXPECT_TRUE(ByteLedger(plan, 0).step().mistakes.empty());
  for (const std::string name : {"query rope product", "query rope product backward", "key rope product"}) {
    const auto k = std::find_if(plan.kernels.begin(), plan.kernels.end(), [&](const model::KernelSpec& spec) { return spec.name == name; });
    ASSERT_NE(k, plan.kernels.end()) << name;
    EXPECT_EQ(k->bytes_read + k->bytes_written, 512 * (name[0] == 'q' ? 256 : 64) * 8) << name;
  }
  model.qk_norm = true;
  EXPECT_EQ(runs_of(write_plan(model, s, load_profile("torchtitan-compile"), 1), "query rope product", plan::Phase::forward), 0);
}

// A checkpoint compiled with its layer is part of one graph: backward makes again what something reads, so all products but the last layer's
// own and its adapter's second.
TEST(Tuning, CheckpointsCompiledWithTheirLayerRunWhatIsRead) {
  const nlohmann::json rows = oracle("torch_compiled_layer.json")["compiled_checkpoints"];
  const int forward = rows[0]["forward"], again = rows[2]["backward"].get<int>() - rows[0]["backward"].get<int>();
  EXPECT_EQ(forward - again, 2);
  Strategy s = one_gpu_job(TuningKind::lora);
  s.tuning.targets = {"all-linear"};
  s.memory.recompute = Recompute::full;
  const plan::Plan plan = write_plan(llama_like(3, 256, 8, 8, 512, 1000), s, load_profile("nemo-automodel-compile"), 1);
  EXPECT_TRUE(ByteLedger(plan, 0).step().mistakes.empty());
  for (const std::string name : {"down_proj", "down_proj.lora_B"}) EXPECT_EQ(runs_of(plan, name, plan::Phase::backward), 0) << name;
  std::int64_t products = 0;
  for (const std::string layer : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
    for (const std::string part : {"", ".lora_A", ".lora_B"}) products += runs_of(plan, layer + part, plan::Phase::backward);
  EXPECT_EQ(products, 3 * again);
}

// NeMo AutoModel scales between the two products: nothing of the layer's width is scaled.
TEST(Tuning, AdaptersScaledBetweenTheirProducts) {
  const Strategy s = one_gpu_job(TuningKind::lora);
  const plan::Plan inside = write_plan(llama_like(1, 256, 8, 2, 512, 1000), s, load_profile("nemo-automodel"), 1), after = write_plan(llama_like(1, 256, 8, 2, 512, 1000), s, load_profile("torchtune"), 1);
  EXPECT_EQ(runs_of(inside, "adapter scale backward", plan::Phase::backward), 0);
  EXPECT_GT(runs_of(inside, "adapter scaled add", plan::Phase::forward), 0);
  EXPECT_GT(runs_of(after, "adapter scale backward", plan::Phase::backward), 0);
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
  EXPECT_EQ(trained_elements(model, s, load_profile("huggingface-4")), (2 + 8) * one);
  EXPECT_TRUE(tuning_problems(model, s, load_profile("huggingface-4")).empty());
  EXPECT_FALSE(tuning_problems(model, s, load_profile("huggingface")).empty());
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

// What is offered in a wrong name's place is what this model has: a dense one without biases has neither router nor experts nor biases.
TEST(Tuning, OnlyPartsOfThisModelAreOffered) {
  const model::ModelDescription model = llama_like(2, 256, 4, 4, 512, 1000);
  const FrameworkProfile profile = load_profile("huggingface");
  Strategy s = one_gpu_job(TuningKind::frozen);
  const auto only = [&](const char* key) {
    const std::vector<Diagnostic> problems = tuning_problems(model, s, profile);
    EXPECT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems.at(0).key, key);
    return problems.at(0);
  };
  for (const char* absent : {"router", "experts", "biases"}) {
    s.tuning.trainable = {absent};
    const Diagnostic problem = only("tuning.trainable");
    EXPECT_EQ(problem.fix.find(absent), std::string::npos) << problem.fix;
    EXPECT_NE(problem.fix.find("down_proj"), std::string::npos) << problem.fix;
  }
  s.tuning.trainable = {"layers.0.experts.0"};
  EXPECT_NE(only("tuning.trainable").problem.find("the model has none"), std::string::npos);
  s.tuning.trainable = {"norm"};
  EXPECT_TRUE(only("tuning.trainable").fix.starts_with("Did you mean norms?"));
  s = one_gpu_job(TuningKind::lora);
  s.tuning.targets = {"q_porj"};
  EXPECT_TRUE(only("tuning.targets").fix.starts_with("Did you mean q_proj?"));
  s.tuning.targets = {"embedding"};
  EXPECT_NE(only("tuning.targets").fix.find("tuning.trainable: [embedding]"), std::string::npos);
  // All mistakes at once, of both lists.
  s.tuning.targets = {"gate", "up_proj"};
  s.tuning.trainable = {"router", "layers.2", "layers.x"};
  EXPECT_EQ(tuning_problems(model, s, profile).size(), 2u);   // the one that is not written as a part, and gate
  s.tuning.trainable = {"router", "layers.2"};
  EXPECT_EQ(tuning_problems(model, s, profile).size(), 3u);
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

/// A micro-batch or two of 512 tokens on a Llama of two layers with a 4-bit base.
StepBytes four_bit_step(const FrameworkProfile& profile, std::int64_t micro_batches = 1) {
  Strategy s = one_gpu_job(TuningKind::qlora);
  s.training.global_batch_size = micro_batches;
  const plan::Plan plan = write_plan(llama_like(2, 4096, 32, 32, 11008, 32000), s, profile, 8);
  ByteLedger ledger(plan, 0);
  ledger.step();
  return ledger.step();
}

// bitsandbytes before 0.43.2 keeps the input of each recorded product on its node: at LitGPT's loss the graph of the micro-batch
// before still lives. Inputs: both layers' output projection (the attention output, 8 KiB per token), gate and up (the norm, 8),
// down (22), the second layer's queries, keys and values (8; below the first nothing wants a gradient) and the head's (8).
TEST(Tuning, InputsOfQuantisedProductsLiveAsLongAsTheGraph) {
  FrameworkProfile profile = load_profile("litgpt");
  profile.holds_last_graph = false;
  const StepBytes dropped = four_bit_step(profile);
  EXPECT_TRUE(dropped.mistakes.empty()) << dropped.mistakes.front();
  profile.holds_last_graph = true;
  constexpr std::int64_t kInputs = 512LL * 2 * (2 * (4096 + 4096 + 11008) + 4096 + 4096);
  for (const std::int64_t micro_batches : {1, 2}) {
    const StepBytes held = four_bit_step(profile, micro_batches);
    EXPECT_TRUE(held.mistakes.empty()) << held.mistakes.front();
    EXPECT_EQ(held.persistent - dropped.persistent, kInputs);
    EXPECT_EQ(held.after_step - dropped.after_step, kInputs) << micro_batches;
  }
  profile.keeps_quantised_inputs = false;
  EXPECT_EQ(four_bit_step(profile).persistent, dropped.persistent);
}

// A checkpoint that is not reentrant has its graph from the first pass on: what its nodes hold as attributes lives from then until
// the graph is dropped, and is made again beside that. Inputs of 4-bit products: queries, keys and values (the norm), output projection,
// gate and up (the norm), down; the output layer stays in 16 bits. A reentrant one runs its first pass without a graph.
TEST(Tuning, TheFirstPassOfACheckpointHoldsInputsOfQuantisedProducts) {
  FrameworkProfile profile = load_profile("huggingface");
  profile.upcasts_unquantised = false;
  Strategy s = one_gpu_job(TuningKind::qlora);
  s.memory.recompute = Recompute::full;
  const model::ModelDescription model = llama_like(2, 4096, 32, 32, 11008, 32000);
  const auto step = [&](bool keeps, bool reentrant, std::int64_t micro_batches) {
    profile.keeps_quantised_inputs = keeps;
    profile.reentrant_checkpoint = reentrant;
    s.training.global_batch_size = micro_batches;
    const plan::Plan plan = write_plan(model, s, profile, 8);
    ByteLedger ledger(plan, 0);
    ledger.step();
    return ledger.step();
  };
  constexpr std::int64_t kInputs = 512LL * 2 * 2 * (4096 + 4096 + 4096 + 11008);
  for (const std::int64_t micro_batches : {1, 2}) {
    const StepBytes without = step(false, false, micro_batches), held = step(true, false, micro_batches);
    EXPECT_TRUE(held.mistakes.empty()) << held.mistakes.front();
    EXPECT_EQ(held.after_forward - without.after_forward, kInputs);
    EXPECT_EQ(held.after_step, without.after_step);
    const StepBytes reentrant = step(true, true, micro_batches);
    EXPECT_TRUE(reentrant.mistakes.empty()) << reentrant.mistakes.front();
    EXPECT_EQ(reentrant.after_forward, step(false, true, micro_batches).after_forward);
  }
}

// What calibrate/ground_truth/checkpoint_host.py measures: other checkpoints cost the host more than reentrant ones, in both passes.
TEST(Tuning, CheckpointsTakeHostTime) {
  FrameworkProfile profile = load_profile("huggingface");
  profile.early_stop_recompute = false;
  Strategy s = one_gpu_job(TuningKind::lora);
  const model::ModelDescription model = llama_like(1, 1024, 8, 8, 2048, 1024);
  const auto host_of = [&](const std::string& block, bool reentrant, Recompute recompute) {
    profile.reentrant_checkpoint = reentrant;
    s.memory.recompute = recompute;
    const plan::Plan plan = write_plan(model, s, profile, 8);
    std::int64_t picoseconds = 0;
    const auto found = std::find_if(plan.blocks.begin(), plan.blocks.end(), [&](const plan::Block& b) { return b.name == block; });
    EXPECT_NE(found, plan.blocks.end()) << block;
    for (const plan::Instruction& i : found->timing)
      if (i.op == plan::Opcode::host) picoseconds += i.value;
    return Duration{picoseconds};
  };
  EXPECT_GT(profile.checkpoint_host, Duration{});
  EXPECT_GT(profile.recompute_host, profile.reentrant_host);
  EXPECT_EQ(host_of("layer forward", true, Recompute::full), host_of("layer forward", true, Recompute::none));
  EXPECT_EQ(host_of("layer forward", false, Recompute::full) - host_of("layer forward", true, Recompute::full), profile.checkpoint_host);
  EXPECT_EQ(host_of("layer backward", false, Recompute::full) - host_of("layer backward", true, Recompute::full), profile.recompute_host - profile.reentrant_host);
}

// Lightning Fabric quantises from fp16: the largest product, the head's, has its weight in fp16 and in bf16 at once.
TEST(Tuning, WeightsQuantisedFromFp16ComeBackTwice) {
  plan::PlanBuilder builder;
  FrameworkProfile profile = load_profile("litgpt");
  const model::ModelDescription model = llama_like(2, 4096, 32, 32, 11008, 32000);
  const Strategy s = one_gpu_job(TuningKind::qlora);
  const auto weights = [&](const FrameworkProfile& p) {
    const LowerContext c = make_context(model, s, p, builder);
    const Tape tape = head_tape(c, false);
    std::int64_t bytes = 0;
    for (const Node& n : tape.nodes)
      for (const Item& i : n.forward) bytes += n.name == "lm_head" && i.kind == Item::Kind::alloc && i.bytes == 2LL * 32000 * 4096 ? i.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(weights(profile), 2 * 2LL * 32000 * 4096);
  profile.quantised_from_fp16 = false;
  EXPECT_EQ(weights(profile), 2LL * 32000 * 4096);
}

// PEFT's k-bit preparation makes norms fp32, and with them everything between 16-bit products but attention.
TEST(Tuning, Fp32NormsMakeAnFp32Stream) {
  const model::ModelDescription model = llama_like(2, 4096, 32, 8, 11008, 32000);
  Strategy s = one_gpu_job(TuningKind::qlora);
  FrameworkProfile profile = load_profile("huggingface");
  plan::PlanBuilder builder;
  const auto bytes = [&](const FrameworkProfile& p, const std::string& name) {
    LowerContext c = make_context(model, s, p, builder);
    c.layer = 0;
    const Tape tape = layer_tape(c, model.layers[0]);
    for (const TapeTensor& t : tape.tensors)
      if (t.name == name) return t.bytes / 512;
    return std::int64_t{-1};
  };
  for (const char* name : {"layer input", "mlp residual"}) EXPECT_EQ(bytes(profile, name), 4 * 4096) << name;
  EXPECT_EQ(bytes(profile, "gate_proj"), 2 * 11008);
  EXPECT_EQ(bytes(profile, "gate_proj output cast"), 4 * 11008);
  EXPECT_EQ(bytes(profile, "silu"), 4 * 11008);
  EXPECT_EQ(bytes(profile, "attention output"), 2 * 4096);
  EXPECT_EQ(bytes(profile, "o_proj"), 2 * 4096);
  const StepBytes found = ByteLedger(write_plan(model, s, profile, 8), 0).step();
  EXPECT_TRUE(found.mistakes.empty()) << found.mistakes.front();

  profile.upcasts_unquantised = false;
  EXPECT_EQ(bytes(profile, "layer input"), 2 * 4096);
  profile.upcasts_unquantised = true;
  profile.norm = Fusion::fused;   // hand-written norms write the format that they read
  EXPECT_EQ(bytes(profile, "layer input"), 2 * 4096);
  profile.norm = Fusion::eager;
  s.parallelism.degrees.data = 2;
  s.training.global_batch_size = 2;
  s.data_parallel.kind = DataParallelKind::fsdp1;
  EXPECT_EQ(bytes(profile, "layer input"), 2 * 4096);
}

// transformers before 4.49 cut the last position off and copied what was left of the fp32 logits; at the loss it lives beside
// the 16-bit logits, their fp32 copy and the log-softmax, which is as long. What is left of one sample is contiguous as it is
// (torch: zeros(1, 512, n)[..., :-1, :].contiguous() has the same storage). A kernel that works in place needs no log-softmax.
TEST(Tuning, ShiftedLogitsOfSeveralSamplesAreCopied) {
  const model::ModelDescription model = llama_like(1, 1024, 8, 8, 2048, 128000);
  for (const std::int64_t samples : {1, 2}) {
    Strategy s = one_gpu_job(TuningKind::lora);
    s.training.global_batch_size = s.training.micro_batch_size = samples;
    FrameworkProfile profile = load_profile("huggingface");
    const auto peak = [&] { return ByteLedger(write_plan(model, s, profile, 8), 0).step().forward_peak; };
    const std::int64_t whole = peak();
    profile.copies_shifted_logits = true;
    const std::int64_t shifted = peak();
    EXPECT_EQ(shifted - whole, samples * ((samples > 1 ? 511 : 0) + 511 - 512) * 128000LL * 4);
    profile.loss = LossKind::upcast_fused;
    EXPECT_EQ(peak() - shifted, -samples * 511 * 128000LL * 4);
  }
}

// outputs = model(...) in a loop of one's own: the logits that the model hands out live as long as the graph. Until 4.45 transformers made the fp32
// copy in the model, since then in the loss function.
TEST(Tuning, TrainingLoopsHoldTheModelsOutput) {
  const model::ModelDescription model = llama_like(1, 1024, 8, 8, 2048, 128000);
  Strategy s = one_gpu_job(TuningKind::lora);
  FrameworkProfile profile = load_profile("huggingface");
  const auto step = [&] {
    const plan::Plan plan = write_plan(model, s, profile, 8);
    ByteLedger ledger(plan, 0);
    ledger.step();
    return ledger.step();
  };
  for (const bool old : {false, true}) {
    profile.copies_shifted_logits = old;
    profile.holds_output = profile.holds_last_graph = false;
    const StepBytes deleted = step();
    profile.holds_output = true;
    const StepBytes held = step();
    EXPECT_TRUE(held.mistakes.empty()) << held.mistakes.front();
    EXPECT_EQ(held.after_forward - deleted.after_forward, 512 * 128000LL * (old ? 4 : 2));
    EXPECT_EQ(held.after_step, deleted.after_step);
    profile.holds_last_graph = true;   // and nothing lets go of it before the next one is there
    EXPECT_EQ(step().after_step - deleted.after_step, 512 * 128000LL * (old ? 4 : 2));
  }
  // Nothing cut off, and a model that makes the fp32 copy itself: torchtitan until October 2024, prime-rl.
  profile.copies_shifted_logits = profile.keeps_logits = profile.holds_output = profile.holds_last_graph = false;
  const StepBytes deleted = step();
  profile.holds_output = true;
  EXPECT_EQ(step().after_forward - deleted.after_forward, 512 * 128000LL * 4);
}

// A loss of one's own on 16-bit logits[:, :-1]: the cut is a view of one sample and a copy of several, beside logits and a log-softmax
// that is a row per sample shorter.
TEST(Tuning, LossesOn16BitLogitsCopyWhatTheyCut) {
  const model::ModelDescription model = llama_like(1, 1024, 8, 8, 2048, 128000);
  FrameworkProfile profile = load_profile("huggingface");
  profile.loss = LossKind::native;
  for (const std::int64_t samples : {1, 2}) {
    Strategy s = one_gpu_job(TuningKind::lora);
    s.training.global_batch_size = s.training.micro_batch_size = samples;
    const auto peak = [&](bool cut) {
      profile.copies_shifted_logits = cut;
      return ByteLedger(write_plan(model, s, profile, 8), 0).step().forward_peak;
    };
    EXPECT_EQ(peak(true) - peak(false), samples * ((samples > 1 ? 511 : 0) + 511 - 512) * 128000LL * 2);
  }
}

// FSDP1 gathers the unit below ahead of a backward, but not one in a reentrant checkpoint: its first pass ran without a graph, so that nothing
// announces its backward, and it is gathered for the recomputation and again for what follows (both seen with PyTorch 2.13).
TEST(Tuning, UnitsInReentrantCheckpointsAreNotGatheredAhead) {
  const model::ModelDescription model = llama_like(3, 64, 4, 4, 128, 256);
  Strategy s = one_gpu_job(TuningKind::full);
  s.memory.recompute = Recompute::full;
  s.parallelism.degrees.data = 2;
  s.training.global_batch_size = 2;
  s.data_parallel.kind = DataParallelKind::fsdp1;
  FrameworkProfile profile = load_profile("huggingface");
  profile.early_stop_recompute = false;
  struct Gathers {
    int ahead = 0, all = 0;
    std::ptrdiff_t again = 0;   // within a layer's backward
  };
  const auto gathers = [&](bool reentrant, bool inside) {   // before the head's backward, and in all of backward
    profile.reentrant_checkpoint = reentrant;
    profile.checkpoints_in_units = inside;
    const plan::Plan plan = write_plan(model, s, profile, 8);
    Gathers found;
    bool begun = false, passed = false;
    for (const plan::Call& call : plan.classes[0].program.step) {
      const std::string& name = plan.blocks[call.block].name;
      begun = begun || name == "head forward";
      passed = passed || name == "head backward";
      if (!begun || !name.starts_with("gather")) continue;
      ++found.all;
      if (!passed) ++found.ahead;
    }
    EXPECT_TRUE(passed);
    const auto layer = std::find_if(plan.blocks.begin(), plan.blocks.end(), [](const plan::Block& b) { return b.name == "layer backward"; });
    EXPECT_NE(layer, plan.blocks.end());
    found.again = std::count_if(layer->timing.begin(), layer->timing.end(), [](const plan::Instruction& i) { return i.op == plan::Opcode::collective; });
    return found;
  };
  const Gathers reentrant = gathers(true, false), other = gathers(false, false), inside = gathers(true, true);
  EXPECT_EQ(reentrant.ahead, 0);
  EXPECT_EQ(other.ahead, 1);
  EXPECT_EQ(inside.ahead, 1);
  EXPECT_EQ(reentrant.all, 3);
  EXPECT_EQ(other.all, 3);
  EXPECT_EQ(reentrant.again, 1);   // given up after the recomputation, gathered once more for backward
  EXPECT_EQ(other.again, 0);
  EXPECT_EQ(inside.again, 0);
}

// What outlives a frozen layer's recomputation beside FSDP1, as PyTorch was seen to do it (tests/oracles/torch_fsdp_frozen.py).
TEST(Tuning, FrozenUnitsOfFsdpHoldTheEndsOfTheirCheckpoints) {
  const model::ModelDescription model = llama_like(6, 64, 4, 4, 128, 256);
  const nlohmann::json answers = oracle("torch_fsdp_frozen.json");
  int rows = 0;
  for (const auto& row : answers["cases"]) {
    SCOPED_TRACE(row.dump());
    Strategy s = one_gpu_job(row["frozen"].get<bool>() ? TuningKind::lora : TuningKind::full);
    s.memory.recompute = Recompute::full;
    if (row["sharded"].get<bool>()) {
      s.parallelism.degrees.data = 2;
      s.training.global_batch_size = 2;
      s.data_parallel.kind = DataParallelKind::fsdp1;
    }
    FrameworkProfile profile = load_profile("huggingface");
    profile.reentrant_checkpoint = row["reentrant"].get<bool>();
    profile.early_stop_recompute = !profile.reentrant_checkpoint;
    profile.checkpoints_in_units = row["inside"].get<bool>();
    ASSERT_TRUE(problems_of(model, s, profile, 8).empty());
    const plan::Plan plan = write_plan(model, s, profile, 8);
    EXPECT_TRUE(ByteLedger(plan, 0).step().mistakes.empty());

    // Live slots, call by call; where a layer's input and its gradient lie follows from the layer's frames (tape_emitter.h).
    const plan::Program& program = plan.classes[0].program;
    std::vector<bool> live(program.slots, false);
    std::vector<std::uint32_t> inputs, gradients_above;
    std::vector<int> inputs_alive, gradients_alive;
    const auto alive = [&](const std::vector<std::uint32_t>& slots) { return static_cast<int>(std::count_if(slots.begin(), slots.end(), [&](std::uint32_t i) { return live[i]; })); };
    for (const plan::Call& call : program.step) {
      const auto frame = [&](plan::Frame f) { return call.frames[static_cast<std::size_t>(f)]; };
      const std::string name = plan.blocks[call.block].name;
      if (name == "layer forward") inputs.push_back(frame(plan::Frame::below) + kOutputSlot);
      if (name == "layer backward") {
        inputs_alive.push_back(alive(inputs));
        gradients_alive.push_back(alive(gradients_above));
        gradients_above.push_back(frame(plan::Frame::above) + kInputGradientSlot);
      }
      for (const plan::Instruction& i : plan.blocks[call.block].memory) {
        const std::uint32_t slot = call.frames[static_cast<std::size_t>(i.op == plan::Opcode::move ? plan::Frame::own : i.frame)] + i.index;
        if (i.op == plan::Opcode::move) live[call.frames[static_cast<std::size_t>(i.frame)] + static_cast<std::uint32_t>(i.value)] = false;
        if (i.op == plan::Opcode::alloc || i.op == plan::Opcode::free || i.op == plan::Opcode::move) live[slot] = i.op != plan::Opcode::free;
      }
    }
    EXPECT_EQ(inputs_alive, row["inputs_alive"].get<std::vector<int>>());
    EXPECT_EQ(alive(inputs), row["inputs_alive_after"].get<int>());
    // The uppermost gradient there is a view of the loss's own, which the caller of backward holds.
    std::vector<int> expected = row["gradients_alive"].get<std::vector<int>>();
    for (int& n : expected) n = std::max(0, n - 1);
    EXPECT_EQ(gradients_alive, expected);
    ++rows;
  }
  EXPECT_EQ(rows, 5);
}

}  // namespace
}  // namespace rehearse::strategies::tuning_test
