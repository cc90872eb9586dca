// ZeRO++: what crosses between nodes, what lies in memory, and that it runs with everything that ZeRO-3 runs with.
// Expected volumes: Wang et al. 2023 (arXiv 2306.10209), Table 1: of M bytes of 16-bit weights ZeRO-3 sends M in forward, M in
// backward and M for gradients; ZeRO++ sends 0.5 M, nothing and 0.25 M.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>

#include "sim/scenario/scenario.h"
#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/support/same_result.h"
#include "tests/support/source_dir.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::zeropp_test {
namespace {

namespace st = strategies;
using st::DataParallelKind;

constexpr int kRanks = 8, kNode = 4;
// small_llama(4): nine norms of 512, the only parameters that are no matrices.
constexpr std::int64_t kNorms = 9 * 512;

st::Strategy job(int micro_batches = 1) {
  st::Strategy s = small_job(kRanks, 1, micro_batches);
  s.training.precision = st::Precision::fp16;
  s.data_parallel.kind = DataParallelKind::zero3;
  s.data_parallel.prefetch_bucket = s.data_parallel.max_reuse_distance = 0;
  return s;
}
st::Strategy with_all(st::Strategy s) {
  s.data_parallel.quantized_weights = s.data_parallel.quantized_gradients = true;
  s.data_parallel.secondary_partition = kNode;
  return s;
}
st::FrameworkProfile profile() { return st::load_profile("plain"); }
plan::Plan plan_of(const st::Strategy& s) { return st::write_plan(small_llama(4), s, profile(), kNode); }
std::int64_t parameters() { return st::parameters_per_stage(small_llama(4), job(), profile())[0]; }

/// Bytes that leave one node (all its ranks together) in a step, by the collective's name. Gathered, a node sends its part to
/// each other node; reduced and exchanged, each rank of it sends the others' parts.
std::map<std::string, double> from_a_node(const plan::Plan& plan) {
  std::map<std::string, double> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::collective) continue;
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      const GroupShape& group = plan.classes[0].groups[static_cast<std::size_t>(c.axis)];
      if (group.nodes == 1) continue;
      const double bytes = static_cast<double>(c.bytes.value), others = group.nodes - 1, nodes = group.nodes;
      out[c.name] += (c.kind == CollectiveKind::all_to_all ? group.groups_per_node * group.ranks_per_node : 1) * bytes * others / nodes;
    }
  return out;
}

TEST(ZeroPlusPlus, AQuarterOfTheTrafficCrossesBetweenNodes) {
  const double whole = 2.0 * static_cast<double>(parameters() - kNorms) / 2;   // M, of which half is the other node's
  const auto plain = from_a_node(plan_of(job())), all = from_a_node(plan_of(with_all(job())));
  const double norms = 2.0 * kNorms / 2;
  EXPECT_EQ(plain.at("parameter gather"), 2 * whole + norms);
  EXPECT_EQ(plain.at("gradient reduction"), whole + norms);
  EXPECT_EQ(all.at("quantised parameter gather"), 0.5 * whole);        // forward only
  EXPECT_EQ(all.at("parameter gather"), norms);                        // small ones stay as they are
  EXPECT_EQ(all.at("gradient reduction"), norms);                      // vectors are not quantised
  // Elements in half a byte; their scales are 4 bytes for one row or column each.
  EXPECT_NEAR(all.at("quantised gradients between nodes"), 0.25 * whole, 0.02 * whole);
  EXPECT_GE(all.at("quantised gradients between nodes"), 0.25 * whole);
  EXPECT_LT(all.at("scales of parameters"), 0.001 * whole);
}

