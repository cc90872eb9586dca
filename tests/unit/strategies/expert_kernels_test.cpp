// How Megatron carries out experts: launches, biases, fused kernels, CUDA graphs, overlapped exchanges, release presets.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "sim/model/presets.h"
#include "strategies/framework/recipes.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/pipeline/catalog.h"
#include "strategies/plan_writer.h"

namespace rehearse::strategies::expert_kernels_test {
namespace {

model::ModelDescription gpt_oss(int layers = 2) {
  model::ModelDescription m = model::load_preset("gpt-oss-20b");
  m.layers.resize(static_cast<std::size_t>(layers));
  return m;
}

Strategy job(int expert, Precision precision = Precision::bf16) {
  Strategy s;
  s.training.sequence_length = 1024;
  s.training.global_batch_size = 4 * expert;
  s.training.precision = precision;
  s.parallelism.degrees.data = expert;
  s.parallelism.degrees.expert = expert;
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  return s;
}

/// Bytes and host time of the kernels whose names contain a word, over one step of the first class.
struct Sum {
  int kernels = 0;
  double bytes = 0, host_us = 0;
};
Sum sum_of(const plan::Plan& plan, const std::string& word) {
  Sum out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      if (k.name.find(word) == std::string::npos) continue;
      ++out.kernels;
      out.bytes += static_cast<double>(k.bytes_read + k.bytes_written);
      out.host_us += static_cast<double>(i.value) * 1e-6;
    }
  return out;
}
int syncs_of(const plan::Plan& plan) {
  int out = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) out += i.op == plan::Opcode::host_wait;
  return out;
}

/// Written out by hand from TEGroupedMLP._apply_bias: per slot and hidden element, forward b * p (4), t + bp (2, 4, 4), cat (4, 4),
/// cast (4, 2); backward cast (2, 4), the sum's (4, 2), b's product and sum (4, 4, 4), p's (4, 4, 4), split's cat (2, 2): 28 and 40 bytes.
TEST(ExpertKernels, MegatronsOutputBiasMovesSixtyEightBytesPerElement) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  const plan::Plan plan = write_plan(m, job(8), profile, 8);
  const double slots = 1024.0 * 4, elements = slots * 2880, layers = 2, micro_batches = 4;
  double bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::kernel || !plan.blocks[call.block].name.starts_with("layer")) continue;
      const model::KernelSpec& k = plan.kernels[i.index];
      for (const char* name : {"bias times weight", "bias add", "join experts", "cast", "cast backward", "bias add backward", "bias times weight backward", "experts down bias gradient",
                               "slot weight backward", "slot weight backward sum", "join gradients"})
        if (k.name == name) bytes += static_cast<double>(k.bytes_read + k.bytes_written);
    }
  EXPECT_NEAR(bytes / (elements * layers * micro_batches), 68, 0.1);
  Strategy fused = job(8);
  fused.experts.fused_mlp = true;
  EXPECT_EQ(sum_of(write_plan(m, fused, profile, 8), "bias add").kernels, 0);
}

// NeMo AutoModel adds the first product's bias too, expert by expert: read and written, joined (both ways): 8 bytes per element and
// micro-batch forward, 4 backward. Its activation clamps inside one compiled kernel.
TEST(ExpertKernels, AutomodelAddsBothBiases) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("nemo-automodel");
  FrameworkProfile without = profile;
  without.separate_first_expert_bias = false;
  const plan::Plan both = write_plan(m, job(8), profile, 8), second = write_plan(m, job(8), without, 8);
  const double elements = 1024.0 * 4 * 2 * 2880, layers = 2, micro_batches = 4;
  double bytes = 0;
  for (const char* name : {"bias add", "join experts", "join gradients"}) bytes += sum_of(both, name).bytes - sum_of(second, name).bytes;
  EXPECT_NEAR(bytes / (elements * layers * micro_batches), 12, 0.1);
  EXPECT_EQ(sum_of(both, "clamp gate").kernels, 0);
  EXPECT_GT(sum_of(write_plan(m, job(8), load_profile("megatron-core"), 8), "clamp gate").kernels, 0);
}

// What backward of a norm and of an embedding reaches of the bandwidth is a parameter of its own: the kernel model must hear which one it is.
TEST(BackwardKernels, NormsAndEmbeddingsSayThatTheyAre) {
  for (const char* framework : {"megatron-core", "huggingface", "torchtitan-compile", "internevo"}) {
    const plan::Plan plan = write_plan(model::load_preset("llama-3-8b"), job(8), load_profile(framework), 8);
    int backward = 0;
    for (const model::KernelSpec& k : plan.kernels)
      if (k.kind == model::KernelKind::normalization || k.kind == model::KernelKind::native_normalization || k.kind == model::KernelKind::embedding) {
        EXPECT_EQ(k.role != model::GemmRole::forward, k.name.ends_with("backward")) << framework << ": " << k.name;
        backward += k.name.ends_with("backward") ? 1 : 0;
      }
    EXPECT_GT(backward, 0) << framework;
  }
}

