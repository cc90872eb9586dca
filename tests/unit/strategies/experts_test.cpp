// Mixture of experts and latent attention: parameters, bytes on the wire and operations against counts made elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"

namespace rehearse::strategies::experts_test {
namespace {

model::ModelDescription small_mixture() {
  model::Shapes s{.name = "mixture", .layers = 4, .hidden = 512, .heads = 8, .vocab = 4096};
  s.experts = 8;
  s.top_k = 2;
  s.ffn_hidden = 1024;
  return model::make_from_shapes(s);
}

Strategy job(int data, int expert, int tensor = 1, int expert_tensor = 1) {
  Strategy s;
  s.training.sequence_length = 256;
  s.training.global_batch_size = 2 * data * tensor;
  s.parallelism.degrees.data = data;
  s.parallelism.degrees.expert = expert;
  s.parallelism.degrees.tensor = tensor;
  s.parallelism.degrees.expert_tensor = expert_tensor;
  s.parallelism.sequence_parallel = tensor > 1;
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  return s;
}

struct Traffic {
  int calls = 0;
  std::int64_t bytes = 0;
};

/// What the first class issues in a step, by (kind, group).
std::map<std::pair<CollectiveKind, plan::GroupAxis>, Traffic> traffic_of(const plan::Plan& plan) {
  std::map<std::pair<CollectiveKind, plan::GroupAxis>, Traffic> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective) {
        const plan::CollectiveSpec& spec = plan.collectives[i.index];
        Traffic& t = out[{spec.kind, spec.axis}];
        ++t.calls;
        t.bytes += spec.bytes.value;
      }
  return out;
}

/// How often the first class launches a kernel of that name in a step.
std::int64_t runs(const plan::Plan& plan, const std::string& name) {
  std::int64_t n = 0;
  for (const plan::Call& c : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[c.block].timing) n += i.op == plan::Opcode::kernel && plan.kernels[i.index].name == name;
  return n;
}

double operations(const plan::Plan& plan) {
  double sum = 0;
  for (const plan::RankClass& c : plan.classes)
    for (const plan::Call& call : c.program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel) {
          const model::KernelSpec& k = plan.kernels[i.index];
          if (k.kind == model::KernelKind::gemm || k.kind == model::KernelKind::grouped_gemm) sum += model::flops_of(k).value * c.ranks;
        }
  return sum;
}

// One GPU holds every weight of the model: the tapes know them all. Counts: `transformers`, tests/oracles.
TEST(Experts, TapesHoldEveryParameterOfEveryPreset) {
  FrameworkProfile profile = load_profile("plain");
  profile.vocab_multiple = 1;
  int mixtures = 0, latent = 0;
  for (const std::string& name : model::preset_names()) {
    const model::ModelDescription m = model::load_preset(name);
    Strategy s = job(1, 1);
    s.data_parallel.kind = DataParallelKind::none;
    s.training.global_batch_size = 1;
    if (!problems_of(m, s, profile, 8).empty()) continue;
    EXPECT_EQ(parameters_per_stage(m, s, profile)[0], model::count_parameters(m).total) << name;
    mixtures += m.experts.experts > 0;
    latent += m.latent.present();
  }
  EXPECT_GT(mixtures, 8);
  EXPECT_GE(latent, 4);
}

// Every expert rank holds experts / ranks; the rest of the model is whole on each.
TEST(Experts, ExpertRanksShareTheExperts) {
  const model::ModelDescription m = small_mixture();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  const std::int64_t experts = 4 * 8 * 3 * 512 * 1024;
  const std::int64_t whole = parameters_per_stage(m, job(8, 1), profile)[0];
  for (int ranks : {2, 4, 8}) EXPECT_EQ(parameters_per_stage(m, job(8, ranks), profile)[0], whole - experts + experts / ranks);
  // Experts cut over two tensor ranks as well, dense weights over the same two.
  const std::int64_t cut = parameters_per_stage(m, job(4, 2, 2, 2), profile)[0], uncut = parameters_per_stage(m, job(4, 2, 2, 1), profile)[0];
  EXPECT_EQ(uncut - cut, experts / 2 - experts / 4);
}

// Dispatch and combine, forward and backward: four all-to-alls of tokens x top_k x hidden x 2 bytes per layer and
// micro-batch; the routers' weights travel with the dispatch and back, 4 bytes a slot.
// Source: facts of Megatron-Core's token dispatcher (MoEAlltoAllTokenDispatcher).
TEST(Experts, FourAllToAllsPerLayerAndMicroBatch) {
  const plan::Plan plan = write_plan(small_mixture(), job(8, 4), load_profile("megatron-core"), 8);
  const Traffic t = traffic_of(plan).at({CollectiveKind::all_to_all, plan::GroupAxis::expert});
  const int layers = 4, micro_batches = 2;
  const std::int64_t slots = 256 * 2;
  EXPECT_EQ(t.calls, layers * micro_batches * (4 + 2));
  EXPECT_EQ(t.bytes, layers * micro_batches * (4 * slots * 512 * 2 + 2 * slots * 4));
}

// A recomputed layer dispatches and combines once more (torch.utils.checkpoint keeps nothing inside); torchtitan's selective
// policy keeps what all_to_all_single returned (_op_sac_save_list).
TEST(Experts, FullRecomputationExchangesTokensAgain) {
  const auto calls = [](const char* profile, Recompute recompute) {
    Strategy s = job(8, 4);
    s.data_parallel.kind = DataParallelKind::ddp;
    s.memory.recompute = recompute;
    return traffic_of(write_plan(small_mixture(), s, load_profile(profile), 8)).at({CollectiveKind::all_to_all, plan::GroupAxis::expert}).calls;
  };
  const int layers = 4, micro_batches = 2;
  EXPECT_EQ(calls("megatron-core", Recompute::none), layers * micro_batches * (4 + 2));
  EXPECT_EQ(calls("megatron-core", Recompute::full), layers * micro_batches * (6 + 3));
  EXPECT_EQ(calls("torchtitan", Recompute::selective), calls("torchtitan", Recompute::none));
}

// The same policy keeps aten.mm, which grouped_mm is not: experts' products run again. Until March 2026 Qwen3's list had no all_to_all_single.
TEST(Experts, PerOperatorSelectionMakesGroupedProductsAgain) {
  const auto plan_of = [](const char* framework, const char* family, Recompute recompute) {
    model::ModelDescription model = small_mixture();
    model.family = family;
    Strategy s = job(8, 4);
    s.data_parallel.kind = DataParallelKind::ddp;
    s.memory.recompute = recompute;
    return write_plan(model, s, load_profile(framework), 8);
  };
  const auto exchanges = [](const plan::Plan& plan) { return traffic_of(plan).at({CollectiveKind::all_to_all, plan::GroupAxis::expert}).calls; };
  for (const char* framework : {"torchtitan-2025", "torchtitan"})
    for (const char* family : {"llama4", "qwen3_moe"}) {
      const plan::Plan none = plan_of(framework, family, Recompute::none), selective = plan_of(framework, family, Recompute::selective), full = plan_of(framework, family, Recompute::full);
      for (const char* product : {"experts gate_up", "experts down"}) {
        ASSERT_GT(runs(none, product), 0) << product;
        EXPECT_EQ(runs(selective, product), runs(full, product)) << family << " " << product;
      }
      EXPECT_EQ(runs(selective, "experts gate_up"), 2 * runs(none, "experts gate_up")) << family;   // what comes after the last saved tensor is not run
      const bool made_again = framework == std::string("torchtitan-2025") && family == std::string("qwen3_moe");
      EXPECT_EQ(exchanges(selective), exchanges(made_again ? full : none)) << framework << " " << family;
    }
}

// Products with a bias are aten.addmm: on no list until March 2026, all kept since, where those without are kept by turns and the router's never.
TEST(Experts, PerOperatorSelectionKeepsProductsWithABias) {
  const auto made_again = [](const char* framework, bool biases, std::vector<std::string> modules = {}) {
    model::ModelDescription model = small_mixture();
    model.qkv_bias = model.attention_output_bias = model.experts.router_bias = biases;
    Strategy s = job(8, 1);
    s.data_parallel.kind = DataParallelKind::ddp;
    s.memory.recompute = Recompute::selective;
    s.memory.recompute_modules = modules;
    FrameworkProfile profile = load_profile(framework);
    profile.fused_qkv = false;
    const plan::Plan selective = write_plan(model, s, profile, 8);
    s.memory.recompute = Recompute::none;
    const plan::Plan none = write_plan(model, s, profile, 8);
    std::string out;
    for (const char* product : {"q_proj", "k_proj", "v_proj", "o_proj", "router", "experts gate_up"}) {
      EXPECT_GT(runs(none, product), 0) << product;
      if (runs(selective, product) > runs(none, product)) out += std::string(product) + " ";
    }
    return out;
  };
  EXPECT_EQ(made_again("torchtitan", true), "experts gate_up ");
  EXPECT_EQ(made_again("torchtitan", true, {"operators", "grouped_products"}), "");
  EXPECT_EQ(made_again("torchtitan", false), "k_proj o_proj router experts gate_up ");
  EXPECT_EQ(made_again("torchtitan-2025", true), "q_proj k_proj v_proj o_proj router experts gate_up ");
  EXPECT_EQ(made_again("torchtitan-2025", false), "k_proj o_proj experts gate_up ");
}

// Operator by operator a gated activation keeps, beside its input, silu(gate); clamped, both clamped halves, the sigmoid and their product
// (torch.autograd.graph.saved_tensors_hooks over torchtitan's swiglu and transformers' _apply_gate: 1 and 4 times the result's bytes).
TEST(Experts, EagerActivationsKeepTheirOperands) {
  const auto after_forward = [](bool clamped, Fusion activation) {
    model::ModelDescription model = small_mixture();
    model.clamped_activation = clamped;
    Strategy s = job(1, 1);
    s.data_parallel.kind = DataParallelKind::ddp;
    FrameworkProfile profile = load_profile("torchtitan");
    profile.activation = activation;
    const plan::Plan plan = write_plan(model, s, profile, 1);
    test_support::ByteLedger ledger(plan, 0);
    ledger.step();
    return ledger.step().after_forward;
  };
  const std::int64_t result = 2 * 256 * 1024 * 2;   // slots of a micro-batch of one, their width, 16 bits
  EXPECT_EQ(after_forward(false, Fusion::native) - after_forward(false, Fusion::compiled), 4 * result);
  EXPECT_EQ(after_forward(true, Fusion::native) - after_forward(true, Fusion::compiled), 4 * 4 * result);
}

// DeepEP sends a token once to each rank, so tokens leave as they are; the network counts the copies.
TEST(Experts, DeepEpSendsTokensNotSlots) {
  Strategy s = job(8, 4);
  s.experts.dispatcher = Dispatcher::deepep;
  const plan::Plan plan = write_plan(small_mixture(), s, load_profile("megatron-bridge"), 8);
  const Traffic t = traffic_of(plan).at({CollectiveKind::all_to_all, plan::GroupAxis::expert});
  EXPECT_EQ(t.calls, 4 * 2 * 4);
  EXPECT_EQ(t.bytes, t.calls * std::int64_t{256 * 512 * 2});
}

/// Bytes that leave the node of one rank of the first class, in all exchanges of tokens and weights: of what a rank sends,
/// its group's other nodes get their equal parts.
std::int64_t between_nodes(const plan::Plan& plan) {
  std::int64_t out = 0;
  for (const auto& [what, traffic] : traffic_of(plan)) {
    if (what.first != CollectiveKind::all_to_all) continue;
    const GroupShape& group = plan.classes[0].groups[static_cast<std::size_t>(what.second)];
    out += traffic.bytes * (group.nodes - 1) / group.nodes;
  }
  return out;
}

// Two steps carry every slot twice, once inside a node and once between nodes, so that what crosses between nodes is what a
// flat exchange sends across; on one node, or with one rank on each, there is one step.
TEST(Experts, HierarchicalExchangeConservesBytes) {
  const FrameworkProfile profile = load_profile("megatron-core");
  const auto plan_of = [&](Dispatcher dispatcher, int expert, int gpus_per_node) {
    Strategy s = job(8, expert);
    s.experts.dispatcher = dispatcher;
    return write_plan(small_mixture(), s, profile, gpus_per_node);
  };
  for (const auto& [expert, gpus] : {std::pair{8, 4}, {8, 2}, {4, 2}}) {
    const plan::Plan flat = plan_of(Dispatcher::all_to_all, expert, gpus), steps = plan_of(Dispatcher::hierarchical, expert, gpus);
    const auto all = traffic_of(steps);
    const Traffic whole = traffic_of(flat).at({CollectiveKind::all_to_all, plan::GroupAxis::expert});
    EXPECT_EQ(all.at({CollectiveKind::all_to_all, plan::GroupAxis::expert_inside}).bytes, whole.bytes);
    EXPECT_EQ(all.at({CollectiveKind::all_to_all, plan::GroupAxis::expert_across}).bytes, whole.bytes);
    EXPECT_FALSE(all.contains({CollectiveKind::all_to_all, plan::GroupAxis::expert}));
    EXPECT_EQ(between_nodes(steps), between_nodes(flat));
    EXPECT_GT(between_nodes(flat), 0);
  }
  for (const auto& [expert, gpus] : {std::pair{4, 8}, {4, 1}}) {
    const auto steps = traffic_of(plan_of(Dispatcher::hierarchical, expert, gpus)), flat = traffic_of(plan_of(Dispatcher::all_to_all, expert, gpus));
    ASSERT_EQ(steps.size(), flat.size());
    for (const auto& [what, traffic] : flat) EXPECT_EQ(steps.at(what).bytes, traffic.bytes);
  }
}

// Uneven, what is halfway in all ranks is what left them, and nobody is busier than the fullest.
TEST(Experts, UnevenHierarchicalExchangeConservesBytes) {
  const FrameworkProfile profile = load_profile("megatron-core");
  for (const double skew : {0.5, 2.0}) {
    Strategy s = job(8, 8);
    s.experts.routing = {.distribution = RoutingKind::zipf, .skew = skew, .concentration = {}, .seed = 3};
    const auto sums = [&](Dispatcher dispatcher) {
      s.experts.dispatcher = dispatcher;
      const plan::Plan plan = write_plan(small_mixture(), s, profile, 4);
      std::map<std::string, std::int64_t> out;
      for (const plan::RankClass& c : plan.classes)
        for (const plan::Call& call : c.program.step)
          for (const plan::Instruction& i : plan.blocks[call.block].timing) {
            if (i.op != plan::Opcode::collective) continue;
            const plan::CollectiveSpec& spec = plan.collectives[i.index];
            EXPECT_TRUE(spec.fullest.value == 0 || spec.fullest >= spec.bytes) << spec.name;
            if (spec.kind == CollectiveKind::all_to_all) out[spec.name] += spec.bytes.value * c.ranks;
          }
      return out;
    };
    const auto flat = sums(Dispatcher::all_to_all), steps = sums(Dispatcher::hierarchical);
    for (const auto& [name, bytes] : flat) {
      EXPECT_EQ(steps.at(name + " in the node"), bytes) << name;
      EXPECT_EQ(steps.at(name + " between nodes"), bytes) << name;
    }
  }
}

// Token after token takes the next experts: counted token by token. 8 of 256 on 64 ranks always lie on two neighbours, and those on
// one node of 8; 8 of 128 on 8 ranks on one.
TEST(Experts, RoundRobinVisitsNeighbours) {
  const auto counted = [](int places, int choices, int groups) {
    std::int64_t visits = 0;
    for (int token = 0; token < places; ++token) {
      std::set<int> seen;
      for (int i = 0; i < choices; ++i) seen.insert((token * choices + i) % places / (places / groups));
      visits += static_cast<std::int64_t>(seen.size());
    }
    return static_cast<double>(visits) / places;
  };
  for (const auto& [places, choices] : {std::pair{256, 8}, {128, 8}, {384, 8}, {32, 4}, {160, 6}, {60, 4}, {8, 2}, {6, 5}})
    for (int groups : {1, 2, 3, 4, 6, 8, 16, 32, 64}) {
      if (places % groups != 0) continue;
      EXPECT_NEAR(places_in_turn(places, choices, groups), counted(places, choices, groups), 1e-12) << places << " " << choices << " " << groups;
    }
  const TokenExchange exchange{.choices = 8, .places = 256, .groups = 8, .group_limit = 4, .round_robin = true};
  EXPECT_DOUBLE_EQ(places_visited(exchange, 64), 2);
  EXPECT_DOUBLE_EQ(parts_visited(exchange, 8), 1);
  EXPECT_DOUBLE_EQ(places_in_turn(128, 8, 8), 1);
}

// Fewer copies travel and arrive; what is computed is the same.
TEST(Experts, RoundRobinSendsFewerCopies) {
  const FrameworkProfile profile = load_profile("nemo-automodel");
  Strategy s = job(4, 4);
  s.experts.dispatcher = Dispatcher::deepep;
  const auto exchanged = [&] {
    const plan::Plan plan = write_plan(small_mixture(), s, profile, 4);
    for (const plan::CollectiveSpec& c : plan.collectives)
      if (c.tokens.choices > 0) return c.tokens;
    return TokenExchange{};
  };
  EXPECT_FALSE(exchanged().round_robin);
  s.experts.routing.distribution = RoutingKind::round_robin;
  EXPECT_TRUE(exchanged().round_robin);
  EXPECT_FALSE(s.uneven_experts());
}

// Of 8 groups a token chooses 4: on 8 nodes it visits 4, on 16 (two to a group) up to 8, on 4 (two groups to a node) those that
// hold any of the 4: 4 (1 - C(6,4)/C(8,4)). Without a limit as many as its choices reach.
TEST(Experts, GroupsLimitTheNodesThatATokenVisits) {
  const TokenExchange limited{.choices = 8, .places = 256, .groups = 8, .group_limit = 4}, free{.choices = 8, .places = 256};
  EXPECT_DOUBLE_EQ(parts_visited(limited, 8), 4);
  EXPECT_NEAR(parts_visited(limited, 4), 4 * (1 - 15.0 / 70), 1e-12);
  EXPECT_DOUBLE_EQ(parts_visited(limited, 16), std::min(4 * places_visited(32, 2, 2), places_visited(256, 8, 16)));
  EXPECT_GT(parts_visited(limited, 16), 4);
  for (const int nodes : {1, 2, 4, 8, 16, 32}) {
    EXPECT_DOUBLE_EQ(parts_visited(free, nodes), places_visited(256, 8, nodes));
    EXPECT_LE(parts_visited(limited, nodes), parts_visited(free, nodes));
  }
}

// Six ranks do not lie evenly on nodes of four.
TEST(Experts, HierarchicalExchangeWantsTheSamePlacesOnEachNode) {
  model::ModelDescription m = small_mixture();
  m.experts.experts = 12;
  Strategy s = job(12, 6);
  s.experts.dispatcher = Dispatcher::hierarchical;
  const auto problems = problems_of(m, s, load_profile("megatron-core"), 4);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "experts.dispatcher");
}

