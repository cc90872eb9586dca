// Bytes of parameters, gradients and optimizer states against the formulas of the ZeRO paper (Rajbhandari et al. 2020,
// section 3 and figure 1), exactly, from the programs' own allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/byte_ledger.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::model_states_test {
namespace {

using plan::Category;
using strategies::DataParallelKind;
using test_support::ByteLedger;
using test_support::StepBytes;

constexpr std::int64_t kRanks = 8;

struct States {
  std::int64_t parameters = 0;   // elements on the rank
  std::int64_t weights = 0, gradients = 0, optimizer = 0, buffers = 0;
};

/// bf16 parameters and gradients, Adam with two fp32 moments and an fp32 copy of the parameters; looked at between the
/// end of gradient reduction and the update.
States states_of(DataParallelKind kind, int micro_batches = 1) {
  const model::ModelDescription model = small_llama(4);
  strategies::Strategy s = small_job(kRanks, 1, micro_batches);
  s.data_parallel.kind = kind;
  const strategies::FrameworkProfile profile = strategies::load_profile("plain");
  const plan::Plan plan = strategies::write_plan(model, s, profile, kRanks);
  ByteLedger ledger(plan, 0);
  const StepBytes bytes = ledger.step();
  EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
  auto at = [&](Category c) { return bytes.before_update[static_cast<std::size_t>(c)]; };
  return {strategies::parameters_per_stage(model, s, profile)[0], at(Category::parameter), at(Category::gradient), at(Category::optimizer), at(Category::communication)};
}

// DDP keeps all of it: 2P weights, 2P gradients, (4 + 4 + 4)P optimizer = 16P; and 2P of reduction buckets, because
// gradients are not views of them.
TEST(ModelStates, DistributedDataParallelKeeps16BytesPerParameter) {
  for (int micro_batches : {1, 3}) {
    const States s = states_of(DataParallelKind::ddp, micro_batches);
    EXPECT_EQ(s.weights, 2 * s.parameters);
    EXPECT_EQ(s.gradients, 2 * s.parameters);
    EXPECT_EQ(s.optimizer, 12 * s.parameters);
    EXPECT_EQ(s.buffers, 2 * s.parameters);
  }
}

// ZeRO-1: 2P + 2P + 12P/N. Its bucket (5e8 elements at most) is here as large as all gradients.
TEST(ModelStates, ZeroOneShardsOptimizerStates) {
  const States s = states_of(DataParallelKind::zero1, 3);
  EXPECT_EQ(s.weights, 2 * s.parameters);
  EXPECT_EQ(s.gradients, 2 * s.parameters);
  EXPECT_EQ(s.optimizer, 12 * s.parameters / kRanks);
}

// ZeRO-2: 2P + (2 + 12)P/N, and the reduction bucket (two, when reduction overlaps).
TEST(ModelStates, ZeroTwoShardsGradients) {
  for (int micro_batches : {1, 3}) {
    const States s = states_of(DataParallelKind::zero2, micro_batches);
    EXPECT_EQ(s.weights, 2 * s.parameters);
    EXPECT_EQ(s.gradients, 2 * s.parameters / kRanks);
    EXPECT_EQ(s.optimizer, 12 * s.parameters / kRanks);
    EXPECT_EQ(s.buffers, 2 * 2 * s.parameters);
  }
}

// ZeRO-3 and FSDP: 16P/N once every unit is resharded. While layers run, their gathered parameters come on top (the live
// window): that is what the peak shows and this moment does not.
TEST(ModelStates, ZeroThreeShardsEverything) {
  for (DataParallelKind kind : {DataParallelKind::zero3, DataParallelKind::fsdp1, DataParallelKind::fsdp2})
    for (int micro_batches : {1, 3}) {
      // ZeRO-3 keeps small parameters whole as well, here nine norms of 512, and a bucket of 5e8 elements whatever the model.
      const bool zero3 = kind == DataParallelKind::zero3;
      const States s = states_of(kind, micro_batches);
      EXPECT_EQ(s.weights, 2 * s.parameters / kRanks + (zero3 ? 9 * 512 * 2 : 0));
      EXPECT_EQ(s.gradients, 2 * s.parameters / kRanks);
      EXPECT_EQ(s.optimizer, 12 * s.parameters / kRanks);
      EXPECT_EQ(s.buffers, zero3 ? 500'000'000 * 2 : 0);
    }
}

// Torch's optimizers make moments in their first step, two tensors per weight, each a rank's share; the fp32 copy is there before.
// DeepSpeed has all of it when training begins.
TEST(ModelStates, MomentsAreMadeInTheFirstStepUnlessDeepSpeedHasThem) {
  const model::ModelDescription model = small_llama(4);
  const strategies::FrameworkProfile profile = strategies::load_profile("plain");
  for (const DataParallelKind kind : {DataParallelKind::ddp, DataParallelKind::fsdp2, DataParallelKind::distributed_optimizer, DataParallelKind::zero1, DataParallelKind::zero3}) {
    strategies::Strategy s = small_job(kRanks, 1, 1);
    s.data_parallel.kind = kind;
    const plan::Plan plan = strategies::write_plan(model, s, profile, kRanks);
    const std::int64_t parameters = strategies::parameters_per_stage(model, s, profile)[0], share = kind == DataParallelKind::ddp ? parameters : parameters / kRanks;
    const bool deepspeed = kind == DataParallelKind::zero1 || kind == DataParallelKind::zero3;
    std::int64_t at_setup = 0, in_first_step = 0;
    const auto count = [&](const std::vector<plan::Call>& calls, bool once, std::int64_t& bytes) {
      for (const plan::Call& c : calls)
        for (const plan::Instruction& i : plan.blocks[c.block].memory)
          if (c.first_step_only == once && i.op == plan::Opcode::alloc && i.flags == static_cast<std::uint8_t>(Category::optimizer)) bytes += i.value;
    };
    count(plan.classes[0].program.setup, false, at_setup);
    count(plan.classes[0].program.step, true, in_first_step);
    EXPECT_EQ(at_setup, (deepspeed ? 12 : 4) * share);
    EXPECT_EQ(in_first_step, deepspeed ? 0 : 8 * share);
  }
}

/// What the setup's programs allocate of a category, and the largest tensor of a category that they let go.
struct SetupBytes {
  std::int64_t allocated = 0, live = 0, largest_freed = 0;
};

SetupBytes setup_of(const plan::Plan& plan, Category category) {
  SetupBytes found;
  std::map<std::int64_t, std::int64_t> bytes;  // by slot of the program
  for (const plan::Call& call : plan.classes[0].program.setup)
    for (const plan::Instruction& i : plan.blocks[call.block].memory) {
      const std::int64_t slot =
          static_cast<std::int64_t>(call.frames[static_cast<std::size_t>(i.frame)]) + i.index;
      if (i.op == plan::Opcode::alloc && i.flags == static_cast<std::uint8_t>(category)) {
        found.allocated += bytes[slot] = i.value;
        found.live += i.value;
      } else if (i.op == plan::Opcode::free && bytes.contains(slot)) {
        found.live -= bytes[slot];
        found.largest_freed = std::max(found.largest_freed, bytes[slot]);
        bytes.erase(slot);
      }
    }
  return found;
}

plan::Plan megatron(const strategies::FrameworkProfile& profile,
                    strategies::Strategy s = small_job(kRanks, 1, 1)) {
  s.data_parallel.kind = DataParallelKind::distributed_optimizer;
  return strategies::write_plan(small_llama(4), s, profile, kRanks);
}

// Parameters as modules make them (2P) and the buffer they move into (2P); 2P stay. The fp32 copy is a tensor
// per weight: the largest is at most the largest weight's, and all of them are 4P/N.
TEST(ModelStates, MegatronMovesParametersIntoOneBuffer) {
  strategies::FrameworkProfile profile = strategies::load_profile("plain");
  profile.parameter_buffer = true;
  const plan::Plan plan = megatron(profile);
  const std::int64_t parameters =
      strategies::parameters_per_stage(small_llama(4), small_job(kRanks, 1, 1), profile)[0];
  const SetupBytes made = setup_of(plan, Category::parameter);
  EXPECT_EQ(made.allocated, 2 * 2 * parameters);
  EXPECT_EQ(made.live, 2 * parameters);
  EXPECT_LT(made.largest_freed, 2 * parameters / 4);  // one by one
  EXPECT_EQ(setup_of(plan, Category::optimizer).live, 4 * parameters / kRanks);
  profile.parameter_buffer = false;
  EXPECT_EQ(setup_of(megatron(profile), Category::parameter).allocated, 2 * parameters);
}

// Before 2024 the view of fp32 gradients (4P) as weights was made beside a tensor of 4P.
TEST(ModelStates, MegatronOfBefore2024ViewsItsGradientsBesideATensorOfTheirSize) {
  strategies::FrameworkProfile profile = strategies::load_profile("plain");
  profile.gradient = DType::fp32;
  const std::int64_t parameters =
      strategies::parameters_per_stage(small_llama(4), small_job(kRanks, 1, 1), profile)[0];
  EXPECT_EQ(setup_of(megatron(profile), Category::temporary).largest_freed, 0);
  profile.gathers_in_gradients = true;
  const SetupBytes made = setup_of(megatron(profile), Category::temporary);
  EXPECT_EQ(made.largest_freed, 4 * parameters);
  EXPECT_EQ(made.live, 0);
}

/// Marks (record_stream) in two micro-batches' calls of a layer, forward and backward.
std::int64_t marks_of_a_layer(strategies::RecordStreams which, bool sequence_parallel) {
  strategies::FrameworkProfile profile = strategies::load_profile("megatron-core");
  profile.record_streams = which;
  strategies::Strategy s = small_job(kRanks, 1, 1);
  s.parallelism.degrees.tensor = 2;
  s.parallelism.degrees.data = s.parallelism.degrees.data_shard = kRanks / 2;   // two micro-batches
  s.parallelism.sequence_parallel = sequence_parallel;
  std::int64_t marks = 0;
  const plan::Plan plan = megatron(profile, s);
  for (const plan::Call& call : plan.classes[0].program.step)
    if (call.layer == 1 && (call.phase == plan::Phase::forward || call.phase == plan::Phase::backward))
      for (const plan::Instruction& i : plan.blocks[call.block].memory)
        marks += i.op == plan::Opcode::record_stream;
  return marks;
}

// With sequence parallelism, of two column-parallel products: the gathered input; in backward the input, gathered again, and the
// partial gradient (4 each; the gradient's sum is left out). Of two row-parallel ones: partial output and sum; in backward the
// gradient and the gathered one (4 each). Without, a row's output, whose all-reduce is in place (1 each; a column's input
// gradient is left out). All of it in each of two micro-batches.
TEST(ModelStates, CollectivesOfTheTensorGroupMarkWhatTheyReadAndWrite) {
  EXPECT_EQ(marks_of_a_layer(strategies::RecordStreams::none, true), 0);
  EXPECT_EQ(marks_of_a_layer(strategies::RecordStreams::all, true), 2 * (2 * 4 + 2 * 4));
  EXPECT_EQ(marks_of_a_layer(strategies::RecordStreams::all, false), 2 * 2);
}

/// Bytes that a step's programs allocate of a category.
std::int64_t allocated(const plan::Plan& plan, Category category) {
  std::int64_t bytes = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].memory)
      if (i.op == plan::Opcode::alloc && i.flags == static_cast<std::uint8_t>(category)) bytes += i.value;
  return bytes;
}

