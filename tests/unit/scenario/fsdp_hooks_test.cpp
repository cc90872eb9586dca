// FSDP hangs hooks on every unit: parameters are unsharded before its pass and resharded after it. They are host time, whatever the unit computes
// (calibrate/ground_truth/fsdp_host.py).
#include <gtest/gtest.h>

#include <map>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::fsdp_hooks_test {
namespace {

Scenario job(const std::string& kind, const std::string& more = "", int tokens = 256) {
  const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: " + std::to_string(tokens) + ", global_batch_size: 8, micro_batch_size: 1, framework: huggingface}\ndata_parallel: {kind: " + kind + "}\n" + more;
  return read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml");
}

/// How often a step has hooks that take so much host time.
std::map<std::int64_t, int> hooks_of(const Result& r) {
  std::map<std::int64_t, int> found;
  for (const plan::Call& c : r.plan.classes[0].program.step) {
    const plan::Block& b = r.plan.blocks[c.block];
    if (!b.name.starts_with("hooks of ")) continue;
    std::int64_t host = 0;
    for (const plan::Instruction& i : b.timing)
      if (i.op == plan::Opcode::host) host += i.value;
    ++found[host];
  }
  return found;
}

// 32 layers and the root, which holds embedding, norm and head; where the framework shards those by themselves, two units more than layers. Each has a
// forward and a backward.
TEST(FsdpHooks, TakeTheHostOncePerUnitAndPass) {
  for (const char* kind : {"fsdp1", "fsdp2"}) {
    for (const bool root : {true, false}) {
      Scenario s = job(kind);
      s.profile.root_unit = root;
      ASSERT_GT(s.profile.unit_host, Duration{});
      ASSERT_NE(s.profile.unit_host, s.profile.unit_backward_host);
      const std::map<std::int64_t, int> found = hooks_of(simulate(s));
      EXPECT_EQ(found.size(), 2U) << kind;
      const int units = found.at(s.profile.unit_host.count());
      EXPECT_EQ(units, root ? 33 : 34) << kind;
      EXPECT_EQ(found.at(s.profile.unit_backward_host.count()), units) << kind;
    }
  }
  EXPECT_TRUE(hooks_of(simulate(job("ddp"))).empty());
}

// Megatron-FSDP's units are the layers (calibrate/ground_truth/megatron_fsdp_host.py); on one GPU they have their hooks too.
TEST(FsdpHooks, OfMegatronAreAtEveryLayer) {
  for (const int gpus : {8, 1}) {
    const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100, gpus_per_node: " + std::to_string(gpus) + "}\ntraining: {sequence_length: 256, global_batch_size: 16, micro_batch_size: 1, framework: megatron-core}\ndata_parallel: {kind: megatron-fsdp}\n";
    const Scenario s = read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml");
    ASSERT_NE(s.profile.unit_host, s.profile.unit_backward_host);
    const std::map<std::int64_t, int> found = hooks_of(simulate(s));
    EXPECT_EQ(found.size(), 2U);
    const int passes = 32 * 16 / gpus;
    EXPECT_EQ(found.at(s.profile.unit_host.count()), passes);
    EXPECT_EQ(found.at(s.profile.unit_backward_host.count()), passes);
  }
}

// PEFT's policy makes each matrix of an adapter a unit: 1 + 2 x 7 in a layer with seven adapted matrices.
TEST(FsdpHooks, AreAtEveryMatrixOfAnAdapter) {
  const Scenario s = job("fsdp1", "tuning: {kind: lora, targets: [all-linear]}\n");
  ASSERT_TRUE(s.profile.wraps_adapters);
  const std::map<std::int64_t, int> found = hooks_of(simulate(s));
  EXPECT_EQ(found.at(15 * s.profile.unit_host.count()), 32);
  EXPECT_EQ(found.at(15 * s.profile.unit_backward_host.count()), 32);
}

TEST(FsdpHooks, SetTheFloorOfSmallStepsAndHideUnderLargeOnes) {
  const auto without = [](Scenario s) {
    s.profile.unit_host = s.profile.unit_backward_host = Duration{};
    return simulate(s).step_time;
  };
  const Scenario small = job("fsdp1", "", 128), large = job("fsdp1", "", 4096);
  EXPECT_GT(simulate(small).step_time, 1.05 * without(small));
  EXPECT_LT(simulate(large).step_time, 1.02 * without(large));
}

}  // namespace
}  // namespace rehearse::scenario::fsdp_hooks_test