// One dummy gradient for all experts of a grouped product, which have a tensor each: of one expert's size.
TEST(ExpertKernels, ExpertsShareADummyGradient) {
  const plan::Plan plan = write_plan(gpt_oss(), job(8), load_profile("megatron-core"), 8);
  std::set<std::int64_t> dummies;
  for (const plan::Call& call : plan.classes[0].program.setup) {
    const std::string& name = plan.blocks[call.block].name;   // "... <slot> <bytes>"
    if (name.starts_with("allocate dummy weight gradient")) dummies.insert(std::stoll(name.substr(name.rfind(' '))));
  }
  EXPECT_TRUE(dummies.contains(2 * 2 * 2880 * 2880));
  EXPECT_TRUE(dummies.contains(2 * 2880 * 2880));
  for (const std::int64_t bytes : dummies) EXPECT_LE(bytes, 201088LL * 2880 * 2);
}

TEST(ExpertKernels, EachExpertsProductIsALaunchUnlessFused) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(4);   // eight experts on each rank
  const Sum eight = sum_of(write_plan(m, s, profile, 8), "experts gate_up");
  s.experts.fused_mlp = true;
  const Sum one = sum_of(write_plan(m, s, profile, 8), "experts gate_up");
  EXPECT_EQ(eight.kernels, one.kernels);   // one grouped product on the device
  const double products = 3, biases = 1;
  EXPECT_NEAR(eight.host_us / one.host_us, (8 * products + biases) / (products + biases), 1e-9);
}

TEST(ExpertKernels, QuantisedOperandsOfFusedExpertsAreThoseThatEnterOnly) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8, Precision::mxfp8);
  const plan::Plan apart = write_plan(m, s, profile, 8);
  s.experts.fused_mlp = true;
  const plan::Plan fused = write_plan(m, s, profile, 8);
  EXPECT_GT(sum_of(apart, "experts down cast input").kernels, 0);
  EXPECT_EQ(sum_of(fused, "experts down cast input").kernels, 0);
  EXPECT_EQ(sum_of(fused, "experts gate_up cast gradient").kernels, 0);
  EXPECT_EQ(sum_of(fused, "experts activation").kernels, 0);
  EXPECT_GT(sum_of(fused, "experts gate_up cast input").kernels, 0);
  EXPECT_GT(sum_of(fused, "experts down cast gradient").kernels, 0);
}

/// Transformer Engine's current scaling: the maximum is set to zero, found, made a scale, then the tensor is cast: four launches, of which
/// the norm's pass takes one (FUSED_NORM_AMAX_FP8). Two layers, four micro-batches, two experts on each rank.
TEST(ExpertKernels, CurrentScalesTakeFourLaunches) {
  const model::ModelDescription m = gpt_oss();
  Strategy s = job(16, Precision::fp8);
  const plan::Plan plan = write_plan(m, s, load_profile("megatron-bridge"), 8);
  const int passes = 2 * 4, experts = 2;
  for (const char* step : {"maximum reset", "scale"}) {
    EXPECT_EQ(sum_of(plan, std::string("experts down cast input ") + step).kernels, passes * experts) << step;
    EXPECT_EQ(sum_of(plan, std::string("qkv input ") + step).kernels, passes) << step;
    EXPECT_EQ(sum_of(plan, std::string("o_proj input ") + step).kernels, passes) << step;
  }
  EXPECT_EQ(sum_of(plan, "qkv input maximum").kernels, passes);                  // the reset alone
  EXPECT_EQ(sum_of(plan, "o_proj input maximum").kernels, 2 * passes);           // reset and pass
  EXPECT_EQ(sum_of(plan, "experts down cast input maximum").kernels, 2 * passes * experts);
  EXPECT_EQ(sum_of(write_plan(m, s, load_profile("nemo-2024"), 8), "maximum").kernels, 0);   // delayed scaling
}

/// Activations are quantised with their scales in order; a weight's are put in order for forward and for the input's gradient, those of
/// all experts in one launch.
TEST(ExpertKernels, WeightsScalesArePutInOrderForEachProduct) {
  const model::ModelDescription m = gpt_oss();
  const plan::Plan plan = write_plan(m, job(16, Precision::mxfp8), load_profile("megatron-bridge"), 8);
  const int passes = 2 * 4;
  for (const char* name : {"qkv", "o_proj", "experts gate_up", "experts down"})
    EXPECT_EQ(sum_of(plan, std::string(name) + " swizzle weight scales").kernels, 2 * passes) << name;
  EXPECT_EQ(sum_of(write_plan(m, job(16), load_profile("megatron-bridge"), 8), "swizzle").kernels, 0);
}