// DeepSpeed's ZeRO-1 and 2 have nothing of gradients in the forward pass. Each backward makes buffers of the bucket's size (4.5 times
// that in 2020; two, where reduction overlaps), and ZeRO-2 a partition of 2P/N, added to the first micro-batch's and let go. The
// update begins with the partition joined (2P/N) and widened (4P/N); ZeRO-1 copies its own out of all gradients first.
TEST(ModelStates, DeepSpeedMakesGradientBuffersInBackward) {
  constexpr std::int64_t kBucket = 1 << 22;   // elements
  const model::ModelDescription model = small_llama(4);
  for (const auto& [name, kind, factor] : {std::tuple{"deepspeed", DataParallelKind::zero1, 1.0}, {"deepspeed", DataParallelKind::zero2, 1.0}, {"deepspeed-2020", DataParallelKind::zero2, 4.5}})
    for (const int micro_batches : {1, 3})
      for (const bool overlap : {false, true}) {
        strategies::Strategy s = small_job(kRanks, 1, micro_batches);
        s.training.precision = strategies::Precision::fp16;
        s.data_parallel.kind = kind;
        s.data_parallel.overlap_gradient_reduce = overlap;
        s.data_parallel.bucket = Bytes{kBucket * 2};
        const strategies::FrameworkProfile profile = strategies::with_precision(strategies::load_profile(name), s.training.precision);
        const plan::Plan plan = strategies::write_plan(model, s, profile, kRanks);
        const StepBytes bytes = ByteLedger(plan, 0).step();
        EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
        EXPECT_EQ(bytes.after_step, bytes.persistent);
        const std::int64_t parameters = strategies::parameters_per_stage(model, s, profile)[0], partition = 2 * parameters / kRanks;
        const bool two = kind == DataParallelKind::zero2;
        EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::gradient)], 0);
        EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::communication)], 0);
        EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::communication)], 0);
        EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::gradient)], two ? partition : 2 * parameters);
        // A bucket is larger than what one rank owns here: each is flattened, and all of them have all gradients. In 2020 pieces went to their owners.
        ASSERT_GT(kBucket, parameters / kRanks);
        const std::int64_t flattened = two && factor == 1.0 ? 2 * parameters * micro_batches : 0;
        EXPECT_EQ(allocated(plan, Category::communication), static_cast<std::int64_t>(factor * static_cast<double>(kBucket * 2)) * (overlap ? 2 : 1) * micro_batches + flattened);
        // By autograd and of partitions: once, or for every micro-batch. Joined, widened.
        EXPECT_EQ(allocated(plan, Category::gradient), (2 * parameters + partition) * (two ? micro_batches : 1) + partition + 2 * partition);
      }
}

