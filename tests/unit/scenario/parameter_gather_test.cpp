// Updated parameters that come back under the next forward pass: no layer computes with them before they are there.
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/event_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::parameter_gather_test {
namespace {

namespace st = strategies;

plan::Plan job() {
  st::Strategy s = small_job(4);
  s.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
  s.data_parallel.overlap_parameter_gather = true;
  return st::write_plan(small_llama(3), s, st::with_choices(st::load_profile("megatron-core"), s), 4);
}

TEST(ParameterGather, EveryLayerWaitsForItsOwn) {
  const plan::Plan plan = job();
  EXPECT_TRUE(test_support::waits_for_nothing(plan, 0).empty());
  std::map<std::uint32_t, int> gathered;   // event: layer whose gather recorded it
  std::map<int, bool> waited;              // by layer
  for (const plan::Call& call : plan.classes[0].program.step) {
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      const auto event = [&] { return call.frames[static_cast<std::size_t>(i.frame)] + i.index; };
      if (i.op == plan::Opcode::record && call.phase == plan::Phase::parameter_gather) gathered[event()] = call.layer;
      if (i.op == plan::Opcode::wait && call.phase == plan::Phase::forward && gathered.contains(event())) waited[gathered.at(event())] = call.layer == gathered.at(event());
      if (i.op == plan::Opcode::kernel && call.phase == plan::Phase::forward && call.layer >= 0) {
        EXPECT_TRUE(waited[call.layer]) << "layer " << call.layer;
      }
    }
  }
  EXPECT_EQ(waited.size(), 4u);  // three layers, and embedding and head together under no layer's number
}

// Of two chunks, the first is updated first, and gathered in one piece before the other's update; the next step gathers the other alone.
TEST(ParameterGather, TheFirstChunkComesUnderTheUpdateOfTheOthers) {
  const auto collectives = [](bool under_update) {
    st::Strategy s = small_job(4, 2, 4);
    s.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
    s.data_parallel.overlap_parameter_gather = true;
    s.data_parallel.gather_under_update = under_update;
    s.pipeline.schedule = "interleaved-1f1b";
    s.pipeline.virtual_stages = 2;
    const st::FrameworkProfile profile = st::with_choices(st::load_profile("megatron-core"), s);
    EXPECT_TRUE(st::problems_of(small_llama(4), s, profile, 8).empty());
    const plan::Plan plan = st::write_plan(small_llama(4), s, profile, 8);
    std::vector<std::pair<char, std::int64_t>> out;   // u: elements updated, g: bytes gathered
    for (const plan::Call& call : plan.classes[1].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == CollectiveKind::all_gather && call.phase == plan::Phase::parameter_gather) out.emplace_back('g', plan.collectives[i.index].bytes.value);
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::optimizer) out.emplace_back('u', plan.kernels[i.index].elements);
      }
    return out;
  };
  const auto usual = collectives(false), under = collectives(true);
  // The last stage: a layer, then a layer and the output layer with its norm.
  ASSERT_EQ(usual.size(), 4u);
  ASSERT_EQ(under.size(), 5u);
  const auto [first, second, head, all] = std::tuple{usual[0].second, usual[1].second, usual[2].second, usual[3].second};
  EXPECT_EQ(under, (std::vector<std::pair<char, std::int64_t>>{{'g', second}, {'g', head}, {'u', first / 2 / 4}, {'g', first}, {'u', all - first / 2 / 4}}));
  EXPECT_EQ(all, (first + second + head) / 2 / 4);
}

}  // namespace
}  // namespace rehearse::scenario::parameter_gather_test
