// What a reduction of gradients holds under NeMo with Apex's distributed Adam: a layer, or under pipeline stages a chunk.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::gradient_buckets_test {
namespace {

namespace st = strategies;

// small_llama: qkv 512 x 1536, o 512 x 512, gate, up and down 512 x 1024, two norms; embedding and output layer 4096 x 512, a last norm.
constexpr std::int64_t kLayer = 786432 + 262144 + 3 * 524288 + 1024, kTable = 2097152, kNorm = 512;

/// Elements of each reduction on the first stage's ranks, in order; gradients travel in 16 bits.
std::vector<std::int64_t> reductions(const st::FrameworkProfile& profile, int layers, int pipeline, int chunks) {
  st::Strategy s = small_job(4, pipeline, 4);
  s.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
  if (chunks > 1) s.pipeline.schedule = "interleaved-1f1b", s.pipeline.virtual_stages = chunks;
  const plan::Plan plan = st::write_plan(small_llama(layers), s, profile, 8);
  std::vector<std::int64_t> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == CollectiveKind::reduce_scatter) out.push_back(plan.collectives[i.index].bytes.value / 2);
  return out;
}

TEST(GradientBuckets, AreLayersWhereThereAreNoStages) {
  const st::FrameworkProfile profile = st::load_profile("nemo-2024");
  // The last bucket is the first layer's and takes what is in no layer.
  EXPECT_EQ(reductions(profile, 3, 1, 1), (std::vector<std::int64_t>{kLayer, kLayer, kLayer + 2 * kTable + kNorm}));
}

TEST(GradientBuckets, AreChunksWhereThereAre) {
  const st::FrameworkProfile profile = st::load_profile("nemo-2024");
  // The first stage holds layers 0 and 2 of four, and the embedding with the first; its later chunk is through first.
  EXPECT_EQ(reductions(profile, 4, 2, 2), (std::vector<std::int64_t>{kLayer, kLayer + kTable}));
}

TEST(GradientBuckets, HaveASizeUnderMegatronsOwnOptimizer) {
  st::FrameworkProfile profile = st::load_profile("nemo-2024");
  profile.bucket_by_layer = false;
  profile.bucket_elements = kLayer + 1;
  profile.bucket_elements_per_rank = 0;
  const auto buckets = reductions(profile, 3, 1, 1);
  ASSERT_FALSE(buckets.empty());
  for (std::size_t i = 0; i + 1 < buckets.size(); ++i) EXPECT_EQ(buckets[i], kLayer + 1);
}

// dist.reduce to a bucket's owner carries each gradient once; Megatron's and later DeepSpeed's all-reduces carry as many bytes, twice over the wire.
TEST(GradientBuckets, OfZero2GoToTheirOwnersUntil2023) {
  const auto bytes_of = [](const char* framework, st::DataParallelKind kind, CollectiveKind collective) {
    st::Strategy s = small_job(4);
    s.data_parallel.kind = kind;
    const plan::Plan plan = st::write_plan(small_llama(2), s, st::load_profile(framework), 8);
    std::int64_t bytes = 0;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == collective && plan.collectives[i.index].name == "gradient reduction") bytes += plan.collectives[i.index].bytes.value;
    return bytes;
  };
  using K = st::DataParallelKind;
  const std::int64_t all = bytes_of("deepspeed", K::zero2, CollectiveKind::all_reduce);
  EXPECT_EQ(all, (2 * kLayer + 2 * kTable + kNorm) * 2);
  EXPECT_EQ(bytes_of("deepspeed", K::zero2, CollectiveKind::reduce), 0);
  EXPECT_GE(bytes_of("deepspeed-2020", K::zero2, CollectiveKind::reduce), all);   // its layers have biases
  EXPECT_EQ(bytes_of("deepspeed-2020", K::zero2, CollectiveKind::all_reduce), 0);
  EXPECT_EQ(bytes_of("deepspeed-2020", K::ddp, CollectiveKind::reduce), 0);
}

// PyTorch's DistributedDataParallel, where no framework says otherwise: 25 MiB as soon as they are there, under backward.
TEST(GradientBuckets, OfDdpAreReducedUnderBackward) {
  const auto reductions_of = [](bool overlap) {
    st::Strategy s = small_job(4);
    s.data_parallel.kind = st::DataParallelKind::ddp;
    s.data_parallel.overlap_gradient_reduce = overlap;
    const plan::Plan plan = st::write_plan(small_llama(24), s, st::load_profile("huggingface"), 8);
    std::vector<std::int64_t> out;
    for (const plan::Call& call : plan.classes[0].program.step)
      for (const plan::Instruction& i : plan.blocks[call.block].timing)
        if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == CollectiveKind::all_reduce) out.push_back(plan.collectives[i.index].bytes.value);
    return out;
  };
  constexpr std::int64_t kAll = 2 * (24 * kLayer + 2 * kTable + kNorm), kBucket = 25 << 20;   // gradients in 16 bits
  const std::vector<std::int64_t> buckets = reductions_of(true);
  ASSERT_EQ(std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0}), kAll);
  EXPECT_EQ(std::count(buckets.begin(), buckets.end(), kBucket), kAll / kBucket);
  EXPECT_EQ(reductions_of(false), std::vector<std::int64_t>{kAll});
}

}  // namespace
}  // namespace rehearse::scenario::gradient_buckets_test