// stage1.py: all gradients in pieces, each interval once more while it travels; in 2020 the intervals joined, then all of them.
TEST(ModelStates, EarlyZeroOneExchangesCopiesOfAllGradients) {
  const model::ModelDescription model = small_llama(4);
  strategies::Strategy s = small_job(kRanks, 1, 2);
  s.training.precision = strategies::Precision::fp16;
  s.data_parallel.kind = DataParallelKind::zero1;
  for (const auto& [name, copies, intervals] : {std::tuple{"deepspeed-2020", 4, 1}, {"deepspeed-2020", 4, 4}, {"gpt-neox", 2, 4}}) {
    const strategies::FrameworkProfile profile = strategies::with_precision(strategies::load_profile(name), s.training.precision);
    const std::int64_t parameters = strategies::parameters_per_stage(model, s, profile)[0];
    s.data_parallel.bucket = Bytes{2 * parameters / intervals};
    const plan::Plan plan = strategies::write_plan(model, s, profile, kRanks);
    const StepBytes bytes = ByteLedger(plan, 0).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    EXPECT_EQ(bytes.after_step, bytes.persistent);
    EXPECT_EQ(bytes.setup[static_cast<std::size_t>(Category::communication)], 0);
    EXPECT_EQ(allocated(plan, Category::communication), copies * 2 * parameters);
  }
}

