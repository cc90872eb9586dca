// Operators that differ from framework to framework, against bytes counted from their code.
#include <gtest/gtest.h>

#include "hwmodels/device/kernel_model.h"
#include "sim/scenario/simulate.h"
#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::framework_kernels_test {
namespace {

using strategies::LossKind;
using strategies::RopeForm;

Scenario job(const std::string& framework, std::int64_t layers = 2, std::int64_t vocab = 4096, int data = 1) {
  Scenario s;
  model::Shapes shapes{.name = "llama", .layers = layers, .hidden = 512, .heads = 8, .vocab = vocab};
  shapes.ffn_hidden = 1024;
  shapes.gated = true;
  s.model = model::make_from_shapes(shapes);
  s.strategy = small_job(data);
  s.strategy.training.framework = framework;
  s.strategy.training.clip_gradients = false;
  s.profile = strategies::load_profile(framework);
  s.cluster = hwmodels::load_cluster(data > 1 ? "dgx-h100" : "single-gpu", 1, "rail-fat-tree", "h100-sxm");
  s.cluster.gpus_per_node = data;
  return s;
}

/// Bytes that the kernels of a step read and write.
std::int64_t traffic(const Scenario& s) {
  const Result r = simulate(s);
  std::int64_t bytes = 0;
  for (const plan::Call& call : r.plan.classes[0].program.step)
    for (const plan::Instruction& i : r.plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel) bytes += r.plan.kernels[i.index].bytes_read + r.plan.kernels[i.index].bytes_written;
  return bytes;
}

// In units of a 16-bit query or key. Halves exchanged: 10 forward, 15 backward.
// Pairs (torchtune): cast 3; twice two products of every second fp32 element (2 read, 1 written) and a sum (3); stack 4; cast 3: 28.
// Backward: cast 3; four times product 3, zeros 2, copy 3; three sums of 6; cast 3: 56.
// Matrices (Foundation Model Stack): cast 3, products 2 + 4, sum 4 + 2, cast 3: 18, and the same backward.
TEST(FrameworkKernels, RotaryEmbeddingMovesWhatItsCodeMoves) {
  Scenario s = job("torchtune");
  const std::int64_t unit = 256 * (512 + 512) * 2;
  const auto with = [&](RopeForm form) {
    s.profile.rope_form = form;
    return traffic(s);
  };
  const std::int64_t halves = with(RopeForm::rotate_half);
  EXPECT_EQ(with(RopeForm::pairs) - halves, 2 * (28 + 56 - 25) * unit);
  EXPECT_EQ(with(RopeForm::matrices) - halves, 2 * (18 + 18 - 25) * unit);
}

/// Kernels, collectives and waits of the host whose names contain a word, in one step of the first class.
int launches(const Scenario& s, const std::string& word) {
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  int out = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      out += (i.op == plan::Opcode::kernel && plan.kernels[i.index].name.find(word) != std::string::npos) ||
             (i.op == plan::Opcode::collective && plan.collectives[i.index].name.find(word) != std::string::npos);
  return out;
}

/// FLOPs that attention's kernels of one step execute.
double attention_flops(const Scenario& s) {
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  double flops = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& kernel = plan.kernels[i.index];
      if (kernel.kind == model::KernelKind::attention_forward || kernel.kind == model::KernelKind::attention_backward) flops += model::flops_of(kernel).value;
    }
  return flops;
}

// Two layers, a sequence of 256, heads of 512 / 8 elements: two products forward and five backward over 256 x 256 scores, of which a causal
// kernel computes 256 x 257 / 2. A kernel that has the mask as a tensor does not know which scores it hides: of packed documents
// of 64 tokens it computes all 256 x 256 as well (four times 64 x 65 / 2 where it knows).
TEST(FrameworkKernels, MaskInATensorSkipsNoScores) {
  Scenario s = job("huggingface");
  const double per_score = 2.0 * 2 * 512 * (1 + 2.5);
  EXPECT_EQ(attention_flops(s), per_score * 2 * 256 * 257 / 2);
  s.strategy.training.document_length = 64;
  EXPECT_EQ(attention_flops(s), per_score * 2 * 4 * 64 * 65 / 2);
  s.profile.masked_attention = true;
  EXPECT_EQ(attention_flops(s), per_score * 2 * 256 * 256);
  s.strategy.training.document_length = 0;
  EXPECT_EQ(attention_flops(s), per_score * 2 * 256 * 256);
}

