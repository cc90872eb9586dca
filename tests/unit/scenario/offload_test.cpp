// Offload: which bytes go where, what hides under backward, what a node's ranks share, when the host is full.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <utility>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::offload_test {
namespace {

namespace st = strategies;
using plan::Category;
using st::DataParallelKind;
using st::MemoryTier;
using test_support::ByteLedger;

constexpr int kRanks = 8;

st::Strategy offloaded(DataParallelKind kind, bool parameters, int micro_batches = 1) {
  st::Strategy s = small_job(kRanks, 1, micro_batches);
  s.data_parallel.kind = kind;
  s.memory.offload.optimizer = MemoryTier::cpu;
  if (parameters) s.memory.offload.parameters = MemoryTier::cpu;
  return s;
}

std::int64_t copied(const plan::Plan& plan, plan::CopySpec::Direction direction) {
  std::int64_t bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::copy && plan.copies[i.index].direction == direction) bytes += plan.copies[i.index].bytes.value;
  return bytes;
}

// ZeRO-Offload (Ren et al. 2021, section 4): the GPU keeps 2P; the host keeps 16P/N per rank (fp32 parameters, moments and
// gradients). The paper's 2P/N down and 2P/N up are 4P/N each in DeepSpeed's code until May 2025: gradients are widened before they go, fp32
// parameters come back (stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu, step). Since then the CPU casts them into 2P/N of
// host memory first.
TEST(Offload, ZeroOffloadBytes) {
  const model::ModelDescription model = small_llama(4);
  st::FrameworkProfile profile = st::load_profile("plain");
  const st::Strategy s = offloaded(DataParallelKind::zero2, false);
  const plan::Plan plan = st::write_plan(model, s, profile, kRanks);
  const std::int64_t p = st::parameters_per_stage(model, s, profile)[0];
  const auto bytes = ByteLedger(plan, 0).step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::parameter)], 2 * p);
  EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::optimizer)], 0);
  EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::gradient)], 0);
  for (const st::OffloadReturn way : {st::OffloadReturn::narrow, st::OffloadReturn::cast, st::OffloadReturn::wide, st::OffloadReturn::under_update}) {
    const bool narrow = way == st::OffloadReturn::narrow, cast = way == st::OffloadReturn::cast;
    profile.offload_return = way;
    const plan::Plan back = st::write_plan(model, s, profile, kRanks);
    EXPECT_EQ(back.classes[0].host.pinned, (narrow ? 18 : 16) * p / kRanks);
    EXPECT_EQ(copied(back, plan::CopySpec::Direction::device_to_host), 4 * p / kRanks);
    EXPECT_EQ(copied(back, plan::CopySpec::Direction::host_to_device), (narrow || cast ? 2 : 4) * p / kRanks);
    const auto step = ByteLedger(back, 0).step();
    EXPECT_TRUE(step.mistakes.empty()) << step.mistakes.front();
  }
  // Of two micro-batches, the first leaves 2P/N, which come back to be added to.
  st::Strategy twice = offloaded(DataParallelKind::zero2, false, 2);
  twice.data_parallel.overlap_gradient_reduce = true;
  twice.data_parallel.bucket = Bytes{p * bits(profile.reduce) / 8};
  const plan::Plan two = st::write_plan(model, twice, profile, kRanks);
  EXPECT_EQ(two.classes[0].host.pinned, (16 + 2) * p / kRanks);
  EXPECT_EQ(copied(two, plan::CopySpec::Direction::device_to_host), (2 + 4) * p / kRanks);
  EXPECT_EQ(copied(two, plan::CopySpec::Direction::host_to_device), (2 + 4) * p / kRanks);
}

// FSDP with everything on the host: nothing of the model's states stays on the GPU; each rank's shard comes up for forward
// and for backward (but for the last unit, which stays), and gradients go down. ZeRO-3 keeps its persistent parameters, here nine
// norms of 512, and what it uses again within 1e9 elements: all of this model comes up once, unless it may keep nothing.
TEST(Offload, ZeroThreeKeepsNothingOnTheGpu) {
  const model::ModelDescription model = small_llama(4);
  const st::FrameworkProfile profile = st::load_profile("plain");
  for (const auto& [kind, keeps] : {std::pair{DataParallelKind::zero3, true}, std::pair{DataParallelKind::zero3, false}, std::pair{DataParallelKind::fsdp2, false}}) {
    st::Strategy s = offloaded(kind, true);
    const bool zero3 = kind == DataParallelKind::zero3;
    if (zero3 && !keeps) s.data_parallel.max_reuse_distance = s.data_parallel.prefetch_bucket = 0;
    const std::int64_t norms = zero3 ? 9 * 512 : 0;
    const plan::Plan plan = st::write_plan(model, s, profile, kRanks);
    const std::int64_t p = st::parameters_per_stage(model, s, profile)[0];
    const auto bytes = ByteLedger(plan, 0).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    for (Category c : {Category::optimizer, Category::gradient}) EXPECT_EQ(bytes.setup[static_cast<std::size_t>(c)], 0);
    EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::parameter)], 2 * norms);
    EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::gradient)], 0);
    // fp32 parameters, moments and gradients, 16-bit parameters, under ZeRO-3 16-bit sums of gradients.
    EXPECT_EQ(plan.classes[0].host.pinned, (zero3 ? 20 : 18) * p / kRanks);
    // ZeRO-3's last sum goes down as all others and once more in fp32; each comes back before it is used (stage3.py, partition_grads).
    EXPECT_EQ(copied(plan, plan::CopySpec::Direction::device_to_host), (zero3 ? 2 + 4 : 2) * p / kRanks);
    const std::int64_t up = copied(plan, plan::CopySpec::Direction::host_to_device);
    if (zero3) {
      EXPECT_EQ(up, (keeps ? 2 : 4) * (p - norms) / kRanks + 2 * p / kRanks);
      continue;
    }
    EXPECT_GT(up, 3 * p / kRanks);
    EXPECT_LT(up, 4 * p / kRanks);
  }
}

