// Optimizer states by their papers' formulas, Muon's products, and evaluation passes without gradients.
#include "strategies/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::optimizer_test {
namespace {

namespace st = strategies;
using plan::Category;
using st::Optimizer;
using test_support::ByteLedger;

st::Weight matrix(std::int64_t rows, std::int64_t columns) { return {.name = "up_proj.weight", .elements = rows * columns, .columns = columns}; }

TEST(Optimizers, StatesOfOneMatrix) {
  const st::Weight w = matrix(11008, 4096);
  const std::int64_t n = w.elements;
  EXPECT_EQ(st::state_bytes(w, Optimizer::sgd, 4), 0);
  EXPECT_EQ(st::state_bytes(w, Optimizer::lion, 4), 4 * n);
  EXPECT_EQ(st::state_bytes(w, Optimizer::adamw, 2), 4 * n);
  EXPECT_EQ(st::state_bytes(w, Optimizer::adamw_8bit, 4), 2 * (n + n / 256 * 4));   // Dettmers et al. 2022: 2 bytes and the scales
  EXPECT_EQ(st::state_bytes(w, Optimizer::adafactor, 4), 4 * (11008 + 4096));       // Shazeer and Stern 2018: rows and columns
  EXPECT_EQ(st::state_bytes(w, Optimizer::muon, 4), 4 * n);
  const st::Weight norm{.name = "input norm.weight", .elements = 4096, .matrix = false}, small{.name = "q_norm.weight", .elements = 128, .matrix = false};
  EXPECT_EQ(st::state_bytes(norm, Optimizer::adafactor, 4), 4 * 4096);
  EXPECT_EQ(st::state_bytes(norm, Optimizer::muon, 4), 8 * 4096);
  EXPECT_EQ(st::state_bytes(small, Optimizer::adamw_8bit, 4), 8 * 128);             // below 4096 elements they stay in fp32
}

TEST(Optimizers, StatesOfAModelAreTheSumOverItsWeights) {
  const model::ModelDescription model = small_llama(4);
  const st::FrameworkProfile profile = st::load_profile("plain");
  const std::int64_t h = 512, f = 1024, v = 4096, layers = 4, master = 4;
  const std::int64_t matrices = layers * (4 * h * h + 3 * h * f), tables = 2 * v * h, norms = (2 * layers + 1) * h, all = matrices + tables + norms;
  auto states = [&](Optimizer optimizer) {
    st::Strategy s = small_job(1);
    s.training.optimizer = optimizer;
    return ByteLedger(st::write_plan(model, s, profile, 8), 0).step().setup[static_cast<std::size_t>(Category::optimizer)] - master * all;
  };
  EXPECT_EQ(states(Optimizer::lion), 4 * all);
  EXPECT_EQ(states(Optimizer::muon), 4 * matrices + 8 * (tables + norms));
  EXPECT_EQ(states(Optimizer::adafactor), 4 * (layers * (4 * (h + h) + 3 * (h + f)) + 2 * (v + h) + norms));
  EXPECT_EQ(states(Optimizer::adamw_8bit), 2 * (matrices + tables) * 260 / 256 + 8 * norms);
}

// torch.optim's foreach form, where it is several operations: SGD without momentum is one (p -= lr * g), and keeps no temporaries.
TEST(Optimizers, ForeachMovesMoreThanOnePass) {
  const auto moved = [](Optimizer optimizer, bool fused) {
    st::Strategy s = small_job(1);
    s.training.optimizer = optimizer;
    st::FrameworkProfile profile = st::load_profile("plain");
    profile.fused_optimizer = fused;
    const plan::Plan plan = st::write_plan(small_llama(4), s, profile, 8);
    double bytes = 0;
    for (const model::KernelSpec& k : plan.kernels)
      if (k.name == "optimizer step") bytes += static_cast<double>(k.bytes_read + k.bytes_written);
    return bytes;
  };
  EXPECT_GT(moved(Optimizer::sgd, true), 0);
  EXPECT_EQ(moved(Optimizer::sgd, false), moved(Optimizer::sgd, true));
  EXPECT_NEAR(moved(Optimizer::momentum, false) / moved(Optimizer::momentum, true), 8.0 / 5.0, 1e-6);
  EXPECT_NEAR(moved(Optimizer::adamw, false) / moved(Optimizer::adamw, true), 20.0 / 7.0, 1e-6);
}

TEST(Optimizers, MomentsInSixteenBitsHalve) {
  st::Strategy s = small_job(1);
  st::FrameworkProfile profile = st::load_profile("plain");
  const auto bytes = [&] { return ByteLedger(st::write_plan(small_llama(4), s, profile, 8), 0).step().setup[static_cast<std::size_t>(Category::optimizer)]; };
  const std::int64_t wide = bytes(), p = st::parameters_per_stage(small_llama(4), s, profile)[0];
  profile.optimizer_state = DType::bf16;
  EXPECT_EQ(wide, 12 * p);
  EXPECT_EQ(bytes(), 8 * p);
}

// Five steps of two products with r^2 c and one with r^3 multiplications, for r x c with r <= c.
TEST(Optimizers, MuonOrthogonalisesEachMatrixOfALayer) {
  st::Strategy s = small_job(1);
  s.training.optimizer = Optimizer::muon;
  const plan::Plan plan = st::write_plan(small_llama(4), s, st::load_profile("plain"), 8);
  double flops = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.phase == plan::Phase::optimizer)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel) flops += plan.kernels[i.index].kind == model::KernelKind::gemm ? model::flops_of(plan.kernels[i.index]).value : 0;
  const double h = 512, f = 1024;
  EXPECT_EQ(flops, 4 * 5 * (4 * 2 * (2 * h * h * h + h * h * h) + 3 * 2 * (2 * h * h * f + h * h * h)));
}

