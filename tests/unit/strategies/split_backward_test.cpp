// Backward in two: input gradients now, weight gradients later. The halves are the whole, and between them lives what the
// weight gradients will read.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "strategies/layer/tape_emitter.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/plan_writer.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::split_backward_test {
namespace {

struct Emitted {
  plan::PlanBuilder builder;
  Strategy strategy;
  FrameworkProfile profile;
  model::ModelDescription model;
  Tape tape;

  Emitted(const std::string& framework, int tensor, bool sequence_parallel, Recompute recompute, bool gated = true) : profile(load_profile(framework)) {
    strategy.training.sequence_length = strategy.training.global_batch_size = 128;
    strategy.training.global_batch_size = 1;
    strategy.parallelism.degrees.tensor = tensor;
    strategy.parallelism.sequence_parallel = sequence_parallel;
    strategy.memory.recompute = recompute;
    model = gated ? llama_like(1, 256, 8, 4, 512, 1000) : gpt_like(1, 256, 8, 1024, 1000, 128, 0.1);
    tape = layer_tape(context(), model.layers.front());
  }
  LowerContext context() { return make_context(model, strategy, profile, builder); }
  TapeBlocks emit(SplitBackward split, WeightGradient gradient) {
    EmitOptions options;
    options.checkpoint = strategy.memory.recompute == Recompute::full;
    options.split = split;
    options.gradient = gradient;
    return strategies::emit(tape, options, profile, builder);
  }
};

/// How often each kernel, collective and picosecond of the host comes.
std::map<std::pair<plan::Opcode, std::uint32_t>, int> work_of(const plan::Block& b, std::int64_t& host) {
  std::map<std::pair<plan::Opcode, std::uint32_t>, int> out;
  for (const plan::Instruction& i : b.timing) {
    host += i.value;
    if (i.op == plan::Opcode::kernel || i.op == plan::Opcode::collective) ++out[{i.op, i.index}];
  }
  return out;
}

TEST(SplitBackward, TheHalvesDoWhatTheWholeDoes) {
  int cases = 0;
  for (const std::string& framework : profile_names())
    for (const auto& [tensor, sequence_parallel] : {std::pair{1, false}, {2, false}, {2, true}})
      for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        for (SplitBackward split : {SplitBackward::stored_operands, SplitBackward::retained_graph})
          for (WeightGradient gradient : {WeightGradient::fused_main, WeightGradient::added_main, WeightGradient::first, WeightGradient::accumulate})
            for (bool gated : {false, true}) {
              Emitted e(framework, tensor, sequence_parallel, recompute, gated);
              const TapeBlocks whole = e.emit(SplitBackward::none, gradient), halves = e.emit(split, gradient);
              std::int64_t host = 0, host_of_halves = 0;
              auto expected = work_of(e.builder.block(whole.backward), host), sum = work_of(e.builder.block(halves.backward), host_of_halves);
              for (const auto& [work, n] : work_of(e.builder.block(halves.weights), host_of_halves)) sum[work] += n;
              EXPECT_EQ(sum, expected) << framework << " tensor " << tensor << (sequence_parallel ? " sp" : "");
              EXPECT_EQ(host_of_halves, host) << framework;
              // Forward is the same instructions in the same slots, so a micro-batch may take either way back.
              const auto &f = e.builder.block(whole.forward).memory, &g = e.builder.block(halves.forward).memory;
              ASSERT_EQ(f.size(), g.size());
              for (std::size_t i = 0; i < f.size(); ++i) EXPECT_TRUE(f[i].op == g[i].op && f[i].frame == g[i].frame && f[i].index == g[i].index && f[i].value == g[i].value);
              ++cases;
            }
  EXPECT_GT(cases, 1000);
}

TEST(SplitBackward, WeightGradientProductsAreAllInTheSecondHalf) {
  for (const char* framework : {"megatron-core", "plain"}) {
    Emitted e(framework, 2, true, Recompute::none);
    const TapeBlocks halves = e.emit(SplitBackward::stored_operands, WeightGradient::first);
    auto products = [&](std::uint32_t block) {
      int n = 0;
      for (const plan::Instruction& i : e.builder.block(block).timing)
        n += i.op == plan::Opcode::kernel && e.builder.plan().kernels[i.index].role == model::GemmRole::weight_gradient && e.builder.plan().kernels[i.index].kind == model::KernelKind::gemm;
      return n;
    };
    EXPECT_EQ(products(halves.backward), 0);
    EXPECT_GE(products(halves.weights), 4);
  }
}

/// Bytes that live in the frames of one layer and its neighbours.
class LiveBytesOf {
 public:
  explicit LiveBytesOf(Emitted& e) : e_(e) {}
  void put(plan::Frame frame, std::uint32_t slot, std::int64_t bytes) { live_[{frame, slot}] = bytes; }
  void take(plan::Frame frame, std::uint32_t slot) { live_.erase({frame, slot}); }
  void run(std::uint32_t block) {
    using plan::Opcode;
    for (const plan::Instruction& i : e_.builder.plan().blocks[block].memory) {
      if (i.op == Opcode::alloc && i.value > 0) {
        EXPECT_FALSE(live_.contains({i.frame, i.index})) << "allocated twice";
        live_[{i.frame, i.index}] = i.value;
      } else if (i.op == Opcode::free) {
        live_.erase({i.frame, i.index});
      } else if (i.op == Opcode::move) {
        const std::pair from{i.frame, static_cast<std::uint32_t>(i.value)};
        if (!live_.contains(from)) continue;
        const std::int64_t bytes = live_.at(from);
        live_.erase(from);
        live_[{plan::Frame::own, i.index}] = bytes;
      }
    }
  }
  std::int64_t total() const {
    std::int64_t n = 0;
    for (const auto& [slot, bytes] : live_) n += slot.first == plan::Frame::unit ? 0 : bytes;
    return n;
  }
  bool has(plan::Frame frame, std::uint32_t slot) const { return live_.contains({frame, slot}); }

