#include "sim/scenario/measured_alternatives.h"

#include <algorithm>

#include <fmt/core.h>

#include "strategies/plan_writer.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

bool like_megatron(const Scenario& s) { return is_megatron(s.profile.name) || s.profile.name == "gpt-neox"; }

void more_recomputation(const Scenario& s, std::vector<Scenario>& list) {
  const st::Memory& now = s.strategy.memory;
  for (const int every : {3, 2, 1}) {
    if (now.recompute != st::Recompute::full || every >= now.recompute_every) continue;
    list.push_back(s);
    list.back().strategy.memory.recompute_every = every;
  }
  if (now.recompute != st::Recompute::none) return;
  if (s.profile.name == "deepseek") {   // what its report makes again
    list.push_back(s);
    list.back().strategy.memory.recompute = st::Recompute::selective;
  }
  // Megatron's cheap modules first, then more and more whole layers of each chunk.
  if (s.profile.name == "megatron-core" || is_nvidia_recipe(s.profile.name)) {
    list.push_back(s);
    list.back().strategy.memory.recompute = st::Recompute::selective;
    list.back().strategy.memory.recompute_modules = {"core_attn", "layernorm", "mlp_act", "moe_act", "mla_up_proj"};
    const std::int64_t chunks = std::max(1, s.strategy.parallelism.degrees.pipeline) * std::max<std::int64_t>(1, s.strategy.pipeline.virtual_stages);
    for (int layers = 1; layers < s.model.layer_count() / chunks; layers *= 2) {
      list.push_back(s);
      list.back().strategy.memory.recompute = st::Recompute::full;
      list.back().strategy.memory.recompute_layers = layers;
    }
  }
  list.push_back(s);
  list.back().strategy.memory.recompute = st::Recompute::full;
}

/// Optimizer states shared, tensor parallelism inside a node, then pipeline stages; experts over the ranks of a node.
std::vector<Scenario> more_model_parallelism(const Scenario& s) {
  std::vector<Scenario> list;
  const std::int64_t gpus = s.gpus(), layers = s.model.layer_count();
  std::int64_t experts = 1;
  for (const model::Layer& layer : s.model.layers)
    if (layer.moe) experts = s.model.experts.experts;
  const auto add = [&](int tensor, int pipeline) {
    const std::int64_t parts = static_cast<std::int64_t>(tensor) * pipeline;
    if (parts > gpus || gpus % parts != 0 || layers % pipeline != 0) return;
    Scenario other = s;
    st::Degrees& d = other.strategy.parallelism.degrees;
    d.tensor = tensor;
    d.pipeline = pipeline;
    d.data = static_cast<int>(gpus / parts);
    if (experts > 1) {
      d.expert_tensor = 1;
      for (const int ranks : {2, 4, 8})
        if (experts % ranks == 0 && (d.data * d.tensor) % ranks == 0 && ranks <= s.cluster.gpus_per_node) d.expert = ranks;
    }
    if (d.pipeline > 1) other.strategy.pipeline.schedule = "1f1b";
    other.notes.push_back(fmt::format("degrees not stated, taken as the least that fits from tensor {}, pipeline {}, expert {} on", d.tensor, d.pipeline, d.expert));
    // As NVIDIA's recipes of that generation have it; experts beside tensor parallelism demand it.
    other.strategy.parallelism.sequence_parallel = tensor > 1 && s.profile.name == "megatron-core";
    other.strategy.data_parallel.kind = d.data == 1 ? st::DataParallelKind::none : s.profile.name == "megatron-core" ? st::DataParallelKind::distributed_optimizer : other.strategy.data_parallel.kind;
    list.push_back(std::move(other));
  };
  if (experts > 1 || s.profile.name == "megatron-core") add(1, 1);
  for (int tensor = 2; tensor <= s.cluster.gpus_per_node; tensor *= 2) add(tensor, 1);
  int most = 1;
  while (most * 2 <= s.cluster.gpus_per_node) most *= 2;
  constexpr std::int64_t kMostStages = 1024;   // as many as a scenario may have
  for (int pipeline = 2; pipeline <= std::min(layers, kMostStages); ++pipeline) add(most, pipeline);
  return list;
}

/// Whoever offloads with DeepSpeed has its checkpoints in host memory too where nothing else fits (cpu_checkpointing).
void more_offload(const Scenario& s, bool recomputation_open, std::vector<Scenario>& list) {
  const st::Offload& now = s.strategy.memory.offload;
  if (!s.profile.name.starts_with("deepspeed") || now.optimizer == st::MemoryTier::device || now.activations != st::MemoryTier::device) return;
  if (!recomputation_open && s.strategy.memory.recompute != st::Recompute::full) return;
  Scenario& other = list.emplace_back(s);
  other.strategy.memory.recompute = st::Recompute::full;
  other.strategy.memory.offload.activations = st::MemoryTier::cpu;
  other.notes.emplace_back("activations not stated, checkpoints taken as offloaded to host memory, without which it does not fit");
}

/// The tensor degree is stated, pipeline and data-parallel degrees are not: more and more stages, whose replicas share optimizer states unless told otherwise.
bool stages_open(const config::CsvRow& row) { return !cell(row, "tp").empty() && cell(row, "pp").empty() && cell(row, "dp").empty(); }