Scenario scenario_with(const st::Strategy& s, std::int64_t layers = 8) {
  Scenario out;
  out.cluster = hwmodels::load_cluster("dgx-a100", 1);
  out.model = small_llama(layers);
  out.strategy = s;
  out.profile = without_host_time(st::load_profile("plain"));
  return out;
}

double seconds(const Result& r, executor::Cause c) { return to_seconds(Duration{r.classes[0].timing.time[static_cast<std::size_t>(c)]}); }
double busy(const Result& r, plan::Stream s) { return to_seconds(Duration{r.classes[0].timing.busy[static_cast<std::size_t>(s)]}); }

// tests/accuracy/h200_vm/operators.jsonl: x.to("cpu") of 1 and 4 GiB in 0.720 and 2.926 s, which is a pageable copy into memory that one thread touches
// first; written by all threads first the same GiB takes 0.09 s.
TEST(Offload, NewMemoryIsTouchedByOneThreadAsSlowlyAsMeasured) {
  const hwmodels::HostRates host = hwmodels::host_rates(hwmodels::load_cluster("h200-vm", 1));
  const double pageable = std::min(host.to_host_alone.value * host.pageable, host.pageable_most.value);
  for (const auto& [gib, seconds] : {std::pair{1, 0.720}, {4, 2.926}}) {
    const Bytes bytes{std::int64_t{gib} << 30};
    EXPECT_NEAR((static_cast<double>(bytes.value) / pageable + to_seconds(host.touch_time(bytes, 1))) / seconds, 1, 0.1) << gib;
  }
  EXPECT_NEAR(to_seconds(host.touch_time(Bytes{std::int64_t{1} << 30}, 0)), 0.09, 0.03);
  EXPECT_EQ(host.touch_time(Bytes{std::int64_t{1} << 30}, 64), host.touch_time(Bytes{std::int64_t{1} << 30}, 0));
}

// Of the step's last micro-batch the host reads of each gradient whether it overflows, behind the copies before it: nothing of backward runs beside
// them. Gradients of those before go down while backward goes on. Without pinned memory they do not.
TEST(Offload, GradientCopiesHideUnderBackwardOfAllButTheLastMicroBatch) {
  const auto cost = [](int micro_batches, bool pinned) {
    Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
    s.strategy.training.sequence_length = 16384;   // eight ranks copy in turn
    s.strategy.training.global_batch_size *= micro_batches;
    s.strategy.data_parallel.overlap_gradient_reduce = true;
    s.strategy.data_parallel.bucket = Bytes{1 << 20};
    s.strategy.memory.offload.pinned = pinned;
    EXPECT_TRUE(problems_of(s).empty());
    Scenario here = s;
    here.strategy.memory.offload.optimizer = MemoryTier::device;
    const Result r = simulate(s, {.memory = false});
    return std::pair{r.step_time - simulate(here, {.memory = false}).step_time, r};
  };
  const auto [one, pinned] = cost(1, true);
  const double update = static_cast<double>(pinned.plan.host_works.at(0).dram.value) / hwmodels::host_rates(scenario_with(offloaded(DataParallelKind::zero2, false)).cluster).update.value;
  const double down = busy(pinned, plan::Stream::to_host), rest = update + busy(pinned, plan::Stream::to_device);
  EXPECT_GT(one, rest + 0.7 * down);
  EXPECT_LT(one, rest + 1.4 * down);   // what looks at them is in it
  // Each micro-batch between the first and the last brings its sum up and down again.
  const auto [two, of_two] = cost(2, true);
  const auto [four, of_four] = cost(4, true);
  EXPECT_LT(four - two, 0.3 * (busy(of_four, plan::Stream::to_host) - busy(of_two, plan::Stream::to_host)));
  EXPECT_GT(cost(1, false).first, one);
}