/// The checkpoint around the activation holds the clamping too: both run again in backward, and neither's output is kept.
TEST(ExpertKernels, ClampingIsMadeAgainWithTheActivation) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(16);
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "join gate and up").kernels, 2 * 4);
  s.memory.recompute = Recompute::selective;
  s.memory.recompute_modules = {"moe_act"};
  const plan::Plan plan = write_plan(m, s, profile, 8);
  EXPECT_EQ(sum_of(plan, "join gate and up").kernels, 2 * 2 * 4);
  EXPECT_EQ(sum_of(plan, "clamp gate").kernels, 2 * 2 * 4 + 2 * 4);   // and its backward
}

double host_us_of(const plan::Plan& plan) {
  double us = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::host) us += static_cast<double>(i.value) * 1e-6;
  return us;
}

/// What the host takes for sending slots to everybody: once each way for two layers and four micro-batches. Half of forward's is with the router, whose
/// CUDA graph holds it. HybridEP's kernels, and experts that are all here, need none of it.
TEST(ExpertKernels, ExchangesOfSlotsTakeHostTime) {
  const model::ModelDescription m = gpt_oss();
  FrameworkProfile free_of_it = load_profile("megatron-core"), profile = free_of_it;
  free_of_it.exchange_host = free_of_it.exchange_backward_host = {};
  const double forward = to_seconds(profile.exchange_host) * 1e6, backward = to_seconds(profile.exchange_backward_host) * 1e6;
  ASSERT_GT(forward, 0);
  const auto taken = [&](const Strategy& s) { return host_us_of(write_plan(m, s, profile, 8)) - host_us_of(write_plan(m, s, free_of_it, 8)); };
  const int passes = 2 * 4;
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::all_to_all;
  EXPECT_NEAR(taken(s), passes * (forward + backward), 1e-6);
  s.training.cuda_graph_modules = {"attn", "moe_router"};
  EXPECT_NEAR(taken(s), passes * (forward / 2 + backward), 1e-6);
  s.training.cuda_graph_modules.clear();
  s.experts.dispatcher = Dispatcher::hybridep;
  EXPECT_NEAR(taken(s), 0, 1e-6);
  s = job(1);
  s.experts.dispatcher = Dispatcher::all_to_all;
  EXPECT_NEAR(taken(s), 0, 1e-6);
}

/// Megatron-Core's checkpoint_core_attention runs attention again whatever computes it: a kernel more for each of two layers and four micro-batches,
/// and the host's time of a checkpoint; the values, a view of the projection, are copied each time. Megatron's own layers of before leave FlashAttention out.
TEST(SelectiveRecomputation, CoreAttentionOfOneKernelRunsAgain) {
  const model::ModelDescription m = gpt_oss();
  FrameworkProfile profile = load_profile("megatron-core");
  Strategy none = job(8), selective = none;
  selective.memory.recompute = Recompute::selective;
  selective.memory.recompute_modules = {"core_attn"};
  const int passes = 2 * 4;
  const plan::Plan kept = write_plan(m, none, profile, 8), again = write_plan(m, selective, profile, 8);
  EXPECT_EQ(sum_of(again, "attention").kernels - sum_of(kept, "attention").kernels, passes);
  EXPECT_EQ(sum_of(again, "copy value").kernels, 2 * passes);
  EXPECT_EQ(sum_of(again, "").kernels - sum_of(kept, "").kernels, 3 * passes);
  EXPECT_NEAR(host_us_of(again) - host_us_of(kept), passes * to_seconds(profile.region_host) * 1e6, 1e-6);
  EXPECT_GT(profile.region_host, Duration{});
  profile.checkpoints_fused_attention = false;
  EXPECT_EQ(sum_of(write_plan(m, selective, profile, 8), "").kernels, sum_of(kept, "").kernels);
}

TEST(ExpertKernels, EachExpertTakesHostTime) {
  const model::ModelDescription m = gpt_oss();
  FrameworkProfile profile = load_profile("megatron-bridge");
  profile.norm_host = profile.update_host = {};   // the optimizer's, per parameter
  const auto host_of = [&](int expert) { return host_us_of(write_plan(m, job(expert), profile, 8)); };
  const double few = host_of(16), many = host_of(4);   // two and eight experts on each rank
  // Two layers, four micro-batches, two grouped layers; 4.6 and 8.4 us of Python and the extension, 4.3 us for each of three products.
  EXPECT_NEAR(many - few, 2 * 4 * 2 * (8 - 2) * (4.6 + 8.4 + 3 * 4.3), 1e-6);
}

