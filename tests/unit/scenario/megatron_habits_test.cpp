// Habits of Megatron's profile that no key of a scenario names: collections of garbage, workspaces, buffers, the host's part of the update.
#include <gtest/gtest.h>

#include "hwmodels/topology/cluster.h"
#include "sim/model/presets.h"
#include "sim/model/shapes.h"
#include "sim/scenario/simulate.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::megatron_habits_test {
namespace {

Scenario megatron_job(const std::string& gpu, const std::string& node) {
  Scenario s;
  s.model = small_llama(2);
  s.strategy = small_job(1);
  s.profile = strategies::load_profile("megatron-core");
  s.cluster = hwmodels::load_cluster(node, 1, "rail-fat-tree", gpu);
  s.cluster.gpus_per_node = 1;
  return s;
}

std::int64_t peak(const Scenario& s) { return simulate(s, {}).classes.front().memory.peak_allocated.value; }

// A small job waits for its host: a collection of 200 ms every fifth step is 40 ms of each, one every hundredth 2 ms.
TEST(GarbageCollection, HoldsTheHostOnceInSoManySteps) {
  const auto step = [](std::int64_t interval) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.profile.collection_host = seconds(0.2);
    s.strategy.training.collection_interval = interval;
    return simulate(s, {}).step_time;
  };
  EXPECT_NEAR(step(5) - step(0), 0.040, 1e-6);
  EXPECT_NEAR(step(100) - step(0), 0.002, 1e-6);
}

// A small job waits for its host: twice as long per parameter takes twice. What comes before the norm takes as long, but for what it hides under the
// last of the device's work (within 4 %).
TEST(DistributedOptimizer, HoldsTheHostForEachParameterOfItsShare) {
  const auto step = [](int norm, int update) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.profile.norm_host = microseconds(norm);
    s.profile.update_host = microseconds(update);
    return simulate(s, {}).step_time;
  };
  const double once = step(0, 10) - step(0, 0);
  EXPECT_GT(once, 2 * 4 * 10e-6);   // two layers of at least four weights
  EXPECT_NEAR(step(0, 20) - step(0, 0), 2 * once, 1e-9);
  EXPECT_NEAR(step(10, 10) - step(0, 0), 2 * once, 0.04 * once);
}

// Two PyTorch handles (main thread, autograd thread) of 32 instead of 8320 KiB; Transformer Engine 4 MiB either way.
TEST(Workspaces, OneForEachThreadsHandle) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  s.profile.states_at_first_step = false;   // no blocks of odd sizes where activations were
  const std::int64_t usual = peak(s);
  s.profile.cublas_workspace = 32_MiB;   // CUBLAS_WORKSPACE_CONFIG=:4096:8
  s.profile.fused_gradient_accumulation = s.profile.dummy_weight_gradients = true;
  EXPECT_EQ(peak(s) - usual, 2 * (32_MiB - 8320_KiB).value);
}

// The compiled loss writes exponentials beside the fp32 logits: tokens x vocabulary x 4 bytes more at the peak.
TEST(CompiledVocabularyParallelLoss, HoldsOneMoreCopyOfTheLogits) {
  Scenario s = megatron_job("h100-sxm", "dgx-h100");
  s.model.vocab = 64 * 1024;
  s.profile.loss = strategies::LossKind::vocab_parallel;
  const std::int64_t in_place = peak(s);
  s.profile.loss = strategies::LossKind::vocab_parallel_compiled;
  EXPECT_NEAR(static_cast<double>(peak(s) - in_place), 256 * 64 * 1024 * 4, 2 * 256 * 4);  // and a row of statistics
}

// Scores of one layer stay: 1 sample x 8 heads x 256 x 256 x 2 bytes. Only Megatron's own attention writes into the buffer.
TEST(MemoryBuffer, HoldsTheScoresOfOneLayer) {
  Scenario s = megatron_job("a100-80gb-sxm", "dgx-a100");
  s.model.attention_dropout = 0.1;
  s.strategy.training.attention = "unfused";
  s.profile.transformer_engine = false;
  s.profile.states_at_first_step = false;
  ASSERT_TRUE(s.profile.memory_buffer);
  const std::int64_t with = peak(s);
  s.profile.memory_buffer = false;
  EXPECT_EQ(with - peak(s), 8 * 256 * 256 * 2);
  s.profile.transformer_engine = true;   // whose unfused attention makes its scores anew
  s.strategy.training.transformer_engine.reset();
  s.profile.memory_buffer = false;
  const std::int64_t without = peak(s);
  s.profile.memory_buffer = true;
  EXPECT_EQ(peak(s), without);
}

// Two handles of PyTorch, Transformer Engine's, and four more where experts are grouped; beside Megatron's own layers the router's product has one.
TEST(Workspaces, GroupedExpertsHaveOneForEachStream) {
  strategies::FrameworkProfile p = strategies::load_profile("megatron-core");
  auto sizes = [&](bool experts) { return strategies::with_workspaces(p, 8_MiB, 32_MiB, experts).workspaces; };
  EXPECT_EQ(sizes(false), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB, 32_MiB, 32_MiB, 32_MiB, 32_MiB}));
  p.grouped_experts = false;
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  p.transformer_engine = false;
  EXPECT_EQ(sizes(true), (std::vector<Bytes>{8_MiB, 8_MiB, 32_MiB}));
  EXPECT_EQ(sizes(false), (std::vector<Bytes>{8_MiB, 8_MiB}));
}

