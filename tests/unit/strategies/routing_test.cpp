// Routing as a distribution: slots conserved, seeds reproduce, ranks as full as their experts are popular.
#include "strategies/layer/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "sim/core/random.h"
#include "sim/model/shapes.h"
#include "strategies/plan_writer.h"
#include "strategies/rank_classes.h"

namespace rehearse::strategies::routing_test {
namespace {

model::Experts experts_of(std::int64_t count, std::int64_t top_k) {
  model::Experts e;
  e.experts = count;
  e.top_k = top_k;
  return e;
}
Routing zipf(double skew, std::int64_t seed = 0) {
  Routing r;
  r.distribution = RoutingKind::zipf;
  r.skew = skew;
  r.seed = seed;
  return r;
}
Routing dirichlet(double concentration, std::int64_t seed = 0) {
  Routing r;
  r.distribution = RoutingKind::dirichlet;
  r.concentration = concentration;
  r.seed = seed;
  return r;
}
Routing batches(double concentration, Routing around = {}) {
  around.batch_concentration = concentration;
  return around;
}
std::int64_t sum(const std::vector<std::int64_t>& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }

TEST(Routing, SlotsAreConservedAndNoTokenChoosesTwice) {
  Random random(17);
  for (int run = 0; run < 400; ++run) {
    const auto experts = static_cast<std::int64_t>(1 + random.below(256)), top_k = static_cast<std::int64_t>(1 + random.below(static_cast<std::uint64_t>(std::min<std::int64_t>(experts, 12))));
    const auto tokens = static_cast<std::int64_t>(1 + random.below(5000));
    const model::Experts e = experts_of(experts, top_k);
    const Routing r = random.below(2) == 0 ? zipf(4 * random.uniform(), run) : dirichlet(portable_exp(12 * random.uniform() - 6), run);
    const std::vector<double> shares = expert_shares(r, e, {5});
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-9);
    const std::vector<std::int64_t> slots = expert_slots(r, e, {5}, tokens, 0);
    ASSERT_EQ(slots.size(), static_cast<std::size_t>(experts));
    EXPECT_EQ(sum(slots), tokens * top_k) << run;
    for (const std::int64_t n : slots) EXPECT_TRUE(n >= 0 && n <= tokens) << n << " of " << tokens;
    // A capacity takes what is above it and nothing else.
    const std::vector<std::int64_t> capped = expert_slots(r, e, {5}, tokens, 1.25);
    const auto capacity = static_cast<std::int64_t>(std::ceil(static_cast<double>(tokens * top_k) / static_cast<double>(experts) * 1.25));
    for (std::size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(capped[i], std::min(slots[i], capacity));
  }
}

// The k-th most popular of E experts has k^-s / H. (Top-1: nobody reaches the limit.)
TEST(Routing, ZipfIsItsClosedForm) {
  for (const double skew : {0.3, 1.0, 1.7}) {
    std::vector<double> shares = expert_shares(zipf(skew, 5), experts_of(64, 1), {3});
    std::sort(shares.begin(), shares.end(), std::greater<>());
    double h = 0;
    for (int k = 1; k <= 64; ++k) h += std::pow(k, -skew);
    for (int k = 1; k <= 64; ++k) EXPECT_NEAR(shares[static_cast<std::size_t>(k - 1)], std::pow(k, -skew) / h, 1e-14);
  }
}

// A share of E equal ones with concentration a: mean 1 / E, variance (1 / E)(1 - 1 / E) / (E a + 1).
TEST(Routing, DirichletHasItsVariance) {
  for (const double concentration : {0.2, 1.0, 10.0}) {
    double squares = 0;
    int n = 0;
    for (int layer = 0; layer < 2000; ++layer)
      for (const double share : expert_shares(dirichlet(concentration), experts_of(16, 1), {layer})) squares += (share - 1.0 / 16) * (share - 1.0 / 16), ++n;
    const double expected = 1.0 / 16 * (15.0 / 16) / (16 * concentration + 1);
    EXPECT_NEAR(squares / n / expected, 1, 0.06) << concentration;
  }
}

// The same on every machine: these numbers are part of what a seed means.
TEST(Routing, SeedsReproduce) {
  const model::Experts e = experts_of(8, 2);
  EXPECT_EQ(expert_slots(zipf(1, 7), e, {0}, 1000, 0), expert_slots(zipf(1, 7), e, {0}, 1000, 0));
  EXPECT_NE(expert_slots(zipf(1, 7), e, {0}, 1000, 0), expert_slots(zipf(1, 7), e, {1}, 1000, 0));
  EXPECT_NE(expert_slots(zipf(1, 7), e, {0}, 1000, 0), expert_slots(zipf(1, 8), e, {0}, 1000, 0));
  EXPECT_EQ(expert_slots(zipf(1, 7), e, {0}, 1000, 0), (std::vector<std::int64_t>{184, 147, 92, 245, 736, 105, 368, 123}));
  EXPECT_EQ(expert_slots(dirichlet(2, 7), e, {0}, 1000, 0), (std::vector<std::int64_t>{339, 305, 254, 115, 124, 297, 322, 244}));
}

TEST(Routing, SkewZeroAndLargeConcentrationAreBalanced) {
  for (const std::int64_t n : expert_slots(zipf(0, 3), experts_of(32, 4), {2}, 1024, 0)) EXPECT_EQ(n, 128);
  for (const std::int64_t n : expert_slots(dirichlet(1e9, 3), experts_of(32, 4), {2}, 1024, 0)) EXPECT_NEAR(static_cast<double>(n), 128, 1);
  EXPECT_TRUE(zipf(0).even());
  EXPECT_FALSE(zipf(0.01).even());
}

// Around equal shares: mean 1 / E, variance (1 / E)(1 - 1 / E) / (E c + 1), as above. Around others their mean stays.
TEST(Routing, BatchesVaryAroundTheLayersShares) {
  const model::Experts e = experts_of(16, 1);
  const Routing alike = zipf(0.7, 3);
  const std::vector<double> base = expert_shares(alike, e, {2});
  for (const double concentration : {1.0, 20.0}) {
    double squares = 0;
    std::vector<double> means(16);
    constexpr int kDraws = 8000;
    for (int batch = 0; batch < kDraws; ++batch) {
      for (const double share : expert_shares(batches(concentration), e, {2, batch})) squares += (share - 1.0 / 16) * (share - 1.0 / 16) / (16.0 * kDraws);
      const std::vector<double> shares = expert_shares(batches(concentration, alike), e, {2, batch});
      for (std::size_t i = 0; i < 16; ++i) means[i] += shares[i] / kDraws;
    }
    EXPECT_NEAR(squares / (1.0 / 16 * (15.0 / 16) / (16 * concentration + 1)), 1, 0.06) << concentration;
    // Five standard errors of the mean.
    for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(means[i], base[i], 5 * std::sqrt(base[i] * (1 - base[i]) / (16 * concentration + 1) / kDraws));
  }
  EXPECT_NE(expert_shares(batches(5), e, {0, 0}), expert_shares(batches(5), e, {0, 1}));
  EXPECT_NE(expert_shares(batches(5), e, {0, 0}), expert_shares(batches(5), e, {1, 0}));
  EXPECT_EQ(expert_shares(batches(5), e, {1, 3}), expert_shares(batches(5), e, {1, 3}));
}

model::ModelDescription mixture() {
  model::Shapes s{.name = "mixture", .layers = 4, .hidden = 256, .heads = 8, .vocab = 1024};
  s.experts = 8, s.top_k = 2, s.ffn_hidden = 512;
  return model::make_from_shapes(s);
}

Strategy job(Routing routing, int data, int expert, int tensor = 1, int expert_tensor = 1) {
  Strategy s;
  s.training.sequence_length = 256;
  s.training.global_batch_size = 2 * data;
  s.parallelism.degrees.data = data;
  s.parallelism.degrees.expert = expert;
  s.parallelism.degrees.tensor = tensor;
  s.parallelism.degrees.expert_tensor = expert_tensor;
  s.parallelism.sequence_parallel = tensor > 1;
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  s.experts.routing = routing;
  return s;
}

struct Sums {
  std::int64_t dispatched = 0, combined = 0;   // bytes of all ranks
  double products = 0;                         // of experts
};
Sums sums_of(const plan::Plan& plan) {
  Sums out;
  for (const plan::RankClass& c : plan.classes)
    for (const plan::Call& call : c.program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op == plan::Opcode::collective) {
          const plan::CollectiveSpec& spec = plan.collectives[i.index];
          if (spec.name == "dispatch") out.dispatched += spec.bytes.value * c.ranks;
          if (spec.name == "combine") out.combined += spec.bytes.value * c.ranks;
          EXPECT_TRUE(spec.fullest.value == 0 || spec.fullest >= spec.bytes) << spec.name;
        }
        if (i.op == plan::Opcode::kernel && (plan.kernels[i.index].kind == model::KernelKind::grouped_gemm || plan.kernels[i.index].name.starts_with("experts ")))
          out.products += model::flops_of(plan.kernels[i.index]).value * c.ranks;
      }
  return out;
}

// What leaves the owners of tokens comes back to them, and experts multiply every slot once, however full each of them is.
TEST(Routing, TokensAreConservedOverRanks) {
  FrameworkProfile profile = load_profile("plain");
  profile.dispatcher = Dispatcher::all_to_all;
  profile.grouped_experts = false;   // each expert its own product: exact counts
  for (const auto& [tensor, expert_tensor] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    const auto strategy = [&, t = tensor, et = expert_tensor](const Routing& r) { return job(r, 8 / t, 4, t, et); };
    const Sums even = sums_of(write_plan(mixture(), strategy({}), profile, 8));
    for (const Routing& r : {zipf(1, 1), zipf(3, 2), dirichlet(0.5, 3), batches(2, zipf(1, 1))}) {
      const Sums uneven = sums_of(write_plan(mixture(), strategy(r), profile, 8));
      EXPECT_EQ(uneven.dispatched, even.dispatched);
      EXPECT_EQ(uneven.combined, even.combined);
      EXPECT_EQ(uneven.dispatched, uneven.combined);
    }
  }
}

TEST(Routing, ExpertProductsAreConservedWhenNoExpertIsEmpty) {
  const FrameworkProfile profile = load_profile("huggingface");
  const double even = sums_of(write_plan(mixture(), job({}, 8, 4), profile, 8)).products;
  EXPECT_NEAR(sums_of(write_plan(mixture(), job(zipf(1, 1), 8, 4), profile, 8)).products / even, 1, 1e-3);
}

// Four micro-batches in two routings: the first and third call the same blocks, the second others; every slot is still computed.
TEST(Routing, MicroBatchesTakeTheirRoutingsInTurn) {
  Strategy strategy = job(batches(3), 8, 4);
  strategy.training.global_batch_size = 8 * 4;
  strategy.experts.routing.batch_draws = 2;
  const plan::Plan plan = write_plan(mixture(), strategy, load_profile("megatron-core"), 8);
  std::map<std::tuple<int, int, plan::Phase>, std::uint32_t> blocks;   // by layer, micro-batch, pass: the one with experts
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.layer >= 0 && call.micro_batch >= 0)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::grouped_gemm) blocks[{call.layer, call.micro_batch, call.phase}] = call.block;
  EXPECT_EQ(blocks.size(), 4U * 4 * 2);
  for (int layer = 0; layer < 4; ++layer)
    for (const plan::Phase phase : {plan::Phase::forward, plan::Phase::backward}) {
      const auto of = [&](int micro_batch) { return blocks.at({layer, micro_batch, phase}); };
      if (phase == plan::Phase::forward) {   // (the first backward sets gradients, the others add)
        EXPECT_EQ(of(0), of(2));
      }
      EXPECT_EQ(of(1), of(3));
      EXPECT_NE(of(0), of(1));
      EXPECT_NE(of(2), of(1));
    }
}

