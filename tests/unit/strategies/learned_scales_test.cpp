// Learned factors on branches, streams and queries: what they make a compiled layer keep, as PyTorch was asked (tests/oracles/torch_learned_scales.py),
// and what their kernels move.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/model/presets.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/oracle_runs.h"

namespace rehearse::strategies::learned_scales_test {
namespace {

using test_support::ByteLedger;

constexpr std::int64_t kInput = 4096 * 512 * 2;   // bytes of a layer's input

Strategy one_gpu_job() {
  Strategy s;
  s.training.sequence_length = 4096;
  s.training.global_batch_size = 1;
  s.data_parallel.kind = DataParallelKind::none;
  s.memory.recompute = Recompute::none;
  return s;
}

model::ModelDescription scaled(std::int64_t layers, const nlohmann::json& names) {
  model::ModelDescription model = model::with_layers(model::load_preset("parameter-golf"), layers);
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  model.scales = {.branches = has("branches"), .embedding = has("embedding"), .queries = has("queries")};
  return model;
}

/// The oracle traced parameter-golf's own program, whose table is bf16.
plan::Plan plan_of(const model::ModelDescription& model, const std::string& name) {
  FrameworkProfile profile = load_profile(name);
  profile.narrow_embedding = true;
  return write_plan(model, one_gpu_job(), profile, 1);
}

// Eight layers' peak less four's, in inputs of a layer. The oracle's own count has casts of weights and a copy of attention's output that GPUs do not
// make, with every set of factors alike.
TEST(LearnedScales, LayersKeepWhatTorchCompileKeeps) {
  const auto kept = [](const nlohmann::json& names) {
    const auto peak = [&](std::int64_t layers) { return static_cast<double>(ByteLedger(plan_of(scaled(layers, names), "modded-nanogpt"), 0).step().step_peak); };
    return (peak(8) - peak(4)) / 4 / kInput;
  };
  const nlohmann::json asked = oracle("torch_learned_scales.json")["kept"];
  const double without = kept(nlohmann::json::array()), asked_without = asked[0]["kept_per_layer"];
  ASSERT_TRUE(asked[0]["scales"].empty());
  for (std::size_t i = 1; i < asked.size(); ++i)
    EXPECT_NEAR(kept(asked[i]["scales"]) - without, asked[i]["kept_per_layer"].get<double>() - asked_without, 0.05) << asked[i].dump();
}

model::KernelSpec kernel(const plan::Plan& plan, const std::string& name) {
  const auto it = std::find_if(plan.kernels.begin(), plan.kernels.end(), [&](const model::KernelSpec& k) { return k.name == name; });
  return it == plan.kernels.end() ? model::KernelSpec{.name = "none"} : *it;
}

// Compiled, a branch's product is part of the kernel that adds it; its vector's gradient reads the branch and the stream's gradient. In eager mode
// the product is a kernel that reads and writes a tensor, and its gradient's product another tensor.
TEST(LearnedScales, ProductsAreKernelsOfTheirOwnInEagerModeOnly) {
  const model::ModelDescription model = scaled(2, {"branches", "embedding", "queries"});
  const plan::Plan compiled = plan_of(model, "modded-nanogpt"), eager = plan_of(model, "plain");
  EXPECT_EQ(kernel(compiled, "attention scale").name, "none");
  EXPECT_EQ(kernel(compiled, "attention scale gradient").bytes_read, 2 * kInput);
  EXPECT_EQ(kernel(compiled, "embedding mix").bytes_read, kInput);
  EXPECT_EQ(kernel(compiled, "query scale").bytes_read, 0);
  EXPECT_EQ(kernel(eager, "attention scale").bytes_read, kInput);
  EXPECT_EQ(kernel(eager, "attention scale gradient").bytes_read, 3 * kInput);
  EXPECT_EQ(kernel(eager, "query scale").bytes_written, kInput);
}

// h = 512, 8 heads, 9 layers: two vectors on branches, two in the mix, 8 gains.
TEST(LearnedScales, CountAsParameters) {
  const auto parameters = [](const nlohmann::json& names) { return model::count_parameters(scaled(9, names)).total; };
  EXPECT_EQ(parameters({"branches", "embedding", "queries"}) - parameters(nlohmann::json::array()), 9 * (2 * 512 + 2 * 512 + 8));
}

TEST(LearnedScales, TheEmbeddingsOutputStaysOnItsStage) {
  Strategy s = one_gpu_job();
  s.parallelism.degrees.pipeline = 2;
  s.training.global_batch_size = 2;
  const auto refused = [&](const nlohmann::json& names) {
    const auto problems = problems_of(scaled(2, names), s, load_profile("modded-nanogpt"), 2);
    return std::any_of(problems.begin(), problems.end(), [](const Diagnostic& d) { return to_string(d).find("learned_scales") != std::string::npos; });
  };
  EXPECT_TRUE(refused({"embedding"}));
  EXPECT_FALSE(refused({"branches"}));
}

}  // namespace
}  // namespace rehearse::strategies::learned_scales_test
