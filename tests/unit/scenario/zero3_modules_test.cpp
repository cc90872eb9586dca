// DeepSpeed's ZeRO-3 gathers module by module: what is gathered how often, how much lies there at once, and how gradients are
// put into buckets. Counted from the program; expected numbers follow from the rules of partitioned_param_coordinator.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strategies/plan_writer.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::zero3_modules_test {
namespace {

namespace st = strategies;

constexpr int kRanks = 8;

// Four layers of small_llama: q, k, v, o, gate, up, down; then head and embedding; nine norms of 512, which are persistent.
constexpr std::int64_t kNorms = 9 * 512;

struct Counted {
  std::int64_t parameters = 0;
  std::int64_t gathered = 0, reduced = 0;   // bytes
  int gathers = 0, reductions = 0;
  int waits_for_device = 0;                 // torch.cuda.synchronize
  std::int64_t list_host = 0;               // picoseconds of the host thread for copies of lists
  std::int64_t most = 0;                    // parameters gathered at once
  std::int64_t largest = 0;                 // of them
};

Counted count(const st::Strategy& s, const st::FrameworkProfile& profile = st::load_profile("plain")) {
  const model::ModelDescription model = small_llama(4);
  const plan::Plan plan = st::write_plan(model, s, profile, kRanks);
  Counted out;
  out.parameters = st::parameters_per_stage(model, s, profile)[0];
  std::map<std::uint32_t, std::int64_t> live;
  std::int64_t now = 0;
  for (const plan::Call& call : plan.classes[0].program.step) {
    const plan::Block& block = plan.blocks[call.block];
    for (const plan::Instruction& i : block.timing) {
      out.waits_for_device += i.op == plan::Opcode::host_sync && i.index == 0;
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].name == "copy list of tensors") out.list_host += i.value;
      if (i.op != plan::Opcode::collective) continue;
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      if (c.kind == CollectiveKind::all_gather) out.gathered += c.bytes.value, ++out.gathers;
      if (c.kind == CollectiveKind::reduce_scatter) out.reduced += c.bytes.value, ++out.reductions;
    }
    for (const plan::Instruction& i : block.memory) {
      const std::uint32_t slot = call.frames[static_cast<std::size_t>(i.frame)] + i.index;
      if (i.op == plan::Opcode::alloc && static_cast<plan::Category>(i.flags) == plan::Category::parameter) {
        live[slot] = i.value;
        now += i.value;
        out.largest = std::max(out.largest, i.value);
      } else if (i.op == plan::Opcode::free && live.contains(slot)) {
        now -= live[slot];
        live.erase(slot);
      }
      out.most = std::max(out.most, now);
    }
  }
  EXPECT_EQ(now, 0) << "nothing stays gathered from step to step";
  return out;
}

st::Strategy job(st::Recompute recompute = st::Recompute::none, int micro_batches = 1) {
  st::Strategy s = small_job(kRanks, 1, micro_batches);
  s.data_parallel.kind = st::DataParallelKind::zero3;
  s.memory.recompute = recompute;
  s.data_parallel.prefetch_bucket = s.data_parallel.max_reuse_distance = 0;
  return s;
}

// Kept nothing, each weight is gathered for forward, for the recomputation of its layer and for backward. Norms are gathered
// once, after the update. (The embedding and the head are not recomputed.)
TEST(Zero3Modules, EveryUseIsAGatherWhereNothingIsKept) {
  const Counted plain = count(job()), again = count(job(st::Recompute::full));
  const std::int64_t weights = 2 * (plain.parameters - kNorms), norms = 2 * kNorms, table = plain.largest;
  EXPECT_EQ(plain.gathered, 2 * weights + norms);
  EXPECT_GT(again.gathered, 2 * weights + norms);
  EXPECT_LT(again.gathered, 3 * weights + norms);
  // Nothing tells of the end of the embedding's backward: its table is there still for the next micro-batch.
  EXPECT_EQ(count(job(st::Recompute::none, 3)).gathered, 3 * 2 * weights - 2 * table + norms);
}

// One module at a time: the largest weight alone, not a layer.
TEST(Zero3Modules, OneModuleIsThereAtATime) {
  const Counted c = count(job());
  EXPECT_EQ(c.most, c.largest);
}