// Ranks differ only where experts do: a class per (stage, expert rank), and loads whose mean is 1.
TEST(Routing, ClassesAreExpertRanks) {
  const plan::Plan plan = write_plan(mixture(), job(zipf(1, 4), 8, 4), load_profile("megatron-core"), 8);
  ASSERT_EQ(plan.classes.size(), 4U);
  double mean = 0;
  for (const plan::RankClass& c : plan.classes) {
    EXPECT_EQ(c.ranks, 2);
    mean += c.expert_load / 4;
  }
  EXPECT_NEAR(mean, 1, 1e-12);
  EXPECT_EQ(plan.classes[2].name, "expert rank 2");
  EXPECT_NE(plan.classes[0].expert_load, plan.classes[1].expert_load);
  for (int r = 0; r < 8; ++r) EXPECT_EQ(plan.class_of_rank[static_cast<std::size_t>(r)], r % 4);
  EXPECT_EQ(write_plan(mixture(), job(zipf(0, 4), 8, 4), load_profile("megatron-core"), 8).classes.size(), 1U);
  Strategy padded = job(zipf(1, 4), 8, 4);
  padded.experts.capacity_factor = 1, padded.experts.pad_to_capacity = true;
  EXPECT_EQ(write_plan(mixture(), padded, load_profile("megatron-core"), 8).classes.size(), 1U);  // every slot is computed
}

