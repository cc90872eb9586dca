// DeepSpeed's ZeRO-3 hangs hooks on every module: before and after its forward, and around its backward
// (runtime/zero/parameter_offload.py, _register_deepspeed_module). They are host time, whatever the module computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::zero3_hooks_test {
namespace {

Scenario job(const std::string& kind, const std::string& recompute, int tokens = 256) {
  const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: " + std::to_string(tokens) + ", global_batch_size: 8, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: " + kind + "}\nmemory: {recompute: " + recompute + "}\n";
  return read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml");
}

double microseconds(Duration d) { return static_cast<double>(d.count()) * 1e-6; }

/// Host time of a layer's forward or backward beyond what launches take, in microseconds.
double host_us(const Result& r, const std::string& block) {
  for (const plan::Block& b : r.plan.blocks)
    if (b.name == block) {
      std::int64_t sum = 0;
      for (const plan::Instruction& i : b.timing)
        if (i.op == plan::Opcode::host) sum += i.value;
      return static_cast<double>(sum) * 1e-6;
    }
  ADD_FAILURE() << "no block " << block;
  return 0;
}

// A Llama layer is 13 modules: 7 linear layers, 2 norms, attention, MLP, activation and itself.
TEST(Zero3Hooks, AreHostTimePerModuleAndPass) {
  const Scenario s = job("zero3", "none");
  const double forward = microseconds(s.profile.submodule_host), backward = microseconds(s.profile.submodule_backward_host);
  // ZeRO-2's hooks are on what is trained instead: nine parameters of a layer, in backward alone.
  const double gradients = 9 * static_cast<double>(s.profile.gradient_host.count()) * 1e-6;
  ASSERT_GT(forward, 0);
  ASSERT_GT(backward, 0);
  ASSERT_GT(gradients, 0);
  const Result with = simulate(s), without = simulate(job("zero2", "none")), again = simulate(job("zero3", "full")), plain = simulate(job("zero2", "full"));
  EXPECT_NEAR(host_us(with, "layer forward") - host_us(without, "layer forward"), 13 * forward, 1e-3);
  EXPECT_NEAR(host_us(with, "layer backward") - host_us(without, "layer backward"), 13 * backward - gradients, 1e-3);
  EXPECT_NEAR(host_us(again, "layer backward") - host_us(plain, "layer backward"), 13 * (forward + backward) - gradients, 1e-3);
  EXPECT_NEAR(host_us(without, "layer backward") - host_us(simulate(job("ddp", "none")), "layer backward"), gradients, 1e-3);
  // One row of output and a norm: no layer.
  EXPECT_NEAR(host_us(with, "head forward") - host_us(without, "head forward"), 2 * forward, 1e-3);
  // Around them LlamaForCausalLM and LlamaModel, which begin with the embedding and, in backward, with the loss; behind the embedding its rotary one.
  EXPECT_NEAR(host_us(with, "embedding forward") - host_us(without, "embedding forward"), (1 + 2 + 1) * forward, 1e-3);
  EXPECT_NEAR(host_us(with, "head backward") - host_us(without, "head backward"), (2 + 2) * backward - 2 * static_cast<double>(s.profile.gradient_host.count()) * 1e-6, 1e-3);
}

// PEFT makes four modules more of a linear layer: the base layer, the dropout, A and B (calibrate/ground_truth/zero3_hooks.py --adapters counts
// 42 in a Llama layer whose rotary embedding is a fourteenth module).
TEST(Zero3Hooks, AreAtEveryModuleOfAnAdapter) {
  const auto adapted = [](const std::string& kind) {
    const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 256, global_batch_size: 8, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: " + kind + "}\ntuning: {kind: lora, targets: [all-linear]}\n";
    return simulate(read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml"));
  };
  const strategies::FrameworkProfile profile = job("zero3", "none").profile;
  const double forward = microseconds(profile.submodule_host);
  EXPECT_NEAR(host_us(adapted("zero3"), "layer forward") - host_us(adapted("zero2"), "layer forward"), (13 + 4 * 7) * forward, 1e-3);
}

