// Offload by modules, as Megatron's fine-grained activation offloading: which groups go, when they come back, what stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::module_offload_test {
namespace {

namespace st = strategies;
using test_support::ByteLedger;
using Direction = plan::CopySpec::Direction;

constexpr std::int64_t kTokens = 4096, kHidden = 512, kStream = kTokens * kHidden * 2;   // bytes of the residual stream

st::Strategy by_modules(std::vector<std::string> modules, int data = 1, int pipeline = 1, int micro_batches = 1) {
  st::Strategy s = small_job(data, pipeline, micro_batches);
  s.training.sequence_length = kTokens;
  s.memory.offload.modules = std::move(modules);
  return s;
}

std::int64_t copied(const plan::Plan& plan, Direction direction, std::size_t rank_class = 0) {
  std::int64_t bytes = 0;
  for (const plan::Call& call : plan.classes[rank_class].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::copy && plan.copies[i.index].direction == direction) bytes += plan.copies[i.index].bytes.value;
  return bytes;
}

/// Calls of layers and of their groups, in order: f0 (a part of layer 0's forward), off 0.1 (its second group leaves), get, use, now (fetched while compute waits).
std::vector<std::string> calls_of(const plan::Plan& plan, std::size_t rank_class = 0) {
  std::vector<std::string> out;
  for (const plan::Call& c : plan.classes[rank_class].program.step) {
    if (c.layer < 0 || (c.phase != plan::Phase::forward && c.phase != plan::Phase::backward)) continue;
    const std::string& name = plan.blocks[c.block].name;
    std::string word = std::string(c.phase == plan::Phase::forward ? "f" : "b") + std::to_string(c.layer);
    const auto group = name.find(" group ");
    if (group != std::string::npos) {
      const std::string what = name.substr(0, group), number = name.substr(group + 7, name.find(" of block") - group - 7);
      word = (what == "offload" ? "off " : what == "fetch" ? "get " : what == "use" ? "use " : what == "fetch at once" ? "now " : what + " ") + std::to_string(c.layer) + "." + number;
    }
    if (group != std::string::npos || out.empty() || out.back() != word) out.push_back(word);
  }
  return out;
}

// The last layer's groups are needed next, and stay; the others come back one group behind the groups above them.
TEST(ModuleOffload, GroupsComeBackALayerAhead) {
  const plan::Plan plan = st::write_plan(small_llama(3), by_modules({"core_attn", "attn_proj"}), st::load_profile("megatron-core"), 8);
  EXPECT_EQ(calls_of(plan), (std::vector<std::string>{"f0", "off 0.0", "f0", "off 0.1", "f0", "f1", "off 1.0", "f1", "off 1.1", "f1", "f2",
                                                      "b2", "get 1.1", "b2", "get 1.0", "b2", "b1", "use 1.1", "b1", "get 0.1", "use 1.0", "b1", "get 0.0", "b1",
                                                      "b0", "use 0.1", "b0", "use 0.0", "b0"}));
}

TEST(ModuleOffload, BytesThatLeaveComeBack) {
  const model::ModelDescription model = small_llama(4);
  const st::FrameworkProfile profile = st::load_profile("megatron-core");
  const plan::Plan here = st::write_plan(model, by_modules({}), profile, 8);
  const auto before = ByteLedger(here, 0).step();
  // Of each of three layers: queries, keys, values and what attention gives; the output product keeps a copy of that, in another order.
  const struct {
    std::vector<std::string> modules;
    std::int64_t tensors;   // per layer, of the stream's size
  } cases[] = {{{"core_attn"}, 4}, {{"core_attn", "attn_proj"}, 5}};
  for (const auto& c : cases) {
    const plan::Plan away = st::write_plan(model, by_modules(c.modules), profile, 8);
    const auto after = ByteLedger(away, 0).step();
    EXPECT_TRUE(after.mistakes.empty()) << after.mistakes.front();
    EXPECT_EQ(before.after_forward - after.after_forward, 3 * c.tensors * kStream);
    EXPECT_EQ(copied(away, Direction::device_to_host), 3 * c.tensors * kStream);
    EXPECT_EQ(copied(away, Direction::host_to_device), 3 * c.tensors * kStream);
    EXPECT_EQ(away.classes[0].host.pinned, 3 * c.tensors * kStream);
    EXPECT_EQ(before.after_step, after.after_step);
  }
}

// A norm's input leaves when the residual has been added: with everything chosen, each layer but the last keeps statistics and small tensors alone.
TEST(ModuleOffload, ALayersInputLeavesAfterItsResidual) {
  const model::ModelDescription model = small_llama(4);
  const st::FrameworkProfile profile = st::load_profile("megatron-core");
  const auto kept = [&](std::vector<std::string> modules) {
    const auto bytes = ByteLedger(st::write_plan(model, by_modules(std::move(modules)), profile, 8), 0).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    return bytes.after_forward;
  };
  // Queries and their norm are one product there, so attn_norm has nothing of its own; qkv_linear keeps the layer's input and the norm's output.
  EXPECT_EQ(kept({"attn_norm"}), kept({}));
  EXPECT_EQ(kept({}) - kept({"qkv_linear"}), 3 * 2 * kStream);
}

TEST(ModuleOffload, SmallTensorsStay) {
  st::Strategy s = by_modules({"core_attn"});
  s.memory.offload.least_elements = kTokens * kHidden + 1;
  EXPECT_EQ(copied(st::write_plan(small_llama(4), s, st::load_profile("megatron-core"), 8), Direction::device_to_host), 0);
  s.memory.offload.least_elements = kTokens * kHidden;
  EXPECT_GT(copied(st::write_plan(small_llama(4), s, st::load_profile("megatron-core"), 8), Direction::device_to_host), 0);
}

TEST(ModuleOffload, ComputeWaitsForCopiesBeyondSoMany) {
  const auto waits = [](std::optional<int> most) {
    st::Strategy s = by_modules({"core_attn"});
    s.memory.offload.in_flight = most;
    const std::vector<std::string> calls = calls_of(st::write_plan(small_llama(5), s, st::load_profile("megatron-core"), 8));
    return std::count_if(calls.begin(), calls.end(), [](const std::string& c) { return c.starts_with("wait for offload"); });
  };
  EXPECT_EQ(waits(std::nullopt), 0);
  EXPECT_EQ(waits(0), 4);
  EXPECT_EQ(waits(1), 3);
  EXPECT_EQ(waits(9), 0);
}

// On earlier stages a micro-batch's last layer leaves too, but for the micro-batch that is first to come back.
TEST(ModuleOffload, StagesOfAPipeline) {
  const plan::Plan plan = st::write_plan(small_llama(4), by_modules({"core_attn"}, 1, 2, 4), st::load_profile("megatron-core"), 8);
  const auto left = [&](std::size_t rank_class) {
    const std::vector<std::string> calls = calls_of(plan, rank_class);
    return std::count_if(calls.begin(), calls.end(), [](const std::string& c) { return c.starts_with("off "); });
  };
  EXPECT_EQ(left(0), 4 * 2 - 1);
  EXPECT_EQ(left(1), 4 * 1);
  for (const std::size_t rank_class : {0u, 1u}) {
    const auto bytes = ByteLedger(plan, rank_class).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    EXPECT_EQ(copied(plan, Direction::device_to_host, rank_class), copied(plan, Direction::host_to_device, rank_class));
  }
}

TEST(ModuleOffload, RefusesWhatMegatronRefuses) {
  const model::ModelDescription model = small_llama(4);
  const auto first = [&](const st::Strategy& s, const char* profile) {
    const auto problems = st::problems_of(model, s, st::load_profile(profile), 8);
    return problems.empty() ? std::string() : problems.front().key + ": " + problems.front().problem;
  };
  EXPECT_EQ(first(by_modules({"core_attn"}), "megatron-core"), "");
  EXPECT_EQ(first(by_modules({"attn_proj"}), "megatron-core"), "memory.offload.modules: attn_proj's input is what core_attn keeps");
  EXPECT_EQ(first(by_modules({"fc9"}), "megatron-core"), "memory.offload.modules: 'fc9' is no module whose saved tensors are offloaded");
  EXPECT_NE(first(by_modules({"core_attn"}), "huggingface"), "");
  EXPECT_NE(first(by_modules({"fused_group_mlp"}), "megatron-core"), "");
  st::Strategy again = by_modules({"core_attn"});
  again.memory.recompute = st::Recompute::full;
  EXPECT_NE(first(again, "megatron-core"), "");
}

}  // namespace
}  // namespace rehearse::scenario::module_offload_test
