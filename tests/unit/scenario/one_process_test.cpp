// torch.nn.DataParallel: what moves, who keeps what, and what one host thread costs.
#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::one_process_test {
namespace {

namespace st = strategies;
using plan::Category;

constexpr int kGpus = 8;

st::Strategy one_process(int gpus = kGpus, int micro_batches = 1, st::Gathered gather = st::Gathered::logits) {
  st::Strategy s = small_job(gpus, 1, micro_batches);
  s.data_parallel.kind = st::DataParallelKind::one_process;
  s.data_parallel.gather = gather;
  return s;
}

plan::Plan plan_of(const st::Strategy& s, st::Folding folding = st::Folding::folded) { return st::write_plan(small_llama(4), s, st::load_profile("plain"), kGpus, folding); }
std::int64_t parameters() { return st::parameters_per_stage(small_llama(4), one_process(), st::load_profile("plain"))[0]; }

/// Sizes of the collectives of a kind and name that a class takes part in, in order.
std::vector<std::int64_t> sizes(const plan::Plan& plan, std::size_t rank_class, CollectiveKind kind, const std::string& name) {
  std::vector<std::int64_t> out;
  for (const plan::Call& call : plan.classes[rank_class].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == kind && plan.collectives[i.index].name == name) out.push_back(plan.collectives[i.index].bytes.value);
  return out;
}
std::int64_t sum(const std::vector<std::int64_t>& all) {
  std::int64_t total = 0;
  for (std::int64_t n : all) total += n;
  return total;
}

// Each pass (there is no no_sync) broadcasts all parameters and sums all gradients; outputs and their gradients move once.
TEST(OneProcess, EveryPassMovesParametersGradientsAndOutputs) {
  for (int micro_batches : {1, 3}) {
    const plan::Plan plan = plan_of(one_process(kGpus, micro_batches));
    ASSERT_EQ(plan.classes.size(), 2u);
    const std::int64_t logits = 256LL * 4096 * 2 * kGpus;   // tokens x vocabulary x 16 bit, of all replicas
    for (std::size_t c : {0u, 1u}) {
      EXPECT_EQ(sum(sizes(plan, c, CollectiveKind::broadcast, "parameter broadcast")), micro_batches * 2 * parameters());
      EXPECT_EQ(sum(sizes(plan, c, CollectiveKind::reduce, "gradient reduction")), micro_batches * 2 * parameters());
      EXPECT_EQ(sizes(plan, c, CollectiveKind::gather, "outputs"), std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), logits));
      EXPECT_EQ(sizes(plan, c, CollectiveKind::scatter, "output gradients"), std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), logits));
      EXPECT_EQ(sizes(plan, c, CollectiveKind::scatter, "inputs"), std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), 256LL * 8 * kGpus));
    }
  }
}

// comm.broadcast_coalesced closes a buffer once it holds 10 MiB, comm.reduce_add_coalesced before it would hold more.
TEST(OneProcess, SmallTensorsTravelTogether) {
  const plan::Plan plan = plan_of(one_process());
  const auto sent = sizes(plan, 0, CollectiveKind::broadcast, "parameter broadcast"), summed = sizes(plan, 0, CollectiveKind::reduce, "gradient reduction");
  EXPECT_GT(sent.size(), 1u);
  for (std::size_t i = 0; i + 1 < sent.size(); ++i) EXPECT_GE(sent[i], 10 << 20);
  for (std::int64_t bytes : summed) EXPECT_LE(bytes, 10 << 20);   // no tensor of this model is larger
  for (std::size_t i = 0; i + 1 < summed.size(); ++i) EXPECT_GT(summed[i] + summed[i + 1], 10 << 20);
}

// The first GPU: weights 2P, moments and fp32 copy 12P. The others begin and end a step with nothing.
TEST(OneProcess, OnlyTheFirstGpuKeepsAnything) {
  const plan::Plan plan = plan_of(one_process(kGpus, 2));
  const std::int64_t p = parameters();
  for (std::size_t c : {0u, 1u}) {
    test_support::ByteLedger ledger(plan, c);
    const auto first = ledger.step(), second = ledger.step();
    EXPECT_TRUE(second.mistakes.empty()) << second.mistakes.front();
    EXPECT_EQ(first.setup[static_cast<std::size_t>(Category::parameter)], c == 0 ? 2 * p : 0);
    EXPECT_EQ(first.setup[static_cast<std::size_t>(Category::optimizer)], c == 0 ? 12 * p : 0);
    EXPECT_EQ(first.after_step, first.persistent);
    EXPECT_EQ(second.after_step, second.persistent);
    // Gradients before the update: .grad on the first GPU, none elsewhere.
    if (c == 0) { EXPECT_EQ(second.before_update[static_cast<std::size_t>(Category::gradient)], 2 * p); }
  }
  EXPECT_EQ(plan.classes[0].ranks, 1);
  EXPECT_EQ(plan.classes[1].ranks, kGpus - 1);
}

Scenario scenario_with(const st::Strategy& s, int gpus = kGpus) {
  Scenario out;
  out.cluster = hwmodels::load_cluster("dgx-h100", 1);
  out.cluster.gpus_per_node = gpus;
  out.model = small_llama(4);
  out.strategy = s;
  out.profile = st::load_profile("plain");
  return out;
}