// Tensor pairs over three expert ranks: {0,1} {2,0} {1,2}. Ranks 0 and 3 hold the same experts and have other neighbours.
TEST(Routing, ClassesSplitWhereGroupsDoNotNest) {
  Degrees d;
  d.tensor = 2, d.data = 3, d.expert = 3;
  const Layout layout(d);
  const RankClasses classes(layout, Folding::folded, true);
  EXPECT_EQ(classes.count(), 6);
  // Same classes, same surroundings.
  d.data = 6;
  const Layout twice(d);
  const RankClasses more(twice, Folding::folded, true);
  EXPECT_EQ(more.count(), 6);
  for (Rank r = 0; r < 6; ++r) EXPECT_EQ(more.of(r), more.of(r + 6));
  for (int c = 0; c < more.count(); ++c) {
    EXPECT_EQ(more.ranks(c), 2);
    for (Rank r = 0; r < twice.world_size(); ++r)
      if (more.of(r) == c)
        for (const Axis axis : {Axis::tensor, Axis::expert, Axis::data_context}) {
          std::vector<int> mine, first;
          for (const Rank m : twice.group_of(axis, r)) mine.push_back(more.of(m));
          for (const Rank m : twice.group_of(axis, more.representative(c))) first.push_back(more.of(m));
          std::sort(mine.begin(), mine.end()), std::sort(first.begin(), first.end());
          EXPECT_EQ(mine, first);
        }
  }
}