TEST(Experts, AllGatherDispatchMovesEveryTokenToEveryRank) {
  Strategy s = job(8, 4);
  s.experts.dispatcher = Dispatcher::all_gather;
  const auto all = traffic_of(write_plan(small_mixture(), s, load_profile("megatron-bridge"), 8));
  EXPECT_EQ(all.at({CollectiveKind::all_gather, plan::GroupAxis::expert}).bytes, 4 * 2 * 2 * std::int64_t{4 * 256 * 512 * 2});
  EXPECT_EQ(all.at({CollectiveKind::reduce_scatter, plan::GroupAxis::expert}).bytes, 4 * 2 * 2 * std::int64_t{4 * 256 * 512 * 2});
  EXPECT_FALSE(all.contains({CollectiveKind::all_to_all, plan::GroupAxis::expert}));
}

// Gradients of experts are summed over the ranks with the same experts, the rest over all: together every element once.
TEST(Experts, ExpertGradientsHaveTheirOwnGroup) {
  const model::ModelDescription m = small_mixture();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  const std::int64_t experts = 4 * 8 * 3 * 512 * 1024 / 4;
  const std::int64_t all = parameters_per_stage(m, job(8, 4), profile)[0];
  const auto traffic = traffic_of(write_plan(m, job(8, 4), profile, 8));
  const std::int64_t reduced = bits(profile.reduce) / 8;
  EXPECT_EQ(traffic.at({CollectiveKind::reduce_scatter, plan::GroupAxis::expert_data}).bytes, experts * reduced);
  EXPECT_EQ(traffic.at({CollectiveKind::reduce_scatter, plan::GroupAxis::data}).bytes, (all - experts) * reduced);
  EXPECT_EQ(traffic.at({CollectiveKind::all_gather, plan::GroupAxis::expert_data}).bytes, experts * 2);
}