TEST(ExpertKernels, RoutersAreNeverInEightBits) {
  const model::ModelDescription m = gpt_oss();
  const plan::Plan plan = write_plan(m, job(8, Precision::mxfp8), load_profile("megatron-bridge"), 8);
  EXPECT_EQ(sum_of(plan, "router cast").kernels, 0);
  for (const model::KernelSpec& k : plan.kernels)
    if (k.name.starts_with("router") && k.kind == model::KernelKind::gemm) { EXPECT_EQ(k.dtype, DType::bf16) << k.name; }
}

TEST(ExpertKernels, HybridEpPadsOnTheWay) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8, Precision::mxfp8);
  s.experts.dispatcher = Dispatcher::deepep;
  EXPECT_GT(sum_of(write_plan(m, s, profile, 8), "padding").kernels, 0);
  s.experts.dispatcher = Dispatcher::hybridep;
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "padding").kernels, 0);
}

/// Megatron's router, written out from router.py and moe_utils.py: softmax; top-k in two kernels; weights in dense form (zeros, copy,
/// scatter); map (zeros, cast, copy, scatter, cast) and its sum: 12. For the loss softmax, top-k, map and sum again, scores per expert, product,
/// sum, scale, and two for the log: 15. Backward 11. Fused: three kernels of Transformer Engine, counts and two for the log; backward 6.
TEST(ExpertKernels, MegatronsRouterIsTwentySevenLaunchesOrSix) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(8);
  const plan::Plan operators = write_plan(m, s, profile, 8);
  s.experts.fused_router = true;
  const plan::Plan fused = write_plan(m, s, profile, 8);
  const int passes = 2 * 4;
  EXPECT_EQ(sum_of(operators, "").kernels - sum_of(fused, "").kernels, passes * (27 - 6 + 11 - 6));
  EXPECT_EQ(sum_of(operators, "top-k").kernels, passes * (2 + 2 + 1));   // backward's once
  EXPECT_EQ(sum_of(fused, "fused").kernels, passes * (3 + 3));
}

int gathers_of(const plan::Plan& plan, const std::string& name) {
  int out = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      out += i.op == plan::Opcode::collective && plan.collectives[i.index].name == name;
  return out;
}

/// Who sends slots tells the others how many: two sums, an all-gather, the local experts' part, three sums, four copies to the host. Slots
/// padded to a capacity are known, and DeepEP's kernels count themselves.
TEST(ExpertKernels, CountsAreExchangedBeforeSlots) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::all_to_all;
  const plan::Plan plan = write_plan(m, s, profile, 8);
  const int passes = 2 * 4;
  EXPECT_EQ(gathers_of(plan, "counts"), passes);
  EXPECT_EQ(sum_of(plan, "to host").kernels, passes * 4);
  s.experts.capacity_factor = 1;
  EXPECT_EQ(gathers_of(write_plan(m, s, profile, 8), "counts"), passes);
  s.experts.pad_to_capacity = true;
  EXPECT_EQ(gathers_of(write_plan(m, s, profile, 8), "counts"), 0);
  s.experts = {};
  s.experts.dispatcher = Dispatcher::deepep;
  EXPECT_EQ(gathers_of(write_plan(m, s, profile, 8), "counts"), 0);
}

/// Without fusion the host waits for two masked_selects per pass; slots are summed by atomics, four bytes read and written per element, once
/// in forward (scatter_add_) and once in backward (index_add_). 1024 tokens with four experts each, 2880 wide.
TEST(ExpertKernels, PermutationsByOperatorsMakeTheHostWaitAndAddByAtomics) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::all_to_all;
  const plan::Plan operators = write_plan(m, s, profile, 8);
  s.experts.fused_permute = true;
  const plan::Plan fused = write_plan(m, s, profile, 8);
  const int passes = 2 * 4;
  EXPECT_EQ(syncs_of(operators) - syncs_of(fused), passes * 2);
  const double slots = 1024.0 * 4, elements = slots * 2880;
  EXPECT_EQ(sum_of(operators, "select tokens backward").bytes, passes * elements * 8);
  EXPECT_EQ(sum_of(operators, "scatter add").bytes - sum_of(operators, "scatter add backward").bytes, passes * elements * 8);
  EXPECT_EQ(sum_of(fused, "scatter add").kernels, 0);
  // Padded to a capacity nothing is unknown: a stable argsort.
  s.experts.fused_permute = false;
  s.experts.capacity_factor = 1;
  s.experts.pad_to_capacity = true;
  const plan::Plan padded = write_plan(m, s, profile, 8);
  EXPECT_EQ(sum_of(padded, "argsort").kernels, passes * 6);
  EXPECT_EQ(sum_of(padded, "select valid").kernels, 0);
  // Dropped and not padded: the host waits for the number of slots, at one place where dropless it waits at another.
  s.experts.pad_to_capacity = false;
  s.experts.fused_permute = true;
  EXPECT_EQ(syncs_of(write_plan(m, s, profile, 8)), syncs_of(fused));
  s.experts.dispatcher = Dispatcher::hybridep;   // orders tokens itself
  s.experts.fused_permute = false;
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "scatter add").kernels, 0);
}