// FSDP1 under no_sync (LitGPT): the gradients of all but the last micro-batch stay whole, 2P instead of 2P/N, and are reduced once.
TEST(ModelStates, NoSyncKeepsWholeGradientsAndReducesThemOnce) {
  const model::ModelDescription model = small_llama(16);
  strategies::Strategy s = small_job(kRanks, 1, 3);
  s.data_parallel.kind = DataParallelKind::fsdp1;
  strategies::FrameworkProfile profile = strategies::load_profile("plain");
  auto reductions = [](const plan::Plan& plan) {
    int n = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing) n += i.op == plan::Opcode::collective && plan.collectives[i.index].name == "gradient reduction" ? 1 : 0;
    return n;
  };
  auto peak = [](const plan::Plan& plan) {
    const StepBytes bytes = ByteLedger(plan, 0).step();
    EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
    return bytes.step_peak;
  };
  const plan::Plan each = strategies::write_plan(model, s, profile, kRanks);
  profile.accumulates_unsharded = true;
  const plan::Plan once = strategies::write_plan(model, s, profile, kRanks);
  EXPECT_EQ(reductions(each), 3 * reductions(once));
  const std::int64_t parameters = strategies::parameters_per_stage(model, s, profile)[0];
  EXPECT_NEAR(static_cast<double>(peak(once) - peak(each)), 2.0 * static_cast<double>(parameters) * (1 - 1.0 / kRanks), 0.1 * 2.0 * static_cast<double>(parameters));
}

