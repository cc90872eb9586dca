// Weights that are updated as soon as their gradients are there (torchtune's optimizer_in_bwd): gradients of one layer at a time.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::optimizer_in_backward_test {
namespace {

Scenario job(bool in_backward, int batch = 1) {
  const std::string text = "model: llama-3.2-1b\ncluster: {node: single-gpu, gpu: h100-sxm}\ntraining: {sequence_length: 512, global_batch_size: " + std::to_string(batch) + ", micro_batch_size: 1, precision: bf16, framework: torchtune, clip_gradients: false}\nmemory: {recompute: full, optimizer_in_backward: " +
                           (in_backward ? "true" : "false") + "}\n";
  return read_scenario(config::parse_document(text, "in_backward.yaml").root, "in_backward.yaml");
}

std::int64_t optimizer_bytes(const Result& r) {
  std::int64_t bytes = 0;
  for (const plan::Call& call : r.plan.classes[0].program.step)
    for (const plan::Instruction& i : r.plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel && r.plan.kernels[i.index].kind == model::KernelKind::optimizer) bytes += r.plan.kernels[i.index].bytes_read + r.plan.kernels[i.index].bytes_written;
  return bytes;
}

// Llama 3.2 1B ties its table (128256 x 2048): its gradient is there from the head's backward on and goes last, with those of
// the layer that is at work, 60.8 M elements. All others never live together.
TEST(OptimizerInBackward, KeepsGradientsOfOneLayer) {
  const Result after = simulate(job(false)), during = simulate(job(true));
  const std::int64_t gradients = 2 * after.classes[0].parameters, table = 2LL * 128256 * 2048, layer = 2LL * (2048 * (2048 + 2 * 512 + 2048) + 3LL * 2048 * 8192);
  const std::int64_t saved = after.classes[0].memory.peak_allocated.value - during.classes[0].memory.peak_allocated.value;
  EXPECT_NEAR(static_cast<double>(saved), static_cast<double>(gradients - table - layer), 0.1 * static_cast<double>(gradients));
  // The same traffic, and nothing lives on beyond parameters and states.
  EXPECT_EQ(optimizer_bytes(during), optimizer_bytes(after));
  EXPECT_EQ(during.classes[0].memory.end_allocated, after.classes[0].memory.end_allocated);
  EXPECT_EQ(during.deadlock, "");
}

TEST(OptimizerInBackward, IsRefusedWhereGradientsAreNotComplete) {
  EXPECT_THROW(job(true, 2), ConfigError);
  const std::string two = "model: llama-3.2-1b\ncluster: {node: dgx-h100, gpus_per_node: 2}\ntraining: {sequence_length: 512, global_batch_size: 2, micro_batch_size: 1, framework: torchtune, clip_gradients: false}\n";
  const auto read = [](const std::string& text) { return read_scenario(config::parse_document(text, "in_backward.yaml").root, "in_backward.yaml"); };
  EXPECT_THROW(read(two + "data_parallel: {kind: ddp}\nmemory: {optimizer_in_backward: true}\n"), ConfigError);
  EXPECT_NO_THROW(read(two + "data_parallel: {kind: ddp}\n"));
}

}  // namespace
}  // namespace rehearse::scenario::optimizer_in_backward_test