/// Transformer Engine's permutation.py: an order in three passes and the copy, an order and a copy for each sort, the sum; their backwards copy
/// only. 9 and 4 launches by Triton, each of which Python holds up, unless the whole step is a graph.
TEST(ExpertKernels, FusedPermutationsAreLaunchedByTriton) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::all_to_all;
  s.experts.fused_permute = true;
  const plan::Plan fused = write_plan(m, s, profile, 8);
  const int passes = 2 * 4;
  for (const char* once : {"slots in blocks", "slot order", "slots by token", "sort by expert order", "sort by sender order", "permute backward", "sort by expert backward", "sort by sender backward", "unpermute backward"})
    EXPECT_EQ(sum_of(fused, once).kernels, passes * (std::string_view(once) == "permute backward" ? 2 : 1)) << once;   // "unpermute backward" is one of them
  EXPECT_EQ(sum_of(fused, "permute weights").kernels, 0);
  EXPECT_GT(profile.triton_host, Duration{});
  Strategy graphed = s;
  graphed.training.cuda_graph = true;
  EXPECT_EQ(with_choices(profile, graphed).triton_host, Duration{});
  s.experts.dispatcher = Dispatcher::hybridep;   // its own kernels, in C++
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "slots in blocks").kernels, 0);
}

/// Megatron's _indices_to_multihot: the host learns three times in forward, once in backward, how many entries are valid. With its
/// experimental functions a kernel each way does all. Two layers, four micro-batches; 25 launches forward, 17 backward, 1 and 1 fused.
TEST(ExpertKernels, DeepEpsListsOfExpertsMakeTheHostWaitUnlessFused) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-core");
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::deepep;
  const plan::Plan operators = write_plan(m, s, profile, 8);
  s.experts.fused_index_map = true;
  const plan::Plan fused = write_plan(m, s, profile, 8);
  const int layers = 2, micro_batches = 4;
  EXPECT_EQ(syncs_of(operators) - syncs_of(fused), layers * micro_batches * (3 + 1));
  EXPECT_EQ(sum_of(operators, "").kernels - sum_of(fused, "").kernels, layers * micro_batches * (25 - 1 + 17 - 1));
  EXPECT_EQ(sum_of(fused, "index map").kernels, layers * micro_batches * 2);
  s.experts.dispatcher = Dispatcher::hybridep;   // delivers the map
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "index map").kernels, 0);
}

/// torchtitan's GPT-OSS: each bias becomes a row for every slot, which is added out of place; its gradient is scattered back, 4 bytes read and written for
/// each element. 1,024 tokens at four experts, widths 5,760 and 2,880.
TEST(ExpertKernels, BiasesOfExpertsAreRepeatedForTheirSlots) {
  const model::ModelDescription m = gpt_oss();
  Strategy s = job(8);
  s.data_parallel.kind = DataParallelKind::fsdp2;
  s.parallelism.degrees.expert = 1;
  const auto kernels = [&](const char* profile, const char* word) { return sum_of(write_plan(m, s, load_profile(profile), 8), word); };
  const double passes = 2 * 4, elements = 1024 * 4 * (5760 + 2880), weights = 32 * (5760 + 2880);
  EXPECT_EQ(kernels("torchtitan", "bias rows").kernels, passes * 2);
  EXPECT_EQ(kernels("torchtitan", "bias rows").bytes, passes * (elements + weights) * 2);
  EXPECT_EQ(kernels("torchtitan", "experts gate_up bias gradient").bytes + kernels("torchtitan", "experts down bias gradient").bytes, passes * (elements * 8 + weights * 2));
  EXPECT_EQ(kernels("torchtitan-compile", "bias rows").kernels, 0);
  EXPECT_EQ(kernels("huggingface", "bias rows").kernels, 0);
}