// ZeRO-2 cuts the flat parameters into pieces one after the other: a reduced bucket is one rank's, which copies while the others wait in the next
// reduction. Without overlap that is compute's own stream (stage_1_and_2.py, reduce_ipg_grads). All of a step's time that eight ranks' copies take one
// after another is exposed then, and each micro-batch is reduced from its hooks: of two, P goes down in 16 bits and in fp32, and P comes back once.
// ZeRO-3 cuts every parameter, and all ranks copy at once.
TEST(Offload, ZeroTwoCopiesInTurn) {
  for (const DataParallelKind kind : {DataParallelKind::zero2, DataParallelKind::zero3}) {
    Scenario s = scenario_with(offloaded(kind, false, 2));
    s.strategy.data_parallel.overlap_gradient_reduce = false;
    s.strategy.data_parallel.bucket = Bytes{8 << 20};
    ASSERT_TRUE(problems_of(s).empty());
    const Result away = simulate(s, {.memory = false});
    const std::int64_t p = st::parameters_per_stage(s.model, s.strategy, s.profile)[0];
    const bool in_turn = kind == DataParallelKind::zero2;
    for (const plan::CopySpec& copy : away.plan.copies) {
      if (copy.direction == plan::CopySpec::Direction::device_to_host) {
        EXPECT_EQ(copy.turns, in_turn ? kRanks : 1);
      }
    }
    if (!in_turn) continue;
    EXPECT_LE(std::abs(copied(away.plan, plan::CopySpec::Direction::device_to_host) - (2 + 4) * p / kRanks), 64 * kRanks);
    const hwmodels::HostRates host = hwmodels::host_rates(s.cluster);
    const double down = 6.0 * static_cast<double>(p) / host.to_host_alone.value, up = 2.0 * static_cast<double>(p) / host.to_device_alone.value;
    EXPECT_GT(seconds(away, executor::Cause::copy), 0.99 * (down + up));
    EXPECT_LT(seconds(away, executor::Cause::copy), 1.2 * (down + up) + busy(away, plan::Stream::to_device));
  }
}

// DGX A100: two GPUs share a PCIe switch and all share 410 GB/s of DRAM. One GPU alone has its link to itself.
TEST(Offload, RanksOfANodeShareItsPcieAndDram) {
  hwmodels::ClusterDescription c = hwmodels::load_cluster("dgx-a100", 1);
  const hwmodels::HostRates all = hwmodels::host_rates(c);
  EXPECT_DOUBLE_EQ(all.to_device.value, c.gpu.host_to_device.value / 2);
  EXPECT_DOUBLE_EQ(all.to_device_alone.value, c.gpu.host_to_device.value);   // while the seven others wait
  EXPECT_DOUBLE_EQ(all.update.value, 0.46 * c.node.cpu.memory_bandwidth.value / 8);
  c.gpus_per_node = 1;
  const hwmodels::HostRates one = hwmodels::host_rates(c);
  EXPECT_DOUBLE_EQ(one.to_device.value, c.gpu.host_to_device.value);
  EXPECT_DOUBLE_EQ(one.update.value, 8 * all.update.value);
}

// A process's pinned memory lies on one of the machine's memory domains. DGX A100 has eight: eight processes have one each, two have a
// quarter of the bandwidth that all eight give them. Two sockets of DGX-2: one process has half of it. Threads that do not fill
// the domain do not feel it.
TEST(Offload, PinnedMemoryLiesOnOneDomain) {
  const Bytes all{1'000'000'000}, pinned{400'000'000};
  const auto against_spread = [&](const char* node, int gpus, Bytes near, int threads) {
    hwmodels::ClusterDescription c = hwmodels::load_cluster(node, 1);
    c.gpus_per_node = gpus;
    const hwmodels::HostRates r = hwmodels::host_rates(c);
    return to_seconds(r.update_time(all, near, threads)) / to_seconds(r.update_time(all, {}, threads));
  };
  EXPECT_NEAR(against_spread("dgx-a100", 8, pinned, 0), 1, 1e-9);
  EXPECT_NEAR(against_spread("dgx-a100", 2, pinned, 0), 0.6 + 0.4 * 4, 1e-6);
  EXPECT_NEAR(against_spread("dgx-2", 1, pinned, 0), 0.6 + 0.4 * 2, 1e-6);
  EXPECT_NEAR(against_spread("dgx-2", 1, all, 0), 2, 1e-6);
  EXPECT_NEAR(against_spread("dgx-2", 2, pinned, 0), 1, 1e-9);
  EXPECT_NEAR(against_spread("dgx-2", 1, pinned, 1), 1, 1e-9);
}

// What of an update's traffic is pinned: DeepSpeed's master copy (8 bytes) and gradient (4 to update, 8 to scale), not the moments; where the CPU
// casts, 4 to read and 2 to write. Nothing where memory is not pinned.
TEST(Offload, MasterCopyAndGradientArePinned) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
  s.profile.offload_return = st::OffloadReturn::wide;
  const std::int64_t mine = st::parameters_per_stage(s.model, s.strategy, s.profile)[0] / kRanks;
  const auto pinned = [&] { return st::write_plan(s.model, s.strategy, s.profile, kRanks).host_works.at(0).pinned.value; };
  EXPECT_EQ(pinned(), 20 * mine);
  s.profile.offload_return = st::OffloadReturn::narrow;
  EXPECT_EQ(pinned(), 26 * mine);
  s.strategy.memory.offload.pinned = false;
  EXPECT_EQ(pinned(), 0);
}