// Each of the three alone does its part and leaves the others alone.
TEST(ZeroPlusPlus, EachPartAlone) {
  const double whole = 2.0 * static_cast<double>(parameters() - kNorms) / 2, norms = 2.0 * kNorms / 2;
  st::Strategy s = job();
  s.data_parallel.quantized_weights = true;
  EXPECT_EQ(from_a_node(plan_of(s)).at("quantised parameter gather"), 2 * 0.5 * whole);
  s = job();
  s.data_parallel.secondary_partition = kNode;
  EXPECT_EQ(from_a_node(plan_of(s)).at("parameter gather"), whole + norms);
  s = job(3);   // a step has one copy for all its micro-batches
  s.data_parallel.secondary_partition = kNode;
  EXPECT_EQ(from_a_node(plan_of(s)).at("parameter gather"), whole + norms);
  // Without it all weights come in each pass, but for the embedding's table, which stays from one micro-batch to the next.
  const double table = 2.0 * 4096 * 512 / 2;
  EXPECT_EQ(from_a_node(plan_of(job(3))).at("parameter gather"), 3 * 2 * whole - 2 * table + norms);
}

// The second copy is there from the first release after a step to the next step: 2 bytes per weight, over a node's ranks.
TEST(ZeroPlusPlus, TheSecondCopyCostsItsShare) {
  const auto peak = [](const st::Strategy& s) {
    Scenario out;
    out.cluster = hwmodels::load_cluster("dgx-a100", 2);
    out.cluster.gpus_per_node = kNode;
    out.model = small_llama(8);
    out.strategy = s;
    out.profile = profile();
    return simulate(out, {.time = false}).classes[0].memory.peak_allocated.value;
  };
  st::Strategy s = job();
  const std::int64_t weights = st::parameters_per_stage(small_llama(8), s, profile())[0] - 17 * 512;
  const std::int64_t without = peak(s);
  s.data_parallel.secondary_partition = kNode;
  EXPECT_NEAR(static_cast<double>(peak(s) - without), 2.0 * static_cast<double>(weights) / kNode, 0.1 * 2.0 * static_cast<double>(weights) / kNode);
}

// The paper's machines: 384 V100 with one 100 Gb/s card to sixteen of them. ZeRO-3 sends its weights through each node's card three times, two gathers
// and a reduction one after the other, in 16 bits: no step is shorter than that. The abstract: "up to 2.16x better throughput at 384
// GPU scale"; simulated it is 2.6, since what ZeRO++ leaves on the card, a quarter, takes 0.6 s less than it would have to. Where traffic hides under
// compute (all eight cards), a quarter of it gains little.
TEST(ZeroPlusPlus, GainsWhereTheNetworkIsSlow) {
  const auto step = [](const std::vector<std::string>& changes) {
    return simulate(load_scenario((source_dir() / "scenarios/zeropp_384xv100.yaml").string(), changes), {.memory = false}).step_time;
  };
  const std::string plain = "data_parallel={kind: zero3}", all_cards = "cluster.nic_efficiency=0.92";
  const Scenario s = load_scenario((source_dir() / "scenarios/zeropp_384xv100.yaml").string(), {plain});
  const double weights = 2.0 * static_cast<double>(simulate(s, {.time = false, .memory = false}).classes[0].parameters), card = 0.92 * 12.5e9;
  EXPECT_GT(step({plain}), 3 * weights * 23 / 24 / card);
  const double slow = step({plain}) / step({}), fast = step({plain, all_cards}) / step({all_cards});
  EXPECT_GT(slow, 1.6);
  EXPECT_LT(slow, 2.7);
  EXPECT_NEAR(fast, 1, 0.1);
}

// Inside one node DeepSpeed does not quantise gradients.
TEST(ZeroPlusPlus, OneNodeReducesAsEver) {
  st::Strategy s = job();
  const auto timing = [](const st::Strategy& strategy) { return st::write_plan(small_llama(4), strategy, profile(), kRanks).instructions_per_step(); };
  const std::int64_t plain = timing(s);
  s.data_parallel.quantized_gradients = true;
  EXPECT_EQ(timing(s), plain);
}