// Wherever the experts lie, the same products are computed.
TEST(Experts, OperationsAreConserved) {
  const model::ModelDescription m = small_mixture();
  const FrameworkProfile profile = load_profile("plain");
  const double whole = operations(write_plan(m, job(8, 1), profile, 8));
  EXPECT_EQ(operations(write_plan(m, job(8, 8), profile, 8)), whole);
  EXPECT_EQ(operations(write_plan(m, job(4, 4, 2, 1), profile, 8)), whole);
  EXPECT_EQ(operations(write_plan(m, job(4, 2, 2, 2), profile, 8)), whole);
  // A loop over experts computes what the grouped product does.
  FrameworkProfile loop = profile;
  loop.grouped_experts = false;
  EXPECT_EQ(operations(write_plan(m, job(8, 2), loop, 8)), whole);
}

// Capacity 1 of perfectly balanced experts drops nothing; 1.25 padded computes 5/4 of the expert products.
TEST(Experts, CapacityBoundsTheSlots) {
  const model::ModelDescription m = small_mixture();
  const FrameworkProfile profile = load_profile("plain");
  auto expert_operations = [&](double factor, bool pad) {
    Strategy s = job(8, 4);
    s.experts.capacity_factor = factor;
    s.experts.pad_to_capacity = pad;
    const plan::Plan plan = write_plan(m, s, profile, 8);
    double sum = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::grouped_gemm) sum += model::flops_of(plan.kernels[i.index]).value;
    return sum;
  };
  const double dropless = expert_operations(0, false);
  EXPECT_EQ(expert_operations(1, false), dropless);
  EXPECT_EQ(expert_operations(1.25, true), 1.25 * dropless);
  EXPECT_EQ(expert_operations(1.25, false), dropless);   // empty slots are not computed
  EXPECT_EQ(expert_operations(0.5, false), 0.5 * dropless);
  // However many are asked for: at most every expert has every token, experts / top_k times the mean.
  for (const double factor : {100.0, 1e300}) EXPECT_EQ(expert_operations(factor, true), static_cast<double>(m.experts.experts) / static_cast<double>(m.experts.top_k) * dropless);
}