// DeepSpeed of 2020: the update writes parameters into a buffer (4 bytes, whose line is read first), from which the GPU reads them (4) while
// the next 2^30 are updated. The plan keeps each distinct piece once: a whole one and the rest.
TEST(Offload, ParametersReturnUnderTheUpdate) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
  s.model = model::make_from_shapes({.name = "wide", .layers = 4, .hidden = 16384, .heads = 128, .vocab = 4096, .ffn_hidden = 65536});
  const std::int64_t mine = st::parameters_per_stage(s.model, s.strategy, s.profile)[0] / kRanks, tile = std::int64_t{1} << 30, tiles = (mine + tile - 1) / tile;
  ASSERT_GT(tiles, 1);
  const auto works = [&] {
    std::int64_t moved = 0, number = 0;
    const plan::Plan plan = st::write_plan(s.model, s.strategy, s.profile, kRanks);
    for (const plan::HostSpec& work : plan.host_works) moved += work.dram.value, ++number;
    return std::pair{moved, number};
  };
  s.profile.offload_return = st::OffloadReturn::wide;
  EXPECT_EQ(works(), (std::pair{36 * mine, std::int64_t{1}}));
  s.profile.offload_return = st::OffloadReturn::under_update;
  s.profile.update_tile = tile;
  EXPECT_EQ(works(), (std::pair{48 * (tile + mine - (tiles - 1) * tile), std::int64_t{2}}));
}

// The CPU's update by hand: 28 bytes per element and 8 for scaling the gradient, which DeepSpeed does whether it clips or not, at
// one rank's share of DRAM.
TEST(Offload, CpuUpdateTakesItsShareOfDram) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
  s.profile.offload_return = st::OffloadReturn::wide;
  s.strategy.training.clip_gradients = false;
  const plan::Plan plan = st::write_plan(s.model, s.strategy, s.profile, kRanks);
  const std::int64_t mine = st::parameters_per_stage(s.model, s.strategy, s.profile)[0] / kRanks;
  ASSERT_EQ(plan.host_works.size(), 1u);
  EXPECT_EQ(plan.host_works[0].dram.value, 36 * mine);
  const double update = 36.0 * static_cast<double>(mine) / hwmodels::host_rates(s.cluster).update.value;
  const Result away = simulate(s, {.memory = false});
  // The compute stream waits for the parameters that come back, and the step says what for.
  EXPECT_GT(seconds(away, executor::Cause::host_work), 0.99 * update);
  EXPECT_LE(seconds(away, executor::Cause::host_work), 1.0001 * update);
  s.strategy.memory.offload.optimizer = MemoryTier::device;
  EXPECT_GT(away.step_time, simulate(s, {.memory = false}).step_time + 0.99 * update);
}

