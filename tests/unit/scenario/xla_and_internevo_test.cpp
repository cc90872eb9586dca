// What InternEvo and MaxText do that others do not: who reduces with whom, how updated shares come back, what is made again.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "sim/scenario/measured_alternatives.h"
#include "sim/scenario/measured_run.h"
#include "tests/support/source_dir.h"
#include "tests/unit/scenario/small_jobs.h"

namespace rehearse::scenario::xla_and_internevo_test {
namespace {

namespace st = strategies;

std::vector<std::int64_t> bytes_of(const plan::Plan& plan, CollectiveKind kind, plan::GroupAxis axis) {
  std::vector<std::int64_t> out;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::collective && plan.collectives[i.index].kind == kind && plan.collectives[i.index].axis == axis) out.push_back(plan.collectives[i.index].bytes.value);
  return out;
}

std::int64_t sum(const std::vector<std::int64_t>& all) { return std::accumulate(all.begin(), all.end(), std::int64_t{0}); }

double product_flops(const plan::Plan& plan) {
  double flops = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing)
      if (i.op == plan::Opcode::kernel && plan.kernels[i.index].kind == model::KernelKind::gemm) {
        const model::KernelSpec& k = plan.kernels[i.index];
        flops += 2.0 * static_cast<double>(k.m) * static_cast<double>(k.n) * static_cast<double>(k.k);
      }
  return flops;
}

std::int64_t count(const plan::Plan& plan, const std::string& kernel) {
  std::int64_t n = 0;
  for (const plan::Call& call : plan.classes[0].program.step)
    for (const plan::Instruction& i : plan.blocks[call.block].timing) n += i.op == plan::Opcode::kernel && plan.kernels[i.index].name == kernel;
  return n;
}

// small_llama(2): embedding and head 4096 x 512; per layer qkv 512 x 1536, o 512 x 512, gate and up 512 x 1024, down
// 1024 x 512, two norms of 512; a last norm. 2 x 2,097,152 + 2 x (786,432 + 262,144 + 3 x 524,288 + 1,024) + 512.
constexpr std::int64_t kElements = 2 * 2097152 + 2 * (786432 + 262144 + 3 * 524288 + 1024) + 512;

st::Strategy zero1(int shard) {
  st::Strategy s = small_job(16);
  s.parallelism.degrees.data_shard = shard;
  s.data_parallel.kind = st::DataParallelKind::zero1;
  return s;
}

TEST(InternEvo, SumsGradientsOverAllReplicasAtOnceWhoeverSharesStates) {
  const st::FrameworkProfile profile = st::load_profile("internevo");
  for (const int shard : {0, 8}) {
    const plan::Plan plan = st::write_plan(small_llama(2), zero1(shard), profile, 8);
    EXPECT_EQ(sum(bytes_of(plan, CollectiveKind::all_reduce, plan::GroupAxis::data_context)), kElements * 2) << shard;   // 16-bit gradients
    EXPECT_TRUE(bytes_of(plan, CollectiveKind::all_reduce, plan::GroupAxis::data_replicate).empty()) << shard;
    EXPECT_EQ(count(plan, "flatten bucket"), count(plan, "unflatten bucket"));
  }
  st::FrameworkProfile by_level = profile;
  by_level.reduces_over_all = false;
  EXPECT_EQ(sum(bytes_of(st::write_plan(small_llama(2), zero1(8), by_level, 8), CollectiveKind::all_reduce, plan::GroupAxis::data_replicate)), kElements * 2);
}

TEST(InternEvo, BroadcastsWholeTensorsRankAfterRank) {
  const st::FrameworkProfile profile = st::load_profile("internevo");
  const auto eight = bytes_of(st::write_plan(small_llama(2), zero1(8), profile, 8), CollectiveKind::broadcast, plan::GroupAxis::data);
  EXPECT_EQ(eight.size(), 8u);
  EXPECT_EQ(sum(eight), kElements * 2);
  EXPECT_EQ(*std::max_element(eight.begin(), eight.end()), 2097152 * 2);   // a table fills a rank's share
  // 17 tensors (7 per layer, two tables, a norm) leave nothing for more ranks than that.
  st::Strategy many = zero1(0);
  many.parallelism.degrees.data = 64;
  many.training.global_batch_size = 64;
  EXPECT_EQ(bytes_of(st::write_plan(small_llama(2), many, profile, 8), CollectiveKind::broadcast, plan::GroupAxis::data).size(), 17u);
}