// Whatever ZeRO-3 runs with: folded equals unfolded, replayed equals executed, and nothing outlives a step.
TEST(ZeroPlusPlus, RunsWithWhatZero3RunsWith) {
  int jobs = 0;
  for (int flags = 1; flags < 8; ++flags)
    for (const st::Recompute recompute : {st::Recompute::none, st::Recompute::full})
      for (const st::Precision precision : {st::Precision::fp16, st::Precision::bf16})
        for (const st::MemoryTier tier : {st::MemoryTier::device, st::MemoryTier::cpu, st::MemoryTier::nvme})
          for (const bool lora : {false, true})
            for (const st::StepKind phase : {st::StepKind::training, st::StepKind::evaluation}) {
              if (phase == st::StepKind::evaluation && (lora || tier != st::MemoryTier::device)) continue;
              Scenario s;
              s.cluster = hwmodels::load_cluster("dgx-a100", 2);
              s.cluster.gpus_per_node = kNode;
              s.model = small_llama(2);
              s.profile = profile();
              s.strategy = job(2);
              st::DataParallel& dp = s.strategy.data_parallel;
              dp.prefetch_bucket = 600'000;
              dp.max_reuse_distance = flags % 2 ? std::optional<std::int64_t>{0} : std::nullopt;
              dp.quantized_weights = flags & 1, dp.quantized_gradients = flags & 2;
              if (flags & 4) dp.secondary_partition = kNode;
              else dp.memory_efficient_linear = flags == 1;
              dp.sub_group = 50'000;
              s.strategy.memory.recompute = recompute;
              s.strategy.training.precision = precision;
              s.strategy.memory.offload.optimizer = tier;
              s.strategy.memory.offload.pipelined = tier == st::MemoryTier::nvme;
              s.strategy.training.phase = phase;
              if (lora) s.strategy.tuning = {.kind = st::TuningKind::lora, .rank = 8, .targets = {"all-linear"}, .trainable = {}};
              SCOPED_TRACE(testing::Message() << flags << " " << static_cast<int>(recompute) << static_cast<int>(precision) << static_cast<int>(tier) << lora << static_cast<int>(phase));
              ASSERT_TRUE(problems_of(s).empty()) << problems_of(s).front().problem;
              const Result folded = simulate(s), unfolded = simulate(s, {.unfold = true});
              test_support::expect_same(folded, simulate(s, {.shortcuts = false}));
              EXPECT_EQ(folded.step_time, unfolded.step_time);
              EXPECT_EQ(folded.classes[0].memory.peak_reserved, unfolded.classes[5].memory.peak_reserved);
              test_support::ByteLedger ledger(folded.plan, 0, true);
              const auto first = ledger.step(), second = ledger.step();
              EXPECT_TRUE(second.mistakes.empty()) << second.mistakes.front();
              EXPECT_EQ(first.after_step, first.persistent) << "something outlives the step";
              ++jobs;
            }
  EXPECT_GT(jobs, 100);
}

TEST(ZeroPlusPlus, RefusalsSayWhatIsNear) {
  const auto refused = [](const st::Strategy& s, const std::string& key, int gpus_per_node = kNode) {
    for (const Diagnostic& d : st::problems_of(small_llama(4), s, profile(), gpus_per_node))
      if (d.key == key && !d.fix.empty()) return true;
    return false;
  };
  st::Strategy s = with_all(job());
  EXPECT_FALSE(refused(s, "data_parallel.secondary_partition") || refused(s, "data_parallel.quantized_gradients") || refused(s, "data_parallel.quantized_weights"));
  s.data_parallel.secondary_partition = 3;
  EXPECT_TRUE(refused(s, "data_parallel.secondary_partition"));
  EXPECT_TRUE(refused(with_all(job()), "data_parallel.quantized_gradients", 3));
  s = with_all(job());
  s.data_parallel.memory_efficient_linear = false;
  EXPECT_TRUE(refused(s, "data_parallel.memory_efficient_linear"));
  s = with_all(job());
  s.data_parallel.kind = DataParallelKind::fsdp2;
  for (const char* key : {"data_parallel.secondary_partition", "data_parallel.quantized_weights", "data_parallel.quantized_gradients"}) EXPECT_TRUE(refused(s, key)) << key;
  s = with_all(job());
  s.parallelism.degrees.data_shard = 4;
  EXPECT_TRUE(refused(s, "data_parallel.secondary_partition"));
  for (const DataParallelKind kind : {DataParallelKind::zero2, DataParallelKind::zero3}) {
    st::Strategy stages = small_job(4, 2, 2);
    stages.data_parallel.kind = kind;
    EXPECT_TRUE(refused(stages, "data_parallel.kind"));
  }
  s = job();   // MiCS
  s.parallelism.degrees.data_shard = 4;
  EXPECT_FALSE(refused(s, "memory.offload.optimizer"));
  s.memory.offload.optimizer = st::MemoryTier::cpu;
  EXPECT_TRUE(refused(s, "memory.offload.optimizer"));
  s = small_job(8);
  s.data_parallel.sub_group = 1000;
  EXPECT_TRUE(refused(s, "data_parallel.sub_group"));
}

