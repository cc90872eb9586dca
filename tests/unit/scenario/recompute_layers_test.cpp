// Megatron's block recomputation: the first layers of each chunk are made again, the others keep what they need. Its uniform method: so many layers
// under one checkpoint.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/executor/memory.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::recompute_layers_test {
namespace {

namespace st = strategies;

/// Matrix products of each layer's backward passes, over all rank classes.
std::map<int, int> products(st::Recompute recompute, int recompute_layers, int pipeline, int chunks) {
  st::Strategy s = small_job(1, pipeline, 8);
  if (chunks > 1) s.pipeline.schedule = "interleaved-1f1b", s.pipeline.virtual_stages = chunks;
  s.memory.recompute = recompute;
  s.memory.recompute_layers = recompute_layers;
  const plan::Plan plan = st::write_plan(small_llama(12), s, st::with_choices(st::load_profile("megatron-core"), s), pipeline);
  std::map<int, int> out;
  for (const plan::RankClass& c : plan.classes)
    for (const plan::Call& call : c.program.step)
      if (call.phase == plan::Phase::backward && call.layer >= 0)
        for (const plan::Instruction& i : plan.blocks[call.block].timing) out[call.layer] += i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm ? 1 : 0;
  return out;
}

/// Layers whose forward products come back in backward.
std::set<int> made_again(int recompute_layers, int pipeline, int chunks) {
  const std::map<int, int> usual = products(st::Recompute::none, 0, pipeline, chunks);
  std::set<int> out;
  for (const auto& [layer, count] : products(st::Recompute::full, recompute_layers, pipeline, chunks))
    if (count > usual.at(layer)) out.insert(layer);
  return out;
}

TEST(RecomputeLayers, AreTheFirstOfEachChunk) {
  EXPECT_EQ(made_again(0, 1, 1).size(), 12u);
  EXPECT_EQ(made_again(5, 1, 1), (std::set{0, 1, 2, 3, 4}));
  EXPECT_EQ(made_again(1, 2, 1), (std::set{0, 6}));
  EXPECT_EQ(made_again(2, 2, 3), (std::set{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(made_again(1, 2, 3), (std::set{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(made_again(100, 2, 1).size(), 12u);
}

plan::Plan spanned(st::Recompute recompute, int span, int pipeline, int chunks, std::int64_t layers = 12) {
  st::Strategy s = small_job(1, pipeline, 8);
  if (chunks > 1) s.pipeline.schedule = "interleaved-1f1b", s.pipeline.virtual_stages = chunks;
  s.memory.recompute = recompute;
  s.memory.recompute_span = span;
  return st::write_plan(small_llama(layers), s, st::with_choices(st::load_profile("megatron-core"), s), pipeline);
}

/// Layers of the first rank class in the order of their calls within the first micro-batch's backward, and whether each call is a forward.
std::vector<std::pair<int, bool>> calls_of_backward(const plan::Plan& plan) {
  std::set<std::uint32_t> forwards;
  std::vector<std::pair<int, bool>> out;
  for (const plan::Call& call : plan.classes.front().program.step)
    if (call.phase == plan::Phase::backward && call.layer >= 0 && call.micro_batch == 0 && !plan.blocks[call.block].timing.empty())
      out.emplace_back(call.layer, plan.blocks[call.block].name == "layer forward");
  return out;
}

// Five layers, two under a checkpoint: the last one has its own, which is part of its backward. Before a pair's backward both run again, in order.
TEST(RecomputeSpans, RunAllLayersAgainBeforeTheirBackward) {
  const std::vector<std::pair<int, bool>> expected{{4, false}, {2, true}, {3, true}, {3, false}, {2, false}, {0, true}, {1, true}, {1, false}, {0, false}};
  EXPECT_EQ(calls_of_backward(spanned(st::Recompute::full, 2, 1, 1, 5)), expected);
}

// As many products as with a checkpoint for each layer, however layers are grouped.
TEST(RecomputeSpans, MakeEachLayerAgainOnce) {
  const auto gemms = [](const plan::Plan& plan) {
    int count = 0;
    for (const plan::RankClass& c : plan.classes)
      for (const plan::Call& call : c.program.step)
        for (const plan::Instruction& i : plan.blocks[call.block].timing) count += i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm ? 1 : 0;
    return count;
  };
  for (const auto& [pipeline, chunks] : {std::pair{1, 1}, std::pair{2, 1}, std::pair{2, 3}})
    for (const int span : {2, 3, 5, 12, 100}) EXPECT_EQ(gemms(spanned(st::Recompute::full, span, pipeline, chunks)), gemms(spanned(st::Recompute::full, 1, pipeline, chunks))) << pipeline << " " << chunks << " " << span;
}

// With inputs of I and layers that save S beside them, one checkpoint for n of L layers keeps L / n inputs and, while it runs again, n layers: all
// under one keep as much as without recomputation but for the head's share, and a few under each less than either extreme. Nothing is left over.
TEST(RecomputeSpans, TradeInputsForWhatLayersSave) {
  const auto activations = [](st::Recompute recompute, int span) {   // highest in a pass, beyond what a step leaves
    const plan::Plan plan = spanned(recompute, span, 1, 1, 16);
    const executor::ClassMemory m = executor::run_memory(plan, 0, {.allocator = {.limit = 8_GiB}, .timeline = true});
    std::int64_t most = 0;
    for (const executor::MemorySample& s : m.timeline)
      if (const plan::Phase phase = plan.classes[0].program.step[s.call].phase; phase == plan::Phase::forward || phase == plan::Phase::backward) most = std::max(most, s.allocated);
    return most - m.end_allocated.value;
  };
  const std::int64_t whole = activations(st::Recompute::none, 1), each = activations(st::Recompute::full, 1), all = activations(st::Recompute::full, 16);
  const std::int64_t input = 256 * 512 * 2;
  EXPECT_LT(activations(st::Recompute::full, 2), each);
  EXPECT_LT(all, whole + input);
  EXPECT_GT(all, whole / 2);
  EXPECT_LT(activations(st::Recompute::full, 4), activations(st::Recompute::full, 8));
  EXPECT_LT(activations(st::Recompute::full, 8), all);
  for (const int span : {2, 3, 16}) {
    const executor::ClassMemory m = executor::run_memory(spanned(st::Recompute::full, span, 1, 1, 16), 0, {.allocator = {.limit = 8_GiB}, .steps = 3}), usual = executor::run_memory(spanned(st::Recompute::full, 1, 1, 1, 16), 0, {.allocator = {.limit = 8_GiB}, .steps = 3});
    EXPECT_EQ(m.end_allocated.value, usual.end_allocated.value) << span;
  }
}

}  // namespace
}  // namespace rehearse::scenario::recompute_layers_test
