// What outlives backward because something outside of autograd keeps it, and FSDP1's unit that holds the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/model/shapes.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::kept_recomputation_test {
namespace {

namespace st = strategies;
using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kTokens = 256, kHidden = 512, kExperts = 16;

model::ModelDescription small_mixture(std::int64_t layers) {
  model::Shapes s{.name = "mixture", .layers = layers, .hidden = kHidden, .heads = 8, .vocab = 4096};
  s.kv_heads = 2;
  s.experts = kExperts;
  s.top_k = 2;
  s.ffn_hidden = 1024;
  return model::make_from_shapes(s);
}

st::Strategy expert_job(int micro_batches) {
  st::Strategy s = small_job(8, 1, micro_batches);
  s.parallelism.degrees.expert = 8;
  s.data_parallel.kind = st::DataParallelKind::fsdp2;
  s.experts.dispatcher = st::Dispatcher::deepep;
  s.memory.recompute = st::Recompute::full;
  return s;
}

StepBytes bytes_of(const model::ModelDescription& model, const st::Strategy& s, const st::FrameworkProfile& profile) {
  const StepBytes bytes = ByteLedger(st::write_plan(model, s, profile, 8), 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.after_step, bytes.persistent);
  return bytes;
}

// A recomputation's own graph never runs, so what it saved stays as long as the router's weights do. Of a token and layer, in 16 bits and
// in hidden sizes: the layer's input, its norm, rotated queries (a compiled rotation saves nothing), keys and values once they are expanded to
// all heads, attention's output and its contiguous copy, the second norm's input and output: nine. Beside it 4 bytes per head (log-sum-exp),
// per norm (reciprocal) and expert (scores), one per expert (map).
TEST(KeptRecomputation, HoldsWhatMadeTheRoutersWeights) {
  st::FrameworkProfile profile = st::load_profile("torchtitan-2025-compile");
  for (const int micro_batches : {1, 3}) {
    SCOPED_TRACE(micro_batches);
    const auto kept = [&](std::int64_t layers) {
      profile.dispatcher_keeps_weights = true;
      const std::int64_t with = bytes_of(small_mixture(layers), expert_job(micro_batches), profile).persistent;
      profile.dispatcher_keeps_weights = false;
      return with - bytes_of(small_mixture(layers), expert_job(micro_batches), profile).persistent;
    };
    EXPECT_EQ(kept(2), kept(1) * 2);
    EXPECT_EQ(kept(1), kTokens * (9 * kHidden * 2 + 8 * 4 + 2 * 4 + kExperts * 5));
  }
}

// The layers' weights of before go one by one while forward runs, so its peak hardly moves; backward's end is where they are all there.
TEST(KeptRecomputation, GoesWhenTheLayerRunsAgain) {
  st::FrameworkProfile profile = st::load_profile("torchtitan-2025-compile");
  const auto peak = [&](bool keeps, st::Recompute recompute) {
    profile.dispatcher_keeps_weights = keeps;
    st::Strategy s = expert_job(1);
    s.memory.recompute = recompute;
    const StepBytes bytes = bytes_of(small_mixture(8), s, profile);
    return std::pair{bytes.persistent + bytes.after_forward, bytes.persistent};
  };
  EXPECT_EQ(peak(true, st::Recompute::full).first, peak(false, st::Recompute::full).first);
  EXPECT_GT(peak(true, st::Recompute::full).second, peak(false, st::Recompute::full).second);
  // Without a checkpoint backward runs through the graph that is kept, and releases it.
  EXPECT_EQ(peak(true, st::Recompute::none), peak(false, st::Recompute::none));
}

// In every schedule each micro-batch's frames are given back; where backward is split nothing is kept.
TEST(KeptRecomputation, WorksUnderPipelines) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    st::Strategy s = expert_job(4);
    s.parallelism.degrees.pipeline = 2;
    s.pipeline.schedule = schedule;
    s.pipeline.virtual_stages = std::string(schedule) == "interleaved-1f1b" || std::string(schedule) == "zb-v" ? 2 : 1;
    const plan::Plan plan = st::write_plan(small_mixture(8), s, st::load_profile("torchtitan"), 8);
    for (std::size_t c = 0; c < plan.classes.size(); ++c) EXPECT_TRUE(ByteLedger(plan, c).step().mistakes.empty());
  }
}

