// Updated parameters that come back under the next forward pass: no layer computes with them before they are there.
#include <gtest/gtest.h>

#include <map>

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

}  // namespace
}  // namespace rehearse::scenario::parameter_gather_test