/// All ways to choose k of n places, counted one by one.
double visited_by_counting(int places, int choices, int groups) {
  const int part = places / groups;
  double sum = 0, ways = 0;
  for (unsigned set = 0; set < (1u << places); ++set) {
    if (__builtin_popcount(set) != choices) continue;
    ++ways;
    for (int g = 0; g < groups; ++g) sum += ((set >> (g * part)) & ((1u << part) - 1)) != 0;
  }
  return sum / ways;
}

TEST(Experts, PlacesVisitedAreCountedRight) {
  for (int groups : {1, 2, 4, 8, 16})
    for (int choices : {1, 2, 4, 8}) EXPECT_NEAR(places_visited(16, choices, groups), visited_by_counting(16, choices, groups), 1e-12) << choices << " of 16 in " << groups;
}

// The notes' B.14: rank 16 on every expert of Mixtral 8x7B: 0.885 M per expert, 7.08 M per layer, 226.6 M (226.5 M exactly:
// 3 x 16 x (4096 + 14336) x 8 x 32); the router alone: 4096 x 8 a layer, about a million.
TEST(Experts, AdaptersAndRoutersOfMixtral) {
  const model::ModelDescription m = model::load_preset("mixtral-8x7b");
  FrameworkProfile profile = load_profile("huggingface");
  Strategy s = job(1, 1);
  s.training.global_batch_size = 1;
  s.data_parallel.kind = DataParallelKind::none;
  const std::int64_t whole = model::count_parameters(m).total;
  s.tuning.kind = TuningKind::lora;
  s.tuning.rank = 16;
  s.tuning.targets = {"experts"};
  EXPECT_EQ(parameters_per_stage(m, s, profile)[0] - whole, std::int64_t{3} * 16 * (4096 + 14336) * 8 * 32);
  s.tuning = {};
  s.tuning.kind = TuningKind::frozen;
  s.tuning.trainable = {"router"};
  plan::PlanBuilder builder;
  EXPECT_EQ(layer_tape(make_context(m, s, profile, builder), m.layers[0]).trainable_elements(), 4096 * 8);
  // 4 bits: half a byte and the scales; 90.2 GB of experts become 23.3.
  s.tuning.kind = TuningKind::qlora;
  s.tuning.targets = {"experts"};
  s.tuning.trainable.clear();
  const Tape quantised = layer_tape(make_context(m, s, profile, builder), m.layers[0]);
  std::int64_t packed = 0, elements = 0;
  for (const Weight& w : quantised.weights)
    if (w.packed_bytes >= 0 && w.name.starts_with("experts")) packed += w.packed_bytes, elements += w.elements;
  EXPECT_EQ(elements, std::int64_t{8} * 3 * 4096 * 14336);
  EXPECT_NEAR(static_cast<double>(packed) / static_cast<double>(elements), 0.5 + (1 + 4.0 / 256) / 64, 1e-6);
}