 private:
  Emitted& e_;
  std::map<std::pair<plan::Frame, std::uint32_t>, std::int64_t> live_;
};

// Between the halves a weight-gradient store keeps the operands of the products (h hidden, q and k widths of queries and
// keys, f MLP width; bf16):
//   inputs    normalised hidden h (queries, keys, values), attention output q, normalised hidden h (gate, up), product f
//   gradients queries q, keys k, values k, attention residual h, gate f, up f, layer output h (it came from above)
// and the input gradient h that is handed down. A retained graph keeps, besides, all that forward saved.
TEST(SplitBackward, BetweenTheHalvesLiveTheOperandsOfTheWeightGradients) {
  const std::int64_t tokens = 128, h = 256, q = 256, k = 128, f = 512;
  for (SplitBackward split : {SplitBackward::stored_operands, SplitBackward::retained_graph}) {
    Emitted e("plain", 1, false, Recompute::none);
    const TapeBlocks halves = e.emit(split, WeightGradient::first);
    LiveBytesOf bytes(e);
    bytes.put(plan::Frame::below, kOutputSlot, tokens * h * 2);
    bytes.run(halves.forward);
    bytes.take(plan::Frame::own, kOutputSlot);                       // the layer above has freed it
    const std::int64_t saved = bytes.total();
    bytes.put(plan::Frame::above, kInputGradientSlot, tokens * h * 2);
    bytes.run(halves.backward);
    const std::int64_t inputs = h + q + h + f, gradients = q + k + k + h + f + f + h, handed_down = h, of_norms = 2 * h;
    const std::int64_t expected = split == SplitBackward::stored_operands ? tokens * 2 * (inputs + gradients + handed_down) : saved + tokens * 2 * (gradients + of_norms + handed_down);
    EXPECT_EQ(bytes.total(), expected);
    bytes.run(halves.weights);
    EXPECT_EQ(bytes.total(), tokens * h * 2);
    EXPECT_TRUE(bytes.has(plan::Frame::own, kInputGradientSlot));
  }
}

}  // namespace
}  // namespace rehearse::strategies::split_backward_test
