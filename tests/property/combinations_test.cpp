// Every pair of choices that a user can make together: what the rules allow simulates without a broken contract, deadlock
// or leak; what they refuse, they explain.
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <set>

#include "sim/model/shapes.h"
#include "sim/scenario/simulate.h"
#include "strategies/data/catalog.h"
#include "strategies/optimizer/optimizer.h"
#include "strategies/stage.h"
#include "tests/support/byte_ledger.h"
#include "tests/support/event_ledger.h"
#include "tests/support/same_result.h"

namespace rehearse::combinations_test {
namespace {

namespace st = strategies;
constexpr int kGpus = 8;

struct Dimension {
  std::string name;
  std::vector<std::string> values;
};

const std::vector<Dimension>& dimensions() {
  static const std::vector<Dimension> all{
      {"data parallel", st::data_parallel_kinds().names()},
      {"tensor", {"1", "2", "2 sp", "4 sp"}},
      {"pipeline", {"none", "naive", "gpipe", "1f1b", "pytorch-1f1b", "interleaved-1f1b", "breadth-first", "pytorch-interleaved-1f1b", "pytorch-interleaved-zero-bubble", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                    "dualpipe", "dualpipev"}},
      {"recompute", {"none", "selective", "full"}},
      {"precision", {"fp32", "fp16", "bf16", "fp8"}},
      {"optimizer", st::optimizers().names()},
      {"micro-batches", {"few", "many", "in rounds"}},
      {"model", {"llama", "grouped", "gpt", "untied gpt", "norms after", "side by side", "local layers", "mixture", "latent mixture"}},
      {"experts", {"1", "2", "2 x 2", "4 deepep", "4 all-gather", "4 hierarchical"}},
      {"framework", st::profile_names()},
      {"tuning", {"full", "full", "lora", "lora all", "qlora", "head only", "norms only", "upper half"}},
      {"phase", {"training", "training", "training", "evaluation"}},
      {"context", {"none", "none", "2", "2 ring", "2 all-gather", "2 ulysses", "4 ulysses-ring"}},
      {"routing", {"balanced", "balanced", "zipf", "dirichlet", "capacity", "batches", "round-robin"}},
      {"offload", {"none", "none", "optimizer", "optimizer and parameters", "activations", "pageable", "nvme", "pieces"}},
      {"habits", {"none", "none", "none", "lower half on the host", "budget", "paged", "buffers", "synchronised", "losses gathered", "gloo", "mpi", "documents", "tiled", "first layers", "spans", "second partition", "gathered in 8 bits", "blocking", "serial"}},
  };
  return all;
}

using Choice = std::vector<std::size_t>;   // one value per dimension

std::string describe(const Choice& c) {
  std::string text;
  for (std::size_t d = 0; d < c.size(); ++d) text += (d == 0 ? "" : ", ") + dimensions()[d].name + " " + dimensions()[d].values[c[d]];
  return text;
}

model::ModelDescription model_named(const std::string& name) {
  model::Shapes s{.name = name, .layers = 8, .hidden = 256, .heads = 8, .vocab = 1000};
  s.gated = name.find("gpt") == name.npos;
  s.max_positions = s.gated ? 0 : 128;
  if (name == "grouped") s.kv_heads = 4;
  if (name == "untied gpt") s.tied = false;
  const bool mixture = name.ends_with("mixture");
  if (mixture) s.experts = 8, s.top_k = 2, s.shared_ffn_hidden = name == "mixture" ? 0 : 256;
  model::ModelDescription m = model::make_from_shapes(s);
  if (name == "latent mixture") {
    m.latent = {.q_lora_rank = 64, .kv_lora_rank = 32, .qk_nope_head_dim = 16, .qk_rope_head_dim = 16, .v_head_dim = 32};
    m.layers[0].moe = false;
  }
  if (!s.gated) m.dropout = m.attention_dropout = 0.1;
  if (name == "norms after") m.norms_after = m.qk_norm = m.joint_qk_norm = true;
  if (name == "side by side") m.parallel_residual = true, m.norms_per_layer = 1, m.norm = model::Norm::layer_norm, m.norm_weight = false;
  if (name == "local layers")
    for (std::size_t i = 0; i < m.layers.size(); ++i) i % 4 == 3 ? void(m.layers[i].rotary = false) : void(m.layers[i].window = 32);
  return m;
}

scenario::Scenario scenario_of(const Choice& c) {
  auto value = [&](std::size_t d) { return dimensions()[d].values[c[d]]; };
  scenario::Scenario s;
  s.file = "combination";
  s.cluster = hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "");
  s.model = model_named(value(7));
  st::Strategy& job = s.strategy;
  job.data_parallel.kind = *st::data_parallel_kinds().find(value(0));
  st::Degrees& d = job.parallelism.degrees;
  d.tensor = value(1)[0] - '0';
  job.parallelism.sequence_parallel = value(1).ends_with("sp");
  if (value(2) != "none") {
    d.pipeline = 2;
    job.pipeline.schedule = value(2);
    if (value(2).find("interleaved") != std::string::npos || value(2) == "breadth-first") job.pipeline.virtual_stages = 2;
  }
  const int context = value(12) == "none" ? 1 : value(12)[0] - '0';
  if (d.tensor * d.pipeline * context <= kGpus) d.context = context;
  if (d.context > 1 && value(12).size() > 1) job.parallelism.context_kind = *st::context_kinds().find(value(12).substr(2));
  if (d.context == 4) d.context_ulysses = 2;
  d.data = kGpus / (d.tensor * d.pipeline * d.context);
  if (job.data_parallel.kind == st::DataParallelKind::none && c[9] % 2 == 0) {  // half of these are legal: one replica
    s.cluster.gpus_per_node = d.tensor * d.pipeline * d.context;
    d.data = 1;
  }
  if (value(7).ends_with("mixture")) {
    d.expert = value(8)[0] - '0';
    d.expert_tensor = value(8) == "2 x 2" ? 2 : 1;
    if (value(8).ends_with("deepep")) job.experts.dispatcher = st::Dispatcher::deepep;
    if (value(8).ends_with("all-gather")) job.experts.dispatcher = st::Dispatcher::all_gather;
    if (value(8).ends_with("hierarchical")) {   // over nodes of two
      job.experts.dispatcher = st::Dispatcher::hierarchical;
      s.cluster.nodes = 4, s.cluster.gpus_per_node = 2;
    }
    const std::string routing = value(13);
    job.experts.imbalance = value(8) == "2" && routing == "balanced" ? 1.5 : 1;
    if (routing == "zipf" || routing == "capacity") job.experts.routing = {.distribution = st::RoutingKind::zipf, .skew = 0.8, .concentration = {}, .seed = 1};
    if (routing == "dirichlet") job.experts.routing = {.distribution = st::RoutingKind::dirichlet, .skew = {}, .concentration = 1, .seed = 2};
    if (routing == "round-robin") job.experts.routing.distribution = st::RoutingKind::round_robin;
    if (routing == "capacity") job.experts.capacity_factor = 1.5;
    if (routing == "batches") job.experts.routing.batch_concentration = 2, job.experts.routing.batch_draws = 3;
  }
  job.memory.recompute = value(3) == "none" ? st::Recompute::none : value(3) == "full" ? st::Recompute::full : st::Recompute::selective;
  job.training.precision = value(4) == "fp32" ? st::Precision::fp32 : value(4) == "fp16" ? st::Precision::fp16 : value(4) == "bf16" ? st::Precision::bf16 : st::Precision::fp8;
  job.training.optimizer = *st::optimizers().find(value(5));
  job.training.sequence_length = 128;
  job.training.global_batch_size = d.data * (value(6) == "few" ? d.pipeline : 4 * d.pipeline);
  if (value(6) == "in rounds" && d.pipeline > 1) job.pipeline.accumulation_steps = 2;
  job.training.framework = value(9);
  if (value(11) == "evaluation") job.training.phase = st::StepKind::evaluation;
  st::Tuning& tuning = job.tuning;
  const std::string tuned = value(10);
  tuning.kind = tuned == "full" ? st::TuningKind::full : tuned.starts_with("lora") ? st::TuningKind::lora : tuned == "qlora" ? st::TuningKind::qlora : st::TuningKind::frozen;
  if (tuned == "lora all" || tuned == "qlora") tuning.targets = {"all-linear"};
  else if (tuned == "lora") tuning.targets = {"attention"};
  if (tuned == "lora all") tuning.dropout = 0.1;
  if (tuned == "qlora") tuning.trainable = {"norms"};
  if (tuned == "head only") tuning.trainable = {"head"};
  if (tuned == "norms only") tuning.trainable = {"norms"};
  if (tuned == "upper half") tuning.trainable = {"layers.4-7"};
  st::Offload& away = job.memory.offload;
  const std::string offload = value(14);
  if (offload != "none" && offload != "activations" && offload != "pieces") away.optimizer = offload == "nvme" ? st::MemoryTier::nvme : st::MemoryTier::cpu;
  if (offload == "optimizer and parameters" || offload == "nvme") away.parameters = st::MemoryTier::cpu;
  if (offload == "activations" || offload == "pageable") away.activations = st::MemoryTier::cpu;
  away.pinned = offload != "pageable";
  job.memory.partition_activations = offload == "pieces";
  const std::string habit = value(15);
  if (habit == "lower half on the host") job.memory.device_map.cpu = {"layers.0-3"};
  if (habit == "budget") job.memory.device_map.gpu_memory = 4_MiB;
  job.memory.paged_optimizer = habit == "paged";
  job.memory.synchronize_checkpoints = habit == "synchronised";
  if (habit == "buffers") job.memory.partition_activations = job.memory.contiguous_checkpoints = true;
  if (habit == "losses gathered") job.data_parallel.gather = st::Gathered::loss;
  if (habit == "documents") job.training.document_length = 32;
  if (habit == "tiled") job.memory.tiled_mlp = true, job.training.cross_entropy = st::LossKind::tiled;
  if (habit == "first layers") job.memory.recompute = st::Recompute::full, job.memory.recompute_layers = 1;
  if (habit == "spans") job.memory.recompute = st::Recompute::full, job.memory.recompute_span = 3;
  if (habit == "second partition") job.data_parallel.secondary_partition = 2, job.data_parallel.quantized_weights = job.data_parallel.quantized_gradients = true;
  if (habit == "gathered in 8 bits") job.data_parallel.fp8_gather = st::NarrowGather::scaled_by_weight;
  if (habit == "blocking") job.training.launch_blocking = true;
  if (habit == "serial") job.training.serial_collectives = true;
  if (habit == "gloo") job.backend = st::Backend::gloo;
  if (habit == "mpi") job.backend = st::Backend::mpi;
  if (job.backend != st::Backend::nccl) s.communication.backend = habit;
  s.profile = st::with_precision(st::load_profile(value(9)), job.training.precision);
  return s;
}

/// The same with a host that takes no time, so that the device sets the pace and its blocks can be replayed.
scenario::Scenario with_fast_host(scenario::Scenario s) {
  st::FrameworkProfile& p = s.profile;
  for (Duration* d : {&p.kernel_host, &p.backward_kernel_host, &p.collective_host, &p.layer_host, &p.layer_backward_host, &p.expert_host, &p.expert_backward_host, &p.step_host}) *d = {};
  return s;
}

void check(const scenario::Scenario& s) {
  const scenario::Result r = scenario::simulate(s);
  test_support::expect_same(r, scenario::simulate(s, {.shortcuts = false}));
  const scenario::Scenario fast = with_fast_host(s);
  test_support::expect_same(scenario::simulate(fast, {.memory = false}), scenario::simulate(fast, {.memory = false, .shortcuts = false}));
  EXPECT_EQ(r.deadlock, "");
  EXPECT_GT(r.step_time, 0);
  int ranks = 0;
  for (std::size_t c = 0; c < r.classes.size(); ++c) {
    ranks += r.classes[c].ranks;
    // Busy, exposed and idle time make the step; no account is negative.
    const auto& time = r.classes[c].timing.time;
    EXPECT_EQ(std::accumulate(time.begin(), time.end(), std::int64_t{0}), r.classes[c].timing.step);
    for (std::size_t k = 0; k < time.size(); ++k) EXPECT_GE(time[k], 0) << executor::name_of(static_cast<executor::Cause>(k));
    // A step frees what it allocates: from the second on, the same bytes remain.
    test_support::ByteLedger ledger(r.plan, c, true);
    const auto first = ledger.step(), second = ledger.step(), third = ledger.step();
    EXPECT_TRUE(third.mistakes.empty()) << third.mistakes.front();
    EXPECT_EQ(first.after_step, second.after_step);
    EXPECT_EQ(second.after_step, third.after_step);
    EXPECT_EQ(first.after_step, first.persistent) << "something outlives the step";
    for (std::int64_t bytes : ledger.live()) EXPECT_GE(bytes, 0);
    const auto idle_waits = test_support::waits_for_nothing(r.plan, c);
    EXPECT_TRUE(idle_waits.empty()) << idle_waits.size() << " waits for events that nobody records, first: " << idle_waits.front();
    EXPECT_GE(r.classes[c].memory.peak_reserved, r.classes[c].memory.peak_allocated);
  }
  EXPECT_EQ(ranks, s.gpus());
}

/// Each rank by itself does what its class does.
void check_unfolded(const scenario::Scenario& s) {
  const scenario::Result folded = scenario::simulate(s), unfolded = scenario::simulate(s, {.unfold = true});
  const st::Layout layout(s.strategy.parallelism.degrees, s.strategy.parallelism.order);
  EXPECT_EQ(folded.step_time, unfolded.step_time);
  for (int rank = 0; rank < s.gpus(); ++rank) {
    const auto& classes = folded.plan.class_of_rank;
    const auto c = static_cast<std::size_t>(classes.empty() ? layout.coordinates_of(rank).pipeline : classes[static_cast<std::size_t>(rank)]);
    const scenario::ClassResult &one = unfolded.classes[static_cast<std::size_t>(rank)], &whole = folded.classes[c];
    EXPECT_EQ(one.memory.peak_allocated, whole.memory.peak_allocated) << rank;
    EXPECT_EQ(one.memory.peak_reserved, whole.memory.peak_reserved) << rank;
    EXPECT_EQ(one.timing.time, whole.timing.time) << rank;
  }
}

/// What searches ask for instead of a whole simulation agrees with it.
void check_parts(const scenario::Scenario& s) {
  const scenario::Result whole = scenario::simulate(s);
  EXPECT_LE(scenario::simulate(s, {.time = false, .memory = false, .bound = true}).shortest_step, whole.step_time * (1 + 1e-6));
  // Enough memory to the byte, a cached segment less, and much less.
  const Bytes need = whole.classes[whole.fullest_class].peak_device();
  for (const Bytes less : {Bytes{0}, 2_MiB, Bytes{need.value / 4}}) {
    scenario::Scenario tight = s;
    tight.cluster.gpu.memory = need - less;
    EXPECT_EQ(scenario::simulate(tight, {.time = false, .only_fits = true}).fits, scenario::simulate(tight).fits) << less.value << " B less";
  }
}

using Pair = std::array<std::size_t, 4>;   // dimension, value, dimension, value

/// Every pair of values of two dimensions.
std::set<Pair> all_pairs() {
  std::set<Pair> all;
  const auto& dims = dimensions();
  for (std::size_t i = 0; i < dims.size(); ++i)
    for (std::size_t j = i + 1; j < dims.size(); ++j)
      for (std::size_t a = 0; a < dims[i].values.size(); ++a)
        for (std::size_t b = 0; b < dims[j].values.size(); ++b) all.insert({i, a, j, b});
  return all;
}

TEST(Combinations, EveryPairSimulatesOrIsRefusedWithAReason) {
  const struct Rewriting {
    Rewriting() { st::Stage::rewrites_blocks = true; }
    ~Rewriting() { st::Stage::rewrites_blocks = false; }
  } rewriting;  // a block's key stands for the same instructions wherever it comes back
  std::mt19937_64 random(20240611);
  std::set<Pair> untried = all_pairs();
  int simulated = 0, refused = 0;
  for (int run = 0; (run < 6000 || !untried.empty()) && !testing::Test::HasFailure(); ++run) {
    Choice c;
    for (const Dimension& d : dimensions()) c.push_back(random() % d.values.size());
    if (run >= 6000) {   // what chance has left out
      const auto [i, a, j, b] = *untried.begin();
      c[i] = a, c[j] = b;
    }
    for (std::size_t i = 0; i < c.size(); ++i)
      for (std::size_t j = i + 1; j < c.size(); ++j) untried.erase({i, c[i], j, c[j]});
    SCOPED_TRACE(describe(c));
    const scenario::Scenario s = scenario_of(c);
    const auto problems = scenario::problems_of(s);
    if (!problems.empty()) {
      ++refused;
      for (const Diagnostic& d : problems) EXPECT_FALSE(d.key.empty() || d.problem.empty());
      continue;
    }
    ++simulated;
    try {
      check(s);
      if (simulated % 3 == 0) check_unfolded(s);
      if (simulated % 3 == 1) check_parts(s);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  }
  RecordProperty("refused", refused);
  EXPECT_GT(simulated, 200);  // most kinds of offload want a kind of sharding
}

// However the work is spread, the kernels of all ranks execute the same operations (nothing recomputed, nothing padded).
TEST(Combinations, OperationsAreConserved) {
  double expected = 0;
  int jobs = 0;
  for (int tensor : {1, 2, 4, 8})
    for (int pipeline : {1, 2, 4})
      for (st::DataParallelKind kind : {st::DataParallelKind::ddp, st::DataParallelKind::zero2, st::DataParallelKind::fsdp2})
        for (bool sequence_parallel : {false, true}) {
          if (tensor * pipeline > kGpus) continue;
          scenario::Scenario s = scenario_of(Choice(dimensions().size(), 0));
          s.cluster.gpus_per_node = kGpus;
          s.profile = st::load_profile("plain");
          s.strategy.data_parallel.kind = kind;
          s.strategy.parallelism.sequence_parallel = sequence_parallel;
          s.strategy.pipeline.schedule = "1f1b";
          s.strategy.training.global_batch_size = 32;
          s.strategy.training.precision = st::Precision::bf16;
          st::Degrees& d = s.strategy.parallelism.degrees;
          d.tensor = tensor, d.pipeline = pipeline, d.data = kGpus / (tensor * pipeline);
          if (kind == st::DataParallelKind::zero2 && pipeline > 1) continue;   // DeepSpeed refuses it
          ASSERT_TRUE(scenario::problems_of(s).empty());
          const double operations = scenario::simulate(s, {.time = false, .memory = false}).flops.hardware;
          if (jobs++ == 0) expected = operations;
          EXPECT_EQ(operations, expected) << tensor << " x " << pipeline;
        }
  EXPECT_GT(jobs, 30);
}

}  // namespace
}  // namespace rehearse::combinations_test
