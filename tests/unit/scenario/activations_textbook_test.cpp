// Activation bytes of one layer against Korthikanti et al. 2022 (arXiv 2205.05198), table 2: exactly.
//
// Their network: GPT with f = 4h, GELU, dropout on attention, both residual branches; 16-bit activations, 1-byte masks.
// They count tensors as large as the activations only: the statistics of a LayerNorm (8 bytes a row) are left out here too.
#include <gtest/gtest.h>

#include "strategies/layer/tape_emitter.h"
#include "strategies/layer/transformer_layer.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::activations_textbook_test {
namespace {

namespace st = strategies;

constexpr std::int64_t s = 512, b = 2, h = 256, a = 8;

model::ModelDescription korthikanti() {
  model::Shapes shapes{.name = "gpt", .layers = 1, .hidden = h, .heads = a, .vocab = 1024};
  shapes.gated = false;
  shapes.ffn_hidden = 4 * h;
  shapes.max_positions = s;
  model::ModelDescription m = model::make_from_shapes(shapes);
  m.dropout = m.attention_dropout = 0.1;
  return m;
}

/// What the forward pass of a layer leaves. Its input came from below and is not counted, its output is: the same size.
std::int64_t kept(int tensor, bool sequence_parallel, st::Recompute recompute) {
  const model::ModelDescription model = korthikanti();
  st::Strategy strategy = small_job(1);
  strategy.training.sequence_length = s;
  strategy.training.global_batch_size = strategy.training.micro_batch_size = b;
  strategy.training.precision = st::Precision::fp16;
  strategy.parallelism.degrees.tensor = tensor;
  strategy.parallelism.sequence_parallel = sequence_parallel;
  strategy.memory.recompute = recompute;
  const st::FrameworkProfile profile = st::load_profile("megatron-2021");
  plan::PlanBuilder builder;
  const st::LowerContext context = st::make_context(model, strategy, profile, builder);
  const st::Tape tape = st::layer_tape(context, model.layers[0]);
  st::EmitOptions options;
  options.checkpoint = recompute == st::Recompute::full;
  const plan::Block& forward = builder.block(st::emit(tape, options, profile, builder).forward);
  std::int64_t live = 0;
  std::map<std::uint32_t, std::int64_t> bytes;
  for (const plan::Instruction& i : forward.memory) {
    EXPECT_EQ(i.frame, plan::Frame::own) << "the layer's input is kept";
    const bool statistics = forward.slot_names[i.index].find("statistics") != std::string::npos;
    if (i.op == plan::Opcode::alloc && !statistics) live += bytes[i.index] = i.value;
    if (i.op == plan::Opcode::free) live -= std::exchange(bytes[i.index], 0);
  }
  return live;
}

// sbh(34 + 5as/h): attention 11 + 5as/h, MLP 19, two LayerNorms 4.
TEST(ActivationsTextbook, OneGpu) { EXPECT_EQ(kept(1, false, st::Recompute::none), s * b * h * 34 + 5 * a * s * s * b); }

// Tensor parallelism: sbh(10 + 24/t + 5as/(ht)): inputs and masks of both LayerNorms and dropouts stay whole.
TEST(ActivationsTextbook, TensorParallel) {
  for (int t : {2, 4, 8}) EXPECT_EQ(kept(t, false, st::Recompute::none), s * b * h * 10 + s * b * h * 24 / t + 5 * a * s * s * b / t) << t;
}

// With sequence parallelism everything is divided: sbh/t (34 + 5as/h).
TEST(ActivationsTextbook, SequenceParallel) {
  for (int t : {2, 4, 8}) EXPECT_EQ(kept(t, true, st::Recompute::none), (s * b * h * 34 + 5 * a * s * s * b) / t) << t;
}

// Selective recomputation drops the three as^2 tensors: 34 sbh/t.
TEST(ActivationsTextbook, SelectiveRecomputation) {
  for (int t : {1, 2, 4, 8}) EXPECT_EQ(kept(t, t > 1, st::Recompute::selective), s * b * h * 34 / t) << t;
}

// Full recomputation keeps the layer's input: 2 sbh.
TEST(ActivationsTextbook, FullRecomputation) {
  for (int t : {1, 2, 4, 8}) EXPECT_EQ(kept(t, false, st::Recompute::full), 2 * s * b * h) << t;
}

}  // namespace
}  // namespace rehearse::scenario::activations_textbook_test