TEST(InternEvo, NormsReadAnUpcastCopyThatBackwardMakesAgain) {
  const st::FrameworkProfile profile = st::load_profile("internevo");
  st::Strategy s = zero1(0);
  const auto casts = [&] { return count(st::write_plan(small_llama(2), s, profile, 8), "cast"); };
  EXPECT_EQ(casts(), 10);   // five norms, forward and backward
  s.memory.recompute = st::Recompute::full;
  EXPECT_EQ(casts(), 14);   // the four of the layers a third time, in their recomputation
}

TEST(MaxText, CombinesSumsOverReplicasUpToTheThreshold) {
  st::FrameworkProfile profile = st::load_profile("maxtext");
  st::Strategy s = small_job(16);
  s.parallelism.degrees.data_shard = 8;
  s.data_parallel.kind = st::DataParallelKind::fsdp1;
  const auto sums = [&] { return bytes_of(st::write_plan(small_llama(2), s, profile, 8), CollectiveKind::all_reduce, plan::GroupAxis::data_replicate); };
  const auto all = sums();
  EXPECT_EQ(all.size(), 1u);   // 2.4 MB of shards are below 1 GiB
  profile.replica_bucket = Bytes{0};
  const auto each = sums();
  EXPECT_EQ(each.size(), 4u);  // embedding, two layers, head
  EXPECT_EQ(sum(each), sum(all));
  profile.replica_bucket = Bytes{each.front() + 1};   // the head goes with the layer after it, the other layer alone, the embedding at the end
  EXPECT_EQ(sums(), (std::vector<std::int64_t>{each[0] + each[1], each[2], each[3]}));
}

TEST(MaxText, LooksTokensUpByAProductWithTheTable) {
  st::FrameworkProfile profile = st::load_profile("maxtext");
  const st::Strategy s = small_job(1);
  const double with = product_flops(st::write_plan(small_llama(2), s, profile, 1));
  profile.one_hot_embedding = false;
  EXPECT_EQ(with - product_flops(st::write_plan(small_llama(2), s, profile, 1)), 2 * 2.0 * 256 * 4096 * 512);   // forward and the table's gradient
}

TEST(MaxText, MinimalPoliciesKeepEveryProduct) {
  const st::FrameworkProfile profile = st::load_profile("maxtext");
  st::Strategy s = small_job(1);
  const auto flops = [&](st::Recompute recompute, std::vector<std::string> modules) {
    s.memory.recompute = recompute;
    s.memory.recompute_modules = std::move(modules);
    return product_flops(st::write_plan(small_llama(2), s, profile, 1));
  };
  const double none = flops(st::Recompute::none, {});
  EXPECT_EQ(flops(st::Recompute::selective, {}), none);
  // "except_mlp": gate and up again; down is the last of the layer, whose output nobody asks for.
  EXPECT_EQ(flops(st::Recompute::selective, {"attention_products"}) - none, 2 * 2 * 2.0 * 256 * 512 * 1024);
  // Attention is no product with weights: made again in each of the two layers.
  const auto attentions = [&](std::vector<std::string> modules) {
    s.memory.recompute = st::Recompute::selective;
    s.memory.recompute_modules = std::move(modules);
    return count(st::write_plan(small_llama(2), s, profile, 1), "attention");
  };
  EXPECT_EQ(flops(st::Recompute::selective, {"weight_products"}), none);
  EXPECT_EQ(attentions({"weight_products"}), 2 * attentions({"products"}));
  // The projections kept: the MLP as above, and attention. Without the output projection, that product too.
  const double mlp = 2 * 2 * 2.0 * 256 * 512 * 1024;
  EXPECT_EQ(flops(st::Recompute::selective, {"attention_projections"}) - none, mlp);
  EXPECT_EQ(flops(st::Recompute::selective, {"qkv_products"}) - none, mlp + 2 * 2.0 * 256 * 512 * 512);
  for (const char* kept : {"attention_projections", "qkv_products"}) EXPECT_EQ(attentions({kept}), 2 * attentions({"products"})) << kept;
}

