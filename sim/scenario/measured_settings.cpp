#include "sim/scenario/measured_settings.h"

#include <regex>
#include <string>
#include <utility>

namespace rehearse::scenario {
namespace {

namespace st = strategies;

void apply_experts(const config::CsvRow& row, const std::string& note, Scenario& s) {
  if (s.model.experts.experts == 0) return;
  if (contains(note, "alltoall dispatcher")) s.strategy.experts.dispatcher = s.profile.dispatcher = st::Dispatcher::all_to_all;
  if (contains(note, "moe_grouped_gemm false")) s.profile.grouped_experts = false;
  if (contains(note, "fake balanced gate")) s.strategy.experts.routing.distribution = st::RoutingKind::round_robin;
  static const std::regex kCapacity(R"(capacity factor ([0-9]{1,4}(?:\.[0-9]{1,6})?)(, padded)?)");
  std::smatch found;
  if (std::regex_search(note, found, kCapacity)) {
    s.strategy.experts.capacity_factor = std::stod(found[1].str());
    s.strategy.experts.pad_to_capacity = found[2].matched;
  } else if (contains(cell(row, "model"), "tokendrop")) {
    s.strategy.experts.capacity_factor = 1;
    s.strategy.experts.pad_to_capacity = true;
  }
}

void apply_stages(const std::string& note, Scenario& s) {
  const int stages = s.strategy.parallelism.degrees.pipeline;
  if (stages < 2) return;
  // torch.distributed.pipelining runs the schedules of all three.
  std::string& schedule = s.strategy.pipeline.schedule;
  const bool pytorch = s.profile.name.starts_with("torchtitan") || s.profile.name.starts_with("nemo-automodel") || s.profile.name.starts_with("kempnerforge");
  if (contains(note, "FSDP2 units are resharded after forward")) s.strategy.data_parallel.reshard_after_forward = true;
  if (pytorch && (schedule == "1f1b" || schedule == "interleaved-1f1b")) schedule = "pytorch-" + schedule;
  static const std::regex kLocal(R"(local batch ([0-9]{1,6}))");   // samples that one run of PyTorch's schedule takes
  std::smatch local;
  if (s.profile.name.starts_with("nemo-automodel") && std::regex_search(note, local, kLocal)) {
    const std::int64_t samples = std::stoll(local[1].str()), all = s.strategy.training.global_batch_size / s.strategy.parallelism.degrees.data;
    if (samples > 0 && all % samples == 0) s.strategy.pipeline.accumulation_steps = static_cast<int>(all / samples);
  }
  static const std::regex kDeferred(R"(wgrad_deferral_limit ([0-9]{1,6}))"), kEnds(R"(first stage ([0-9]{1,4}) layers, last ([0-9]{1,4}))");
  std::smatch found;
  if (std::regex_search(note, found, kDeferred)) s.strategy.pipeline.deferred_head_gradients = std::stoi(found[1].str());
  if (!std::regex_search(note, found, kEnds) || stages < 3 || s.strategy.pipeline.virtual_stages > 1) return;
  const std::int64_t first = std::stoi(found[1].str()), last = std::stoi(found[2].str()), middle = s.model.layer_count() - first - last;
  if (middle < 0 || middle % (stages - 2) != 0) return;
  s.strategy.pipeline.layers_per_stage.assign(static_cast<std::size_t>(stages), middle / (stages - 2));
  s.strategy.pipeline.layers_per_stage.front() = first;
  s.strategy.pipeline.layers_per_stage.back() = last;
}

void apply_recomputed_modules(const std::string& note, st::Memory& memory) {
  static const std::regex kModules(R"(recompute_modules ([a-z_]+(,[a-z_]+)*))");
  std::smatch found;
  if (memory.recompute != st::Recompute::selective || !std::regex_search(note, found, kModules)) return;
  memory.recompute_modules.clear();
  std::string word;
  for (const char c : found[1].str() + ",") {
    if (c != ',') word += c;
    else memory.recompute_modules.push_back(std::exchange(word, {}));
  }
}

/// NeMo 24.x with Megatron-Core's optimizer in place of Apex's: its buckets (megatron/core/distributed: max(40 M, 1 M x data-parallel
/// size) parameters) and fp32 copies of the parameters (core 0.9 to 0.10, optimizer/distrib_optimizer.py; no store_param_remainders).
void apply_megatron_optimizer(st::FrameworkProfile& profile) {
  const st::FrameworkProfile megatron = st::load_profile("megatron-bridge");
  profile.bucket_by_layer = megatron.bucket_by_layer;
  profile.bucket_elements = megatron.bucket_elements;
  profile.bucket_elements_per_rank = megatron.bucket_elements_per_rank;
  profile.parameter_remainders = megatron.parameter_remainders;
}

/// NVLink SHARP, as the note has it. NVIDIA's recipes switch it off "to save memory": NeMo-Framework-Launcher launcher_scripts/conf/config.yaml,
/// NVIDIA/NeMo at v2.0.0 to v2.3.0 (examples/llm/pretrain/default_executor.py, scripts/performance/utils.py), 415 of 431 of Megatron-Bridge's
/// src/megatron/bridge/perf_recipes; the others are GPT-OSS on Blackwell, and Megatron-FSDP with user buffers. MLPerf's scripts have it both ways.
void apply_nvls(const config::CsvRow& row, const std::string& note, Scenario& s) {
  const std::string framework = cell(row, "framework");
  const bool recipe = (framework == "nemo" || framework == "megatron-bridge") && !contains(cell(row, "source"), "training_results");
  const bool kept = contains(note, "NCCL_NVLS_ENABLE=1") || s.model.family == "gpt_oss" || s.strategy.data_parallel.kind == st::DataParallelKind::megatron_fsdp;
  if (contains(note, "NCCL_NVLS_ENABLE=0") || (recipe && !kept)) s.communication.nvls = false;
}

}  // namespace

void apply_stated_settings(const config::CsvRow& row, Scenario& s) {
  const std::string note = cell(row, "note");
  apply_experts(row, note, s);
  apply_stages(note, s);
  apply_recomputed_modules(note, s.strategy.memory);
  apply_nvls(row, note, s);
  if (contains(note, "mcore_distributed_optim") && s.profile.name == "nemo-2024") apply_megatron_optimizer(s.profile);
  // FSDP1's SHARD_GRAD_OP, FSDP2 without reshard_after_forward. FULL_SHARD, which is dropped after forward, is what nobody names.
  static const std::regex kKept(R"((FSDP[12]?|shard_mode) zero2\b)");
  const st::DataParallelKind kind = s.strategy.data_parallel.kind;
  if ((kind == st::DataParallelKind::fsdp1 || kind == st::DataParallelKind::fsdp2) && std::regex_search(note, kKept)) s.strategy.data_parallel.reshard_after_forward = false;
  if (contains(note, "CUDA_LAUNCH_BLOCKING=1")) s.strategy.training.launch_blocking = true;
  if (contains(note, "no tp_comm_overlap")) s.profile.overlap_tensor = false;
}

}  // namespace rehearse::scenario
