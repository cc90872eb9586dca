// Host costs of a framework from steps of known truth, and the refusals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "calibrate/fit/against.h"
#include "sim/config/document.h"
#include "sim/core/error.h"
#include "sim/scenario/simulate.h"

namespace rehearse::calibrate::against_test {
namespace {

scenario::Scenario job(int layers, int hidden, int micro, int global, int sequence, const std::string& data = "ddp", const std::string& node = "dgx-h100") {
  const std::string text = "model: {layers: " + std::to_string(layers) + ", hidden: " + std::to_string(hidden) + ", heads: 8, ffn_hidden: " + std::to_string(4 * hidden) +
                           ", vocab: 8192}\ncluster: {node: " + node + "}\ntraining: {sequence_length: " + std::to_string(sequence) + ", global_batch_size: " + std::to_string(global) +
                           ", micro_batch_size: " + std::to_string(micro) + ", framework: torchtitan}\ndata_parallel: {kind: " + data + "}\nmemory: {recompute: none}\n";
  return scenario::read_scenario(config::parse_document(text, "job").root, "job");
}

/// Small shapes, where the host is what takes the time; layers, hidden sizes and accumulation vary so that its parts differ.
std::vector<LoggedRun> runs(double kernel, double layer, double noise, unsigned seed) {
  std::mt19937_64 draw(seed);
  std::normal_distribution<double> gauss(0, 1);
  std::vector<LoggedRun> out;
  Eigen::VectorXd truth(2);
  truth << kernel, layer;
  int i = 0;
  for (const int layers : {2, 8, 24})
    for (const int hidden : {512, 1024, 4096})
      for (const int global : {8, 32}) {
        LoggedRun r{"run " + std::to_string(i++), job(layers, hidden, 1, global, 512), 0};
        scenario::Scenario real = r.scenario;
        real.profile = with_constants(real.profile, {FrameworkConstant::kernel, FrameworkConstant::layer}, truth);
        r.step_seconds = simulate(real, {.time = true, .memory = false}).step_time * std::exp(noise * gauss(draw));
        out.push_back(std::move(r));
      }
  return out;
}

TEST(Against, OneFrameworkConstantIsFoundWithinItsError) {
  const std::vector<LoggedRun> logged = runs(18, 370, 0.01, 1);  // torchtitan's own layer_host is 370 us
  const AgainstFit fit = fit_against(logged, {FrameworkConstant::kernel});
  ASSERT_TRUE(fit.refusals.empty()) << fit.refusals.front();
  EXPECT_NEAR(fit.parameters[0].value, 18, 0.5);
  EXPECT_LT(std::abs(fit.parameters[0].value - 18), 4 * fit.parameters[0].standard_error);
  EXPECT_GT(summary_of(fit.before).mean_absolute, 15);
  EXPECT_LT(summary_of(fit.after).mean_absolute, 2);
  EXPECT_LT(summary_of(fit.leave_one_out).mean_absolute, 2.5);
}

// The same shapes on several GPUs, where parameters and gradients travel beside the layers: how many SMs they take from them. On A100
// every SM counts; on Hopper steps have kinks where a product just begins before or after a collective.
TEST(Against, InterferenceIsFoundFromStepsThatOverlap) {
  std::vector<LoggedRun> logged;
  Eigen::VectorXd truth(1);
  truth << 3;
  for (const int layers : {4, 8})
    for (const int hidden : {2048, 4096}) {
      LoggedRun r{"run", job(layers, hidden, 2, 16, 1024, "fsdp2", "dgx-a100"), 0};
      scenario::Scenario real = r.scenario;
      real.profile = with_constants(real.profile, {FrameworkConstant::interference}, truth);
      r.step_seconds = simulate(real, {.time = true, .memory = false}).step_time;
      EXPECT_GT(r.step_seconds, 1.01 * simulate(r.scenario, {.time = true, .memory = false}).step_time);
      logged.push_back(std::move(r));
    }
  const AgainstFit fit = fit_against(logged, {FrameworkConstant::interference});
  ASSERT_TRUE(fit.refusals.empty()) << fit.refusals.front();
  EXPECT_EQ(fit.parameters[0].name, "collective_sm_factor");
  EXPECT_DOUBLE_EQ(fit.parameters[0].before, 1);
  EXPECT_NEAR(fit.parameters[0].value, 3, 0.05);
  EXPECT_TRUE(fit.converged);
  EXPECT_LE(fit.simulated, 14);
  EXPECT_NE(profile_yaml(fit, logged[0].scenario.profile, "a test").find(fmt::format("collective_sm_factor: {:.6g}", fit.parameters[0].value)), std::string::npos);
}

TEST(Against, TooFewRunsAreRefused) {
  std::vector<LoggedRun> logged = runs(18, 150, 0, 1);
  logged.resize(5);
  const AgainstFit fit = fit_against(logged, {FrameworkConstant::kernel, FrameworkConstant::step});
  ASSERT_FALSE(fit.refusals.empty());
  EXPECT_NE(fit.refusals[0].find("5 runs cannot hold 2 constants"), std::string::npos) << fit.refusals[0];
  EXPECT_TRUE(fit.parameters.empty());
}

// Runs of one shape: time per kernel and time per layer move their steps alike.
TEST(Against, ConstantsThatActAlikeAreRefusedByName) {
  const std::vector<LoggedRun> logged(6, runs(18, 400, 0, 1).front());
  const AgainstFit fit = fit_against(logged, {FrameworkConstant::kernel, FrameworkConstant::layer});
  ASSERT_FALSE(fit.refusals.empty());
  EXPECT_NE(fit.refusals.back().find("kernel and layer act alike"), std::string::npos) << fit.refusals.back();
  EXPECT_EQ(fit.possible.size(), 2u);
}

TEST(Against, WhatTheGpuHidesIsRefused) {
  std::vector<LoggedRun> logged;
  for (int i = 0; i < 3; ++i) {
    LoggedRun r{"large", job(2, 8192, 4, 32, 4096), 0};
    r.step_seconds = simulate(r.scenario, {.time = true, .memory = false}).step_time;
    logged.push_back(std::move(r));
  }
  const AgainstFit fit = fit_against(logged, {FrameworkConstant::kernel});
  ASSERT_EQ(fit.refusals.size(), 1u);
  EXPECT_NE(fit.refusals[0].find("no run tells kernel"), std::string::npos) << fit.refusals[0];
  EXPECT_TRUE(fit.possible.empty());
}

TEST(Against, BackwardKeepsTheProfilesRatio) {
  strategies::FrameworkProfile p;
  p.layer_host = microseconds(100), p.layer_backward_host = microseconds(150);
  Eigen::VectorXd x(2);
  x << 10, 200;
  const auto q = with_constants(p, {FrameworkConstant::kernel, FrameworkConstant::layer}, x);
  EXPECT_EQ(q.kernel_host, microseconds(10));
  EXPECT_EQ(q.backward_kernel_host, microseconds(10));
  EXPECT_EQ(q.layer_backward_host, microseconds(300));
}

TEST(TrainingLog, MegatronsLines) {
  const std::string text =
      "training ...\n [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:          160 | elapsed time per iteration (ms): 5147.6 | learning rate: 0.000000E+00 | global batch size:    16 |\n"
      " iteration       20/    1000 | elapsed time per iteration (ms): 1000.0 |\n iteration 30/1000 | elapsed time per iteration (ms): 1010.0 |\n iteration 40/1000 | elapsed time per iteration (ms): 990.0 |\n"
      " iteration 50/1000 | elapsed time per iteration (ms): 1000.5 | throughput per GPU (TFLOP/s/GPU): 400.0 |\n";
  const TrainingLog log = read_training_log(text, "x.log", 0, 8);
  EXPECT_EQ(log.framework, "megatron");
  ASSERT_EQ(log.seconds.size(), 5u);
  EXPECT_NEAR(log.seconds[0], 5.1476, 1e-9);
  EXPECT_NEAR(steady_seconds(log, "x.log"), 1.0005, 1e-9);  // the first two are warm-up
}

TEST(TrainingLog, TorchtitansLinesAreTokensPerSecondOfOneGpu) {
  const std::string text =
      "[titan] 2025-01-01 00:00:00,000 - root - INFO - \033[31mstep:  1  \033[32mloss: 12.2  \033[33mmemory: 40.1GiB(50%)  \033[34mtps: 1,000  \033[36mtflops: 50 \033[35mmfu: 5%\033[39m\n"
      "[titan] step: 10  loss:  8.1  memory: 40.1GiB(50%)  tps: 8,192  tflops: 400\n";
  const TrainingLog log = read_training_log(text, "x.log", 16 * 8192, 8);
  EXPECT_EQ(log.framework, "torchtitan");
  ASSERT_EQ(log.seconds.size(), 2u);
  EXPECT_NEAR(log.seconds[1], 2.0, 1e-9);
  EXPECT_THROW(steady_seconds(log, "x.log"), ConfigError);
  EXPECT_THROW(read_training_log("hello\n", "x.log", 1, 1), ConfigError);
}

}  // namespace
}  // namespace rehearse::calibrate::against_test
