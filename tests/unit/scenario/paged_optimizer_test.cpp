// States in unified memory: on the GPU while there is room, over PCIe both ways where there is none.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::paged_optimizer_test {
namespace {

Scenario job(const std::string& gpu, const std::string& optimizer, const std::string& memory, const std::string& model = "llama-3.2-1b") {
  const std::string text = "model: " + model + "\ncluster: {node: single-gpu, gpu: " + gpu + "}\n" +
                           "training: {sequence_length: 1024, global_batch_size: 1, micro_batch_size: 1, precision: bf16, framework: plain, optimizer: " + optimizer + "}\nmemory: " + memory + "\n";
  return read_scenario(config::parse_document(text, "paged.yaml").root, "paged.yaml");
}

std::int64_t copied(const Result& r, plan::CopySpec::Direction direction) {
  std::int64_t bytes = 0;
  for (const plan::Call& call : r.plan.classes[0].program.step)
    for (const plan::Instruction& i : r.plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::copy && r.plan.copies[i.index].direction == direction) bytes += r.plan.copies[i.index].bytes.value;
  return bytes;
}

// 8 bytes per parameter of Adam's moments, but for the norms (fewer than 100,000 elements each).
TEST(PagedOptimizer, StaysOnTheGpuWhileThereIsRoom) {
  const Result usual = simulate(job("h100-sxm", "adamw", "{recompute: full}")), paged = simulate(job("h100-sxm", "adamw", "{recompute: full, paged_optimizer: true}"));
  const std::int64_t norms = 33 * 2048;
  EXPECT_EQ(paged.classes[0].unified.value, 8 * (paged.classes[0].parameters - norms));
  EXPECT_EQ(copied(paged, plan::CopySpec::Direction::host_to_device), 0);
  EXPECT_EQ(paged.host.ram().value, 0);
  EXPECT_NEAR(static_cast<double>(paged.classes[0].peak_device().value), static_cast<double>(usual.classes[0].peak_device().value), 0.1 * static_cast<double>(usual.classes[0].peak_device().value));
  EXPECT_NEAR(paged.step_time, usual.step_time, 0.05 * usual.step_time);
}

// 1.24 B parameters: weights 2.5, fp32 copy 4.9, gradients 2.5 GB and moments 9.9 GB do not fit 16 GB. What does not is on the
// host, and the walk over all states finds none in place: all of them leave and come back.
TEST(PagedOptimizer, MovesAllStatesWhereTheyDoNotFit) {
  const Scenario s = job("rtx-4070-ti-super", "adamw", "{recompute: full, paged_optimizer: true}");
  EXPECT_FALSE(simulate(job("rtx-4070-ti-super", "adamw", "{recompute: full}"), {.time = false}).fits);
  const Result r = simulate(s);
  EXPECT_TRUE(r.fits);
  const std::int64_t states = r.plan.classes[0].unified;
  EXPECT_EQ(states, 8 * (r.classes[0].parameters - 33 * 2048));
  EXPECT_EQ(copied(r, plan::CopySpec::Direction::host_to_device), states);
  EXPECT_EQ(copied(r, plan::CopySpec::Direction::device_to_host), states);
  EXPECT_EQ(r.classes[0].peak_device(), s.cluster.gpu.memory);
  EXPECT_EQ(r.host.pageable.value, states - r.classes[0].unified.value);
  const hwmodels::HostRates host = hwmodels::host_rates(s.cluster);
  EXPECT_GE(to_seconds(Duration{r.classes[0].timing.time[static_cast<std::size_t>(executor::Cause::copy)]}), static_cast<double>(states) * (1 / host.to_device.value + 1 / host.to_host.value));
  EXPECT_EQ(r.deadlock, "");
  // In 8 bits the same states are a quarter, and all of them have room.
  const Result small = simulate(job("rtx-4070-ti-super", "adamw-8bit", "{recompute: full, paged_optimizer: true}"));
  EXPECT_TRUE(small.fits);
  EXPECT_EQ(copied(small, plan::CopySpec::Direction::host_to_device), 0);
}

// Under FSDP each of two GPUs pages the states of its shards: half of them, rounded up weight by weight.
TEST(PagedOptimizer, ShardsArePaged) {
  const auto sharded = [](const std::string& kind) {
    const std::string text = std::string("model: llama-3.2-1b\ncluster: {node: dgx-h100, gpus_per_node: 2}\n") +
                             "training: {sequence_length: 1024, global_batch_size: 2, micro_batch_size: 1, precision: bf16, framework: huggingface, optimizer: adamw, optimizer_state_dtype: fp32}\n" +
                             "memory: {recompute: full, paged_optimizer: true}\ndata_parallel: {kind: " + kind + "}\n";
    return read_scenario(config::parse_document(text, "paged.yaml").root, "paged.yaml");
  };
  for (const std::string kind : {"fsdp1", "fsdp2"}) {
    SCOPED_TRACE(kind);
    const Result roomy = simulate(sharded(kind));
    EXPECT_EQ(roomy.classes[0].unified.value, 4 * (roomy.classes[0].parameters - 33 * 2048));
    EXPECT_EQ(copied(roomy, plan::CopySpec::Direction::host_to_device), 0);
    EXPECT_EQ(roomy.deadlock, "");
  }
}

TEST(PagedOptimizer, OnlyWholeStatesOfAdamAndLionArePaged) {
  EXPECT_THROW(job("h100-sxm", "sgd", "{paged_optimizer: true}"), ConfigError);
  EXPECT_THROW(job("h100-sxm", "adamw", "{paged_optimizer: true, offload: {optimizer: cpu}}"), ConfigError);
  EXPECT_NO_THROW(job("h100-sxm", "lion", "{paged_optimizer: true}"));
}

}  // namespace
}  // namespace rehearse::scenario::paged_optimizer_test