// torch.backends.cuda.matmul.allow_tf32 holds for every product of fp32, those of attention's scores too: six in each of two layers.
TEST(FrameworkKernels, ScoresInMemoryAreMultipliedInTf32) {
  Scenario s = job("plain");
  s.strategy.training.attention = "unfused";
  for (const auto& [precision, expected] : {std::pair{strategies::Precision::tf32, DType::tf32}, std::pair{strategies::Precision::fp32, DType::fp32}, std::pair{strategies::Precision::bf16, DType::bf16}}) {
    s.strategy.training.precision = precision;
    const plan::Plan plan = strategies::write_plan(s.model, s.strategy, strategies::with_precision(s.profile, precision), 1);
    int products = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm && plan.kernels[i.index].batch > 1) {
          EXPECT_EQ(plan.kernels[i.index].dtype, expected) << plan.kernels[i.index].name;
          ++products;
        }
    EXPECT_EQ(products, 2 * 6);
  }
}

// Nine kernels on the square of scores in each of two layers, which all heads share: 81 bytes of each pair, 256 x 256 of them. Megatron's own
// layers have the mask in their kernel.
TEST(FrameworkKernels, TransformerEngineMakesItsMaskAnewForUnfusedAttention) {
  Scenario engine = job("megatron-core"), local = job("megatron-core");
  engine.strategy.training.attention = local.strategy.training.attention = "unfused";
  local.profile.transformer_engine = false;
  const plan::Plan plan = strategies::write_plan(engine.model, engine.strategy, engine.profile, 1);
  std::int64_t bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name.starts_with("mask ")) bytes += plan.kernels[i.index].bytes_read + plan.kernels[i.index].bytes_written;
  EXPECT_EQ(bytes, 2 * 81 * 256 * 256);
  for (const char* name : {"mask distances", "mask left", "mask right", "mask difference", "mask not"}) {
    EXPECT_EQ(launches(engine, name), 2) << name;
    EXPECT_EQ(launches(local, name), 0) << name;
  }
}

// F.silu(x[0]) * x[1] (megatron/model/transformer.py of 2023): silu is a kernel of its own, forward and backward, in each of two layers. The kernel
// that Megatron had then, of bias and GELU, stays what it is.
TEST(FrameworkKernels, MegatronOf2021HasNoKernelForSwiglu) {
  for (const char* framework : {"megatron-2021", "megatron-deepspeed"}) {
    Scenario gated = job(framework);
    EXPECT_EQ(launches(gated, "silu"), 2 * 2) << framework;
    EXPECT_EQ(launches(gated, "swiglu"), 0) << framework;
    gated.profile.gated_activation.reset();
    EXPECT_EQ(launches(gated, "silu"), 0) << framework;
    Scenario plain = job(framework);
    plain.model = small_llama(2);
    plain.model.gated_mlp = false;
    EXPECT_EQ(launches(plain, "silu"), 0) << framework;
    EXPECT_EQ(launches(plain, "gelu"), 2 * 2) << framework;
  }
}

/// Waits of the host for an event in one step of the first class.
int host_waits(const Scenario& s) {
  const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, s.cluster.gpus_per_node);
  int out = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) out += i.op == plan::Opcode::host_wait;
  return out;
}

// ATen operators that launch, as counted on Megatron's own code (PyTorch 2.13, __torch_dispatch__): of a tensor cos, sin, two scalings, two casts, neg, two
// cat, two products and a sum are 12; backward two products, neg, cat, two sums and a fill are 7. Queries and keys of two layers. Interleaved pairs
// want a copy more, and in backward two fills, two copies and a sum.
TEST(FrameworkKernels, MegatronWithoutAFusedRotaryEmbeddingTakesCosinesForEachTensor) {
  Scenario s = job("megatron-core");
  EXPECT_EQ(launches(s, "rope "), 2);   // "rope backward" of each layer
  s.strategy.training.fused_rope = false;
  EXPECT_EQ(strategies::with_choices(s.profile, s.strategy).rope, strategies::Fusion::eager);
  s.profile.rope = strategies::Fusion::eager;
  EXPECT_EQ(launches(s, "rope "), 2 * 2 * (12 + 7));
  s.model.latent = {.kv_lora_rank = 128, .qk_nope_head_dim = 32, .qk_rope_head_dim = 32, .v_head_dim = 64};
  s.model.head_dim = 64;
  EXPECT_EQ(launches(s, "rope ") - 2 /* "key rope backward" */, 2 * 2 * (13 + 12));
}

