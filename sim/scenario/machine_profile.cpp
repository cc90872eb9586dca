#include "sim/scenario/machine_profile.h"

#include <algorithm>

#include "hwmodels/memory/device_memory.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {

namespace st = strategies;

st::FrameworkProfile profile_on_machine(const Scenario& s) {
  const int capability = s.cluster.gpu.compute_capability;
  st::FrameworkProfile profile = st::with_workspaces(s.profile, hwmodels::device_overheads(s.cluster.gpu).cublas_workspace, hwmodels::transformer_engine_workspace(s.cluster.gpu), s.model.experts.experts > 0);
  // On Blackwell cuDNN's backward is deterministic without dropout only (transformer_engine/common/fused_attn/fused_attn.cpp,
  // nvte_get_fused_attn_backend): FlashAttention it is then.
  const bool not_deterministic = profile.deterministic_attention && capability >= 100 && profile.dropout && s.model.attention_dropout > 0;
  const bool amd = hwmodels::is_cdna(s.cluster.gpu.architecture);
  if (!amd && profile.cudnn_attention_from > 0 && capability >= profile.cudnn_attention_from && !not_deterministic) profile.attention = profile.cudnn_attention;
  if (!amd && capability >= 80 && profile.flex_attention == (s.model.attention_sinks ? st::FlexUse::with_sinks : st::FlexUse::without_sinks)) profile.attention = model::AttentionKernel::flex;
  profile.attention = s.strategy.training.attention_kernel.value_or(profile.attention);
  // PyTorch's attention on AMD's GPUs is made of Triton's kernels (AOTriton), from 0.11 on (pytorch/pytorch pull request 161754) with AITER's assembly
  // backward; flash-attn's of Composable Kernel's; Transformer Engine takes AITER's.
  if (amd && profile.attention == model::AttentionKernel::flash2 && !profile.aiter_attention)
    profile.attention = !profile.sdpa_attention ? model::AttentionKernel::composable : profile.triton_backward ? model::AttentionKernel::aotriton : model::AttentionKernel::aotriton_assembly;
  // The products of Blackwell's tensor cores take 8-bit operands in both orientations (cuBLAS: TN, NN and NT from compute
  // capability 10.0 on).
  profile.transposes_fp8 = capability < 100;
  const auto& unfused = profile.native_activation_of;
  if (std::find(unfused.begin(), unfused.end(), s.model.family) != unfused.end()) profile.gated_activation = st::Fusion::native;
  // Remainders complete bf16 weights to fp32 ones.
  const st::Precision precision = s.strategy.training.precision;
  if (profile.fp8_parameters && (precision == st::Precision::fp8 || precision == st::Precision::mxfp8)) profile.parameter_remainders = false;
  // Jobs whose own all-gather over several nodes carried less than half of what it carried within a node have the stall with
  // any kind of parallelism, jobs with a better network do not (tests/accuracy/runs/nanotron_ultrascale_playbook.csv).
  if (const auto& m = s.communication.measured; m && s.cluster.nodes > 1) profile.proxies_always_stall = m->all_gather_world > 0 && m->all_gather_world < m->all_gather_node / 2;
  // DeepSpeed flattens on the host where what is left of the GPU's memory would not hold the copy (runtime/zero/stage_1_and_2.py, flatten_on_accelerator).
  const auto parameters = st::parameters_per_stage(s.model, s.strategy, s.profile);
  const std::int64_t loaded = *std::max_element(parameters.begin(), parameters.end()) * bits(profile.stored_parameter) / 8;
  if (Bytes{2 * loaded} > s.cluster.gpu.memory - hwmodels::device_overheads(s.cluster.gpu, s.profile.lazy_modules).context) profile.flattens_on_device = false;
  for (Duration* d : st::issue_times(profile))
    *d = Duration{static_cast<std::int64_t>(static_cast<double>(d->count()) * s.cluster.node.cpu.launch_time)};
  return profile;
}

std::unique_ptr<hwmodels::Network> network_of(const Scenario& s) {
  hwmodels::CommunicationOptions communication = s.communication;
  communication.connects_at_once = s.profile.connects_at_once;
  return hwmodels::make_network(s.cluster, communication);
}

}  // namespace rehearse::scenario