// FSDP's root holds embedding, final norm and output layer: one gather of each per micro-batch, there to the end of backward.
TEST(RootUnit, StaysFromBeginningToEnd) {
  const model::ModelDescription model = small_llama(6);
  for (const st::DataParallelKind kind : {st::DataParallelKind::fsdp1, st::DataParallelKind::fsdp2}) {
    SCOPED_TRACE(static_cast<int>(kind));
    st::Strategy s = small_job(8, 1, 2);
    s.data_parallel.kind = kind;
    st::FrameworkProfile profile = st::load_profile("plain");
    const auto gathered = [&] {
      const plan::Plan plan = st::write_plan(model, s, profile, 8);
      std::int64_t bytes = 0;
      for (const plan::Call& call : plan.classes[0].program.step)
        if (call.phase == plan::Phase::parameter_gather)
          for (const plan::Instruction& i : plan.blocks[call.block].timing)
            if (i.op == plan::Opcode::collective) bytes += plan.collectives[i.index].bytes.value;
      return bytes;
    };
    constexpr std::int64_t kTable = 4096 * 512 * 2;
    const std::int64_t apart = gathered();
    const StepBytes before = bytes_of(model, s, profile);
    profile.root_unit = true;
    EXPECT_EQ(apart - gathered(), 2 * kTable);   // the embedding's table, once more for backward, twice
    const StepBytes after = bytes_of(model, s, profile);
    EXPECT_EQ(after.persistent, before.persistent);
    // After forward: the embedding's table too.
    EXPECT_EQ(after.after_forward - before.after_forward, kTable);
  }
}

// Wrapping: parameters of a unit, the flat copy of them and this rank's shard are there at once. The root's are the most here.
TEST(RootUnit, IsMadeLast) {
  const model::ModelDescription model = small_llama(6);
  st::Strategy s = small_job(8);
  s.data_parallel.kind = st::DataParallelKind::fsdp1;
  st::FrameworkProfile profile = st::load_profile("plain");
  profile.root_unit = true;
  const plan::Plan plan = st::write_plan(model, s, profile, 8);
  std::int64_t live = 0, peak = 0;
  std::map<std::uint32_t, std::int64_t> slots;
  for (const plan::Call& call : plan.classes[0].program.setup)
    for (const plan::Instruction& i : plan.blocks[call.block].memory) {
      const std::uint32_t slot = call.frames[static_cast<std::size_t>(i.frame)] + i.index;
      if (i.op == plan::Opcode::alloc) live += slots[slot] = i.value;
      if (i.op == plan::Opcode::free) live -= std::exchange(slots[slot], 0);
      if (plan.blocks[call.block].name.starts_with("make unit")) peak = std::max(peak, live);
    }
  const std::int64_t elements = st::parameters_per_stage(model, s, profile)[0], root = 2 * 4096 * 512 + 512;
  EXPECT_EQ(peak, 2 * elements / 8 + 2 * 2 * root);
}

// FSDP1 shards parameters, of 4-bit ones what is packed; scales are attributes beside them, whole on every GPU: S + P / 2 on two GPUs,
// S + P / 4 on four. Of a matrix of n: a byte per 64, and 4 per 256 of those.
TEST(RootUnit, QuantisationStatesAreNotSharded) {
  const auto held = [](int ranks) {
    st::Strategy s = small_job(ranks);
    s.data_parallel.kind = st::DataParallelKind::fsdp1;
    s.tuning.kind = st::TuningKind::qlora;
    const plan::Plan plan = st::write_plan(small_llama(3), s, st::load_profile("huggingface"), 8);
    return ByteLedger(plan, 0).step().setup[static_cast<std::size_t>(plan::Category::parameter)];
  };
  const auto states = [](std::int64_t n) { return n / 64 + n / 64 / 256 * 4; };
  EXPECT_NEAR(static_cast<double>(2 * held(4) - held(2)), static_cast<double>(3 * (4 * states(512 * 512) + 3 * states(512 * 1024))), 256.0);
}

// A gated activation's input has two times its width, a byte instead of two each; of experts, for each of a token's two.
TEST(NarrowedActivation, SavesItsInputInEightBits) {
  for (const auto& [description, slots] : {std::pair(small_llama(3), 1), {small_mixture(3), 2}})
    for (const st::Precision precision : {st::Precision::bf16, st::Precision::fp8}) {
      st::Strategy s = small_job(1);
      s.training.precision = precision;
      const auto kept = [&] { return bytes_of(description, s, st::with_choices(st::load_profile("megatron-core"), s)).after_forward; };
      const std::int64_t wide = kept();
      s.memory.fp8_activation_inputs = true;
      EXPECT_EQ(wide - kept(), 3 * kTokens * slots * 2 * 1024) << slots;
    }
}

TEST(NarrowedActivation, IsThatOfAFusedSwiGlu) {
  st::Strategy s = small_job(1);
  s.memory.fp8_activation_inputs = true;
  const auto refused = [&](const model::ModelDescription& m, const char* profile) {
    for (const Diagnostic& d : st::problems_of(m, s, st::load_profile(profile), 8))
      if (d.key == "memory.fp8_activation_inputs") return true;
    return false;
  };
  model::ModelDescription gelu = small_llama(3);
  gelu.activation = model::Activation::gelu;
  EXPECT_FALSE(refused(small_llama(3), "megatron-core"));
  EXPECT_TRUE(refused(gelu, "megatron-core"));
  EXPECT_TRUE(refused(small_llama(3), "huggingface"));
}

}  // namespace
}  // namespace rehearse::scenario::kept_recomputation_test