// Four documents of 64 tokens: 13 operators each in forward (12 and the copy into place). The same count says 54 for five in backward, 65 for six: 11 each,
// two fewer of the last and one for the split. The host waits for their lengths: query and key of two layers.
TEST(FrameworkKernels, MegatronRotatesPackedDocumentsOneAfterTheOther) {
  Scenario s = job("megatron-core");
  const int waits = host_waits(s);
  s.strategy.training.document_length = 64;
  EXPECT_EQ(host_waits(s), waits);
  s.profile.rope = strategies::Fusion::eager;
  EXPECT_EQ(launches(s, "rope "), 2 * 2 * (4 * 13 + 4 * 11 - 2 + 1));
  EXPECT_EQ(host_waits(s), waits + 2 * 2);
  s.strategy.training.documents_per_sample = 6.2;
  EXPECT_EQ(launches(s, "rope "), 2 * 2 * (6 * 13 + 65));
  s.profile.rope_by_document = false;
  EXPECT_EQ(launches(s, "rope "), 2 * 2 * (12 + 7));
}

// Each document's gradient is copied out of a copy of all: 4 documents read and write the whole query or key once more than its 4 parts.
TEST(FrameworkKernels, DocumentsWrittenInPlaceCopyTheWholeGradientEach) {
  const auto copies = [](std::int64_t length) {
    Scenario s = job("megatron-core");
    s.profile.rope = strategies::Fusion::eager;
    s.strategy.training.document_length = length;
    const plan::Plan plan = strategies::write_plan(s.model, s.strategy, s.profile, 1);
    std::int64_t bytes = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "rope gradient copy") bytes += plan.kernels[i.index].bytes_written;
    return bytes;
  };
  const std::int64_t unit = 2 * 256 * (512 + 512) * 2;   // of two layers
  EXPECT_EQ(copies(64), 4 * unit);
  EXPECT_EQ(copies(128), 2 * unit);
  EXPECT_EQ(copies(256), 0);
}

// activation_func(x_glu) * (x_linear + glu_linear_offset): silu, sum and product in each of two layers; the sum has no backward.
TEST(FrameworkKernels, MegatronWithoutAFusedSwigluAddsAnOffset) {
  Scenario s = job("megatron-core");
  EXPECT_EQ(launches(s, "gate"), 2 * 3);   // the products of gate_up
  s.profile.activation = strategies::Fusion::native;
  EXPECT_EQ(launches(s, "silu"), 2 * 2);
  EXPECT_EQ(launches(s, "gate offset"), 2);
  EXPECT_EQ(launches(s, "gate product"), 2 * 3);
  EXPECT_EQ(launches(s, "split gate and up"), 2);   // the halves' gradients are joined once, nothing is added to them (SplitBackward: at::cat)
  s.profile.gate_offset = false;
  EXPECT_EQ(launches(s, "gate offset"), 0);
}

// ALiBi beside scores in memory: biases of 8 heads x 256 x 256 are written, and read by the product, in each of two layers.
TEST(FrameworkKernels, AlibiPassesOverTheScores) {
  Scenario s = job("megatron-deepspeed");
  s.model.position = model::Position::none;
  const std::int64_t without = traffic(s);
  s.model.position = model::Position::alibi;
  EXPECT_EQ(traffic(s) - without, 2 * 2 * (8 * 256 * 256 * 2));
}

// A quarter of each head rotates. Of a query's bytes the quarter moves 10 forward and 15 backward; joining both parts 2; backward two
// fills with zeros, both parts copied into them (2), their sum (3): 7.
TEST(FrameworkKernels, APartOfEachHeadRotatesAndIsJoinedAgain) {
  Scenario s = job("torchtune");
  s.profile.rope_form = RopeForm::rotate_half;
  const std::int64_t unit = 256 * (512 + 512) * 2, whole = traffic(s);
  s.model.rotary_dim = 16;
  EXPECT_EQ(traffic(s) - whole, 2 * (25 * unit / 4 + 9 * unit - 25 * unit));
}

