// training.attention_kernel: which kernel fused attention is, and what is refused.
#include <gtest/gtest.h>

#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::attention_kernel_test {
namespace {

Scenario job(const std::string& node, const std::string& framework, const std::string& training) {
  const std::string text = "model: llama-2-7b\ncluster: {node: " + node + "}\ntraining: {sequence_length: 8192, global_batch_size: 8, micro_batch_size: 1, framework: " + framework + training + "}\ndata_parallel: {kind: fsdp2}\nmemory: {recompute: full}\n";
  return read_scenario(config::parse_document(text, "attention.yaml").root, "attention.yaml");
}

std::string refused(const std::string& node, const std::string& training) {
  try {
    for (const Diagnostic& d : problems_of(job(node, "huggingface", training))) return d.key + ": " + d.problem;
  } catch (const ConfigError& e) {
    return e.diagnostics().front().key + ": " + e.diagnostics().front().problem;
  }
  return "";
}

// On Hopper FlashAttention 2 is the slowest of the three; what takes the time of a step is attention alone.
TEST(AttentionKernel, IsTheOneAskedFor) {
  const auto step = [](const char* framework, const std::string& kernel) { return simulate(job("dgx-h100", framework, kernel.empty() ? "" : ", attention_kernel: " + kernel)).step_time; };
  const double flash2 = step("huggingface", "flash2"), flash3 = step("huggingface", "flash3"), cudnn = step("huggingface", "cudnn");
  EXPECT_LT(flash3, 0.95 * flash2);
  EXPECT_LT(cudnn, 0.95 * flash2);
  EXPECT_EQ(step("huggingface", ""), cudnn);            // what PyTorch prefers on Hopper
}

// Before Hopper PyTorch's own is FlashAttention 2.
TEST(AttentionKernel, OfHuggingFaceBeforeHopper) {
  EXPECT_EQ(simulate(job("dgx-a100", "huggingface", "")).step_time, simulate(job("dgx-a100", "huggingface", ", attention_kernel: flash2")).step_time);
}

TEST(AttentionKernel, WhatAGpuDoesNotHaveIsRefused) {
  EXPECT_EQ(refused("dgx-h100", ", attention_kernel: flash3"), "");
  EXPECT_NE(refused("dgx-a100", ", attention_kernel: flash3").find("Hopper"), std::string::npos);
  EXPECT_NE(refused("dgx-b200", ", attention_kernel: flash3").find("Hopper"), std::string::npos);
  EXPECT_NE(refused("dgx-1v", ", precision: fp16, attention_kernel: flash2").find("Ampere"), std::string::npos);
  EXPECT_EQ(refused("dgx-1v", ", precision: fp16, attention_kernel: mem-efficient"), "");
  EXPECT_NE(refused("mi300x-8", ", attention_kernel: flash2").find("AMD"), std::string::npos);
  EXPECT_NE(refused("dgx-h100", ", attention: unfused, attention_kernel: flash2").find("scores in memory"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::scenario::attention_kernel_test