/// GShard's einsums, counted by hand: with T tokens and C slots of a group, 2 T C M FLOPs forward there and back each, and three times that in
/// backward (two gradients of tensors, one of the mask). A mask for each sample (MaxText) has a part of the products of one for the micro-batch (DeepSpeed).
TEST(ExpertKernels, MasksCopyTokensByProducts) {
  const model::ModelDescription m = gpt_oss();
  FrameworkProfile profile = load_profile("maxtext");
  Strategy s = job(8);
  s.training.micro_batch_size = 2;
  s.training.global_batch_size = 64;
  s.experts.capacity_factor = 1.25;
  s.experts.pad_to_capacity = true;
  const auto flops = [&] {
    double out = 0;
    const plan::Plan plan = write_plan(m, s, profile, 8);
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        if (i.op != plan::Opcode::kernel) continue;
        const model::KernelSpec& k = plan.kernels[i.index];
        if (k.name.find("mask") != std::string::npos && k.kind == model::KernelKind::gemm) out += 2.0 * static_cast<double>(k.batch) * static_cast<double>(k.m) * static_cast<double>(k.n) * static_cast<double>(k.k);
      }
    return out;
  };
  EXPECT_EQ(flops(), 0);
  s.experts.mask_products = true;
  const double passes = 2 * 4, samples = 2, tokens = 1024, slots = tokens * 4 * 1.25, product = 2 * tokens * slots * 2880;   // of one sample: no remainder, 160 slots per expert
  EXPECT_EQ(flops(), passes * samples * 5 * product);
  profile.masks_by_sample = false;
  EXPECT_EQ(flops(), passes * 5 * samples * samples * product);
  // Full recomputation dispatches once more (the sum at its end is needed by nobody), and copies are not made besides.
  profile.masks_by_sample = true;
  s.memory.recompute = Recompute::full;
  EXPECT_EQ(flops(), passes * samples * 6 * product);
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "permute").kernels, 0);
  s.experts.dispatcher = Dispatcher::deepep;
  EXPECT_FALSE(problems_of(m, s, profile, 8).empty());
}

TEST(CudaGraphs, CapturedPartsCostOneLaunchAndNeverWait) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8);
  const plan::Plan eager = write_plan(m, s, profile, 8);
  s.training.cuda_graph_modules = {"attn", "moe_router"};
  const plan::Plan parts = write_plan(m, s, profile, 8);
  EXPECT_GT(sum_of(eager, "qkv").host_us, 0);
  EXPECT_EQ(sum_of(parts, "qkv").host_us, 0);
  EXPECT_EQ(sum_of(parts, "router").host_us, 0);
  EXPECT_EQ(sum_of(parts, "experts gate_up").host_us, sum_of(eager, "experts gate_up").host_us);
  EXPECT_EQ(sum_of(parts, "qkv").kernels, sum_of(eager, "qkv").kernels);
  EXPECT_EQ(syncs_of(parts), syncs_of(eager));
  // One graph a layer: the layer's input is copied in; out of it go the stream, its norm and a weight in fp32 for each token and expert, whose gradients are copied in.
  const double passes = 2 * 4, tokens = 1024, stream = tokens * 2880 * 2;
  EXPECT_EQ(sum_of(parts, "graph inputs").bytes, passes * 2 * stream);
  EXPECT_EQ(sum_of(parts, "graph output gradients").bytes, passes * 2 * (2 * stream + tokens * 32 * 4));
  s.training.cuda_graph_modules = {"attn"};
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "graph output gradients").bytes, passes * 2 * stream);
  s.training.cuda_graph_modules.clear();
  s.training.cuda_graph = true;
  const plan::Plan whole = write_plan(m, s, with_choices(profile, s), 8);
  EXPECT_EQ(sum_of(whole, "").host_us, 0);
  EXPECT_EQ(sum_of(whole, "graph inputs").kernels, 0);
  EXPECT_LT(syncs_of(whole), syncs_of(eager));
}

/// With each token HybridEP sends weights to the experts and their gradients back; outputs and their gradients go alone. Before that every rank
/// learns all maps, a byte for each token and expert: in forward alone.
TEST(ExpertKernels, HybridEpSendsWeightsTwoWaysOfFourAndMapsOnce) {
  const model::ModelDescription m = gpt_oss();
  Strategy s = job(8);
  s.experts.dispatcher = Dispatcher::hybridep;
  s.experts.dispatch_sms = 32;
  const plan::Plan plan = write_plan(m, s, load_profile("megatron-bridge"), 8);
  int exchanges = 0, weighted = 0, maps = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op != plan::Opcode::collective) continue;
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      if (c.name == "routing maps") {
        ++maps;
        EXPECT_EQ(c.bytes.value, 1024 * 32 * 8);
      }
      if (!c.tokens.bulk) continue;
      ++exchanges;
      weighted += c.tokens.weights;
      EXPECT_EQ(c.tokens.weights, c.name == "dispatch" || c.name == "dispatch back") << c.name;
      EXPECT_EQ(c.tokens.sms, 32);
    }
  const int layers = 2, micro_batches = 4;
  EXPECT_EQ(exchanges, layers * micro_batches * 4);
  EXPECT_EQ(weighted, layers * micro_batches * 2);
  EXPECT_EQ(maps, layers * micro_batches);
  EXPECT_EQ(sum_of(plan, "places of tokens").kernels, layers * micro_batches);
}

