// What does not fit is said to be so, however far beyond the GPU's memory it is.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/plan/plan.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::out_of_memory_test {
namespace {

Result simulated(int layers, int hidden) {
  const std::string text = "model: {layers: " + std::to_string(layers) + ", hidden: " + std::to_string(hidden) + ", heads: " + std::to_string(hidden / 128) + ", vocab: 32000}\n"
                           "cluster: {node: dgx-h100, nodes: 1}\n"
                           "training: {sequence_length: 1024, global_batch_size: 8, micro_batch_size: 1, framework: torchtitan}\n"
                           "data_parallel: {kind: fsdp2}\n";
  return simulate(read_scenario(config::parse_document(text, "job.yaml").root, "job.yaml"));
}

// 16 bytes of state per parameter over 8 GPUs: 1 B, 80 B, 1.4 T and 22 T parameters; the last two are beyond a TiB per GPU.
TEST(OutOfMemory, TooMuchNeverFits) {
  EXPECT_TRUE(simulated(16, 2048).fits);
  std::int64_t before = 0;
  for (const auto& [layers, hidden] : {std::pair{96, 8192}, std::pair{112, 32768}, std::pair{448, 65536}}) {
    const Result r = simulated(layers, hidden);
    EXPECT_FALSE(r.fits) << hidden;
    const ClassResult& c = r.classes[r.fullest_class];
    EXPECT_TRUE(c.memory.out_of_memory.has_value());
    EXPECT_GT(c.peak_device().value, before);
    EXPECT_GT(c.peak_device(), 80_GiB);
    EXPECT_EQ(c.needs_more, hidden > 8192);
    before = c.peak_device().value;
  }
}

// Blocks of a plan are told apart by sizes in their names; people are not shown those.
TEST(OutOfMemory, WhatIsLiveHasATitle) {
  EXPECT_EQ(plan::title_of({.name = "use gathered 2860589056 0 yyyyyyyyy"}), "use gathered");
  EXPECT_EQ(plan::title_of({.name = "layer forward"}), "layer forward");
  EXPECT_EQ(plan::title_of({.name = "4-bit weights 12"}), "4-bit weights");
}

}  // namespace
}  // namespace rehearse::scenario::out_of_memory_test