// GPT-NeoX v1.0: q, k and v ordered by sample and joined (2 copies each), the output ordered back and its gradient with it; one
// sum over the tensor group per layer and direction for both branches, and one per branch in backward.
TEST(FrameworkKernels, GptNeoxReducesBothBranchesAtOnce) {
  Scenario s = job("gpt-neox", 2, 4096, 2);
  s.model.parallel_residual = true;
  s.model.gated_mlp = false;
  s.strategy.parallelism.degrees = {.tensor = 2};
  s.strategy.training.global_batch_size = 1;
  s.strategy.training.precision = strategies::Precision::fp16;
  s.strategy.data_parallel.kind = strategies::DataParallelKind::none;
  ASSERT_TRUE(problems_of(s).empty());
  EXPECT_EQ(launches(s, "reduce branches"), 2);
  EXPECT_EQ(launches(s, "reduce output"), 0);
  EXPECT_EQ(launches(s, "qkv reduce gradient") + launches(s, "fc1 reduce gradient"), 4);
  EXPECT_EQ(launches(s, "order by sample"), 2 * 3);
  EXPECT_EQ(launches(s, "join qkv"), 2 * 3);
  s.profile.joint_branches = false;
  EXPECT_EQ(launches(s, "reduce branches"), 0);
  EXPECT_EQ(launches(s, "reduce output"), 2 * 2);
}

// DeepSpeed until 2022: overflow, then the norm, of every parameter (ZeRO-1) or of this rank's (ZeRO-2); gradients of ZeRO-1 are
// scattered after backward. Megatron-LM of 2020: scores times the mask, less a large number elsewhere; four copies of heads.
TEST(FrameworkKernels, EarlyDeepSpeedLooksAtEachParameter) {
  Scenario s = job("deepspeed-2020", 2, 4096, 4);
  s.model.position = model::Position::learned;
  s.model.max_positions = 4096;
  s.strategy.training.precision = strategies::Precision::fp16;
  s.strategy.data_parallel.kind = strategies::DataParallelKind::zero1;
  ASSERT_TRUE(problems_of(s).empty());
  // Two layers of two norms and four products (gate and up are one), two embeddings' tables, the last norm, the output layer.
  const int weights = launches(s, "check gradient") / 2;
  EXPECT_EQ(weights, 2 * 6 + 4);
  EXPECT_EQ(launches(s, "scores times mask backward"), 2);
  EXPECT_EQ(launches(s, "pieces side by side"), launches(s, "parameters apart"));
  EXPECT_TRUE(test_support::ByteLedger(strategies::write_plan(s.model, s.strategy, s.profile, 4), 0).step().mistakes.empty());
  EXPECT_EQ(launches(s, "copy heads backward"), 2 * 4);
  s.strategy.data_parallel.kind = strategies::DataParallelKind::ddp;   // without ZeRO: fp32 copies of all gradients, then one tensor of them
  EXPECT_EQ(launches(s, "widen gradients") + launches(s, "join gradients"), 2);
  EXPECT_EQ(launches(s, "check gradient"), weights);   // overflow; the norm is of the one tensor
  EXPECT_EQ(launches(s, "flatten gradients") + launches(s, "copy gradients back"), 2);
  const auto bytes = test_support::ByteLedger(strategies::write_plan(s.model, s.strategy, s.profile, 4), 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.after_step, bytes.persistent);
  s.strategy.data_parallel.kind = strategies::DataParallelKind::zero2;
  EXPECT_EQ(launches(s, "check gradient"), 2 * ((weights + 3) / 4));
}

// Megatron's fp16 step: fp32 copies of all gradients, divided by the loss scale, and none of it in bf16. Its DDP of 2020 copies gradients into one
// tensor and back, of a single replica too.
TEST(FrameworkKernels, MegatronUnscalesFp32CopiesOfGradients) {
  Scenario s = job("megatron-2020", 2, 4096, 4);
  s.strategy.data_parallel.kind = strategies::DataParallelKind::ddp;
  s.strategy.training.precision = strategies::Precision::fp16;
  s.profile = strategies::with_precision(s.profile, strategies::Precision::fp16);
  ASSERT_TRUE(problems_of(s).empty());
  EXPECT_EQ(launches(s, "widen gradients"), 1);
  EXPECT_EQ(launches(s, "unscale gradients"), 1);
  EXPECT_EQ(launches(s, "join gradients"), 0);
  EXPECT_EQ(launches(s, "average gradients"), 1);
  EXPECT_EQ(launches(s, "copy to bucket"), 0);
  const auto bytes = test_support::ByteLedger(strategies::write_plan(s.model, s.strategy, s.profile, 4), 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.after_step, bytes.persistent);
  s.strategy.training.precision = strategies::Precision::bf16;
  s.profile = strategies::with_precision(strategies::load_profile("megatron-2020"), strategies::Precision::bf16);
  EXPECT_EQ(launches(s, "unscale gradients") + launches(s, "flatten gradients"), 0);
}