// DGX H100: a core of its Xeons moves 12.2 GB/s, a rank's share of 614 GB/s is 35.
TEST(Offload, ThreadsBoundTheCpuUpdate) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
  s.profile.offload_return = st::OffloadReturn::wide;
  s.cluster = hwmodels::load_cluster("dgx-h100", 1);
  const hwmodels::HostRates rates = hwmodels::host_rates(s.cluster);
  const auto rate = [&](int threads) { return 61e9 / to_seconds(rates.update_time(Bytes{61'000'000'000}, {}, threads)); };
  EXPECT_NEAR(rate(1), 12.2e9, 1);
  EXPECT_NEAR(rate(2), 24.4e9, 1);
  for (const int enough : {0, 3, 1000}) EXPECT_NEAR(rate(enough), rates.update.value, 1);
  const double bytes = 36.0 * static_cast<double>(st::parameters_per_stage(s.model, s.strategy, s.profile)[0]) / kRanks;
  const auto update = [&](std::optional<int> threads, int profile) {
    s.strategy.memory.offload.threads = threads;
    s.profile.cpu_threads = profile;
    return seconds(simulate(s, {.memory = false}), executor::Cause::host_work);
  };
  // torchrun's one thread, DeepSpeed's launcher's many, and what the scenario says of either.
  EXPECT_NEAR(update({}, 1) * 12.2e9 / bytes, 1, 0.01);
  EXPECT_NEAR(update({}, 0) * rates.update.value / bytes, 1, 0.01);
  EXPECT_NEAR(update(2, 0) * 24.4e9 / bytes, 1, 0.01);
  EXPECT_NEAR(update(14, 1) * rates.update.value / bytes, 1, 0.01);
  // A process alone keeps its threads.
  s.strategy.memory.offload.threads.reset();
  EXPECT_EQ(st::write_plan(s.model, s.strategy, s.profile, kRanks).host_works[0].threads, 1);
  s.strategy.parallelism.degrees.data = 1;
  EXPECT_EQ(st::write_plan(s.model, s.strategy, s.profile, 1).host_works[0].threads, 0);
  EXPECT_EQ(st::load_profile("huggingface").cpu_threads, 1);
  for (const char* launched : {"deepspeed", "deepspeed-2020", "gpt-neox", "megatron-deepspeed"}) EXPECT_EQ(st::load_profile(launched).cpu_threads, 0) << launched;
}

// Bytes per element of an update under FSDP: PyTorch's fused Adam goes over the states once (28); its other one operator by operator
// (80, and root and quotient in new tensors, 8). Clipping reads the gradients for their norm and scales them (12).
TEST(Offload, PytorchUpdatesOperatorByOperator) {
  const model::ModelDescription model = small_llama(4);
  st::FrameworkProfile profile = st::load_profile("plain");
  st::Strategy s = offloaded(DataParallelKind::fsdp2, true);
  const std::int64_t mine = st::parameters_per_stage(model, s, profile)[0] / kRanks;
  const auto per_element = [&](bool fused, bool clips) {
    profile.fused_optimizer = fused;
    s.training.clip_gradients = clips;
    const plan::HostSpec work = st::write_plan(model, s, profile, kRanks).host_works.at(0);
    return std::pair{work.dram.value / mine, work.fresh.value / mine};
  };
  EXPECT_EQ(per_element(true, false), (std::pair<std::int64_t, std::int64_t>{28, 0}));
  EXPECT_EQ(per_element(true, true), (std::pair<std::int64_t, std::int64_t>{40, 0}));
  EXPECT_EQ(per_element(false, true), (std::pair<std::int64_t, std::int64_t>{92, 8}));
  profile.stored_parameter = profile.optimizer_state = DType::bf16;   // the optimizer steps over the shards as they are
  profile.master_parameters = false;
  EXPECT_EQ(per_element(false, true), (std::pair<std::int64_t, std::int64_t>{46, 4}));
}

// FSDP's parameters in host memory are the optimizer's own: with their gradients and Adam's moments four tensors in the parameters' format.
TEST(Offload, HostHasShardsAndWhatTheirOptimizerKeeps) {
  const model::ModelDescription model = small_llama(4);
  st::FrameworkProfile profile = st::load_profile("torchtitan");
  const st::Strategy s = offloaded(DataParallelKind::fsdp2, true);
  const std::int64_t mine = st::parameters_per_stage(model, s, profile)[0] / kRanks;
  for (const DType format : {DType::fp32, DType::bf16}) {
    profile.stored_parameter = profile.optimizer_state = format;
    const plan::HostBytes host = st::write_plan(model, s, profile, kRanks).classes[0].host;
    EXPECT_EQ((host.pinned + host.pageable) / mine, 4 * bits(format) / 8);
  }
}

// ZeRO-Offload (Ren et al. 2021), table 4, two Xeon 8168: 10 B parameters take PyTorch's Adam 14.76 s, DeepSpeed's 2.57 s with the 16-bit copy.
TEST(Offload, PublishedUpdatesOfTenBillion) {
  hwmodels::ClusterDescription dgx2 = hwmodels::load_cluster("dgx-2", 1);
  dgx2.gpus_per_node = 1;
  const hwmodels::HostRates rates = hwmodels::host_rates(dgx2);
  EXPECT_NEAR(30 * 10e9 / rates.update.value, 2.57, 0.03);
  EXPECT_NEAR(80 * 10e9 / rates.update.value + 8 * 10e9 / rates.fresh.value, 14.76, 0.15);
}

// ZeRO-3's parameters are cast by the CPU on their way back, 6 bytes per element, and travel from a tensor that nobody pinned. Those that stay
// in host memory are cast there.
TEST(Offload, ZeroThreeCastsOnTheCpu) {
  const model::ModelDescription model = small_llama(4);
  const st::FrameworkProfile profile = st::load_profile("plain");
  for (const bool stay : {false, true}) {
    const st::Strategy s = offloaded(DataParallelKind::zero3, stay);
    const std::int64_t mine = st::parameters_per_stage(model, s, profile)[0] / kRanks;
    const plan::Plan plan = st::write_plan(model, s, profile, kRanks);
    EXPECT_EQ(plan.host_works.at(0).dram.value, (36 + 6) * mine);
    EXPECT_EQ(plan.host_works.at(0).fresh.value, stay ? 0 : 2 * mine);
    std::int64_t pageable = 0;
    for (const plan::CopySpec& copy : plan.copies)
      if (!copy.pinned) pageable += copy.bytes.value;
    EXPECT_EQ(pageable, stay ? 0 : 2 * mine);
  }
}

TEST(Offload, NvmeHoldsTheStatesAndIsSlower) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero3, true));
  const Result cpu = simulate(s, {.memory = false});
  s.strategy.memory.offload.optimizer = MemoryTier::nvme;
  s.strategy.data_parallel.sub_group = 100'000;   // several pieces: what is read of one can hide under another's update
  ASSERT_TRUE(problems_of(s).empty());
  const Result nvme = simulate(s, {.memory = false});
  s.strategy.memory.offload.pipelined = true;
  const Result pipelined = simulate(s, {.memory = false});
  EXPECT_GT(nvme.step_time, pipelined.step_time);
  EXPECT_GT(pipelined.step_time, cpu.step_time);
  // fp32 parameters, moments and gradients of all ranks; in host memory 16-bit sums of gradients, and swap buffers.
  EXPECT_EQ(nvme.host.nvme.value, 16 * nvme.classes[0].parameters);
  EXPECT_LT(nvme.host.ram().value, cpu.host.ram().value);
  // DeepSpeed of 2021 keeps no sums where there is one micro-batch only.
  Scenario early = s;
  early.profile.keeps_gradient_sums = false;
  EXPECT_EQ(pipelined.host.ram().value - simulate(early, {.time = false}).host.ram().value, 2 * nvme.classes[0].parameters);
  EXPECT_EQ(cpu.host.nvme.value, 0);
  EXPECT_EQ(cpu.host.ram().value, 20 * cpu.classes[0].parameters);
}