/// A table of one row, as its scenario.
MeasuredRun row_of(const std::string& columns, const std::string& cells) {
  const auto file = std::filesystem::temp_directory_path() / "rehearse_one_row.csv";
  std::ofstream(file) << "row_id," << columns << "\na," << cells << "\n";
  MeasuredRun run = read_measured_runs(file.string()).at(0);
  std::filesystem::remove(file);
  return run;
}

TEST(MeasuredRows, SayInProseWhoSharesStates) {
  const std::string columns = "framework,model,gpu,n_gpus,seq_len,micro_batch,global_batch,sharding,recompute,interconnect,precision,note";
  const auto shard = [&](const std::string& cells) {
    const MeasuredRun run = row_of(columns, cells);
    EXPECT_TRUE(run.scenario.has_value()) << run.reason;
    return run.scenario ? run.scenario->strategy.parallelism.degrees.shard() : 0;
  };
  EXPECT_EQ(shard("internevo,llama-7b,a100-80gb-sxm,64,2048,2,512,zero1,none,4 * 100Gb RoCE,bf16,zero1=8"), 8);
  EXPECT_EQ(shard("internevo,llama-7b,a100-80gb-sxm,64,2048,2,512,zero1,none,4 * 100Gb RoCE,bf16,\"tp=1, Zero1: 8\""), 8);
  EXPECT_EQ(shard("internevo,llama-7b,a100-80gb-sxm,64,2048,2,512,zero1,none,4 * 100Gb RoCE,bf16,zero1=-1"), 64);
  EXPECT_EQ(shard("maxtext,llama-2-7b,h100-sxm,64,4096,4,256,hsdp,selective,,bf16,dcn_data_parallelism=2"), 32);
  EXPECT_EQ(shard("maxtext,llama-2-7b,h100-sxm,64,4096,4,256,hsdp,selective,,bf16,"), 8);   // a node
}

TEST(MeasuredRows, NameRematerialisationAndClusters) {
  const std::string columns = "framework,model,gpu,n_gpus,seq_len,micro_batch,global_batch,sharding,interconnect,precision,note";
  const auto row = [&](const std::string& cells) { return row_of(columns, cells); };
  const MeasuredRun full = row("maxtext,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,Google Cloud A3 Mega,bf16,remat_policy=full");
  ASSERT_TRUE(full.scenario.has_value()) << full.reason;
  EXPECT_EQ(full.scenario->strategy.memory.recompute, st::Recompute::full);
  EXPECT_EQ(full.scenario->cluster.node.nic.count, 8);
  const MeasuredRun some = row("maxtext,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,A3 High,bf16,remat_policy=save_dot_with_context_except_mlp");
  ASSERT_TRUE(some.scenario.has_value()) << some.reason;
  EXPECT_EQ(some.scenario->strategy.memory.recompute_modules, std::vector<std::string>{"attention_products"});
  EXPECT_EQ(some.scenario->cluster.node.nic.count, 4);
  const MeasuredRun dots = row("paxml,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,,bf16,SAVE_DOT_WITH_NO_BATCH_DIM: remat_policy=minimal");
  ASSERT_TRUE(dots.scenario.has_value()) << dots.reason;
  EXPECT_EQ(dots.scenario->strategy.memory.recompute_modules, std::vector<std::string>{"weight_products"});
  for (const auto& [policy, kept] : {std::pair{"remat_policy=save_dot_except_mlp", "attention_projections"}, std::pair{"remat_policy=custom: save_dot_except_mlpwi", "attention_projections"},
                                     std::pair{"remat_policy=save_qkv_proj", "qkv_products"}, std::pair{"SAVE_QKV_OUT_PROJ: remat_policy=custom", "attention_projections"},
                                     std::pair{"SAVE_DOT_ONLY: remat_policy=custom", "weight_products"}}) {
    const MeasuredRun run = row(std::string("maxtext,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,,bf16,") + policy);
    ASSERT_TRUE(run.scenario.has_value()) << run.reason;
    EXPECT_EQ(run.scenario->strategy.memory.recompute_modules, std::vector<std::string>{kept}) << policy;
  }
  for (const auto& [prose, node] : {std::pair{"A3 (8x H100)", "a3-high"}, std::pair{"GPUDirect-TCPX", "a3-high"}, std::pair{"8x200 Gb/s TCPXO", "a3-mega"}, std::pair{"DGX H100, rail A30", "dgx-h100"}})
    EXPECT_EQ(row(std::string("maxtext,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,") + (std::string(prose).find(',') == std::string::npos ? prose : "\"" + std::string(prose) + "\"") + ",bf16,").scenario->cluster.node.name, node) << prose;
  const MeasuredRun silent = row("maxtext,llama-2-7b,h100-sxm,16,4096,4,64,fsdp,,bf16,");
  ASSERT_TRUE(silent.scenario.has_value()) << silent.reason;
  EXPECT_EQ(silent.scenario->strategy.memory.recompute, st::Recompute::full);   // base.yml
}