// From 2021-08 on its DDP adds gradients up in buffers of the parameters' format and reduces those where they lie: as many bytes as parameters, no
// copy of them to be reduced, and the fp16 step makes its fp32 copies of what is in the buffers.
TEST(FrameworkKernels, MegatronsGradientBuffersAreReducedWhereTheyLie) {
  Scenario s = job("megatron-2021", 2, 4096, 4);
  s.strategy.data_parallel.kind = strategies::DataParallelKind::ddp;
  s.strategy.training.precision = strategies::Precision::fp16;
  s.profile = strategies::with_precision(s.profile, strategies::Precision::fp16);
  ASSERT_TRUE(problems_of(s).empty());
  const auto step = [&s] { return test_support::ByteLedger(strategies::write_plan(s.model, s.strategy, s.profile, 4), 0).step(); };
  const auto of = [](const test_support::Categories& bytes, plan::Category category) { return bytes[static_cast<std::size_t>(category)]; };
  const test_support::StepBytes buffers = step();
  EXPECT_TRUE(buffers.mistakes.empty()) << buffers.mistakes.front();
  EXPECT_EQ(buffers.after_step, buffers.persistent);
  EXPECT_EQ(of(buffers.before_update, plan::Category::gradient), of(buffers.setup, plan::Category::parameter));
  EXPECT_EQ(of(buffers.before_update, plan::Category::communication), 0);
  EXPECT_EQ(launches(s, "zero gradients"), 1);
  EXPECT_EQ(launches(s, "widen gradients"), 1);
  EXPECT_EQ(launches(s, "unscale gradients"), 1);
  s.profile.main_gradients = false;   // before: what is reduced is a copy
  const test_support::StepBytes copies = step();
  EXPECT_EQ(of(copies.before_update, plan::Category::gradient), of(copies.setup, plan::Category::parameter));
  EXPECT_EQ(of(copies.before_update, plan::Category::communication), of(copies.setup, plan::Category::parameter));
  EXPECT_EQ(launches(s, "zero gradients"), 0);
}

// The scripted gelu of 2020 is a kernel per operation. Forward: six of one tensor and three of two, 21 passes where one kernel has 2. Backward: three
// of one and ten of two (two operands' gradients of each of three products, the tanh's, three sums), 36 passes where one kernel has 3.
TEST(FrameworkKernels, ScriptedGeluIsAKernelPerOperation) {
  Scenario s = job("deepspeed-2020");
  s.model.gated_mlp = false;
  const auto with = [&](bool scripted) {
    s.profile.scripted_gelu = scripted;
    return traffic(s);
  };
  const std::int64_t kept = 256 * 1024 * 2, plain = with(false);
  EXPECT_EQ(with(true) - plain, 2 * (21 - 2 + 36 - 3) * kept);
}

// Megatron-LM's arguments: gradients of bf16 training add up, and are reduced, in fp32; of fp16 training in 16 bits.
TEST(FrameworkKernels, GradientsOfBf16AreWideInMegatron) {
  using strategies::Precision;
  const strategies::FrameworkProfile old = strategies::load_profile("megatron-2021");
  EXPECT_EQ(strategies::with_precision(old, Precision::bf16).gradient, DType::fp32);
  EXPECT_EQ(strategies::with_precision(old, Precision::bf16).reduce, DType::fp32);
  EXPECT_EQ(strategies::with_precision(old, Precision::fp16).gradient, DType::fp16);
  const strategies::FrameworkProfile core = strategies::load_profile("megatron-core");
  EXPECT_EQ(strategies::with_precision(core, Precision::fp16).gradient, DType::fp16);
  EXPECT_EQ(strategies::with_precision(core, Precision::fp16).reduce, DType::fp16);
  EXPECT_EQ(strategies::with_precision(core, Precision::bf16).gradient, DType::fp32);
  EXPECT_EQ(strategies::with_precision(core, Precision::fp8).gradient, DType::fp32);   // beside bf16
}