// The optimizer goes over pieces: as many updates, of the same elements together; what is put together for a piece is as small.
TEST(SubGroups, AreUpdatedOneAfterTheOther) {
  const auto updates = [](const plan::Plan& plan) {
    std::pair<int, double> out;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "optimizer step") ++out.first, out.second += plan.kernels[i.index].flops;
    return out;
  };
  st::Strategy s = job();
  const auto one = updates(plan_of(s));
  EXPECT_EQ(one.first, 1);
  s.data_parallel.sub_group = parameters() / kRanks / 4;
  const auto several = updates(plan_of(s));
  EXPECT_GE(several.first, 3);
  EXPECT_LE(several.first, 5);
  EXPECT_NEAR(several.second / one.second, 1, 1e-9);
  s.memory.offload.optimizer = st::MemoryTier::cpu;
  const plan::Plan host = plan_of(s);
  std::int64_t moved = 0;
  int pieces = 0;
  for (const plan::Call& call : host.classes[0].program.step)
    for (const plan::Instruction& i : host.blocks[call.block].timing)
      if (i.op == plan::Opcode::host_work) ++pieces, moved += host.host_works[i.index].dram.value;
  EXPECT_EQ(pieces, several.first);
  // 8 bytes for weights, 16 for moments, 4 for the gradient and 8 to scale it, 6 for the 16-bit copy (a piece rounds each).
  EXPECT_NEAR(static_cast<double>(moved), 42.0 * static_cast<double>(parameters()) / kRanks, 42.0 * pieces);
}

// A piece is a part of what the ranks share, as the whole is: each costs the host what its rank's own parameters cost.
TEST(SubGroups, AreShardedAsTheWholeShareIs) {
  st::FrameworkProfile p = profile();
  p.update_host = std::chrono::milliseconds(1);
  const auto host_of_an_update = [&](const st::Strategy& s) {
    const plan::Plan plan = st::write_plan(small_llama(4), s, p, kNode);
    std::set<std::int64_t> out;
    for (const plan::Block& b : plan.blocks)
      if (b.name.starts_with("optimizer step"))
        for (const plan::Instruction& i : b.timing)
          if (i.op == plan::Opcode::host) out.insert(i.value);
    return out;
  };
  st::Strategy s = job();
  const auto whole = host_of_an_update(s);
  EXPECT_EQ(whole.size(), 1u);
  s.data_parallel.sub_group = parameters() / kRanks / 4;
  EXPECT_EQ(host_of_an_update(s), whole);
}

// Pipelined over disks, what comes in and goes out hides under the update of another piece, but the first reading and the
// last writing: with one piece nothing hides.
TEST(SubGroups, PipelinedDisksWantSeveral) {
  const auto step = [](std::optional<std::int64_t> pieces, bool pipelined) {
    Scenario s;
    s.cluster = hwmodels::load_cluster("dgx-a100", 1);
    s.model = small_llama(8);
    s.profile = without_host_time(profile());
    s.strategy = job();
    s.strategy.memory.offload.optimizer = st::MemoryTier::nvme;
    s.strategy.memory.offload.pipelined = pipelined;
    s.strategy.data_parallel.sub_group = pieces;
    return simulate(s, {.memory = false}).step_time;
  };
  EXPECT_NEAR(step(std::nullopt, true) / step(std::nullopt, false), 1, 0.01);   // but the wait for the last gradients
  EXPECT_LT(step(100'000, true), 0.95 * step(100'000, false));
}

}  // namespace
}  // namespace rehearse::scenario::zeropp_test
