#include "sim/report/json_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "hwmodels/collective/parameters.h"
#include "small_scenario.h"
#include "sim/model/presets.h"
#include "sim/report/effective_config.h"
#include "sim/scenario/measured_run.h"
#include "sim/scenario/scenario_file.h"
#include "tests/support/source_dir.h"

namespace rehearse::report::json_writer_test {
namespace {

using Json = nlohmann::json;

TEST(JsonWriter, HasTheKeysThatScriptsRelyOn) {
  const auto scenario = small_scenario();
  const Json out = Json::parse(write_json(scenario, simulated(scenario)));
  for (const char* key : {"schema_version", "scenario_hash", "fits", "step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "model_tflops_per_gpu", "hardware_tflops_per_gpu", "mfu", "hfu",
                          "breakdown", "memory", "host_bytes", "nvme_bytes", "error_band", "provenance"})
    EXPECT_TRUE(out.contains(key)) << key;
  for (const char* key : {"class", "ranks", "peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "by_category"}) EXPECT_TRUE(out["memory"][0].contains(key)) << key;
  EXPECT_TRUE(out["fits"].get<bool>());
  // 32 samples of 1024 tokens per step on 8 GPUs.
  const double step = out["step_time_s"];
  EXPECT_DOUBLE_EQ(out["tokens_per_s"].get<double>(), 32 * 1024 / step);
  EXPECT_DOUBLE_EQ(out["tokens_per_s_per_gpu"].get<double>(), 32 * 1024 / step / 8);
  EXPECT_DOUBLE_EQ(out["mfu"].get<double>(), out["model_tflops_per_gpu"].get<double>() / out["peak_tflops_per_gpu"].get<double>());
  // The whole attention square counts more than its causal half, and without recomputation the kernels do as much as the model.
  EXPECT_GT(out["mfu_full_attention"].get<double>(), out["mfu"].get<double>());
}

TEST(JsonWriter, BreakdownsSumToTheStep) {
  for (const auto& scenario : {small_scenario(), pipelined_scenario()}) {
    const Json out = Json::parse(write_json(scenario, simulated(scenario)));
    for (const char* which : {"breakdown", "breakdown_mean"}) {
      double sum = 0;
      for (const auto& [cause, seconds] : out[which].items()) {
        EXPECT_TRUE(cause.ends_with("_s"));
        sum += seconds.get<double>();
      }
      EXPECT_NEAR(sum, out["step_time_s"].get<double>(), 1e-9) << which;
    }
  }
}

TEST(JsonWriter, CategoriesAreWhatWasLiveAtThePeak) {
  const auto scenario = small_scenario();
  const Json out = Json::parse(write_json(scenario, simulated(scenario)));
  std::int64_t live = 0;
  for (const auto& [category, bytes] : out["memory"][0]["by_category"].items()) live += bytes.get<std::int64_t>();
  const auto allocated = out["memory"][0]["peak_allocated_bytes"].get<std::int64_t>();
  // The allocator rounds each tensor up to 512 bytes and keeps remainders of large blocks.
  EXPECT_LE(live, allocated);
  EXPECT_GT(live, allocated * 95 / 100);
  EXPECT_LE(allocated, out["memory"][0]["peak_reserved_bytes"].get<std::int64_t>());
  EXPECT_LT(out["memory"][0]["peak_reserved_bytes"].get<std::int64_t>(), out["memory"][0]["peak_device_bytes"].get<std::int64_t>());
}

TEST(JsonWriter, SaysWhatWasLackingWhenItDoesNotFit) {
  const auto scenario = huge_scenario();
  const Json out = Json::parse(write_json(scenario, simulated(scenario)));
  EXPECT_FALSE(out["fits"].get<bool>());
  EXPECT_LT(out["headroom_bytes"].get<std::int64_t>(), 0);
  const Json& why = out["memory"][0]["out_of_memory"];
  EXPECT_GT(why["needed_bytes"].get<std::int64_t>(), why["available_bytes"].get<std::int64_t>());
  EXPECT_GT(why["asked_bytes"].get<std::int64_t>(), 0);
  EXPECT_FALSE(why["moment"].get<std::string>().empty());
}

TEST(JsonWriter, EqualInputsGiveEqualBytes) {
  const auto scenario = small_scenario();
  EXPECT_EQ(write_json(scenario, simulated(scenario)), write_json(small_scenario(), simulated(small_scenario())));
}

TEST(EffectiveConfig, HashTellsScenariosApartButNotTitles) {
  const std::string hash = hash_of(small_scenario());
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash, hash_of(small_scenario({"title=another"})));
  EXPECT_EQ(hash, hash_of(small_scenario({"parallelism.data=8"})));  // what auto becomes anyway
  for (const char* change : {"training.sequence_length=2048", "memory.recompute=full", "cluster.nvls=false", "model.hidden=512", "cluster.gpu=h200-sxm", "training.optimizer=sgd"})
    EXPECT_NE(hash, hash_of(small_scenario({change}))) << change;
}

// What files of the user's own may say of machines, and no key of the scenario names.
TEST(EffectiveConfig, HashTellsMachinesApart) {
  const scenario::Scenario usual = small_scenario();
  std::set<std::string> hashes{hash_of(usual)};
  const auto differs = [&](const char* what, const auto& change) {
    scenario::Scenario s = usual;
    change(s);
    EXPECT_TRUE(hashes.insert(hash_of(s)).second) << what;
  };
  using S = scenario::Scenario&;
  differs("launch_time", [](S s) { s.cluster.node.cpu.launch_time = 1.5; });
  differs("cores", [](S s) { s.cluster.node.cpu.cores += 1; });
  differs("vendor", [](S s) { s.cluster.node.cpu.vendor = hwmodels::CpuVendor::arm; });
  differs("per_communicator", [](S s) { s.cluster.node.nic.per_communicator = 3; });
  differs("spine_efficiency", [](S s) { s.cluster.node.nic.spine_efficiency = 0.7; });
  differs("capacity", [](S s) { s.cluster.node.nvme.capacity = Bytes{12345}; });
  differs("table", [](S s) { s.strategy.pipeline.table = "F0 B0"; });
  const auto collectives = [&](const char* what, const auto& change) {
    differs(what, [&](S s) {
      auto own = std::make_shared<hwmodels::CollectiveParameters>(hwmodels::collective_parameters());
      change(*own);
      s.cluster.collectives = own;
    });
  };
  using P = hwmodels::CollectiveParameters&;
  collectives("a file", [](P) {});
  collectives("generations", [](P p) { p.generations.at("hopper").launch += 1; });
  collectives("networks", [](P p) { p.networks.at("efa").send += 1; });
  collectives("ll128", [](P p) { p.networks.at("efa").ll128 = !p.networks.at("efa").ll128; });
  collectives("common", [](P p) { p.common.own_piece += 1; });
  collectives("expert_dispatch", [](P p) { p.expert_dispatch.bulk.rate += 1; });
  collectives("registered_buffers", [](P p) { p.registered_buffers.network_sharp.scatter += 1; });
  collectives("backends", [](P p) { p.backends.at("gloo").copies += 1; });
  // A table of passes counts by what it says, wherever it lies.
  scenario::Scenario here = usual, there = usual;
  here.strategy.pipeline.table = there.strategy.pipeline.table = "F0 B0";
  here.strategy.pipeline.table_file = "here.csv", there.strategy.pipeline.table_file = "there.csv";
  EXPECT_EQ(hash_of(here), hash_of(there));
}

TEST(EffectiveConfig, ReadsBackToTheSameScenario) {
  for (const auto& scenario : {small_scenario(), pipelined_scenario(), small_scenario({"model=mistral-7b"}), small_scenario({"model=gpt2"}),
                               small_scenario({"parallelism.context=4", "parallelism.context_kind=a2a+p2p", "parallelism.context_ulysses=2"}),
                               small_scenario({"model=mixtral-8x7b", "experts.routing.distribution=dirichlet", "experts.routing.concentration=2.5", "experts.routing.seed=9"})}) {
    const std::string text = config::to_yaml(effective_config(scenario));
    const auto again = scenario::read_scenario(config::parse_document(text, "again.yaml").root, "again.yaml");
    EXPECT_EQ(again.model, scenario.model);
    EXPECT_EQ(hash_of(again), hash_of(scenario)) << text;
  }
}

// Every strategy, framework and machine that a bundled scenario has is one that --print-config can write.
TEST(EffectiveConfig, EveryBundledScenarioReadsBackAsItself) {
  int scenarios = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() / "scenarios")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto scenario = scenario::load_scenario(entry.path().string());
    SCOPED_TRACE(entry.path().string());
    const auto again = scenario::read_scenario(config::parse_document(config::to_yaml(effective_config(scenario)), "again.yaml").root, "again.yaml");
    EXPECT_EQ(hash_of(again), hash_of(scenario));
    ++scenarios;
  }
  EXPECT_GT(scenarios, 50);
}

// A row of a table is a scenario like any other: what `validate --row` prints is simulated again as the row was, whatever its text changed.
TEST(EffectiveConfig, EveryMeasuredRunReadsBackAsItself) {
  int runs = 0, with_profile = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "tests/accuracy/runs")) {
    if (entry.path().extension() != ".csv") continue;
    int of_table = 0;
    for (const scenario::MeasuredRun& run : scenario::read_measured_runs(entry.path().string())) {
      if (!run.scenario || ++of_table % 11 != 1) continue;
      const config::Value config = effective_config(*run.scenario);
      auto again = scenario::read_scenario(config::parse_document(config::to_yaml(config), "again.yaml").root, "again.yaml");
      EXPECT_EQ(hash_of(again), hash_of(*run.scenario)) << run.row_id;
      again.profile.overlap_tensor = run.scenario->profile.overlap_tensor;   // false where there is nothing to overlap
      const config::Value lost = strategies::different_keys(run.scenario->profile, again.profile);
      EXPECT_TRUE(lost.is_null()) << run.row_id << ": " << config::to_yaml(lost);
      with_profile += config.find("profile") != nullptr;
      ++runs;
      if (of_table > 1 || run.scenario->gpus() > 64) continue;   // one of each table: what no key says would show in its time or memory
      const scenario::Result first = scenario::simulate(*run.scenario), second = scenario::simulate(again);
      EXPECT_EQ(second.step_time, first.step_time) << run.row_id;
      ASSERT_EQ(second.classes.size(), first.classes.size()) << run.row_id;
      for (std::size_t i = 0; i < first.classes.size(); ++i) EXPECT_EQ(second.classes[i].peak_device(), first.classes[i].peak_device()) << run.row_id;
    }
  }
  EXPECT_GT(runs, 300);
  EXPECT_GT(with_profile, 100);
}

