// The systems that the user's notes name (scenarios/notes/a*.yaml): what the notes say of each, held against its simulation.
#include <gtest/gtest.h>

#include "sim/scenario/simulate.h"
#include "tests/support/byte_ledger.h"
#include "tests/support/source_dir.h"

namespace rehearse::scenario::seed_systems_test {
namespace {

Scenario seed(const std::string& name, const std::vector<std::string>& overrides = {}) { return load_scenario((source_dir() / "scenarios" / "notes" / (name + ".yaml")).string(), overrides); }
double seconds_of(const std::string& name, const std::vector<std::string>& overrides = {}) { return simulate(seed(name, overrides), {.memory = false}).step_time; }
Bytes device_of(const std::string& name, const std::vector<std::string>& overrides = {}) {
  const Result r = simulate(seed(name, overrides), {.time = false});
  return r.classes[r.fullest_class].peak_device();
}

TEST(SeedSystems, DataParallelIsSlowAndFillsTheFirstGpu) {
  const Result one = simulate(seed("a02_data_parallel"));
  EXPECT_EQ(one.fullest_class, 0u);
  EXPECT_GT(one.classes[0].peak_device(), 2 * one.classes[1].peak_device());
  EXPECT_GT(one.step_time, seconds_of("a03_ddp"));
  const Result own = simulate(seed("a02_data_parallel", {"data_parallel.gather=loss"}));   // each GPU has its own samples' loss
  EXPECT_LT(own.classes[0].peak_device(), one.classes[0].peak_device());
  EXPECT_LT(own.step_time, one.step_time);
  EXPECT_GT(seconds_of("a03_ddp"), seconds_of("a01_single_gpu"));
}

TEST(SeedSystems, ShardingTradesMemoryForCommunication) {
  const Bytes ddp = device_of("a03_ddp"), zero1 = device_of("a04_zero", {"data_parallel.kind=zero1"}), zero3 = device_of("a04_zero");
  EXPECT_LT(zero1, ddp);
  EXPECT_LT(zero3, zero1);
  EXPECT_LT(device_of("a05_fsdp"), device_of("a05_fsdp", {"data_parallel.reshard_after_forward=false"}));
  EXPECT_LT(device_of("a05_fsdp"), device_of("a05_fsdp", {"parallelism.data_shard=4"}));
}

TEST(SeedSystems, MicroBatchesFillAPipeline) {
  const double naive = seconds_of("a07_pipeline"), gpipe = seconds_of("a07_pipeline", {"pipeline.schedule=gpipe"}), alternating = seconds_of("a07_pipeline", {"pipeline.schedule=1f1b"});
  EXPECT_GT(naive, 1.4 * gpipe);
  EXPECT_NEAR(gpipe, alternating, 0.05 * gpipe);
  EXPECT_GT(device_of("a07_pipeline", {"pipeline.schedule=gpipe"}), 2 * device_of("a07_pipeline", {"pipeline.schedule=1f1b"}));
}

// Copies of fp32 per parameter beside the master: SGD none, momentum one, Adam two.
TEST(SeedSystems, OptimizersKeepTheirCopies) {
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, double>>{{"sgd", 4}, {"momentum", 8}, {"adamw", 12}}) {
    const Result r = simulate(seed("a15_optimizers", {"training.optimizer=" + name}), {.time = false, .memory = false});
    const auto states = test_support::ByteLedger(r.plan, 0).step().before_update[static_cast<std::size_t>(plan::Category::optimizer)];
    EXPECT_EQ(static_cast<double>(states), bytes * static_cast<double>(r.classes[0].parameters)) << name;
  }
}

TEST(SeedSystems, OffloadIsBoundByTheHost) {
  EXPECT_GT(seconds_of("a12_cpu_offload", {"memory.offload.pinned=false"}), seconds_of("a12_cpu_offload"));
  EXPECT_GT(seconds_of("a12_cpu_offload"), seconds_of("a04_zero", {"data_parallel.kind=zero2"}));
  EXPECT_GT(seconds_of("a13_nvme_offload"), seconds_of("a12_cpu_offload"));
}

// Accumulation: fewer reductions and updates per token, with less to gain each time.
TEST(SeedSystems, AccumulationHasASweetSpot) {
  auto rate = [](int batch) { return batch / seconds_of("a14_accumulation", {"training.global_batch_size=" + std::to_string(batch)}); };
  const double few = rate(16), some = rate(64), many = rate(256);
  EXPECT_GT(some, few);
  EXPECT_GT(many, some);
  EXPECT_LT(many / some, some / few);
}

TEST(SeedSystems, DeviceMapsDragWeightsOverPcie) {
  double before = 0;
  for (const char* budget : {"4 GiB", "2 GiB", "1 GiB"}) {
    const double now = seconds_of("a18_device_map", {std::string("memory.device_map.gpu_memory=") + budget});
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST(SeedSystems, ExpandableSegmentsReserveLess) {
  const Result usual = simulate(seed("a04_zero"), {.time = false}), expandable = simulate(seed("a19_fragmentation"), {.time = false});
  const auto bytes = [](const Result& r) { return static_cast<double>(r.classes[0].memory.peak_allocated.value); };
  EXPECT_NEAR(bytes(usual), bytes(expandable), 1e-3 * bytes(usual));   // a large block that is not split is counted whole
  EXPECT_LT(expandable.classes[0].memory.peak_reserved, usual.classes[0].memory.peak_reserved);
}

TEST(SeedSystems, BackendsAndInterconnects) {
  auto with = [](const char* backend) { return seconds_of("a20_backends", {std::string("cluster.backend=") + backend}); };
  EXPECT_LT(with("nccl"), with("gloo"));
  EXPECT_LT(with("gloo"), with("mpi"));
  EXPECT_LT(seconds_of("a21_interconnects"), seconds_of("a21_interconnects", {"cluster.node=pcie-8"}));
  EXPECT_LT(seconds_of("a21_interconnects_two_nodes"), seconds_of("a21_interconnects_two_nodes", {"cluster.node=hgx-a100-4nic"}));
}

}  // namespace
}  // namespace rehearse::scenario::seed_systems_test