// Megatron's kernels multiply a gated activation by the router's weights; of GELU the unweighted result is kept as well:
// 4 layers x 512 slots x 1024 x 2 bytes. index_add_ keeps what it sums: 512 slots x 512 x 2 a layer.
TEST(Experts, WeightsAfterAnActivationOfItsOwn) {
  model::ModelDescription m = small_mixture();
  FrameworkProfile profile = load_profile("megatron-core");
  auto kept = [&] {
    Strategy s = job(8, 4);
    const plan::Plan plan = write_plan(m, s, profile, 8);
    test_support::ByteLedger ledger(plan, 0);
    ledger.step();
    return ledger.step().after_forward;
  };
  m.gated_mlp = false;
  const std::int64_t apart = kept();
  profile.weighs_expert_outputs = true;   // 512 x 512 x 2 of what the experts return instead
  EXPECT_NEAR(static_cast<double>(apart - kept()), 4 * 512 * (1024 - 512) * 2, 4 * 256 * 8 * 4 + 4 * 512 * 4);   // and the weights themselves, dense or by slot
  profile.weighs_expert_outputs = false;
  profile.sums_slots_by_index_add = true;
  EXPECT_EQ(kept() - apart, 4 * 512 * 512 * 2);
}

// Each module that is recomputed leaves less between forward and backward, and nothing is left over after a step.
TEST(Experts, RecomputedModulesKeepLess) {
  model::ModelDescription m = small_mixture();
  m.experts.shared_ffn_hidden = 512;
  m.latent = {.q_lora_rank = 256, .kv_lora_rank = 128, .qk_nope_head_dim = 32, .qk_rope_head_dim = 32, .v_head_dim = 64};
  m.layers[0].moe = false;
  for (const char* framework : {"megatron-core", "plain"}) {
    auto kept = [&](std::vector<std::string> modules) {
      Strategy s = job(8, 4);
      s.memory.recompute = modules.empty() ? Recompute::none : Recompute::selective;
      s.memory.recompute_modules = std::move(modules);
      const plan::Plan plan = write_plan(m, s, load_profile(framework), 8);
      test_support::ByteLedger ledger(plan, 0);
      ledger.step();
      const test_support::StepBytes bytes = ledger.step();
      EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
      EXPECT_EQ(bytes.after_step, bytes.persistent);
      return bytes.after_forward;
    };
    const std::int64_t all = kept({});
    std::vector<std::string> together;
    for (const char* module : {"layernorm", "mlp", "mla_up_proj", "moe_act", "shared_experts", "moe"}) {
      EXPECT_LT(kept({module}), all) << framework << " " << module;
      together.push_back(module);
      EXPECT_LE(kept(together), kept({module})) << framework << " " << module;
    }
  }
}