// Apex keeps the 16 bits that bf16 parameters lack in place of an fp32 copy: 4 + 4 + 2 bytes of states, where Megatron's optimizer has 12.
TEST(FrameworkKernels, NeMoOf2024KeepsRemaindersAndRunsFlashAttention) {
  using strategies::Precision;
  const strategies::FrameworkProfile nemo = strategies::load_profile("nemo-2024");
  for (const Precision narrow : {Precision::bf16, Precision::fp8, Precision::mxfp8}) EXPECT_EQ(strategies::with_precision(nemo, narrow).master_bytes(), 2);
  EXPECT_EQ(strategies::with_precision(nemo, Precision::fp16).master_bytes(), 4);
  EXPECT_EQ(strategies::with_precision(nemo, Precision::fp32).master_bytes(), 0);
  EXPECT_EQ(nemo.cudnn_attention_from, 0);
  const auto states = [](const char* profile) {
    const Result r = simulate(job(profile), {.memory = false});
    test_support::ByteLedger ledger(r.plan, 0);
    ledger.step();   // makes the moments
    return ledger.step().before_update[static_cast<std::size_t>(plan::Category::optimizer)];
  };
  EXPECT_GT(states("nemo-2024"), 0);
  EXPECT_EQ(states("megatron-bridge") * 10, states("nemo-2024") * 12);
}

/// The highest point of one layer and a head of 131,072 words over 8,192 tokens.
std::int64_t peak_with(LossKind loss) {
  Scenario s = job("torchtune-compile", 1, 131072);
  s.strategy.training.sequence_length = 8192;
  s.profile.loss = loss;
  return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
}

// Logits of 8192 x 131072 in 16 bit are 2 GiB and the highest point. Compiled as a whole their gradient lies beside them; in
// eight pieces, an eighth of it.
TEST(FrameworkKernels, ALossInPiecesHasOnePieceOfGradient) {
  const std::int64_t logits = 8192LL * 131072 * 2;
  EXPECT_EQ(peak_with(LossKind::compiled) - peak_with(LossKind::chunked_output), logits - logits / 8);
}