/// Written out by hand from mark_grouped_tensor: per slot 2880 bytes of the first product's input and 90 of scales, its output of 2 x 2880 in 16 bits, a weight in
/// fp32, 2880 and 90 of the second's input. Read and written once each way.
TEST(ExpertKernels, PagedStashCopiesWhatFusedExpertsKeep) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8, Precision::mxfp8);
  s.experts.dispatcher = Dispatcher::hybridep;
  s.experts.fused_mlp = true;
  EXPECT_EQ(sum_of(write_plan(m, s, profile, 8), "experts stash").kernels, 0);
  s.experts.paged_stash = true;
  const plan::Plan plan = write_plan(m, s, profile, 8);
  const int layers = 2, micro_batches = 4;
  const double slots = 1024.0 * 4, kept = 2 * (2880 + 90) + 2 * 2 * 2880 + 4;
  for (const char* way : {"experts stash", "experts restore"}) {
    EXPECT_EQ(sum_of(plan, way).kernels, layers * micro_batches) << way;
    EXPECT_DOUBLE_EQ(sum_of(plan, way).bytes, layers * micro_batches * slots * kept * 2) << way;
  }
  for (const plan::Block& block : plan.blocks)
    for (const plan::Instruction& i : block.timing)
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name.starts_with("experts stash")) { EXPECT_EQ(i.stream, plan::Stream::stash); }
}

/// In 16 bits nothing fuses them. By hand from swiglu.py, bytes per slot and unit of width: put apart 4 + 4, activation 4 + 2, weighed 2 + 2; backward apart
/// again 8, weighed 4, activation 4 + 2 + 4, in turns 8, activation again 6 and, for the weights' gradient, 4, which is written once a slot. One product for
/// all experts, without its bias in a kernel of its own. Buffers that are not full are worked on as a whole.
TEST(ExpertKernels, SixteenBitsRunTheOperationsOneByOne) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8);
  s.experts.fused_mlp = true;
  const double layers = 2, micro_batches = 4, slots = 1024.0 * 4, width = 2880;
  const auto bytes = [&](const plan::Plan& plan) {
    double all = 0;
    for (const char* name : {"experts gate and up", "experts activation", "experts weigh ", "experts weights gradient"}) all += sum_of(plan, name).bytes;
    return all / (layers * micro_batches);
  };
  const plan::Plan plan = write_plan(m, s, profile, 8);
  EXPECT_DOUBLE_EQ(bytes(plan), slots * (width * (8 + 6 + 4 + 8 + 4 + 10 + 8 + 6 + 4) + 4));
  EXPECT_EQ(sum_of(plan, "clamp").kernels, 0);
  EXPECT_EQ(sum_of(plan, "bias add").kernels, 0);
  const auto kinds_of = [](const plan::Plan& p, const char* name) {
    std::set<model::KernelKind> kinds;
    for (const model::KernelSpec& k : p.kernels)
      if (k.name == name) kinds.insert(k.kind);
    return kinds;
  };
  EXPECT_EQ(kinds_of(plan, "experts gate_up"), (std::set{model::KernelKind::grouped_gemm}));
  s.experts.rank_capacity_factor = 1.5;
  EXPECT_DOUBLE_EQ(bytes(write_plan(m, s, profile, 8)), 1.5 * bytes(plan));
  // MXFP8 has the fused kernels, whose tiles are those of filled slots.
  Strategy low = job(8, Precision::mxfp8);
  low.experts.fused_mlp = true;
  const plan::Plan fused = write_plan(m, low, profile, 8);
  EXPECT_EQ(kinds_of(fused, "experts gate_up"), (std::set{model::KernelKind::gemm}));
  EXPECT_EQ(bytes(fused), 0);
}

/// Megatron's combined schedule: the first forward and the last backward stand alone, the rest are pairs.
TEST(OverlappedExchange, EveryForwardButTheFirstRunsBesideABackward) {
  PipelineShape shape{.stages = 1, .micro_batches = 5};
  shape.overlap_expert_messages = true;
  const PipelineProgram program = kPipelineSchedules.find("1f1b")->make(shape);
  int pairs = 0, alone = 0;
  for (const Action& a : program.ranks[0]) {
    pairs += a.kind == ActionKind::overlapped;
    alone += a.kind == ActionKind::forward || a.kind == ActionKind::backward;
    if (a.kind == ActionKind::overlapped) { EXPECT_EQ(a.micro_batch, a.under_micro_batch + 1); }
  }
  EXPECT_EQ(pairs, 4);
  EXPECT_EQ(alone, 2);
}

