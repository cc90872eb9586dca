// Layers with a state-space mixer: what they keep for backward, what tensor parallelism divides, which kernels run, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/model/presets.h"
#include "sim/model/shapes.h"
#include "strategies/plan_writer.h"
#include "tests/support/byte_ledger.h"
#include "tests/unit/strategies/hybrid_jobs.h"

namespace rehearse::strategies::state_space_test {
namespace {

using namespace hybrid_jobs;
using test_support::ByteLedger;

constexpr std::int64_t kInner = 2048, kGroups = 8, kState = 128, kHeads = 32;

model::ModelDescription hybrid(std::int64_t layers, const std::string& pattern) {
  return hybrid_of(layers, pattern, [](model::ModelDescription& m) { m.state_space = {.heads = kHeads, .head_dim = kInner / kHeads, .groups = kGroups, .state = kState, .convolution = 4, .chunk = 128}; });
}

std::int64_t kept_per_layer(const std::string& pattern, const Strategy& s, const std::string& profile) {
  const auto peak = [&](std::int64_t layers) { return ByteLedger(hybrid_plan(hybrid(layers, pattern), s, profile), 0).step().step_peak; };
  return (peak(12) - peak(8)) / 4;
}

// Megatron's mixer keeps the layer's input and its norm, the input product, the scan's result before and after the gate, and the gated norm's result;
// statistics of both norms in fp32. With several samples it is copies in the scan's own order that are kept, as many.
TEST(StateSpaceLayer, KeepsWhatMegatronsOperatorsSave) {
  const std::int64_t projected = 2 * kInner + 2 * kGroups * kState + kHeads;
  const std::int64_t bytes = kTokens * (2 * (2 * kHidden + projected + 3 * kInner) + 4 + 4 * kGroups);
  EXPECT_EQ(kept_per_layer("M", job(), "megatron-core"), bytes);
  EXPECT_EQ(kept_per_layer("M", job(1, 2), "megatron-core"), bytes);
}

// transformers' mixer has its norm inside the scan's operator, which makes the norm's result again.
TEST(StateSpaceLayer, KeepsLessWhereTheNormIsInsideTheOperator) {
  const std::int64_t inside = kept_per_layer("M", job(), "huggingface");
  EXPECT_LT(inside, kept_per_layer("M", job(), "megatron-core"));
}

TEST(StateSpaceLayer, IsDividedOverTensorRanks) {
  const auto elements = [&](int tensor) { return parameters_per_stage(hybrid(4, "M"), job(tensor), load_profile("megatron-core")).front(); };
  // Norms of the stream are whole on both.
  EXPECT_EQ(2 * elements(2) - elements(1), 4 * kHidden + kHidden);
  const plan::Plan one = hybrid_plan(hybrid(4, "M"), job(), "megatron-core"), two = hybrid_plan(hybrid(4, "M"), job(2), "megatron-core");
  const auto flops = [](const plan::Plan& plan) {
    const auto k = std::find_if(plan.kernels.begin(), plan.kernels.end(), [](const model::KernelSpec& s) { return s.name == "scan output"; });
    return k->flops;
  };
  EXPECT_EQ(flops(one), 2 * flops(two));
}

int count(const plan::Plan& plan, const std::string& name) {
  int n = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) n += i.op == plan::Opcode::kernel && plan.kernels[i.index].name == name;
  return n;
}

// Backward makes all but the output again. A part alone has one norm and one residual.
TEST(StateSpaceLayer, RunsItsKernels) {
  const plan::Plan plan = hybrid_plan(hybrid(4, "M-*S"), job(), "megatron-core");
  EXPECT_EQ(count(plan, "scan output"), 2);
  EXPECT_EQ(count(plan, "scan states"), 4);
  EXPECT_EQ(count(plan, "scan convolution"), 4);
  EXPECT_EQ(count(plan, "scan values gradient"), 2);
  EXPECT_EQ(count(plan, "attention"), 1);
  EXPECT_EQ(count(plan, "input norm"), 3);
  EXPECT_EQ(count(plan, "mlp norm"), 2);
  EXPECT_EQ(count(plan, "attention residual") + count(plan, "mlp residual"), 5);
}

Strategy over_ranks(int context) {
  Strategy s = job();
  s.training.sequence_length = kTokens * context;
  s.parallelism.degrees.context = context;
  return s;
}
plan::Plan plan_over_ranks(std::int64_t layers, int context) { return write_plan(hybrid(layers, "M"), over_ranks(context), load_profile("megatron-core"), context); }

// Over a context group each rank scans all tokens for some of the heads: what a rank computes and keeps is as without, at as many of its own tokens.
TEST(StateSpaceLayer, ScansAllTokensOfSomeHeadsOverAContextGroup) {
  const auto scans = [](const plan::Plan& plan) {
    double flops = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::scan) flops += plan.kernels[i.index].flops;
    return flops;
  };
  EXPECT_DOUBLE_EQ(scans(plan_over_ranks(4, 4)), scans(plan_over_ranks(4, 1)));
  const auto peak = [](std::int64_t layers, int context) { return ByteLedger(plan_over_ranks(layers, context), 0).step().step_peak; };
  EXPECT_EQ(peak(12, 4) - peak(8, 4), peak(12, 1) - peak(8, 1));
  EXPECT_EQ(parameters_per_stage(hybrid(4, "M"), over_ranks(4), load_profile("megatron-core")), parameters_per_stage(hybrid(4, "M"), over_ranks(1), load_profile("megatron-core")));
}