/// Bytes of a step of one rank: from disks and to them.
std::pair<std::int64_t, std::int64_t> disk_bytes(const plan::Plan& plan) {
  std::pair<std::int64_t, std::int64_t> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::host_work) out.first += plan.host_works[i.index].disk_read.value, out.second += plan.host_works[i.index].disk_write.value;
      if (i.op != plan::Opcode::copy || !plan.copies[i.index].disk) continue;
      (plan.copies[i.index].direction == plan::CopySpec::Direction::host_to_device ? out.first : out.second) += plan.copies[i.index].bytes.value;
    }
  return out;
}

// What a step of ZeRO-Infinity moves, by rank and parameter: 16 bytes from disks (fp32 parameter, moments, gradient) and 12 back, and
// before that the gradient's 4. Gradients fill buffers of a piece each: with one piece all of them leave when the update begins, with
// more only the last buffer's do, the rest under backward.
TEST(Offload, GradientsGoToDisksBufferByBuffer) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero3, true));
  s.strategy.memory.offload.optimizer = MemoryTier::nvme;
  const Result one = simulate(s, {.memory = false});
  const std::int64_t mine = one.classes[0].parameters / kRanks;
  EXPECT_EQ(disk_bytes(one.plan), std::pair(16 * mine, 16 * mine));
  const auto under_backward = [](const plan::Plan& plan) {
    std::int64_t bytes = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::copy && plan.copies[i.index].disk) bytes += plan.copies[i.index].bytes.value;
    return bytes;
  };
  EXPECT_EQ(under_backward(one.plan), 0);
  s.strategy.data_parallel.sub_group = 100'000;
  s.strategy.data_parallel.bucket = Bytes{1 << 20};
  const Result pieces = simulate(s, {.memory = false});
  const std::int64_t early = under_backward(pieces.plan), left = 4 * mine - early;
  EXPECT_GT(early, 2 * mine);
  EXPECT_GT(left, 0);
  EXPECT_EQ(disk_bytes(pieces.plan), std::pair(16 * mine, 16 * mine));
  EXPECT_LT(pieces.step_time, one.step_time);
}