// Whatever a description says is in the effective scenario: no two models share one.
TEST(EffectiveConfig, EveryPresetReadsBackAsItself) {
  for (const std::string& name : model::preset_names()) {
    const auto scenario = small_scenario({"model=" + name});
    const auto again = scenario::read_scenario(config::parse_document(config::to_yaml(effective_config(scenario)), "again.yaml").root, "again.yaml");
    EXPECT_EQ(again.model, scenario.model) << name << ": " << model::describe_difference(again.model, scenario.model);
  }
}

/// Keys of the scenario file that hold a value, but for those that resolve into others.
void leaves(const config::TableInfo& table, const std::string& path, std::set<std::string>& out) {
  for (const config::FieldInfo& f : table.fields) {
    const std::string key = path.empty() ? f.name : path + "." + f.name;
    if (f.table) leaves(*f.table, key, out);
    else out.insert(key);
  }
}

TEST(EffectiveConfig, HasEveryKeyOfTheScenarioFile) {
  const auto scenario = small_scenario({"training.cuda_graph=false", "training.attention=flash", "training.attention_kernel=flash2", "data_parallel.bucket=25 MiB", "data_parallel.parameter_dtype=bf16", "data_parallel.reduce_dtype=fp32",
                                        "data_parallel.gradient_dtype=fp32", "training.cross_entropy=fused", "training.fused_gradient_accumulation=false", "training.fused_rope=false", "training.transformer_engine=false",
                                        "memory.recompute=selective", "memory.recompute_modules=[mlp]", "training.optimizer_state_dtype=fp32", "tuning.kind=lora", "tuning.targets=[q_proj]", "tuning.trainable=[norms]", "model=mixtral-8x7b", "experts.capacity_factor=1.5",
                                        "experts.routing.distribution=zipf", "experts.routing.skew=1", "experts.routing.seed=3",
                                        "parallelism.context=2", "parallelism.context_kind=ulysses-ring", "parallelism.context_ulysses=2"});
  std::set<std::string> written;
  // Keys that no scenario has together.
  const std::vector<scenario::Scenario> scenarios{
      scenario,
      small_scenario({"model=mixtral-8x7b", "experts.routing.distribution=dirichlet", "experts.routing.concentration=2", "experts.routing.batch_concentration=9"}),
      small_scenario({"data_parallel.kind=data-parallel", "training.cuda_graph_modules=[attn]"}),
      small_scenario({"data_parallel.kind=ddp", "memory.paged_optimizer=true"}),
      small_scenario({"cluster.node=dgx-b200", "training.precision=nvfp4", "training.first_layers_16bit=1", "training.last_layers_16bit=1"}),
      small_scenario({"cluster.gpus_per_node=1", "data_parallel.kind=none", "training.framework=plain", "training.clip_gradients=false", "training.global_batch_size=1", "training.micro_batch_size=1", "memory.optimizer_in_backward=true"}),
      small_scenario({"cluster.node=dgx-b200", "training.framework=megatron-core", "data_parallel.kind=ddp", "training.precision=mxfp8", "training.fp8_attention=true", "training.fp8_head=true"}),
      small_scenario({"data_parallel.kind=zero1", "parallelism.tensor=2", "memory.recompute=full", "memory.partition_activations=true", "memory.contiguous_checkpoints=true", "memory.number_checkpoints=4",
                      "memory.synchronize_checkpoints=true"}),
      small_scenario({"training.framework=megatron-core", "data_parallel.kind=ddp", "parallelism.pipeline=2", "pipeline.deferred_head_gradients=1", "training.precision=fp8", "training.fp8_parameters=true", "memory.fp8_activation_inputs=true"}),
      small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero3", "data_parallel.prefetch_bucket=1000", "data_parallel.max_live_parameters=2000", "data_parallel.max_reuse_distance=3000",
                      "data_parallel.persistence_threshold=4000", "data_parallel.sub_group=5000", "data_parallel.secondary_partition=2", "data_parallel.quantized_weights=true", "data_parallel.quantized_gradients=true", "memory.tiled_mlp=true", "memory.tiled_mlp_num_shards=4"}),
      small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero2", "memory.offload.optimizer=cpu", "memory.offload.threads=4"}),
      small_scenario({"training.framework=megatron-core", "data_parallel.kind=distributed-optimizer", "data_parallel.overlap_parameter_gather=true", "data_parallel.gather_under_update=true", "parallelism.pipeline=2", "pipeline.schedule=interleaved-1f1b",
                      "pipeline.virtual_stages=2", "pipeline.group_size=2", "pipeline.overlap_warmup_flush=true", "memory.offload.modules=[core_attn]", "memory.offload.in_flight=1"}),
      small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero3", "memory.offload={optimizer: nvme, parameters: nvme, buffers: 8, max_in_cpu: 5}"}),
      small_scenario({"training.framework=deepspeed", "data_parallel.kind=zero3", "data_parallel.memory_efficient_linear=false"}),
      small_scenario({"cluster.gpu_clock=1500 MHz", "cluster.gpu_power=300 W", "training.framework=huggingface", "data_parallel.kind=ddp", "tuning.kind=qlora", "tuning.format=gptq"}),
      small_scenario({"training.framework=megatron-deepspeed", "training.attention=flash", "data_parallel.kind=zero3", "parallelism.context=4", "memory.sequence_chunk=512"}),
      small_scenario({"parallelism.pipeline=2", "training.global_batch_size=32", "training.micro_batch_size=1", "pipeline.accumulation_steps=2"}),
      small_scenario({"training.precision=fp8", "data_parallel.fp8_gather=scaled-ahead"}),
      small_scenario({"training.framework=megatron-core", "data_parallel.kind=megatron-fsdp", "data_parallel.double_buffer=true", "data_parallel.registered_buffers=true"}),
      small_scenario({"memory.offload.activations=cpu", "memory.offload.activation_layers=1"}),
      small_scenario({"model=mixtral-8x7b", "training.framework=megatron-core", "data_parallel.kind=ddp", "experts.fused_router=true", "experts.fused_permute=true", "experts.fused_mlp=true", "experts.rank_capacity_factor=1.5", "experts.dispatch_sms=24"}),
      small_scenario({"data_parallel.kind=ddp", "memory.recompute=full", "memory.recompute_span=2"}),
      small_scenario({"memory.recompute=full", "memory.recompute_layers=1", "training.document_length=64", "training.documents_per_sample=5.5", "training.collection_interval=5", "training.launch_blocking=true", "training.serial_collectives=true", "memory.expandable_segments=true", "training.cross_entropy=chunked-linear", "training.loss_chunks=4"}),
      small_scenario({"cluster.nodes=2", "cluster.nics=4", "cluster.nic_bandwidth=100 Gb/s", "profile.kernel_host=1 us",
                      "cluster.measured_bandwidth={all_reduce: 100 GB/s, all_gather: 101 GB/s, reduce_scatter: 102 GB/s, all_reduce_node: 300 GB/s, all_gather_node: 301 GB/s, reduce_scatter_node: 302 GB/s}"}),
      small_scenario({"cluster.gpus_per_node=1", "data_parallel.kind=none", "tuning.kind=lora", "tuning.targets=[q_proj]", "memory.device_map.cpu=[head]", "memory.device_map.gpu_memory=10 GiB"}),
  };
  for (const scenario::Scenario& s : scenarios)
    for (const auto& [key, value] : flattened(effective_config(s))) written.insert(key.starts_with("profile.") ? "profile" : key);
  std::set<std::string> known;
  leaves(*scenario::scenario_fields().table(), "", known);
  for (const std::string& key : known) {
    if (key == "model" || key == "sweep" || key == "pipeline.layers_per_stage" || key == "pipeline.table") continue;
    // What names a file to import is replaced by the keys that the file brings.
    if (key == "training.from" || key == "training.path" || key == "training.version" || key == "training.without" || key == "training.variables" || key == "training.strict") continue;
    EXPECT_TRUE(written.contains(key)) << key << " is missing: add it to sim/report/effective_config.cpp, or scenarios that differ in it share a hash";
  }
}

}  // namespace
}  // namespace rehearse::report::json_writer_test