// Gate, values, maps and time steps travel one by one, the output comes back; the same in backward. Groups that are fewer than the ranks are sent several times.
TEST(StateSpaceLayer, ExchangesHeadsForTokens) {
  const auto sent = [](int context) {
    std::pair<int, std::int64_t> out;
    const plan::Plan plan = plan_over_ranks(3, context);
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == CollectiveKind::all_to_all && plan.collectives[i.index].axis == plan::GroupAxis::context) {
          ++out.first;
          out.second += plan.collectives[i.index].bytes.value;
        }
    return out;
  };
  const auto layer = [](std::int64_t groups) { return 2 * kTokens * 2 * (3 * kInner + 2 * groups * kState + kHeads); };   // both passes, bf16
  EXPECT_EQ(sent(1), std::pair(0, std::int64_t{0}));
  EXPECT_EQ(sent(4), std::pair(3 * 2 * 6, 3 * layer(kGroups)));
  EXPECT_EQ(sent(16), std::pair(3 * 2 * 6, 3 * layer(16)));
}

// Adapters find what only some layers have, whatever the first one is.
TEST(StateSpaceLayer, AdaptersFindTheOtherLayers) {
  const model::ModelDescription m = hybrid(4, "M-*M");
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job();
  s.tuning.kind = TuningKind::lora;
  EXPECT_TRUE(problems_of(m, s, profile, 8).empty());   // attention by default
  for (const char* part : {"attention", "mlp", "in_proj"}) {
    s.tuning.targets = {part};
    EXPECT_TRUE(problems_of(m, s, profile, 8).empty()) << part;
  }
}

// A mixer's launches belong to a CUDA graph of their own kind.
TEST(StateSpaceLayer, IsCapturedByName) {
  Strategy s = job();
  const auto host = [&](std::vector<std::string> modules) {
    s.training.cuda_graph_modules = std::move(modules);
    const plan::Plan plan = hybrid_plan(hybrid(4, "M"), s, "megatron-core");
    Duration sum{};
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::host) sum += Duration{i.value};
    return sum;
  };
  const FrameworkProfile profile = load_profile("megatron-core");
  EXPECT_GE((host({}) - host({"mamba"})) * 100 / 99, 4 * ((profile.layer_host + profile.layer_backward_host) / 2 + 20 * profile.scan_host));
  EXPECT_EQ(host({"attn"}), host({}));
}

TEST(StateSpaceLayer, RefusesWhatIsNotSimulated) {
  const auto said = [](const Strategy& s, const std::string& profile) {
    std::string all;
    for (const Diagnostic& d : problems_of(hybrid(4, "M"), s, load_profile(profile), 8)) all += to_string(d);
    return all;
  };
  EXPECT_EQ(said(job(), "megatron-core"), "");
  EXPECT_NE(said(job(16), "megatron-core").find("8 groups of the state-space mixers"), std::string::npos);
  Strategy context = job();
  context.parallelism.degrees.context = 2;
  EXPECT_EQ(said(context, "megatron-core"), "");
  EXPECT_NE(said(context, "huggingface").find("only Megatron's state-space mixers over a context group"), std::string::npos);
  context.parallelism.degrees.context = 64;
  EXPECT_NE(said(context, "megatron-core").find("64 does not divide the 32 heads"), std::string::npos);
  Strategy uneven = job();
  uneven.training.sequence_length = 1000;
  EXPECT_NE(said(uneven, "megatron-core").find("chunks of 128 tokens do not fill"), std::string::npos);
  Strategy wide = job();
  wide.training.precision = Precision::fp32;
  EXPECT_NE(said(wide, "megatron-core").find("in fp32"), std::string::npos);
}

}  // namespace
}  // namespace rehearse::strategies::state_space_test