// torch.compile per layer: AOTAutograd's partitioner keeps what backward's matrix products read and makes pointwise results again.
// Seen with torch 2.13 on torchtune's TransformerSelfAttentionLayer: the layer's input, both normalised inputs, query, key, value,
// attention's output (twice: made contiguous), its projection, gate, up and their product, three statistics. Beside them lie the layer's
// weights and two Adam states. To 1 MiB: the tail of a block that the allocator does not split.
TEST(FrameworkKernels, CompiledLayersKeepWhatMatrixProductsRead) {
  const auto peak = [&](std::int64_t layers) {
    Scenario s = job("torchtune-compile", layers, 131072);
    s.strategy.training.sequence_length = 8192;
    s.strategy.memory.recompute = strategies::Recompute::none;
    return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  const std::int64_t kept = 8192 * (9 * 512 * 2 + 3 * 1024 * 2 + (2 + 8) * 4), weights = 4 * 512 * 512 + 3 * 512 * 1024 + 2 * 512;
  EXPECT_NEAR(static_cast<double>(peak(3) - peak(2)), static_cast<double>(kept + 3 * 2 * weights), 1 << 20);
}

// A compiled cross-entropy on logits.float(): when its gradient is made the fp32 logits are there too.
TEST(FrameworkKernels, ACompiledLossOnCastLogitsHasTwoFp32Copies) {
  const std::int64_t logits = 8192LL * 131072 * 2;
  EXPECT_EQ(peak_with(LossKind::upcast_compiled) - peak_with(LossKind::compiled), 2 * logits);
}

// nanotron: fp32 logits and the copy that becomes their softmax and gradient, 8 bytes per logit. Megatron's, in place, has its highest point
// at the cast, 2 + 4; the loss of each token comes after it.
TEST(FrameworkKernels, TheShardedLossHasTwoFp32Copies) {
  Scenario s = job("nanotron", 1, 131072);
  s.strategy.training.sequence_length = 8192;
  const auto peak = [&](LossKind loss) {
    s.profile.loss = loss;
    return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  const std::int64_t logits = 8192LL * 131072 * 2;
  EXPECT_EQ(peak(LossKind::sharded) - peak(LossKind::vocab_parallel), logits + 8192 * 4);
}

// Megatron-DeepSpeed under Ulysses: logits, their fp32 copy, softmax and its logarithm at once, 14 bytes per logit; Megatron's has 6 at most.
TEST(FrameworkKernels, TheSequenceParallelLossHasThreeFp32Copies) {
  Scenario s = job("megatron-deepspeed", 1, 131072);
  EXPECT_EQ(s.profile.context_loss, LossKind::sequence_parallel);
  s.strategy.training.sequence_length = 8192;
  const auto peak = [&](LossKind loss) {
    s.profile.loss = loss;
    return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  const std::int64_t logits = 8192LL * 131072 * 2;
  EXPECT_EQ(peak(LossKind::sequence_parallel) - peak(LossKind::vocab_parallel), 4 * logits + 8192 * 4);
}

// Megatron's of before March 2020 has its caller's fp32 logits, their copy and its exponentials at once, 12 bytes per logit, the later one 6.
TEST(FrameworkKernels, TheCopiedLossHasThreeFp32Tensors) {
  Scenario s = job("megatron-deepspeed", 1, 131072);
  s.strategy.training.sequence_length = 8192;
  const auto peak = [&](LossKind loss) {
    s.profile.loss = loss;
    return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  const std::int64_t logits = 8192LL * 131072 * 2;
  EXPECT_NEAR(static_cast<double>(peak(LossKind::vocab_parallel_copied) - peak(LossKind::vocab_parallel)), 3.0 * static_cast<double>(logits), 1 << 20);
}

// Eager pieces: the log-softmax of all of them is kept in fp32, one piece's copy and gradient at a time are beside it.
TEST(FrameworkKernels, EagerPiecesKeepTheLogSoftmax) {
  Scenario s = job("torchtune", 1, 131072);
  s.strategy.training.sequence_length = 8192;
  const auto peak = [&](LossKind loss) {
    s.profile.loss = loss;
    return simulate(s, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  EXPECT_LT(peak(LossKind::chunked_output), peak(LossKind::upcast));
}

// PEFT wraps what is trained by itself; one flat parameter for a layer reduces what is frozen as zeros.
TEST(FrameworkKernels, WrappedAdaptersReduceTheirOwnGradientsOnly) {
  Scenario s = job("huggingface", 2, 4096, 8);
  s.strategy.data_parallel.kind = strategies::DataParallelKind::fsdp1;
  s.strategy.tuning.kind = strategies::TuningKind::lora;
  const auto reduced = [&](bool wraps) {
    s.profile.wraps_adapters = wraps;
    const Result r = simulate(s);
    std::int64_t bytes = 0;
    for (const plan::Call& call : r.plan.classes[0].program.step)
      for (const plan::Instruction& i : r.plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && r.plan.collectives[i.index].kind == CollectiveKind::reduce_scatter) bytes += r.plan.collectives[i.index].bytes.value;
    return bytes;
  };
  // Rank 8 on queries and values of two layers: 2 x 2 x 8 x (512 + 512) elements, reduced in bf16.
  EXPECT_EQ(reduced(true), 2 * 2 * 8 * (512 + 512) * 2);
  EXPECT_GT(reduced(false), 20 * reduced(true));
}

// PyTorch's attention is AOTriton's on AMD's GPUs, flash-attn's Composable Kernel's; what Transformer Engine calls there is assembly.
TEST(FrameworkKernels, AttentionOnAmdIsTheFrameworksOwn) {
  const auto attention = [](const std::string& framework, const std::string& gpu, bool triton_backward = false) {
    Scenario s = job(framework);
    s.profile.triton_backward = triton_backward;
    s.cluster = hwmodels::load_cluster("single-gpu", 1, "rail-fat-tree", gpu);
    const Result r = simulate(s);
    for (const model::KernelSpec& k : r.plan.kernels)
      if (k.kind == model::KernelKind::attention_forward) return k.attention;
    ADD_FAILURE() << "no attention";
    return model::AttentionKernel::sdpa_math;
  };
  EXPECT_EQ(attention("torchtitan", "mi300x"), model::AttentionKernel::aotriton_assembly);
  EXPECT_EQ(attention("torchtitan", "mi355x"), model::AttentionKernel::aotriton_assembly);
  EXPECT_EQ(attention("torchtitan", "mi300x", true), model::AttentionKernel::aotriton);   // before AOTriton 0.11
  EXPECT_EQ(attention("nanotron", "mi300x"), model::AttentionKernel::composable);
  EXPECT_EQ(attention("torchtitan-2025", "h100-sxm"), model::AttentionKernel::flash2);
  EXPECT_EQ(attention("torchtitan", "h100-sxm"), model::AttentionKernel::flex);
  EXPECT_EQ(attention("megatron-core", "mi300x"), model::AttentionKernel::flash2);
}

// A profile without Transformer Engine has 0.949 of the searched-for products' speed in 16 bits on an MI300X. PyTorch's own at 8192 cubed and at
// 8192 x 1024 x 8192 (facebookexperimental/triton#2891): 635 and 564 TFLOPS, none of it fitted but the one share. 8 bits and other GPUs stay.
TEST(FrameworkKernels, ProductsOnAnMi300xAreThoseOfHeuristics) {
  const auto tflops = [](const std::string& framework, const std::string& gpu, std::int64_t n, DType format, bool untuned = false) {
    Scenario s = job(framework);
    s.profile.untuned_products = untuned;
    s.cluster = hwmodels::load_cluster("single-gpu", 1, "rail-fat-tree", gpu);
    if (gpu == "mi300x") s.cluster.gpu.kernel_parameters["sustained_clock"] = 0.862;   // of loops (cdna3.yaml), not of training
    const model::KernelSpec product{.kind = model::KernelKind::gemm, .dtype = format, .m = 8192, .n = n, .k = 8192};
    return 2e-12 * 8192 * static_cast<double>(n) * 8192 / to_seconds(hwmodels::KernelModel(gpu_of(s)).cost(product).duration);
  };
  EXPECT_NEAR(tflops("torchtitan", "mi300x", 8192, DType::bf16), 635, 0.02 * 635);
  EXPECT_NEAR(tflops("torchtitan", "mi300x", 1024, DType::bf16), 564, 0.02 * 564);
  EXPECT_NEAR(tflops("megatron-core", "mi300x", 8192, DType::bf16), 668, 0.02 * 668);
  EXPECT_EQ(tflops("megatron-core", "mi300x", 8192, DType::bf16, true), tflops("torchtitan", "mi300x", 8192, DType::bf16));   // nobody searched
  EXPECT_NEAR(tflops("torchtitan", "mi300x", 8192, DType::fp8), tflops("megatron-core", "mi300x", 8192, DType::fp8), 1e-6);
  EXPECT_EQ(tflops("torchtitan", "h100-sxm", 8192, DType::bf16), tflops("megatron-core", "h100-sxm", 8192, DType::bf16));
}

// NVIDIA, Matrix Multiplication Background: before cuBLAS 11.0 a V100's tensor cores wanted sizes that are multiples of 8; else its 15.7 TFLOPS of fp32 are left.
TEST(FrameworkKernels, UnalignedProductsUnderCuda10LeaveTensorCores) {
  const auto tflops = [](const char* framework, std::int64_t n) {
    Scenario s = job(framework);
    s.cluster.gpu = hwmodels::load_gpu("v100-32gb-sxm2");
    const model::KernelSpec product{.kind = model::KernelKind::gemm, .dtype = DType::fp16, .output_dtype = DType::fp16, .batch = 1, .m = 8192, .n = n, .k = 8192};
    return 2e-12 * 8192 * static_cast<double>(n) * 8192 / to_seconds(hwmodels::KernelModel(gpu_of(s)).cost(product).duration);
  };
  EXPECT_LT(tflops("deepspeed-2020", 8188), 15.7);
  EXPECT_GT(tflops("deepspeed-2020", 8188), 10);
  EXPECT_NEAR(tflops("deepspeed", 8188) / tflops("deepspeed", 8192), 0.35, 0.03);
  EXPECT_EQ(tflops("deepspeed-2020", 8192), tflops("deepspeed", 8192));
}

}  // namespace
}  // namespace rehearse::scenario::framework_kernels_test