// Four layers have 16 matrices of h x h and 12 of h x f. Of 8 ranks one has at most two of each, and their moments; all ranks hear of the updates
// of every matrix in 16 bits. nanochat's optimizers cut the rest into slices.
TEST(Optimizers, MuonsMatricesHaveOwners) {
  const model::ModelDescription model = small_llama(4);
  st::Strategy s = small_job(8);
  s.training.optimizer = Optimizer::muon;
  st::FrameworkProfile profile = st::load_profile("plain");
  profile.muon_owners = profile.sums_muon_updates = true;
  const std::int64_t h = 512, f = 1024, v = 4096, layers = 4, master = 4;
  const std::int64_t matrices = layers * (4 * h * h + 3 * h * f), rest = 2 * v * h + (2 * layers + 1) * h, own = 2 * h * h + 2 * h * f;
  const plan::Plan plan = st::write_plan(model, s, profile, 8);
  double products = 0;
  std::vector<std::int64_t> updates;
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.phase == plan::Phase::optimizer)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) products += model::flops_of(plan.kernels[i.index]).value;
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].name == "updates of matrices") updates.push_back(plan.collectives[i.index].bytes.value);
      }
  EXPECT_EQ(products, 5.0 * 2 * (2 * (2 * h * h * h + h * h * h) + 2 * (2 * h * h * f + h * h * h)));
  EXPECT_EQ(updates, std::vector<std::int64_t>{2 * matrices});
  const auto states = [&] { return ByteLedger(st::write_plan(model, s, profile, 8), 0).step().setup[static_cast<std::size_t>(Category::optimizer)] - master * (matrices + rest); };
  profile.states_at_first_step = false;
  EXPECT_EQ(states(), 4 * matrices / 8 + 8 * rest);
  profile.sums_muon_updates = false;
  EXPECT_EQ(states(), (4 * matrices + 8 * rest) / 8);
  // Made in the first step: this rank's matrices, and slices of the rest.
  profile.states_at_first_step = true;
  EXPECT_EQ(states(), 4 * own + 8 * rest / 8);
}