std::vector<Scenario> more_stages(const config::CsvRow& row, const Scenario& s) {
  std::vector<Scenario> list;
  const std::int64_t replicas = s.strategy.parallelism.degrees.data, layers = s.model.layer_count();
  constexpr std::int64_t kMostStages = 1024;   // as many as a scenario may have
  for (int pipeline = 2; pipeline <= std::min({layers, replicas, kMostStages}); ++pipeline) {
    if (replicas % pipeline != 0 || layers % pipeline != 0) continue;
    Scenario& other = list.emplace_back(s);
    other.strategy.parallelism.degrees.pipeline = pipeline;
    other.strategy.parallelism.degrees.data = static_cast<int>(replicas / pipeline);
    other.strategy.pipeline.schedule = "1f1b";
    if (other.strategy.parallelism.degrees.data == 1) other.strategy.data_parallel.kind = st::DataParallelKind::none;
    else if (s.profile.name == "megatron-core" && cell(row, "sharding").empty()) other.strategy.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
    other.notes.push_back(fmt::format("pipeline stages not stated, taken as the least that fit: {}", pipeline));
  }
  return list;
}

}  // namespace

std::optional<Scenario> least_split(const config::CsvRow& row, const Scenario& s) {
  if (!like_megatron(s) || !degrees_open(row)) return std::nullopt;
  for (Scenario& split : more_model_parallelism(s))
    if (problems_of(split).empty()) return std::move(split);
  return std::nullopt;
}

void add_alternatives(const config::CsvRow& row, const Scenario& s, MeasuredRun& run) {
  const st::Degrees& d = s.strategy.parallelism.degrees;
  const bool tensor_open = cell(row, "tp").empty() && cell(row, "dp").empty() && like_megatron(s);
  for (const int tensor : {1, 2, 4, 8}) {
    if (tensor > 1 && (!tensor_open || d.data % tensor != 0 || tensor > s.cluster.gpus_per_node)) break;
    for (const std::int64_t micro_batch : {1, 2, 4, 8, 16, 32}) {
      Scenario other = s;
      other.strategy.training.micro_batch_size = micro_batch;
      if (tensor > 1) other.strategy.parallelism.degrees.tensor = tensor, other.strategy.parallelism.degrees.data = d.data / tensor;
      if (s.strategy.training.global_batch_size % (micro_batch * other.strategy.parallelism.degrees.data) != 0) break;
      if (problems_of(other).empty()) run.alternatives.push_back(std::move(other));
    }
  }
}

std::vector<Scenario> more_chunks(const Scenario& s) {
  std::vector<Scenario> list;
  const int stages = s.strategy.parallelism.degrees.pipeline;
  if (stages == 1 || s.model.layer_count() % stages != 0) return list;
  const std::int64_t layers = s.model.layer_count() / stages;
  for (std::int64_t chunks = 2; chunks <= layers; ++chunks) {
    if (layers % chunks != 0) continue;
    Scenario other = s;
    other.strategy.pipeline.schedule = "interleaved-1f1b";
    other.strategy.pipeline.virtual_stages = static_cast<int>(chunks);
    if (problems_of(other).empty()) list.push_back(std::move(other));
  }
  return list;
}

void add_smaller(const config::CsvRow& row, const Scenario& s, bool recomputation_open, MeasuredRun& run) {
  const bool old_megatron = s.profile.name == "megatron-2021";   // Megatron-DeepSpeed: ZeRO-1
  if ((s.profile.name == "megatron-core" || old_megatron) && cell(row, "sharding").empty() && !degrees_open(row) && s.strategy.data_parallel.kind == st::DataParallelKind::ddp) {
    Scenario shared = s;
    shared.strategy.data_parallel.kind = st::DataParallelKind::distributed_optimizer;
    shared.notes.emplace_back(std::string("sharding not stated, taken as ") + (old_megatron ? "ZeRO-1" : "Megatron's distributed optimizer") + ", without which it does not fit");
    run.smaller.push_back(shared);
    if (recomputation_open) more_recomputation(shared, run.smaller);
  }
  if (recomputation_open) more_recomputation(s, run.smaller);
  using K = st::DataParallelKind;
  const K kind = s.strategy.data_parallel.kind;
  const std::string stated = lower(cell(row, "sharding"));
  std::vector<K> kinds;
  if (kind == K::zero1 && !contains(stated, "1")) kinds = {K::zero2, K::zero3};
  else if (kind == K::ddp && stated.empty() && s.profile.name == "deepspeed") kinds = {K::zero1, K::zero2, K::zero3};
  else if (kind == K::ddp && stated.empty() && s.profile.name == "huggingface") kinds = {K::fsdp1};
  for (const K more : kinds) {
    Scenario shared = s;
    shared.strategy.data_parallel.kind = more;
    shared.notes.emplace_back("sharding not stated, taken as the least that fits");
    run.smaller.push_back(shared);
    if (recomputation_open) more_recomputation(shared, run.smaller);
  }
  if (like_megatron(s) && stages_open(row))
    for (const Scenario& split : more_stages(row, s)) {
      run.smaller.push_back(split);
      if (recomputation_open) more_recomputation(split, run.smaller);
    }
  if (like_megatron(s) && degrees_open(row))
    for (const Scenario& split : more_model_parallelism(s)) {
      run.smaller.push_back(split);
      if (recomputation_open) more_recomputation(split, run.smaller);
    }
  more_offload(s, recomputation_open, run.smaller);
  std::erase_if(run.smaller, [](const Scenario& other) { return !problems_of(other).empty(); });
}

}  // namespace rehearse::scenario