// FSDP2 under set_requires_gradient_sync(False) keeps the sum of whole gradients in the format of the reduction: 4P in fp32, beside which
// shards of 4P/N are nothing, and at the end of backward the last unit's own gradients.
TEST(ModelStates, Fsdp2WithoutSyncKeepsWholeGradientsInTheFormatOfTheReduction) {
  const model::ModelDescription model = small_llama(16);
  strategies::Strategy s = small_job(kRanks, 1, 3);
  s.data_parallel.kind = DataParallelKind::fsdp2;
  strategies::FrameworkProfile profile = strategies::load_profile("plain");
  const std::int64_t parameters = strategies::parameters_per_stage(model, s, profile)[0];
  for (const DType reduce : {DType::fp32, DType::bf16}) {
    profile.reduce = reduce;
    const auto peak = [&](bool unsharded) {
      profile.accumulates_unsharded = unsharded;
      const StepBytes bytes = ByteLedger(strategies::write_plan(model, s, profile, kRanks), 0).step();
      EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
      EXPECT_EQ(bytes.after_step, bytes.persistent);
      return bytes.step_peak;
    };
    const double whole = (reduce == DType::fp32 ? 4.0 : 2.0) * static_cast<double>(parameters), shards = 2.0 / kRanks * static_cast<double>(parameters);
    EXPECT_NEAR(static_cast<double>(peak(true) - peak(false)), whole - shards, 0.12 * whole);
  }
}

// fp32 throughout with Adam: 4 + 4 + 8 bytes, no second copy of the parameters.
TEST(ModelStates, Fp32AdamKeeps16BytesPerParameterToo) {
  const model::ModelDescription model = small_llama(2);
  strategies::Strategy s = small_job(1);
  s.training.precision = strategies::Precision::fp32;
  const strategies::FrameworkProfile profile = strategies::with_precision(strategies::load_profile("plain"), s.training.precision);
  const plan::Plan plan = strategies::write_plan(model, s, profile, 1);
  const StepBytes bytes = ByteLedger(plan, 0).step();
  const std::int64_t p = strategies::parameters_per_stage(model, s, profile)[0];
  EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::parameter)], 4 * p);
  EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::gradient)], 4 * p);
  EXPECT_EQ(bytes.before_update[static_cast<std::size_t>(Category::optimizer)], 8 * p);
}

// Megatron-FSDP: 2P/N weights, main gradients that live on (4P/N in fp32, 2P/N in bf16), 12P/N optimizer. What is no layer's
// has been resharded with the rest, and no bucket outlives its micro-batch.
TEST(ModelStates, MegatronFsdpShardsEverything) {
  const model::ModelDescription model = small_llama(4);
  for (const bool fused : {true, false})
    for (const DType kept : {DType::fp32, DType::bf16})
      for (const int micro_batches : {1, 3}) {
        strategies::Strategy s = small_job(kRanks, 1, micro_batches);
        s.data_parallel.kind = DataParallelKind::megatron_fsdp;
        s.data_parallel.gradient_dtype = kept;
        s.training.fused_gradient_accumulation = fused;
        const strategies::FrameworkProfile profile = strategies::with_choices(strategies::load_profile("megatron-core"), s);
        EXPECT_TRUE(strategies::problems_of(model, s, profile, kRanks).empty());
        const plan::Plan plan = strategies::write_plan(model, s, profile, kRanks);
        const StepBytes bytes = ByteLedger(plan, 0).step();
        EXPECT_TRUE(bytes.mistakes.empty()) << bytes.mistakes.front();
        const std::int64_t p = strategies::parameters_per_stage(model, s, profile)[0];
        auto at = [&](Category c) { return bytes.before_update[static_cast<std::size_t>(c)]; };
        EXPECT_EQ(at(Category::parameter), 2 * p / kRanks);
        EXPECT_EQ(at(Category::gradient), (kept == DType::fp32 ? 4 : 2) * p / kRanks);
        EXPECT_EQ(at(Category::optimizer), 12 * p / kRanks);
        EXPECT_EQ(at(Category::communication), 0);
      }
}

}  // namespace
}  // namespace rehearse::scenario::model_states_test