/// What is executed, not only what the schedule's maker would make: one stage has pairs too, and an evaluation all its forwards.
TEST(OverlappedExchange, OneStageRunsThePairs) {
  Strategy s = job(8);
  s.training.global_batch_size = s.training.micro_batch_size * s.parallelism.degrees.data * 4;
  s.experts.overlap_exchange = true;
  const PipelineProgram program = schedule_of(s);
  const auto pairs = std::count_if(program.ranks[0].begin(), program.ranks[0].end(), [](const Action& a) { return a.kind == ActionKind::overlapped; });
  EXPECT_EQ(pairs, 3);
  s.training.phase = StepKind::evaluation;
  const double merged = sum_of(write_plan(gpt_oss(), s, load_profile("megatron-bridge"), 8), "").kernels;
  s.experts.overlap_exchange = false;
  EXPECT_EQ(merged, sum_of(write_plan(gpt_oss(), s, load_profile("megatron-bridge"), 8), "").kernels);
}

TEST(OverlappedExchange, TheSameKernelsRunWithAndWithout) {
  const model::ModelDescription m = gpt_oss();
  const FrameworkProfile profile = load_profile("megatron-bridge");
  Strategy s = job(8);
  const Sum before = sum_of(write_plan(m, s, profile, 8), "");
  s.experts.overlap_exchange = true;
  const Sum after = sum_of(write_plan(m, s, profile, 8), "");
  EXPECT_EQ(after.kernels, before.kernels);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(schedule_of(s).name, "1f1b");   // not one micro-batch after the other
}

TEST(Recipes, TheNewestReleaseNotAfterTheRunsCounts) {
  RecipeKey key{"26.04.01", "gpt-oss-120b", "gb200-nvl72", "bf16", 1280};
  ASSERT_TRUE(recipe_for("megatron-bridge", key));
  EXPECT_EQ(recipe_for("megatron-bridge", key)->dispatcher, Dispatcher::hybridep);
  EXPECT_TRUE(recipe_for("megatron-bridge", key)->overlap_exchange);
  EXPECT_EQ(recipe_for("megatron-bridge", key)->dispatch_sms, 32);
  EXPECT_FALSE(recipe_for("megatron-bridge", key)->paged_stash);
  EXPECT_TRUE(recipe_for("megatron-bridge", {"26.06", "gpt-oss-120b", "gb200-nvl72", "mxfp8", 1280})->paged_stash);
  key.release = "26.02";
  EXPECT_EQ(recipe_for("megatron-bridge", key)->dispatcher, Dispatcher::all_to_all);
  key.release = "24.01";
  EXPECT_FALSE(recipe_for("megatron-bridge", key));
  EXPECT_FALSE(recipe_for("plain", key));
}

TEST(Recipes, AreAppliedToTheStrategy) {
  const auto super = recipe_for("megatron-bridge", {"26.06", "nemotron-3-super-120b-a12b", "gb200-nvl72", "nvfp4", 512});
  ASSERT_TRUE(super);
  Strategy s = job(8);
  apply(*super, true, 88, s);
  EXPECT_TRUE(s.training.multi_token_prediction);
  EXPECT_EQ(s.training.last_layers_16bit, 14);
  EXPECT_FALSE(s.parallelism.overlap_tensor);   // nothing to overlap
  s.parallelism.degrees.tensor = 2;
  apply(*super, true, 88, s);
  EXPECT_FALSE(s.parallelism.overlap_tensor.value_or(true));
  const auto nano = recipe_for("megatron-bridge", {"26.06", "nemotron-3-nano-30b-a3b", "gb200-nvl72", "mxfp8", 512});
  ASSERT_TRUE(nano);
  apply(*nano, true, 52, s);
  EXPECT_FALSE(s.experts.fused_router.value_or(true));
}

/// A layout is of one number of chunks and layers: a shortened model, or other chunks, are dealt out as before.
TEST(Recipes, LayoutsAreOfTheirOwnChunksAndLayers) {
  const auto deepseek = recipe_for("megatron-bridge", {"26.06", "deepseek-v3", "gb300-nvl72", "mxfp8", 4096});
  ASSERT_TRUE(deepseek);
  const auto stages = [&](std::int64_t layers, int chunks) {
    Strategy s = job(8);
    s.parallelism.degrees.pipeline = 4, s.pipeline.virtual_stages = chunks;
    apply(*deepseek, true, layers, s);
    EXPECT_EQ(s.pipeline.virtual_stages, chunks);
    return s.pipeline.layers_per_stage;
  };
  EXPECT_EQ(stages(61, 1), (std::vector<std::int64_t>{16, 16, 16, 13}));
  EXPECT_EQ(stages(61, 2), (std::vector<std::int64_t>{8, 8, 8, 8, 8, 8, 8, 5}));
  EXPECT_EQ(stages(61, 4).size(), 16u);
  EXPECT_TRUE(stages(61, 3).empty());
  EXPECT_TRUE(stages(31, 4).empty());
}

}  // namespace
}  // namespace rehearse::strategies::expert_kernels_test
