#include "strategies/data/problems.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace rehearse::strategies {
namespace {

using Kind = DataParallelKind;

/// ZeRO++: groups are made of consecutive ranks of the whole job (deepspeed/utils/groups.py, _create_zero_param_parallel_group,
/// _get_local_all_to_all_group).
void zeropp_problems(const Strategy& s, int gpus_per_node, std::vector<Diagnostic>& out) {
  const auto forbid = [&](bool broken, const char* key, std::string problem, std::string fix) {
    if (broken) out.push_back({{}, key, std::move(problem), std::move(fix), ""});
  };
  const DataParallel& dp = s.data_parallel;
  const Degrees& d = s.parallelism.degrees;
  const std::int64_t second = dp.secondary_partition.value_or(1), ranks = static_cast<std::int64_t>(d.data) * d.context;
  for (const auto& [key, is] : {std::pair{"data_parallel.secondary_partition", second > 1}, std::pair{"data_parallel.quantized_gradients", dp.quantized_gradients}}) {
    if (!is) continue;
    forbid(d.tensor > 1, key, "DeepSpeed makes its groups of consecutive ranks, and those of a tensor group have other weights", "Use parallelism.tensor 1, or leave the key out");
    forbid(d.shard() != d.data, key, fmt::format("weights are shared by {} of {} data-parallel ranks already", d.shard(), d.data), "Leave out parallelism.data_shard (DeepSpeed: mics_shard_size)");
    forbid(d.expert > 1 || d.expert_tensor > 1, key, "experts on different ranks are shared by other groups (DeepSpeed refuses it with expert parallelism)", "Use parallelism.expert 1, or leave the key out");
  }
  forbid(second > 1 && ranks % second != 0, "data_parallel.secondary_partition", fmt::format("{} does not divide the {} ranks that share the weights", second, ranks), fmt::format("Use the GPUs of a node, {}", gpus_per_node));
  forbid(second > 1 && s.memory.offload.parameters != MemoryTier::device, "data_parallel.secondary_partition", "a second copy saves traffic between GPUs, and offloaded weights come from the host", "Leave the key out, or memory.offload.parameters");
  forbid(dp.quantized_gradients && ranks > gpus_per_node && ranks % gpus_per_node != 0, "data_parallel.quantized_gradients", fmt::format("{} ranks do not fill nodes of {} GPUs", ranks, gpus_per_node), "Use whole nodes, or leave the key out");
  forbid(second > 1 && !dp.memory_efficient_linear, "data_parallel.memory_efficient_linear", "what autograd keeps beside a second partition is not simulated", "Leave it out, or data_parallel.secondary_partition");
  forbid(dp.quantized_weights && s.tuning.four_bit(), "data_parallel.quantized_weights", "4-bit weights travel as they are", "Leave the key out, or use tuning.kind lora");
}

}  // namespace

std::vector<Diagnostic> zero_problems(const Strategy& s, int gpus_per_node) {
  std::vector<Diagnostic> out;
  const DataParallel& dp = s.data_parallel;
  const bool zero3 = dp.kind == Kind::zero3;
  if ((zero3 || dp.kind == Kind::zero2) && s.parallelism.degrees.pipeline > 1)
    out.push_back({{}, "data_parallel.kind", std::string(zero3 ? "zero3" : "zero2") + " cannot be under pipeline stages: DeepSpeed's PipelineEngine refuses ZeRO-2 and ZeRO-3, since every micro-batch would reduce (and gather) for each stage",
                   "Use zero1, or fsdp2 with framework torchtitan, or parallelism.pipeline 1", ""});
  for (const auto& [key, given] : {std::pair{"data_parallel.prefetch_bucket", dp.prefetch_bucket.has_value()}, {"data_parallel.max_live_parameters", dp.max_live_parameters.has_value()},
                                   {"data_parallel.max_reuse_distance", dp.max_reuse_distance.has_value()}, {"data_parallel.persistence_threshold", dp.persistence_threshold.has_value()}})
    if (given && !zero3) out.push_back({{}, key, "only ZeRO-3 gathers module by module", "Leave the key out", ""});
  if (!dp.memory_efficient_linear && !zero3) out.push_back({{}, "data_parallel.memory_efficient_linear", "only ZeRO-3 has a linear layer of its own", "Leave the key out", ""});
  if (dp.sub_group && !zero3) out.push_back({{}, "data_parallel.sub_group", "only ZeRO-3 updates its states in pieces", "Leave the key out", ""});
  for (const auto& [key, given] : {std::pair{"data_parallel.secondary_partition", dp.secondary_partition.value_or(1) > 1}, {"data_parallel.quantized_weights", dp.quantized_weights},
                                   {"data_parallel.quantized_gradients", dp.quantized_gradients}})
    if (given && !zero3) out.push_back({{}, key, "ZeRO++ is a form of ZeRO-3", "Set data_parallel.kind: zero3, or leave the key out", ""});
  if (zero3) zeropp_problems(s, gpus_per_node, out);
  // Source: DeepSpeed 0.16.9, runtime/zero/mics.py, allreduce_mics_shard_grads.
  if (zero3 && s.parallelism.degrees.shard() != s.parallelism.degrees.data && s.memory.offload.optimizer != MemoryTier::device)
    out.push_back({{}, "memory.offload.optimizer", "shards that have replicas (MiCS) are summed over these on the GPU, and DeepSpeed refuses to offload them", "Leave out parallelism.data_shard, or the offload", ""});
  return out;
}

}  // namespace rehearse::strategies