TEST(Routing, RefusalsSayWhatIsNear) {
  const auto refused = [](const Strategy& s, const std::string& key) {
    for (const Diagnostic& d : problems_of(mixture(), s, load_profile("megatron-core"), 8))
      if (d.key == key && !d.fix.empty()) return true;
    return false;
  };
  Routing r;
  r.distribution = RoutingKind::zipf;
  EXPECT_TRUE(refused(job(r, 8, 4), "experts.routing"));
  r = zipf(1);
  r.concentration = 2;
  EXPECT_TRUE(refused(job(r, 8, 4), "experts.routing.concentration"));
  r = dirichlet(1);
  r.skew = 2;
  EXPECT_TRUE(refused(job(r, 8, 4), "experts.routing.skew"));
  Strategy both = job(zipf(1), 8, 4);
  both.experts.imbalance = 1.5;
  EXPECT_TRUE(refused(both, "experts.imbalance"));
  model::Shapes dense{.name = "dense", .layers = 2, .hidden = 256, .heads = 8, .vocab = 1024};
  const auto problems = problems_of(model::make_from_shapes(dense), job(zipf(1), 8, 1), load_profile("megatron-core"), 8);
  EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), [](const Diagnostic& p) { return p.key == "experts"; }));
}

}  // namespace
}  // namespace rehearse::strategies::routing_test