// On Blackwell cuDNN cannot add up in a fixed order with dropout. FlashAttention's output is copied for the next product, and
// both are kept: 2 layers x 256 tokens x 512 x 2 bytes.
TEST(DeterministicAttention, IsFlashAttentionOnBlackwell) {
  auto kept = [](const char* node, const char* gpu, bool deterministic, double dropout) {
    Scenario s = megatron_job(gpu, node);
    s.model.vocab = 64 * 1024;   // the loss is the peak
    s.model.attention_dropout = dropout;
    s.profile.deterministic_attention = deterministic;
    s.profile.states_at_first_step = false;
    return peak(s);
  };
  EXPECT_EQ(kept("dgx-b200", "b200-sxm", true, 0.1) - kept("dgx-b200", "b200-sxm", false, 0.1), 2 * 256 * 512 * 2);
  EXPECT_EQ(kept("dgx-h100", "h100-sxm", true, 0.1), kept("dgx-h100", "h100-sxm", false, 0.1));
  EXPECT_EQ(kept("dgx-b200", "b200-sxm", true, 0), kept("dgx-b200", "b200-sxm", false, 0));
}

// Three tensors of a SwiGLU's width are kept beside the product's operand where no kernel makes it: silu, the linear half with an offset, the product before
// the router's weights; a squared relu by the kernel of its weights keeps one less.
TEST(ExpertActivations, KeepWhatTheirKernelsDoNotHold) {
  const auto kept = [](bool gated, const strategies::FrameworkProfile& profile) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.model = model::load_preset(gated ? "olmoe-1b-7b" : "nemotron-3-nano-30b-a3b");
    s.model = model::with_layers(s.model, 2);
    s.strategy.training.sequence_length = 4096;
    s.profile = profile;
    return peak(s);
  };
  strategies::FrameworkProfile fused = strategies::load_profile("megatron-core"), native = fused, weighted = fused;
  native.gated_activation = strategies::Fusion::native;
  weighted.weighted_squared_relu = true;
  const std::int64_t slots = 4096 * 8, width = 1024;
  EXPECT_NEAR(static_cast<double>(kept(true, native) - kept(true, fused)), static_cast<double>(2 * 3 * slots * width * 2), 0.02 * static_cast<double>(2 * 3 * slots * width * 2));
  EXPECT_LT(kept(false, weighted), kept(false, fused));
  strategies::FrameworkProfile bridge = strategies::load_profile("megatron-bridge"), all = bridge;
  all.native_activation_of.clear();
  EXPECT_GT(kept(true, bridge), kept(true, all));
}

// A checkpoint around fused attention keeps queries, keys and, for the values' view, the whole projection; without it attention keeps a copy of the values and
// its softmax's statistics (4 bytes per token and head).
TEST(FusedAttention, InACheckpointOfItsOwnKeepsTheProjection) {
  const auto kept = [](bool recomputed) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.model.vocab = 64 * 1024;   // the loss is the peak
    s.profile.states_at_first_step = false;
    if (recomputed) s.strategy.memory.recompute = strategies::Recompute::selective, s.strategy.memory.recompute_modules = {"core_attn"};
    return peak(s);
  };
  const model::ModelDescription m = small_llama(2);
  const std::int64_t tokens = small_job(1).training.sequence_length, queries_and_keys = tokens * (m.heads + m.kv_heads) * m.head_dim * 2;
  EXPECT_EQ(kept(true) - kept(false), 2 * (queries_and_keys - tokens * m.heads * 4));
}

// Layers whose saved tensors go to the host leave there what Transformer Engine does not know of: halves of a projection, which are not contiguous, and before
// 2.10 what operators keep (silu and the linear half).
TEST(LayersOnTheHost, LeaveWhatTransformerEngineDoesNotKnow) {
  const auto kept = [](strategies::Fusion activation, bool marked) {
    Scenario s = megatron_job("h100-sxm", "dgx-h100");
    s.model = small_llama(8);
    s.strategy.training.sequence_length = 4096;
    s.profile.gated_activation = activation;
    s.profile.offloads_marked = marked;
    s.strategy.memory.offload.activations = strategies::MemoryTier::cpu;
    return peak(s);
  };
  const std::int64_t width = 4096 * small_llama(8).ffn_hidden * 2;
  EXPECT_EQ(kept(strategies::Fusion::fused, true), kept(strategies::Fusion::fused, false));
  EXPECT_GE(kept(strategies::Fusion::native, false) - kept(strategies::Fusion::fused, false), 6 * 2 * width);
  EXPECT_GE(kept(strategies::Fusion::native, true) - kept(strategies::Fusion::native, false), 6 * 2 * width);
}

}  // namespace
}  // namespace rehearse::scenario::megatron_habits_test