// Pieces of parameters within the first max_in_cpu elements of a rank stay in host memory (stage3.py,
// _create_fp16_partitions_with_defragmentation); the others come from disks for forward and backward and go back after the update. The
// buffer for the former is as large as they could be, the pool for the latter has 5 x 1e8 elements, and one buffer more holds a piece.
TEST(Offload, ParametersBeyondTheFirstAreOnDisks) {
  const auto at = [](std::int64_t elements) {
    st::Strategy s = offloaded(DataParallelKind::zero3, true);
    s.memory.offload.parameters = MemoryTier::nvme;
    s.memory.offload.max_in_cpu = elements;
    s.data_parallel.sub_group = 100'000;
    s.data_parallel.persistence_threshold = 0;
    return simulate(scenario_with(s), {.memory = false});
  };
  const Result none = at(0), some = at(300'000), all = at(1'000'000'000);
  const std::int64_t p = none.classes[0].parameters, mine = p / kRanks;
  EXPECT_EQ(none.host.nvme.value, 2 * p);
  EXPECT_EQ(all.host.nvme.value, 0);
  EXPECT_GT(some.host.nvme.value, 0);
  EXPECT_LT(some.host.nvme.value, 2 * p);
  EXPECT_EQ(all.host.pinned.value, 18 * p + 2 * p + 2 * 500'000'000LL * kRanks);
  EXPECT_GE(none.host.pinned.value, 18 * p + (2 * 500'000'000LL + 2 * 100'000) * kRanks);
  EXPECT_EQ(disk_bytes(all.plan), std::pair(std::int64_t{0}, std::int64_t{0}));
  EXPECT_EQ(disk_bytes(none.plan).second, 2 * mine);
  EXPECT_GE(disk_bytes(none.plan).first, 2 * mine);        // forward, and what backward no longer has
  EXPECT_LE(disk_bytes(none.plan).first, 2 * 2 * mine);
  EXPECT_GT(none.step_time, some.step_time);
  EXPECT_GT(some.step_time, all.step_time);
}

// Pinned buffers: four of a piece each, three times as many where one piece is read and one written beside the one that is updated.
TEST(Offload, PipelinedPiecesTakeThreeTimesTheBuffers) {
  const auto pinned = [](bool pipelined, std::optional<int> buffers) {
    st::Strategy s = offloaded(DataParallelKind::zero3, true);
    s.memory.offload.optimizer = MemoryTier::nvme;
    s.memory.offload.pipelined = pipelined;
    s.memory.offload.buffers = buffers;
    s.data_parallel.sub_group = 100'000;
    return simulate(scenario_with(s), {.time = false}).host.pinned.value;
  };
  const std::int64_t four = pinned(false, std::nullopt), one = (pinned(false, 5) - four);
  EXPECT_GE(one, 4 * 100'000LL * kRanks);   // of fp32 elements, the piece being as long as the parameter that fills it
  EXPECT_EQ(pinned(true, std::nullopt) - four, 8 * one);
  EXPECT_EQ(pinned(true, 12), pinned(true, std::nullopt));
  st::Strategy few = offloaded(DataParallelKind::zero3, true);
  few.memory.offload.optimizer = MemoryTier::nvme;
  few.memory.offload.buffers = 4;
  EXPECT_TRUE(st::problems_of(small_llama(4), few, st::load_profile("plain"), kRanks).empty());
  few.memory.offload.pipelined = true;
  const std::vector<Diagnostic> problems = st::problems_of(small_llama(4), few, st::load_profile("plain"), kRanks);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "memory.offload.buffers");
  EXPECT_EQ(problems[0].fix, "Use 12, or leave the key out");
}

TEST(Offload, AFullHostIsAnAnswer) {
  Scenario s = scenario_with(offloaded(DataParallelKind::zero2, false));
  EXPECT_TRUE(simulate(s, {.time = false}).fits);
  s.cluster.node.cpu.memory = Bytes{1 << 20};
  const Result r = simulate(s, {.time = false});
  EXPECT_FALSE(r.fits);
  EXPECT_GT(r.host.ram(), s.cluster.node.cpu.memory);
}

// Checkpointed inputs: one per layer in host memory, none on the GPU but those on their way.
//   8 layers, 256 tokens, h 512, 2 bytes
TEST(Offload, CheckpointsWaitOnTheHost) {
  const model::ModelDescription model = small_llama(8);
  const st::FrameworkProfile profile = st::load_profile("plain");
  st::Strategy s = small_job(1);
  s.memory.recompute = st::Recompute::full;
  const std::int64_t input = 256 * 512 * 2;
  const plan::Plan here = st::write_plan(model, s, profile, 8);
  s.memory.offload.activations = MemoryTier::cpu;
  const plan::Plan away = st::write_plan(model, s, profile, 8);
  const auto a = ByteLedger(here, 0).step(), b = ByteLedger(away, 0).step();
  EXPECT_TRUE(b.mistakes.empty()) << b.mistakes.front();
  EXPECT_EQ(a.after_forward - b.after_forward, 8 * input);
  EXPECT_EQ(away.classes[0].host.pinned, 8 * input);
  EXPECT_EQ(copied(away, plan::CopySpec::Direction::device_to_host), 8 * input);
  EXPECT_EQ(copied(away, plan::CopySpec::Direction::host_to_device), 8 * input);
  EXPECT_EQ(a.after_step, b.after_step);
}

std::int64_t peak_of(const plan::Plan& plan) { return executor::run_memory(plan, 0, {.allocator = {.limit = 8_GiB}, .steps = 2}).peak_allocated.value; }

// Layers that are not made again: what all of them save waits in host memory, and none of it on the GPU when forward is over.
TEST(Offload, WhatLayersSaveWaitsOnTheHost) {
  const model::ModelDescription model = small_llama(8);
  const st::FrameworkProfile profile = st::load_profile("plain");
  st::Strategy s = small_job(1);
  s.training.sequence_length = 2048;   // large enough to go
  const plan::Plan here = st::write_plan(model, s, profile, 8);
  s.memory.offload.activations = MemoryTier::cpu;
  const plan::Plan away = st::write_plan(model, s, profile, 8);
  const auto a = ByteLedger(here, 0).step(), b = ByteLedger(away, 0).step();
  EXPECT_TRUE(b.mistakes.empty()) << b.mistakes.front();
  const std::int64_t gone = a.after_forward - b.after_forward;
  EXPECT_GT(gone, 8 * 10 * 2048 * 512 * 2);   // at the least two norms' and five products' inputs, queries, keys and values, output
  EXPECT_EQ(away.classes[0].host.pinned, gone);
  EXPECT_EQ(copied(away, plan::CopySpec::Direction::device_to_host), gone);
  EXPECT_EQ(copied(away, plan::CopySpec::Direction::host_to_device), gone);
  EXPECT_EQ(a.after_step, b.after_step);
  EXPECT_LT(peak_of(away), peak_of(here) - gone / 2);
  // Some of the layers: in proportion, one after the other.
  s.memory.offload.activation_layers = 2;
  const plan::Plan some = st::write_plan(model, s, profile, 8);
  EXPECT_EQ(a.after_forward - ByteLedger(some, 0).step().after_forward, gone / 4);
  EXPECT_EQ(copied(some, plan::CopySpec::Direction::device_to_host), gone / 4);
  s.memory.offload.activation_layers = 80;
  EXPECT_EQ(copied(st::write_plan(model, s, profile, 8), plan::CopySpec::Direction::device_to_host), gone);
}

// Two of eight layers, as Transformer Engine's DefaultOffloadSynchronizer: layer i goes when it has run, is gone by the beginning of layer
// 8 - 2 + i, and begins to come back before the backward of layer 8 - 1 - 2 + i.
TEST(Offload, SomeLayersGoAndComeBackAheadOfTime) {
  st::Strategy s = small_job(1);
  s.training.sequence_length = 2048;
  s.memory.offload.activations = MemoryTier::cpu;
  s.memory.offload.activation_layers = 2;
  const plan::Plan plan = st::write_plan(small_llama(8), s, st::load_profile("plain"), 8);
  std::vector<std::string> calls;
  for (const plan::Call& c : plan.classes[0].program.step) {
    if (c.phase != plan::Phase::forward && c.phase != plan::Phase::backward) continue;
    const std::string& name = plan.blocks[c.block].name;
    for (const char* what : {"offload activations", "let go of activations", "fetch activations", "use activations"})
      if (name.starts_with(what)) calls.push_back(name.substr(0, name.find(' ')) + (c.layer >= 0 ? " " + std::to_string(c.layer) : ""));
    if (c.layer >= 0 && name.find("activations") == std::string::npos) calls.push_back(std::string(c.phase == plan::Phase::forward ? "f" : "b") + std::to_string(c.layer));
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"f0", "offload 0", "f1", "offload 1", "f2", "f3", "f4", "f5", "let 0", "f6", "let 1", "f7", "b7", "fetch 1", "b6", "fetch 0", "b5", "b4", "b3", "b2", "use 1", "b1",
                                             "use 0", "b0"}));
}