TEST(OneProcess, FoldedEqualsUnfolded) {
  for (st::Gathered gather : {st::Gathered::logits, st::Gathered::loss}) {
    const Scenario s = scenario_with(one_process(kGpus, 2, gather));
    const Result folded = simulate(s), unfolded = simulate(s, {.unfold = true});
    ASSERT_EQ(folded.deadlock, "");
    ASSERT_EQ(unfolded.deadlock, "");
    ASSERT_EQ(unfolded.classes.size(), static_cast<std::size_t>(kGpus));
    EXPECT_EQ(folded.step_time, unfolded.step_time);
    for (std::size_t r = 0; r < unfolded.classes.size(); ++r) {
      const ClassResult& whole = folded.classes[r == 0 ? 0 : 1];
      EXPECT_EQ(unfolded.classes[r].memory.peak_reserved, whole.memory.peak_reserved);
      EXPECT_EQ(unfolded.classes[r].timing.busy, whole.timing.busy);
    }
  }
}

// The loss of n replicas' samples on one GPU: logits, and what the loss keeps of them, for all.
TEST(OneProcess, TheFirstGpuIsFullerByLossAndStates) {
  const Result r = simulate(scenario_with(one_process()));
  EXPECT_EQ(r.fullest_class, 0u);
  const std::int64_t logits = 256LL * 4096 * 2;
  EXPECT_GT((r.classes[0].memory.peak_allocated - r.classes[1].memory.peak_allocated).value, (kGpus - 1) * logits + 10 * parameters());
  // With losses gathered each GPU has its own samples' loss: faster where logits are long enough to matter.
  auto long_step = [](st::Gathered gather) {
    st::Strategy s = one_process(kGpus, 1, gather);
    s.training.sequence_length = 2048;
    return simulate(scenario_with(s)).step_time;
  };
  EXPECT_LT(long_step(st::Gathered::loss), long_step(st::Gathered::logits));
}

TEST(OneProcess, IsSlowerThanAProcessForEachGpu) {
  st::Strategy ddp = one_process();
  ddp.data_parallel.kind = st::DataParallelKind::ddp;
  EXPECT_GT(simulate(scenario_with(one_process())).step_time, simulate(scenario_with(ddp)).step_time);
  // A pass of evaluation has no gradients to sum, and still copies the model.
  st::Strategy evaluation = one_process();
  evaluation.training.phase = st::StepKind::evaluation;
  const Result r = simulate(scenario_with(evaluation));
  EXPECT_EQ(r.deadlock, "");
  EXPECT_EQ(sum(sizes(r.plan, 1, CollectiveKind::broadcast, "parameter broadcast")), 2 * parameters());
  EXPECT_TRUE(sizes(r.plan, 1, CollectiveKind::reduce, "gradient reduction").empty());
}

// Launches of a forward pass hold Python's lock in turn: with the host alone costing time, twice the GPUs take twice the time
// for forward, and replicate() copies twice the modules; backward's launches are made side by side.
TEST(OneProcess, ForwardIsLaunchedByTurns) {
  auto host_of = [](int gpus) {
    const plan::Plan plan = plan_of(one_process(gpus));
    std::int64_t forward = 0, backward = 0;
    for (const plan::Call& call : plan.classes[1].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (call.layer >= 0 && i.op == plan::Opcode::kernel) (call.phase == plan::Phase::forward ? forward : backward) += i.value;
    return std::pair{forward, backward};
  };
  EXPECT_EQ(host_of(8).first, 4 * host_of(2).first);
  EXPECT_EQ(host_of(8).second, host_of(2).second);
}

TEST(OneProcess, WhatOneProcessCannotDoIsRefused) {
  auto refused = [](auto change, const char* profile = "plain") {
    Scenario s = scenario_with(one_process());
    s.profile = st::load_profile(profile);
    change(s.strategy);
    std::string text;
    for (const Diagnostic& d : st::problems_of(s.model, s.strategy, s.profile, kGpus)) text += d.key + ": " + d.problem + "\n";
    return text;
  };
  EXPECT_EQ(refused([](st::Strategy&) {}), "");
  EXPECT_NE(refused([](st::Strategy& s) { s.parallelism.degrees = {.data = 16}; s.training.global_batch_size = 16; }).find("one process drives the GPUs of one node"), std::string::npos);
  EXPECT_NE(refused([](st::Strategy& s) { s.parallelism.degrees = {.tensor = 2, .data = 4}; }).find("holds the whole model on each GPU"), std::string::npos);
  EXPECT_NE(refused([](st::Strategy& s) { s.memory.offload.optimizer = st::MemoryTier::cpu; }).find("memory.offload.optimizer"), std::string::npos);
  EXPECT_NE(refused([](st::Strategy&) {}, "megatron-core").find("keeps gradients in a buffer of its own"), std::string::npos);
  EXPECT_NE(refused([](st::Strategy& s) { s.data_parallel.kind = st::DataParallelKind::ddp; s.data_parallel.gather = st::Gathered::loss; }).find("data_parallel.gather"), std::string::npos);
}

// Outputs come one after the other over the first GPU's link: (n - 1) messages of a part each.
TEST(OneProcess, GatherIsCopiesInTurn) {
  const auto network = hwmodels::make_network(hwmodels::load_cluster("dgx-h100", 1));
  const GroupShape eight{8, 1, 8, 1, 1, 1};
  EXPECT_EQ(network->collective(CollectiveKind::gather, 8_GiB, eight).duration, network->point_to_point(1_GiB, true, 1).duration * 7);
  EXPECT_EQ(network->collective(CollectiveKind::gather, 8_GiB, eight).use.sms, 0);
  EXPECT_EQ(network->collective(CollectiveKind::gather, 8_GiB, GroupShape{}).duration.count(), 0);
}

}  // namespace
}  // namespace rehearse::scenario::one_process_test