// Of a layer of Mixtral (transformers 4): itself, two norms, attention with its four matrices, the block of experts and the router, and of each
// expert itself, three matrices and the activation.
TEST(Zero3Hooks, AreAtEveryExpert) {
  const auto experts = [](const std::string& kind) {
    const std::string text = "model: mixtral-8x7b\ncluster: {node: dgx-h100, nodes: 4}\ntraining: {sequence_length: 256, global_batch_size: 32, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: " + kind + "}\n";
    Scenario s = read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml");
    s.profile.grouped_experts = s.profile.native_grouped = false;
    return simulate(s);
  };
  const strategies::FrameworkProfile profile = job("zero3", "none").profile;
  const double forward = microseconds(profile.submodule_host);
  EXPECT_NEAR(host_us(experts("zero3"), "layer forward") - host_us(experts("zero2"), "layer forward"), (10 + 5 * 8) * forward, 1e-3);
}

// Adapters train 14 parameters of a layer with seven adapted matrices; frozen ones have no hooks of ZeRO-2's.
TEST(Zero2Hooks, AreOnTrainedParametersAlone) {
  const auto adapted = [](const std::string& kind) {
    const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 256, global_batch_size: 8, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: " + kind + "}\ntuning: {kind: lora, targets: [all-linear]}\n";
    return simulate(read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml"));
  };
  const double gradient = static_cast<double>(job("zero2", "none").profile.gradient_host.count()) * 1e-6;
  EXPECT_NEAR(host_us(adapted("zero2"), "layer backward") - host_us(adapted("ddp"), "layer backward"), 14 * gradient, 1e-3);
}

// Beyond the groups that it was measured over, what grows with the ranks is noted.
TEST(Zero3Hooks, SayWhereTheyAreCarriedOn) {
  const auto notes = [](const std::string& kind, int nodes) {
    const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100, nodes: " + std::to_string(nodes) + "}\ntraining: {sequence_length: 256, global_batch_size: " + std::to_string(8 * nodes) + ", micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: " + kind + "}\n";
    const Scenario s = read_scenario(config::parse_document(text, "ranks.yaml").root, "ranks.yaml");
    return std::count_if(s.notes.begin(), s.notes.end(), [](const std::string& note) { return note.find("measured over up to 256") != std::string::npos; });
  };
  EXPECT_EQ(notes("zero3", 32), 0);
  EXPECT_EQ(notes("zero3", 33), 1);
  EXPECT_EQ(notes("zero2", 33), 0);
}

// DeepSpeed's host waits for the reductions of each micro-batch, so that the next one's first launches come when the device is idle.
TEST(Zero3Hooks, TheHostWaitsAfterEachMicroBatch) {
  for (const int micro_batches : {1, 3}) {
    Scenario s = job("zero3", "none");
    s.strategy.training.global_batch_size *= micro_batches;
    const Result r = simulate(s);
    int waits = 0;
    for (const plan::Call& c : r.plan.classes[0].program.step) waits += r.plan.blocks[c.block].name == "end of gradient partition";
    EXPECT_EQ(waits, micro_batches);
  }
}

// The fourth reduction of a micro-batch and those after it wait on the host for the one three before (stage3.py, max_param_reduce_events).
TEST(Zero3Hooks, TheHostIsAFewReductionsAhead) {
  Scenario s = job("zero3", "none");
  s.strategy.data_parallel.bucket = Bytes{2};   // every gradient by itself
  const Result r = simulate(s);
  int waits = 0, issued = 0;
  for (const plan::Call& c : r.plan.classes[0].program.step) {
    waits += r.plan.blocks[c.block].name.starts_with("wait for a reduction");
    issued += r.plan.blocks[c.block].name.starts_with("reduction issued");
  }
  EXPECT_GT(issued, 7 * 32);   // seven matrices per layer, and more
  EXPECT_EQ(waits, issued - 3);
}

