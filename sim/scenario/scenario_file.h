// The scenario file as the user writes it, and the table of its keys. Leaves out resolving (resolve.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/fields.h"
#include "sim/config/value.h"
#include "strategies/spec.h"

namespace rehearse::scenario {

struct ModelSection {
  std::optional<config::Value> inline_model;   // a preset's name, a config.json (as a text or as {from: hf, path: ...}), or shapes
};

/// Bus bandwidths as nccl-tests counts them, of one message; 0: not measured.
struct MeasuredBandwidthSection {
  BytesPerSecond all_reduce{}, all_gather{}, reduce_scatter{};                  // all GPUs of the job together
  BytesPerSecond all_reduce_node{}, all_gather_node{}, reduce_scatter_node{};   // those of one node
  Bytes message = 1_GiB;
  bool lists = false;
};

struct ClusterSection {
  std::string node;
  std::int64_t nodes = 1;
  std::string fabric = "rail-fat-tree";
  std::optional<std::string> gpu;
  std::optional<std::int64_t> gpus_per_node;
  std::optional<double> oversubscription, nic_efficiency, gpu_clock, gpu_power;
  std::optional<std::int64_t> nics;
  std::optional<BytesPerSecond> nic_bandwidth;
  std::optional<MeasuredBandwidthSection> measured_bandwidth;
  std::string collectives = "nccl";
  bool nvls = true;
  std::string backend = "nccl";
};

struct ParallelismSection {
  std::int64_t tensor = 1, context = 1, pipeline = 1, expert = 1, expert_tensor = 1;
  std::int64_t context_ulysses = 1;
  std::optional<strategies::ContextKind> context_kind;
  std::optional<std::int64_t> data;            // auto
  std::optional<std::int64_t> data_shard;      // all
  bool sequence_parallel = false;
  std::optional<bool> overlap_tensor;
  std::string order;
};

struct ScenarioFile {
  std::string title;
  ModelSection model;
  ClusterSection cluster;
  strategies::Training training;
  ParallelismSection parallelism;
  strategies::DataParallel data_parallel;
  strategies::Pipeline pipeline;
  strategies::Memory memory;
  strategies::Tuning tuning;
  strategies::ExpertRouting experts;
  config::Value profile;   // keys of the framework profile
  std::vector<std::pair<std::string, std::vector<config::Value>>> sweep;
};

const config::Fields<ScenarioFile>& scenario_fields();

/// Puts what `sections` name (training, data_parallel, pipeline, experts, memory, tuning) in place of the strategy's own.
/// Throws ConfigError at the key that there is not.
void amend_strategy(strategies::Strategy& strategy, const config::Value& sections);

}  // namespace rehearse::scenario