// DeepSeek-V3's further layer: 11.5 B more parameters, which its published total leaves out; one more layer, projection
// (2 h x h) and head are computed, three times each.
TEST(Experts, MultiTokenPredictionIsALayerAndAHead) {
  const model::ModelDescription m = model::load_preset("deepseek-v3");
  FrameworkProfile profile = load_profile("plain");
  profile.vocab_multiple = 1;
  Strategy s = job(8, 8);
  const Strategy without = s;
  s.training.multi_token_prediction = true;
  ASSERT_TRUE(problems_of(m, s, profile, 8).empty());
  const model::ParameterCount count = model::count_parameters(m);
  const std::int64_t routed = 256 * model::mlp_parameters(m, m.experts.ffn_hidden);
  EXPECT_EQ(parameters_per_stage(m, s, profile)[0] - parameters_per_stage(m, without, profile)[0], count.mtp - routed + routed / 8);
  model::ModelDescription longer = model::with_layers(m, m.layer_count() + 1);
  const double tokens = 8 * 2 * 256;
  const double extra = operations(write_plan(m, s, profile, 8)) - operations(write_plan(longer, without, profile, 8));
  EXPECT_DOUBLE_EQ(extra, 3 * 2 * tokens * (7168.0 * 129280 + 2 * 7168.0 * 7168));
  // Run again for a second token: as many operations more, no parameters.
  model::ModelDescription repeated = m, twice = m;
  repeated.mtp_layers = twice.mtp_layers = 2;
  repeated.mtp_repeated = true;
  EXPECT_EQ(parameters_per_stage(repeated, s, profile)[0], parameters_per_stage(m, s, profile)[0]);
  EXPECT_DOUBLE_EQ(operations(write_plan(repeated, s, profile, 8)), operations(write_plan(twice, s, profile, 8)));
}

