// Gathers and reductions of the ranks that share parameters run on one communicator: one after the other, in the order in which the host issued
// them, whatever stream they were issued on (PyTorch ProcessGroupNCCL.cpp; NCCL enqueue.cc, ncclLaunchPrepare).
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/config/document.h"
#include "sim/scenario/simulate.h"

namespace rehearse::scenario::shard_collectives_test {
namespace {

struct Traced {
  Result result;
  std::vector<executor::Slice> collectives;   // of the group that shares parameters, as they ran
};

Traced traced(const std::string& kind, bool reentrant) {
  const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100, nodes: 2}\ntraining: {sequence_length: 1024, global_batch_size: 16, micro_batch_size: 1, framework: huggingface}\ndata_parallel: {kind: " + kind + "}\nmemory: {recompute: full}\n";
  Scenario s = read_scenario(config::parse_document(text, "shards.yaml").root, "shards.yaml");
  s.profile.reentrant_checkpoint = reentrant;
  s.profile.early_stop_recompute = !reentrant;
  Traced run{simulate(s, {.trace = true}), {}};
  for (const executor::Slice& slice : run.result.trace)
    if (slice.op == plan::Opcode::collective && run.result.plan.collectives[slice.spec].axis == plan::GroupAxis::data && run.result.plan.collectives[slice.spec].bytes > Bytes{4}) run.collectives.push_back(slice);
  std::sort(run.collectives.begin(), run.collectives.end(), [](const executor::Slice& a, const executor::Slice& b) { return a.start < b.start; });
  return run;
}

// accelerate's mixed-precision policy has one format for gathering parameters and reducing gradients, though both are kept in fp32.
TEST(ShardCollectives, ReduceUnderAutocastInTheFormatOfComputing) {
  const auto reduced = [](const std::string& framework, const std::string& dtype) {
    const std::string text = "model: llama-2-7b\ncluster: {node: dgx-h100}\ntraining: {sequence_length: 256, global_batch_size: 8, micro_batch_size: 1, framework: " + framework + "}\ndata_parallel: {kind: fsdp1" + dtype + "}\n";
    const Result r = simulate(read_scenario(config::parse_document(text, "shards.yaml").root, "shards.yaml"), {.time = false});
    std::int64_t bytes = 0;
    for (const plan::Call& c : r.plan.classes[0].program.step)
      for (const plan::Instruction& i : r.plan.blocks[c.block].timing)
        if (i.op == plan::Opcode::collective && r.plan.collectives[i.index].kind == CollectiveKind::reduce_scatter) bytes += r.plan.collectives[i.index].bytes.value;
    return bytes;
  };
  const std::int64_t wide = reduced("huggingface-mixed", ", reduce_dtype: fp32");
  EXPECT_GT(wide, 4 * 6'700'000'000);
  EXPECT_EQ(2 * reduced("huggingface-mixed", ""), wide);
}

TEST(ShardCollectives, RunOneAfterTheOther) {
  for (const char* kind : {"fsdp1", "fsdp2", "zero3"}) {
    SCOPED_TRACE(kind);
    const Traced run = traced(kind, false);
    int gathers = 0, reductions = 0;
    for (std::size_t i = 0; i < run.collectives.size(); ++i) {
      const executor::Slice& slice = run.collectives[i];
      EXPECT_EQ(slice.stream, plan::Stream::data_shard);
      if (i > 0) {
        EXPECT_GE(slice.start, run.collectives[i - 1].end);
      }
      (run.result.plan.collectives[slice.spec].kind == CollectiveKind::all_gather ? gathers : reductions) += 1;
    }
    EXPECT_GE(gathers, 2 * 32);
    EXPECT_GE(reductions, 13);   // buckets of 5e8 elements
  }
}

// A unit within a reentrant checkpoint is gathered only when the checkpoint runs it again, which the host issues behind the reduction of the
// layer above. Until that has its gradients and is over, the gather waits, and compute for it: a layer's recomputation never begins before.
TEST(ShardCollectives, AGatherStandsBehindTheReductionIssuedBeforeIt) {
  const auto waits = [](const Traced& run) {   // of compute, for the group's collectives
    return run.result.classes[0].timing.time[static_cast<std::size_t>(executor::Cause::data)];
  };
  const Traced inside = traced("fsdp1", false), entered = traced("fsdp1", true);
  int behind = 0;
  for (std::size_t i = 1; i < entered.collectives.size(); ++i) {
    const auto kind = [&](std::size_t j) { return entered.result.plan.collectives[entered.collectives[j].spec].kind; };
    behind += kind(i - 1) == CollectiveKind::reduce_scatter && kind(i) == CollectiveKind::all_gather && entered.collectives[i].start == entered.collectives[i - 1].end;
  }
  EXPECT_GE(behind, 31);   // every layer but the last
  // Both gathers of a layer's backward and the reduction before them are in the open.
  std::int64_t reductions = 0;
  for (const executor::Slice& slice : entered.collectives)
    if (entered.result.plan.collectives[slice.spec].kind == CollectiveKind::reduce_scatter) reductions += slice.end - slice.start;
  EXPECT_GT(waits(entered) - waits(inside), reductions);
}

}  // namespace
}  // namespace rehearse::scenario::shard_collectives_test
