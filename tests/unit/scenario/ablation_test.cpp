// Mechanisms switched off one by one: each takes away what it is there for, and nothing else.
#include "sim/executor/ablation.h"

#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::ablation_test {
namespace {

constexpr const char* kJob = R"(
model: llama-3-8b
cluster: {node: dgx-h100, nodes: 1}
training: {framework: megatron-core, sequence_length: 4096, micro_batch_size: 1, global_batch_size: 8, precision: bf16}
parallelism: {tensor: 4, pipeline: 2, sequence_parallel: true}
)";

Result simulated(const executor::Ablation& ablation) {
  const Scenario s = read_scenario(config::parse_document(kJob, "job.yaml").root, "job.yaml");
  return simulate(s, {.ablation = ablation});
}

Result without(bool executor::Ablation::*mechanism) {
  executor::Ablation ablation;
  ablation.*mechanism = false;
  return simulated(ablation);
}

const Result& with_all() {
  static const Result result = simulated({});
  return result;
}

const ClassResult& fullest(const Result& r) { return r.classes[r.fullest_class]; }

// Every mechanism of time costs this job time, and none of them a byte.
TEST(Ablation, MechanismsOfTimeTakeTimeAndNoMemory) {
  for (const executor::AblationSwitch& s : executor::kAblationSwitches) {
    if (s.name == "segments" || s.name == "overheads") continue;
    const Result r = without(s.on);
    EXPECT_LT(r.step_time, with_all().step_time) << s.name;
    EXPECT_EQ(fullest(r).peak_device(), fullest(with_all()).peak_device()) << s.name;
  }
}

// Time is kernels', communication's and the host's: without the three nothing is left.
TEST(Ablation, NothingElseTakesTime) {
  EXPECT_LT(simulated({.communication = false, .kernels = false, .host = false}).step_time, 0.01 * with_all().step_time);
}

// Without segments what is reserved is what is allocated, and what is allocated is as before; context, libraries and NCCL stay.
TEST(Ablation, WithoutSegmentsReservedIsAllocated) {
  const Result r = without(&executor::Ablation::segments);
  ASSERT_GT(fullest(with_all()).memory.peak_reserved, fullest(with_all()).memory.peak_allocated);
  for (std::size_t i = 0; i < r.classes.size(); ++i) {
    EXPECT_EQ(r.classes[i].memory.peak_reserved, r.classes[i].memory.peak_allocated);
    EXPECT_EQ(r.classes[i].memory.peak_allocated, with_all().classes[i].memory.peak_allocated);
    EXPECT_EQ(r.classes[i].communicators, with_all().classes[i].communicators);
  }
  EXPECT_EQ(r.step_time, with_all().step_time);
}

// Without overheads the device holds what the allocator reserves.
TEST(Ablation, WithoutOverheadsTheDeviceHoldsWhatIsReserved) {
  const Result r = without(&executor::Ablation::overheads);
  ASSERT_GT(fullest(with_all()).context, Bytes{0});
  EXPECT_EQ(fullest(r).peak_device(), fullest(r).memory.peak_reserved);
  EXPECT_EQ(fullest(r).memory.peak_reserved, fullest(with_all()).memory.peak_reserved);
  EXPECT_EQ(r.step_time, with_all().step_time);
}

}  // namespace
}  // namespace rehearse::scenario::ablation_test