// PyTorch's linear layers save what they multiply with: at the end of forward all matrices of the layers and the head are there, and the first
// module of backward, the head, has gathered its own a second time. The table of the embedding is not multiplied. Traffic is the same.
// A layer that is recomputed saves nothing before: one layer at most is there, the weight at hand, and the head.
TEST(Zero3Modules, PlainLinearLayersKeepWhatWasGathered) {
  st::Strategy s = job();
  const Counted own = count(s);
  s.data_parallel.memory_efficient_linear = false;
  const Counted plain = count(s);
  EXPECT_EQ(plain.gathered, own.gathered);
  const std::int64_t table = own.largest, matrices = 2 * (own.parameters - kNorms) - table;   // the embedding's table and the head are the largest
  EXPECT_EQ(plain.most, matrices + table);
  st::Strategy again = job(st::Recompute::full);
  again.data_parallel.memory_efficient_linear = false;
  const std::int64_t layer = (matrices - table) / 4;
  const Counted recomputed = count(again);
  EXPECT_GT(recomputed.most, table);
  EXPECT_LE(recomputed.most, std::max(layer + own.largest, 2 * table));
}

// What is used again within the distance stays: here all of it, so that backward gathers nothing.
TEST(Zero3Modules, WhatIsUsedAgainSoonStays) {
  st::Strategy s = job();
  s.data_parallel.max_reuse_distance = 1'000'000'000;
  const Counted all = count(s);
  EXPECT_EQ(all.gathered, 2 * all.parameters);
  EXPECT_EQ(all.most, 2 * (all.parameters - kNorms));
}

// Ahead of their use come as many modules as fill the bucket, none beyond the limit of live parameters. What is still there when
// the queue comes to its next use is kept, so at the turn from forward to backward some is gathered once only.
TEST(Zero3Modules, TheBucketAndTheLimitBoundWhatIsFetchedAhead) {
  const Counted none = count(job());
  st::Strategy s = job();
  s.data_parallel.prefetch_bucket = 1'000'000;
  const Counted ahead = count(s);
  EXPECT_LT(ahead.gathered, none.gathered);
  EXPECT_GT(ahead.gathered, 2 * none.parameters);
  EXPECT_GT(ahead.most, none.most);
  s.data_parallel.max_live_parameters = 0;
  EXPECT_EQ(count(s).most, none.most);
}

// DeepSpeed before 2022: each parameter comes alone, and the host waits for the device before it and before the module that needed it.
// Norms come together after the update, without that. Fetched ahead, a weight's module still waits, and what is ahead in pairs comes one by one.
TEST(Zero3Modules, TheHostWaitsForTheDeviceAtEachFetch) {
  st::FrameworkProfile early = st::load_profile("plain");
  const int others = count(job(), early).waits_for_device;
  early.fetch_sync = true;
  const Counted c = count(job(), early);
  EXPECT_EQ(c.gathered, count(job()).gathered);
  EXPECT_EQ(c.waits_for_device - others, 2 * (c.gathers - 1));
  st::Strategy s = job();
  s.data_parallel.prefetch_bucket = 1'000'000;
  const Counted ahead = count(s, early), now = count(s);
  EXPECT_EQ(ahead.gathered, now.gathered);
  EXPECT_GT(ahead.gathers, now.gathers);
  EXPECT_GE(ahead.waits_for_device - others, 2 * (ahead.gathers - 1));
}

// Lists of tensors: one tensor per rank for every weight that is gathered and every gradient that is reduced, each with its Python and its copy.
//   four layers of 7 matrices, embedding, head; 9 norms, whose gradients are reduced with the others
TEST(Zero3Modules, ListsTakeTheHostOncePerRank) {
  st::FrameworkProfile early = st::load_profile("plain");
  EXPECT_EQ(count(job(), early).list_host, 0);
  early.list_part_host = microseconds(3);
  const Counted c = count(job(), early);
  const std::int64_t copies = kRanks * ((c.gathers - 1) + (4 * 7 + 2 + 9));
  EXPECT_EQ(c.list_host, copies * (early.kernel_host + early.list_part_host).count());
}

// Gradients wait in the bucket until the next one would not fit; one that never fits is reduced alone.
TEST(Zero3Modules, GradientsAreReducedBucketByBucket) {
  st::Strategy s = job();
  const Counted whole = count(s);
  EXPECT_EQ(whole.reductions, 1);
  s.data_parallel.bucket = Bytes{4096};
  const Counted apart = count(s);
  EXPECT_EQ(apart.reduced, whole.reduced);
  EXPECT_EQ(apart.reduced / 2, whole.parameters);
  EXPECT_GE(apart.reductions, 4 * 7 + 2);          // every matrix and table alone
  EXPECT_LE(apart.reductions, 4 * 7 + 2 + 9);
}

}  // namespace
}  // namespace rehearse::scenario::zero3_modules_test
