// What TorchInductor makes one kernel of, as PyTorch was asked (tests/oracles/torch_compiled_layer.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "sim/model/presets.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::compiled_kernels_test {
namespace {

using test_support::ByteLedger;

Strategy one_gpu_job() {
  Strategy s;
  s.training.sequence_length = 512;
  s.training.global_batch_size = 1;
  s.data_parallel.kind = DataParallelKind::none;
  s.memory.recompute = Recompute::none;
  return s;
}

/// The kernel of this name; nothing read or written where there is none.
model::KernelSpec kernel(const plan::Plan& plan, const std::string& name) {
  const auto it = std::find_if(plan.kernels.begin(), plan.kernels.end(), [&](const model::KernelSpec& k) { return k.name == name; });
  return it == plan.kernels.end() ? model::KernelSpec{.name = "none"} : *it;
}

bool has(const std::string& text, const std::string& word) { return text.find(word) != text.npos; }

// One kernel adds attention's output to the stream (2 T read, T written) and normalises the sum (T written). The layer's first norm reads what
// another graph has made.
TEST(CompiledKernels, SumsGoOnToNormalise) {
  const nlohmann::json forward = oracle("torch_compiled_layer.json")["passes"][0]["kernels"];
  EXPECT_TRUE(std::any_of(forward.begin(), forward.end(), [](const std::string& k) { return has(k, "view_add") && has(k, "mean") && has(k, "rsqrt"); }));
  const plan::Plan plan = write_plan(llama_like(2, 256, 8, 2, 512, 1000), one_gpu_job(), load_profile("torchtitan-compile"), 1);
  const std::int64_t t = kernel(plan, "input norm").bytes_written;
  EXPECT_TRUE(t == 512 * 256 * 2 || t == 512 * 256 * 4);
  EXPECT_EQ(kernel(plan, "attention residual").bytes_read, 2 * t);
  EXPECT_EQ(kernel(plan, "attention residual").bytes_written, t);
  EXPECT_EQ(kernel(plan, "mlp norm").bytes_read, 0);
  EXPECT_EQ(kernel(plan, "mlp norm").bytes_written, t);
  EXPECT_EQ(kernel(plan, "input norm").bytes_read, t);
  const plan::Plan eager = write_plan(llama_like(2, 256, 8, 2, 512, 1000), one_gpu_job(), load_profile("plain"), 1);
  EXPECT_EQ(kernel(eager, "mlp norm").bytes_read, 512 * 256 * 2);
}

// Norm and rotation of queries together read a tensor and write one; backward reads the gradient and what was normalised, and writes one.
TEST(CompiledKernels, QueriesAreNormalisedAndRotatedAtOnce) {
  const nlohmann::json asked = oracle("torch_compiled_layer.json");
  for (const auto& pass : asked["normalised_rotation"]) EXPECT_EQ(pass["kernels"].size(), 1);
  model::ModelDescription model = llama_like(2, 256, 8, 8, 512, 1000);
  model.qk_norm = true;
  const auto moved = [&](const plan::Plan& plan, const std::string& pass) {
    const model::KernelSpec norm = kernel(plan, "q_norm" + pass), rope = kernel(plan, "query rope" + pass);
    return std::pair{norm.bytes_read + rope.bytes_read, norm.bytes_written + rope.bytes_written};
  };
  const plan::Plan plan = write_plan(model, one_gpu_job(), load_profile("torchtitan-compile"), 1);
  const std::int64_t t = kernel(plan, "query rope").bytes_written;
  EXPECT_GT(t, 0);
  EXPECT_EQ(moved(plan, ""), std::pair(t, t));
  EXPECT_EQ(moved(plan, " backward"), std::pair(2 * t, t));
  // Over all heads at once (OLMo 2) the norm is a kernel of its own, and so it is where layers have no positions.
  model.joint_qk_norm = true;
  EXPECT_EQ(moved(write_plan(model, one_gpu_job(), load_profile("torchtitan-compile"), 1), ""), std::pair(2 * t, 2 * t));
  model.joint_qk_norm = false;
  for (model::Layer& layer : model.layers) layer.rotary = false;
  EXPECT_EQ(kernel(write_plan(model, one_gpu_job(), load_profile("torchtitan-compile"), 1), "q_norm").bytes_written, t);
}

// Output layer and loss in one graph: one kernel in each pass, which caps the logits as it reads them. They are kept once, in 16 bits, and their
// gradient takes their place: of a model that is nearly all vocabulary, 2 x 65536 x 65536 bytes of logits less than where the gradient is a tensor of
// its own, but for the output layer's weight gradient, which comes later (0.04 of that).
TEST(CompiledKernels, CapsOfLogitsArePartOfTheLoss) {
  const nlohmann::json asked = oracle("torch_compiled_layer.json");
  for (const auto& row : asked["cross_entropy"])
    for (const char* pass : {"forward", "backward"}) {
      ASSERT_EQ(row[pass].size(), 1);
      EXPECT_EQ(has(row[pass][0], "tanh"), row["capped"].get<bool>());
    }
  model::ModelDescription model = model::with_layers(model::load_preset("nanochat-d20"), 1);
  FrameworkProfile profile = load_profile("nanochat");
  Strategy s = one_gpu_job();
  s.training.sequence_length = 65536;
  const double logits = 65536.0 * 65536 * 2;
  const auto peak = [&] { return static_cast<double>(ByteLedger(write_plan(model, s, profile, 1), 0).step().step_peak) / logits; };
  const double together = peak();
  EXPECT_EQ(kernel(write_plan(model, s, profile, 1), "cap logits").name, "none");
  EXPECT_EQ(static_cast<double>(kernel(write_plan(model, s, profile, 1), "cross entropy").bytes_read), logits);
  profile.loss = LossKind::compiled;
  EXPECT_EQ(static_cast<double>(kernel(write_plan(model, s, profile, 1), "cross entropy").bytes_read), 2 * logits);
  EXPECT_NEAR(peak() - together, 2, 0.1) << "the capped logits and the gradient are tensors of their own";
  model.softcapped_logits = false;
  EXPECT_NEAR(peak() - together, 1, 0.1);
}

// torch.compile's own count of what a layer under torchtitan's policy by operators keeps: of every second product those that backward or what runs
// again for it reads, so not the last; of tensor-parallel ranks the sums that attention ends with too.
TEST(CompiledKernels, SelectiveCheckpointsKeepWhatTorchCompileKeeps) {
  const nlohmann::json answers = oracle("torch_selective_checkpoint.json"), &layer = answers["layer"];
  int rows = 0;
  for (const auto& row : answers["compiled"]) {
    SCOPED_TRACE(row.dump());
    const auto after_forward = [&](std::int64_t layers) {
      Strategy s = one_gpu_job();
      s.training.sequence_length = layer["tokens"];
      s.parallelism.degrees.tensor = row["tensor"];
      s.parallelism.sequence_parallel = row["tensor"] > 1;
      s.memory.recompute = Recompute::selective;
      const model::ModelDescription m = llama_like(layers, layer["hidden"], layer["heads"], layer["kv_heads"], layer["inner"], 1024);
      return ByteLedger(write_plan(m, s, load_profile("torchtitan-2025-compile"), 8), 0).step().after_forward;
    };
    EXPECT_EQ(after_forward(4) - after_forward(3), row["bytes"].get<std::int64_t>());
    ++rows;
  }
  EXPECT_EQ(rows, 2);
}

}  // namespace
}  // namespace rehearse::strategies::compiled_kernels_test