TEST(MeasuredRows, OfNemoFollowTheirRelease) {
  const std::string columns = "framework,model,gpu,n_gpus,seq_len,micro_batch,global_batch,sharding,precision,source";
  const auto row = [&](const std::string& cells) {
    MeasuredRun run = row_of(columns, cells);
    EXPECT_TRUE(run.scenario.has_value()) << run.reason;
    return run;
  };
  const MeasuredRun old = row("nemo,llama-3-8b,h100-sxm,8,8192,1,128,,fp8,performance summary: NeMo 24.07"), captured = row("nemo,llama-3-8b,b200-sxm,8,8192,2,128,,fp8,performance summary: NeMo 25.02"),
                    sharded = row("nemo,llama-3-70b,gb200-nvl72,64,8192,1,128,fsdp,fp8,performance summary: NeMo 25.04");
  EXPECT_FALSE(old.scenario->profile.current_scaling);
  EXPECT_TRUE(old.scenario->strategy.training.cuda_graph_modules.empty());
  EXPECT_FALSE(captured.scenario->strategy.training.cuda_graph_modules.empty());
  EXPECT_TRUE(sharded.scenario->profile.current_scaling);
  EXPECT_FALSE(sharded.scenario->profile.fused_gradient_accumulation);
}

TEST(MeasuredRows, OfNemoInterleaveWhereStagesAreAndChunksAreNotSaid) {
  const std::string columns = "task,framework,model,gpu,n_gpus,tp,pp,vpp,seq_len,micro_batch,global_batch,precision";
  const MeasuredRun open = row_of(columns, "sft,nemo,llama-2-13b,h100-sxm,8,1,4,,4096,1,32,fp8"), said = row_of(columns, "sft,nemo,llama-2-13b,h100-sxm,8,1,4,10,4096,1,32,fp8");
  std::vector<int> chunks;
  for (const Scenario& other : more_chunks(open.scenario.value())) chunks.push_back(other.strategy.pipeline.virtual_stages);
  EXPECT_EQ(chunks, (std::vector<int>{2, 5, 10}));   // of ten layers per stage
  EXPECT_TRUE(open.chunks_open);
  EXPECT_FALSE(said.chunks_open);
}

TEST(MeasuredRows, OfTheseTablesAreAllSimulated) {
  for (const char* table : {"internevo", "maxtext", "paxml", "nemo_guides", "rocm_tables"})
    for (const MeasuredRun& run : read_measured_runs((source_dir() / "tests/accuracy/runs" / (std::string(table) + ".csv")).string())) EXPECT_TRUE(run.scenario.has_value()) << run.row_id << ": " << run.reason;
}

}  // namespace
}  // namespace rehearse::scenario::xla_and_internevo_test