// partition_activations: each of t ranks keeps 1/t of an input, and gathers it for backward.
TEST(Offload, PartitionedCheckpoints) {
  const model::ModelDescription model = small_llama(8);
  const st::FrameworkProfile profile = st::load_profile("plain");
  st::Strategy s = small_job(1);
  s.parallelism.degrees.tensor = 4;
  s.memory.recompute = st::Recompute::full;
  const std::int64_t input = 256 * 512 * 2;
  const auto whole = ByteLedger(st::write_plan(model, s, profile, 8), 0).step();
  s.memory.partition_activations = true;
  const plan::Plan plan = st::write_plan(model, s, profile, 8);
  const auto pieces = ByteLedger(plan, 0).step();
  EXPECT_TRUE(pieces.mistakes.empty()) << pieces.mistakes.front();
  EXPECT_EQ(whole.after_forward - pieces.after_forward, 8 * input * 3 / 4);
  s.memory.offload.activations = MemoryTier::cpu;
  const plan::Plan both = st::write_plan(model, s, profile, 8);
  const auto away = ByteLedger(both, 0).step();
  EXPECT_TRUE(away.mistakes.empty()) << away.mistakes.front();
  EXPECT_EQ(whole.after_forward - away.after_forward, 8 * input);
  EXPECT_EQ(both.classes[0].host.pinned, 8 * input / 4);
}

// One node may keep most of the RAM, another most of the NVMe: neither hides the other.
TEST(Offload, RamAndNvmeAreEachOfTheNodeThatKeepsMost) {
  const HostLedger ram{.pinned = 3_GiB, .pageable = 4_GiB, .nvme = 1_GiB}, disks{.pinned = 5_GiB, .pageable = 1_GiB, .nvme = 9_GiB};
  for (const bool first : {false, true}) {
    HostLedger fullest;
    fullest.cover(first ? ram : disks);
    fullest.cover(first ? disks : ram);
    EXPECT_EQ(fullest.ram(), 7_GiB);
    EXPECT_EQ(fullest.pinned, 3_GiB);
    EXPECT_EQ(fullest.nvme, 9_GiB);
  }
}

TEST(Offload, WhatCannotBeIsRefused) {
  auto refused = [](const st::Strategy& s) { return !st::problems_of(small_llama(4), s, st::load_profile("plain"), kRanks).empty(); };
  EXPECT_TRUE(refused(offloaded(DataParallelKind::ddp, false)));
  EXPECT_TRUE(refused(offloaded(DataParallelKind::zero2, true)));
  EXPECT_TRUE(refused(offloaded(DataParallelKind::fsdp2, false)));
}

}  // namespace
}  // namespace rehearse::scenario::offload_test