// Experts that work on a projection of the stream, as Nemotron 3 Super's: only what is between the two projections narrows.
TEST(Experts, LatentExpertsSendAndMultiplyAtTheLatentWidth) {
  model::ModelDescription wide = small_mixture(), narrow = small_mixture();
  wide.experts.shared_ffn_hidden = narrow.experts.shared_ffn_hidden = 768;
  narrow.experts.latent = 128;   // of 512
  const FrameworkProfile profile = load_profile("megatron-core");
  const Strategy s = job(8, 8);
  ASSERT_TRUE(problems_of(narrow, s, profile, 8).empty());
  const plan::Plan one = write_plan(wide, s, profile, 8), other = write_plan(narrow, s, profile, 8);
  const std::pair key{CollectiveKind::all_to_all, plan::GroupAxis::expert};
  EXPECT_EQ(traffic_of(one)[key].calls, traffic_of(other)[key].calls);
  EXPECT_GT(10 * traffic_of(one)[key].bytes, 39 * traffic_of(other)[key].bytes);   // four times as wide, and weights
  const double tokens = 8 * 2 * 256, layers = 4, slots = 2;
  const double routed = 3 * 1024 * slots, saved = (512.0 - 128) * routed, added = 2 * 512 * 128;
  EXPECT_DOUBLE_EQ(operations(one) - operations(other), 3 * 2 * tokens * layers * (saved - added));
  EXPECT_EQ(model::count_parameters(wide).total - model::count_parameters(narrow).total, 4 * (8 * 3 * 1024 * (512 - 128) - 2 * 512 * 128));
  EXPECT_EQ(runs(other, "shared experts add"), runs(one, "shared experts add"));
}

