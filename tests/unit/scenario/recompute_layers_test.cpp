// Megatron's block recomputation: the first layers of each chunk are made again, the others keep what they need.
#include <gtest/gtest.h>

#include <map>
#include <set>

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

}  // namespace
}  // namespace rehearse::scenario::recompute_layers_test
