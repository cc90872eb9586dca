// What loading leaves to the allocator: DeepSpeed from 0.18.7 on copies the parameters that were loaded into one tensor on the GPU, where there is
// room for both (runtime/zero/stage_1_and_2.py, flatten_on_accelerator).
#include <gtest/gtest.h>

#include <string>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::loaded_parameters_test {
namespace {

Result trained(const std::string& model, bool on_device) {
  const std::string text = "model: " + model + "\ncluster: {node: dgx-h100, nodes: 8}\ntraining: {sequence_length: 1024, global_batch_size: 64, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: zero2}\nmemory: {recompute: full}\n" +
                           (on_device ? "" : "profile: {flattens_on_device: false}\n");
  return simulate(read_scenario(config::parse_document(text, "loaded.yaml").root, "loaded.yaml"), {.time = false});
}

TEST(LoadedParameters, LeaveTheirPlacesToTheAllocator) {
  const Result on_device = trained("llama-2-7b", true), on_host = trained("llama-2-7b", false);
  const auto& there = on_device.classes.front().memory;
  const auto& here = on_host.classes.front().memory;
  EXPECT_GE(there.peak_reserved.value, 2 * 2 * 6'738'000'000);   // both at once
  EXPECT_GT(there.peak_reserved.value, here.peak_reserved.value);
  EXPECT_EQ(there.end_allocated.value, here.end_allocated.value);
}

// 44 GB of parameters: two of them are more than an H100 has.
TEST(LoadedParameters, AreCopiedOnTheHostWhereTheGpuHasNoRoom) {
  const std::string large = "{layers: 48, hidden: 6144, heads: 48, ffn_hidden: 24576, vocab: 32000, gated_mlp: false}";
  const Result on_device = trained(large, true), on_host = trained(large, false);
  EXPECT_TRUE(on_device.fits);
  EXPECT_EQ(on_device.classes.front().memory.peak_reserved, on_host.classes.front().memory.peak_reserved);
}

}  // namespace
}  // namespace rehearse::scenario::loaded_parameters_test