TEST(Experts, RefusalsSayWhatIsNear) {
  const FrameworkProfile profile = load_profile("megatron-bridge");
  const model::ModelDescription m = small_mixture();
  auto refused = [&](const Strategy& s, const std::string& key) {
    for (const Diagnostic& d : problems_of(m, s, profile, 8))
      if (d.key == key && !d.fix.empty()) return true;
    return false;
  };
  EXPECT_TRUE(refused(job(8, 3), "parallelism.expert"));
  Strategy s = job(4, 2, 2);
  s.parallelism.sequence_parallel = false;
  EXPECT_TRUE(refused(s, "parallelism.sequence_parallel"));
  s = job(8, 4);
  s.experts.imbalance = 5;
  EXPECT_TRUE(refused(s, "experts.imbalance"));
  s.experts.imbalance = 1.5;
  s.experts.capacity_factor = 1;
  EXPECT_TRUE(refused(s, "experts.imbalance"));
  s = job(8, 1);
  s.experts.imbalance = 1.5;
  const auto dense = problems_of(model::load_preset("llama-3-8b"), s, profile, 8);
  EXPECT_TRUE(std::any_of(dense.begin(), dense.end(), [](const Diagnostic& p) { return p.key == "experts"; }));
  s = job(4, 2, 2, 2);
  s.experts.dispatcher = Dispatcher::deepep;
  EXPECT_TRUE(refused(s, "parallelism.expert_tensor"));
}

}  // namespace
}  // namespace rehearse::strategies::experts_test