// A gather takes the host itself and for each parameter in it, which it names where there are several; experts in a loop are gathered one by one.
// A gradient takes it where it enters the bucket, and so does a bucket that is reduced. Lists of the ranks' parts take it by the rank.
TEST(Zero3Hooks, GathersAndGradientsTakeTheHost) {
  for (const bool alone : {true, false}) {
    Scenario s = job("zero3", "none");
    if (alone) s.strategy.data_parallel.bucket = Bytes{2}, s.strategy.data_parallel.prefetch_bucket = 1;   // every gradient and every parameter by itself
    const Result with = simulate(s);
    const strategies::FrameworkProfile profile = s.profile;
    s.profile.gather_host = s.profile.gathered_parameter_host = s.profile.bucket_host = s.profile.reduction_host = s.profile.gathered_part_host = s.profile.gradient_part_host = Duration{};
    const Result without = simulate(s);
    for (const Duration each : {profile.gather_host, profile.gathered_parameter_host, profile.bucket_host, profile.reduction_host}) ASSERT_GT(each, Duration{});
    std::map<std::string, int> blocks;
    for (const plan::Block& b : with.plan.blocks) {
      // Of each parameter that came with others every rank has a part.
      if (const std::size_t of = b.name.find(" of "); b.name.starts_with("gathered parameter ") && of != std::string::npos) {
        EXPECT_EQ(std::stoi(b.name.substr(of + 4)) % 8, 0) << b.name;
        EXPECT_NEAR(host_us(with, b.name), std::stoi(b.name.substr(of + 4)) * microseconds(profile.gathered_part_host), 1e-3) << b.name;
        ++blocks["part"];
        continue;
      }
      const double more = host_us(with, b.name) - host_us(without, b.name);
      const auto takes = [&](const char* kind, Duration expected) {
        EXPECT_NEAR(more, microseconds(expected), 1e-3) << b.name;
        ++blocks[kind];
      };
      const std::size_t in = b.name.find(" in ");
      if (b.name.starts_with("fetch parameter ")) takes("one", profile.gather_host + profile.gathered_parameter_host);
      if (b.name.starts_with("fetch parameters ") && in != std::string::npos) takes("several", profile.gather_host + std::stoi(b.name.substr(in + 4)) * profile.gathered_parameter_host);
      if (b.name.starts_with("gradient into bucket") || b.name.starts_with("gradient beside bucket")) takes("gradient", profile.bucket_host + 8 * profile.gradient_part_host);
      if (b.name.starts_with("reduce bucket")) takes("reduction", profile.reduction_host);
    }
    for (const char* kind : {alone ? "one" : "several", "gradient", "reduction"}) EXPECT_GT(blocks[kind], 0) << kind;
    EXPECT_EQ(blocks["part"] > 0, !alone);
  }
}

// Mixtral's eight experts in a loop: what stands for their matrices (gate's and up's together, and down's) is gathered matrix by matrix.
TEST(Zero3Hooks, ExpertsInALoopAreGatheredOneByOne) {
  const std::string text = "model: mixtral-8x7b\ncluster: {node: dgx-h100, nodes: 4}\ntraining: {sequence_length: 256, global_batch_size: 32, micro_batch_size: 1, framework: deepspeed}\ndata_parallel: {kind: zero3, prefetch_bucket: 1}\n";
  Scenario s = read_scenario(config::parse_document(text, "hooks.yaml").root, "hooks.yaml");
  s.profile.grouped_experts = s.profile.native_grouped = false;
  const Result with = simulate(s);
  const double gather = microseconds(s.profile.gather_host + s.profile.gathered_parameter_host), gradient = microseconds(s.profile.bucket_host);
  s.profile.gather_host = s.profile.gathered_parameter_host = s.profile.bucket_host = Duration{};
  const Result without = simulate(s);
  std::map<int, int> gathers, gradients;   // how many stand for so many matrices
  for (const plan::Block& b : with.plan.blocks) {
    const double more = host_us(with, b.name) - host_us(without, b.name);
    if (b.name.starts_with("fetch parameter ")) ++gathers[static_cast<int>(std::lround(more / gather))];
    if (b.name.starts_with("gradient into bucket") || b.name.starts_with("gradient beside bucket")) ++gradients[static_cast<int>(std::lround(more / gradient))];
  }
  EXPECT_GT(gathers[16], 0);
  EXPECT_GT(gathers[8], 0);
  EXPECT_GT(gradients[16], 0);
  EXPECT_GT(gradients[8], 0);
}

TEST(Zero3Hooks, SetTheFloorOfSmallSteps) {
  Scenario s = job("zero3", "full", 128);
  const double with = simulate(s).step_time;
  s.profile.submodule_host = s.profile.submodule_backward_host = Duration{};
  const double without = simulate(s).step_time;
  EXPECT_GT(with, 1.3 * without);
  Scenario large = job("zero3", "full", 8192);
  const double hidden = simulate(large).step_time;
  large.profile.submodule_host = large.profile.submodule_backward_host = Duration{};
  EXPECT_LT(hidden, 1.03 * simulate(large).step_time);
}

}  // namespace
}  // namespace rehearse::scenario::zero3_hooks_test