// Gradients of all micro-batches are reduced where DDP is not told otherwise in forward: four times the bytes.
TEST(Optimizers, ReplicasMayReduceAfterEveryMicroBatch) {
  const auto reduced = [](bool each) {
    st::FrameworkProfile profile = st::load_profile("plain");
    profile.reduces_each_pass = each;
    const plan::Plan plan = st::write_plan(small_llama(4), small_job(8, 1, 4), profile, 8);
    std::int64_t bytes = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].name == "gradient reduction") bytes += plan.collectives[i.index].bytes.value;
    return bytes;
  };
  EXPECT_GT(reduced(false), 0);
  EXPECT_EQ(reduced(true), 4 * reduced(false));
}

// Nothing is dropped in evaluation: the answer is that of a model without dropout.
TEST(Evaluation, HasNoDropout) {
  const auto answer = [](st::StepKind phase, double dropout) {
    Scenario s;
    s.cluster = hwmodels::load_cluster("dgx-h100", 1);
    s.cluster.gpus_per_node = 1;
    s.model = small_llama(4);
    s.model.dropout = s.model.attention_dropout = dropout;
    s.strategy = small_job(1, 1, 4);
    s.strategy.training.phase = phase;
    s.profile = st::with_choices(st::load_profile("megatron-core"), s.strategy);
    const Result r = simulate(s);
    std::int64_t moved = 0;   // small kernels hide behind the host
    for (const model::KernelSpec& k : r.plan.kernels) moved += k.bytes_read + k.bytes_written + (k.dropout ? 1 : 0);
    return std::pair(moved, r.classes[0].memory.peak_allocated.value);
  };
  EXPECT_EQ(answer(st::StepKind::evaluation, 0.1), answer(st::StepKind::evaluation, 0));
  EXPECT_NE(answer(st::StepKind::training, 0.1), answer(st::StepKind::training, 0));
}

// Forward only: a third of the operations, no gradients, the same states; whatever the sharding and the schedule.
TEST(Evaluation, RunsForwardOnlyBesideTheStatesOfTraining) {
  for (st::DataParallelKind kind : {st::DataParallelKind::none, st::DataParallelKind::ddp, st::DataParallelKind::zero3, st::DataParallelKind::fsdp2, st::DataParallelKind::distributed_optimizer})
    for (int pipeline : {1, 4}) {
      Scenario s;
      s.cluster = hwmodels::load_cluster("dgx-a100", 1);
      s.model = small_llama(8);
      s.profile = st::load_profile("plain");
      const int data = kind == st::DataParallelKind::none ? 1 : 2;
      s.cluster.gpus_per_node = data * pipeline;
      s.strategy = small_job(data, pipeline, 4);
      s.strategy.data_parallel.kind = kind;
      if (kind == st::DataParallelKind::zero3 && pipeline > 1) continue;   // DeepSpeed refuses it
      ASSERT_TRUE(problems_of(s).empty());
      const Result training = simulate(s);
      s.strategy.training.phase = st::StepKind::evaluation;
      const Result r = simulate(s);
      EXPECT_EQ(r.deadlock, "");
      EXPECT_LT(r.step_time, training.step_time);
      EXPECT_GT(r.step_time, 0);
      EXPECT_LT(r.flops.hardware, 0.34 * training.flops.hardware);
      EXPECT_LT(r.classes[0].memory.peak_allocated, training.classes[0].memory.peak_allocated);
      const auto bytes = ByteLedger(r.plan, 0).step(), before = ByteLedger(training.plan, 0).step();
      EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
      EXPECT_EQ(bytes.after_step, bytes.persistent);
      EXPECT_EQ(bytes.setup, before.setup);
      for (const plan::Call& call : r.plan.classes[0].program.step) EXPECT_TRUE(call.phase != plan::Phase::backward && call.phase != plan::Phase::optimizer) << r.plan.blocks[call.block].name;
    }
}

}  // namespace
}  // namespace rehearse::scenario::optimizer_test
