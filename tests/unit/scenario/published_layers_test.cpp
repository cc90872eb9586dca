// Passes of layers and of pipeline stages against times that others measured: a Megatron layer of GPT-22B (arXiv 2205.05198, table 4), stages of zero
// bubble's pipelines (arXiv 2401.10241, table 9), single layers of experts (Megatron-LM's functional tests). Nothing is fitted to them.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"
#include "sim/config/csv.h"
#include "sim/executor/costs.h"
#include "sim/model/shapes.h"
#include "sim/scenario/measured_row.h"
#include "sim/scenario/measured_run.h"
#include "sim/scenario/pass_times.h"
#include "sim/scenario/simulate.h"
#include "strategies/plan_writer.h"
#include "tests/support/source_dir.h"

namespace rehearse::scenario::published_layers_test {
namespace {

namespace st = strategies;

config::CsvTable table(const std::string& name) { return config::read_csv(source_dir() / "tests/accuracy/tables" / (name + ".csv")); }

/// Milliseconds of one micro-batch, kernels and what compute waits for at their prices alone.
struct Passes {
  double forward = 0, backward = 0;
};

/// A job of layers, and the machine under it.
struct Job {
  st::Strategy strategy;
  st::FrameworkProfile profile;
  hwmodels::ClusterDescription cluster;
  hwmodels::ClockState clock = hwmodels::ClockState::sustained;
};

Passes passes_of(const model::ModelDescription& model, const Job& job) {
  const plan::Plan plan = st::write_plan(model, job.strategy, job.profile, job.cluster.gpus_per_node);
  const auto network = hwmodels::make_network(job.cluster, {});
  const hwmodels::KernelModel kernels(job.cluster.gpu, job.clock);
  const executor::CostTable costs = executor::price(plan, {kernels, *network});
  Passes out;
  for (const plan::Call& call : plan.classes[0].program.step) {
    if (call.micro_batch != 0) continue;
    double* sum = call.phase == plan::Phase::forward ? &out.forward : call.phase == plan::Phase::backward || call.phase == plan::Phase::weight_gradient ? &out.backward : nullptr;
    if (sum == nullptr) continue;
    for (const plan::Instruction& i : plan.blocks[call.block].timing) {
      if (i.op == plan::Opcode::kernel) *sum += static_cast<double>(costs.kernels[i.index].duration) * 1e-9;
      if (i.op == plan::Opcode::collective && (i.flags & plan::kComputeWaits) != 0) *sum += static_cast<double>(costs.collectives[0][i.index].duration) * 1e-9;
    }
  }
  return out;
}

/// What one layer more takes; `model_of`: from a number of layers.
template <typename ModelOf>
Passes layer_of(const ModelOf& model_of, const Job& job) {
  const Passes two = passes_of(model_of(2), job), one = passes_of(model_of(1), job);
  return {two.forward - one.forward, two.backward - one.backward};
}

model::ModelDescription gpt_22b(std::int64_t layers) {
  model::Shapes shapes{.name = "gpt", .layers = layers, .hidden = 6144, .heads = 64, .vocab = 51200};
  shapes.gated = false;
  shapes.ffn_hidden = std::int64_t{4} * 6144;
  shapes.max_positions = 2048;
  model::ModelDescription model = model::make_from_shapes(shapes);
  model.dropout = model.attention_dropout = 0.1;
  return model;
}

// Forward without recomputation, and with what each row makes again in backward.
TEST(PublishedLayers, OneLayerOfGpt22B) {
  const config::CsvTable rows = table("megatron_layer_times_22b");
  const hwmodels::ClusterDescription cluster = hwmodels::load_cluster("dgx-a100", 1, "rail-fat-tree", "a100-80gb-sxm");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const config::CsvRow row = rows.row(i);
    const std::string kind(row.text("config"));
    st::Strategy strategy;
    strategy.training.sequence_length = 2048;
    strategy.training.micro_batch_size = strategy.training.global_batch_size = 4;
    strategy.training.precision = st::Precision::fp16;
    strategy.parallelism.degrees.tensor = 8;
    strategy.parallelism.sequence_parallel = kind.find("sequence par") != std::string::npos || kind.find("SP") != std::string::npos;
    if (kind.find("selective") != std::string::npos) strategy.memory.recompute = st::Recompute::selective;
    else if (kind.find("recompute") != std::string::npos && kind.find("no recompute") == std::string::npos) strategy.memory.recompute = st::Recompute::full;
    const Passes layer = layer_of(gpt_22b, {strategy, st::load_profile("megatron-2021"), cluster});
    std::printf("  %-45s forward %5.2f of %5.2f ms, both %5.2f of %5.2f\n", kind.c_str(), layer.forward, *row.number("fwd_ms"), layer.forward + layer.backward, *row.number("combined_ms"));
    EXPECT_NEAR((layer.forward + layer.backward) / *row.number("combined_ms"), 1, 0.06) << kind;
  }
}

// Stages that hold layers alone (the second): forward, gradients of inputs and of weights. Prices are of kernels alone; the measured forward of the
// smallest model waits for its host.
TEST(PublishedLayers, StagesOfZeroBubblesPipelines) {
  const config::CsvTable rows = table("zero_bubble_stage_times");
  std::map<std::string, Scenario> jobs;
  for (MeasuredRun& run : read_measured_runs((source_dir() / "tests/accuracy/runs/zero_bubble_paper.csv").string()))
    if (run.scenario && wants_pass_times(*run.scenario)) jobs.try_emplace(run.scenario->model.name, *run.scenario);   // zero-bubble-1.5b
  int compared = 0;
  for (std::size_t i = 0; i < rows.size(); i += 3) {   // the three rows of a model differ in how many micro-batches there are
    const config::CsvRow row = rows.row(i);
    const auto job = jobs.find("zero-bubble-" + lower(std::string(row.text("model").substr(4))));   // "GPT 1.5B"
    ASSERT_NE(job, jobs.end()) << row.text("model");
    const st::PassTimes times = with_pass_times(job->second).strategy.pipeline.times;
    const double all = (times.forward.at(1) + times.input_gradient.at(1) + times.weight_gradient.at(1)) * 1e-9;
    const double measured = *row.number("t_f_ms") + *row.number("t_b_ms") + *row.number("t_w_ms");
    std::printf("  %-10s forward %6.2f of %6.2f ms, inputs %6.2f of %6.2f, weights %6.2f of %6.2f, all %+5.1f %%\n", job->first.c_str(), times.forward.at(1) * 1e-9, *row.number("t_f_ms"), times.input_gradient.at(1) * 1e-9,
                *row.number("t_b_ms"), times.weight_gradient.at(1) * 1e-9, *row.number("t_w_ms"), 100 * (all / measured - 1));
    EXPECT_NEAR(all / measured, 1, job->first == "zero-bubble-1.5b" ? 0.25 : 0.1) << job->first;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

/// A row's layer of experts as Megatron's test_cases.py has it; without experts: the rest of a layer, with hardly any MLP.
model::ModelDescription layers_of_experts(const config::CsvRow& row, bool experts, std::int64_t layers) {
  const auto count = [&](const char* column) { return row.integer(column).value_or(0); };
  model::Shapes shapes{.name = "experts", .layers = layers, .hidden = count("hidden"), .heads = count("hidden") / 128, .vocab = 1024};
  shapes.gated = true;
  shapes.ffn_hidden = 128;
  if (experts) shapes.experts = count("n_experts"), shapes.top_k = count("top_k"), shapes.moe_ffn_hidden = count("moe_ffn_hidden"), shapes.shared_ffn_hidden = count("shared_expert_ffn");
  model::ModelDescription model = model::make_from_shapes(shapes);
  // DEEPSEEK_PROXY: moe_router_num_groups 8, moe_router_group_topk 4; a rank holds a group.
  if (experts && shapes.experts == 32) model.experts.groups = 8, model.experts.groups_per_token = 4;
  return model;
}

// Router, dispatch, experts and combination, router and permutation fused. Between two runs the ranks meet and an fp32 product runs, so the clock is that of
// short loops. Layers of many small experts are a third too slow here.
TEST(PublishedLayers, LayersOfExperts) {
  const config::CsvTable rows = table("megatron_lm_moe_layer_perf");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const config::CsvRow row = rows.row(i);
    Job job{{}, st::load_profile("megatron-core"), hwmodels::load_cluster("dgx-h100", 1, "rail-fat-tree", "h100-sxm"), hwmodels::ClockState::burst};
    job.strategy.training.sequence_length = row.integer("seq_len").value_or(0);
    job.strategy.training.micro_batch_size = 1;
    job.strategy.training.global_batch_size = 8;
    job.strategy.parallelism.degrees.data = 8;
    job.strategy.data_parallel.kind = st::DataParallelKind::ddp;
    const Passes rest = layer_of([&](std::int64_t layers) { return layers_of_experts(row, false, layers); }, job);
    job.strategy.parallelism.degrees.expert = 8;
    job.strategy.experts.fused_router = job.strategy.experts.fused_permute = job.strategy.experts.fused_index_map = true;
    const std::string_view dispatcher = row.text("dispatcher");
    job.strategy.experts.dispatcher = dispatcher == "alltoall" ? st::Dispatcher::all_to_all : dispatcher == "deepep" ? st::Dispatcher::deepep : st::Dispatcher::hybridep;
    const Passes layer = layer_of([&](std::int64_t layers) { return layers_of_experts(row, true, layers); }, job);
    const double forward = layer.forward - rest.forward, backward = layer.backward - rest.backward, measured = *row.number("forward_ms") + *row.number("backward_ms");
    std::printf("  %-30s forward %5.2f of %5.2f ms, backward %5.2f of %5.2f, both %+5.1f %%\n", std::string(row.text("case")).c_str(), forward, *row.number("forward_ms"), backward, *row.number("backward_ms"),
                100 * ((forward + backward) / measured - 1));
    EXPECT_NEAR((forward + backward) / measured, 1, 0.38) << row.text("case");
  }
}

// Activations of the first stage by the paper's own formula (arXiv 2205.05198, figures 1 and 7): what the ledger holds at the stage's peak. The formula leaves out
// statistics, what the head and the layer under way need, and messages.
TEST(PublishedLayers, ActivationsOfTheFirstStage) {
  const config::CsvTable rows = table("megatron_seqsel_memory_percent");
  std::string lines = "row_id,framework,attention,source,gated_mlp,global_batch,seq_len,model,layers,hidden,heads,vocab,gpu,n_gpus,tp,pp,vpp,dp,micro_batch,precision,sp,recompute\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const config::CsvRow row = rows.row(i);
    lines += std::string(row.text("row_id")) + ",megatron-lm,unfused,arXiv 2205.05198,n," + std::to_string(row.integer("micro_batch").value_or(1) * 4 * row.integer("pp").value_or(1)) + ",2048";
    for (const char* column : {"model", "layers", "hidden", "heads", "vocab", "gpu", "n_gpus", "tp", "pp", "vpp", "dp", "micro_batch", "precision", "sp", "recompute"}) lines += "," + std::string(row.text(column));
    lines += "\n";
  }
  const std::string path = testing::TempDir() + "seqsel.csv";
  std::ofstream(path) << lines;
  const std::vector<MeasuredRun> runs = read_measured_runs(path);
  std::remove(path.c_str());
  double none = 0;
  int compared = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ASSERT_TRUE(runs[i].scenario.has_value()) << runs[i].reason;
    const Result result = simulate(*runs[i].scenario);
    const double gib = static_cast<double>(result.classes.front().memory.at_peak[static_cast<std::size_t>(plan::Category::activation)]) / (1 << 30);
    const auto stated = rows.row(i).number("activations_gib"), percent = rows.row(i).number("activation_pct_of_none");
    if (percent == 100) none = gib;
    std::printf("  %-10s sp %-1s %-9s %7.2f GiB", std::string(rows.row(i).text("model")).c_str(), std::string(rows.row(i).text("sp")).c_str(), std::string(rows.row(i).text("recompute")).c_str(), gib);
    if (stated) std::printf(" of %7.2f", *stated);
    if (percent) std::printf(" %6.2f of %6.2f %% of none", 100 * gib / none, *percent);
    std::printf("\n");
    // Of full recomputation the peak is elsewhere: in the update, or in the layer that is made again.
    if (percent && rows.row(i).text("recompute") != "full") {
      EXPECT_NEAR(100 * gib / none, *percent, 1.6) << runs[i].row_id;
    }
    if (stated) {
      EXPECT_NEAR(gib / *stated, 1, 0.05) << runs[i].row_id;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 8);
}

}  // namespace
}  // namespace rehearse::scenario::published_layers_test
