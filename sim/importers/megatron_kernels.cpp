// Which kernels run where arguments, and variables of the environment, say otherwise than the framework profile.
#include "sim/importers/megatron_parts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "sim/config/units.h"

namespace rehearse::importers {

Bytes cublas_workspace_of(const std::string& config) {
  std::int64_t kib = 0;
  const char* at = config.c_str();
  while (*at == ':') {
    char* end = nullptr;
    const std::int64_t size = std::strtoll(at + 1, &end, 10);
    if (*end != ':') break;
    const std::int64_t count = std::strtoll(end + 1, &end, 10);
    if (size < 0 || count < 0 || size > (1 << 30) || count > (1 << 10)) break;
    kib += size * count;
    at = end;
  }
  return Bytes{kib * 1024};
}

namespace {

/// Kernels that add in a fixed order. Tokens' outputs are then summed by index_add_ (megatron/core/transformer/moe/moe_utils.py, unpermute), unless
/// Transformer Engine's kernel does it.
void read_determinism(Importer& in, bool experts) {
  constexpr const char *kMode = "deterministic_mode", *kVariable = "NVTE_ALLOW_NONDETERMINISTIC_ALGO";
  const bool all = in.flag(kMode).value_or(false), attention = in.integer(kVariable).value_or(1) == 0;
  if (all || attention) in.set("profile.deterministic_attention", "true", all ? kMode : kVariable);
  if (all && experts && !in.flag("moe_permute_fusion").value_or(false)) in.set("profile.sums_slots_by_index_add", "true", kMode);
  if (!all && in.has(kMode)) in.use(kMode, "kernels add in any order");
  if (in.has(kVariable) && (all || !attention)) in.use(kVariable, all ? "deterministic_mode says so too" : "kernels add in any order");
}

/// Transformer Engine's choice among its attention kernels (pytorch/attention/dot_product_attention/utils.py); Megatron-LM sets the variables by
/// --attention-backend (megatron/training/arguments.py).
void read_attention(Importer& in, const MegatronLayer& layer) {
  const std::string backend = in.word("attention_backend").value_or("");
  const bool cudnn_off = in.integer("NVTE_FUSED_ATTN").value_or(1) == 0;
  if (layer.unfused_attention) {
    const char* off = in.has("masked_softmax_fusion") ? "masked_softmax_fusion" : "no_masked_softmax_fusion";
    const bool fused = in.has("masked_softmax_fusion") ? in.flag(off).value_or(true) : !in.flag(off).value_or(false);
    if (!fused && (in.flag("attention_softmax_in_fp32").value_or(false) || in.flag("apply_query_key_layer_scaling").value_or(false))) in.set("profile.softmax_in_fp32", "true", off);
    else if (in.has(off)) in.use(off, fused ? "scale, mask and softmax are one kernel" : "scale, mask and softmax of 16 bits are simulated as one kernel all the same");
  } else if (backend.ends_with("flash") || layer.own_flash_attention) {
    in.set("profile.cudnn_attention_from", "0", layer.own_flash_attention ? "use_flash_attn" : "attention_backend", "flash-attn's kernel on every GPU");
  } else if (cudnn_off) {
    in.set("profile.cudnn_attention_from", "0", "NVTE_FUSED_ATTN", "flash-attn's kernel on every GPU");
  }
  for (const char* key : {"masked_softmax_fusion", "no_masked_softmax_fusion"})
    if (!layer.unfused_attention && in.has(key)) in.use(key, "attention is one kernel, which has the softmax inside");
  if (in.has("NVTE_FUSED_ATTN")) in.use("NVTE_FUSED_ATTN", cudnn_off ? "no attention of cuDNN's" : "attention of cuDNN's where it is preferred");
}

/// Megatron's models from before Megatron-Core have no kernels for SwiGLU and rotary embeddings, nor for RMSNorm.
/// Source: megatron/legacy/model/transformer.py (ParallelMLP, ParallelAttention), rms_norm.py; megatron/core/models/common/embeddings of 2023.
void read_fusions(Importer& in, const MegatronLayer& layer) {
  if (layer.legacy) {
    const char* by = in.has("use_legacy_models") ? "use_legacy_models" : "use_mcore_models";
    in.set("profile.rope", "eager", by);
    if (layer.gated) in.set("profile.activation", "native", by);
    in.set("profile.gate_offset", "false", by);
    if (layer.own_rms_norm) in.set("profile.norm", "eager", by);
  }
  const char* swiglu = in.has("bias_swiglu_fusion") ? "bias_swiglu_fusion" : "no_bias_swiglu_fusion";
  const bool eager = in.has("bias_swiglu_fusion") ? !in.flag(swiglu).value_or(true) : in.flag(swiglu).value_or(false);
  if (eager && layer.gated) in.set("profile.activation", "native", swiglu);
  // GELU without the fused kernel: PyTorch adds the bias, then applies the function (megatron/core/transformer/mlp.py).
  const char* gelu = in.has("bias_gelu_fusion") ? "bias_gelu_fusion" : "no_bias_gelu_fusion";
  const bool plain = in.has("bias_gelu_fusion") ? !in.flag(gelu).value_or(true) : in.flag(gelu).value_or(false);
  if (plain && !layer.gated && !in.flag("squared_relu").value_or(false)) in.set("profile.activation", "native", gelu);
  else if (in.has(gelu)) in.use(gelu, plain ? "the activation is no GELU" : "the default");
  constexpr const char* kWeighted = "use_fused_weighted_squared_relu";
  if (const auto weighted = in.flag(kWeighted)) in.set("profile.weighted_squared_relu", *weighted ? "true" : "false", kWeighted);
}

std::vector<std::string> modules_of(Importer& in, const char* key) {
  const config::Value* v = in.find(key);
  if (v == nullptr) return {};
  std::string text = v->text();
  for (const config::Value& item : v->items()) text += " " + item.text();
  return module_names(text);
}

/// Source: megatron/core/transformer/transformer_config.py, cuda_graph_impl, cuda_graph_modules and what it does of their older names.
void read_graphs(Importer& in, bool experts) {
  constexpr const char *kImplementation = "cuda_graph_impl", *kModules = "cuda_graph_modules", *kScope = "cuda_graph_scope";
  const char* by = kImplementation;
  std::string implementation = in.word(kImplementation).value_or("none");
  for (const char* older : {"enable_cuda_graph", "external_cuda_graph"})
    if (const auto on = in.flag(older)) {
      if (*on) by = older, implementation = "by its older name";
      else in.use(older, "no graphs");
    }
  std::vector<std::string> modules = modules_of(in, kModules);
  for (std::string& word : modules_of(in, kScope)) modules.push_back(std::move(word));
  const char* parts = in.has(kModules) ? kModules : kScope;
  std::erase_if(modules, [](const std::string& m) { return m == "full" || m == "full_iteration_inference"; });
  if (implementation == "none" || implementation == "None") {
    for (const char* key : {kImplementation, kModules, kScope})
      if (in.has(key)) in.use(key, "no graphs");
    return;
  }
  const char* told = by;
  if (implementation == "full_iteration" || std::find(modules.begin(), modules.end(), "full_iteration") != modules.end()) {
    if (implementation != "full_iteration") told = parts;
    in.set("training.cuda_graph", "true", told);
  } else if (!modules.empty()) {
    told = parts;
    in.set_list("training.cuda_graph_modules", modules, told);
  } else {
    std::vector<std::string> whole{"attn", experts ? "moe" : "mlp"};
    if (in.has("hybrid_layer_pattern") || in.has("hybrid_override_pattern")) whole = {"mamba", "attn", experts ? "moe" : "mlp"};
    in.set_list("training.cuda_graph_modules", whole, by);
  }
  for (const char* key : {kImplementation, kModules, kScope})
    if (in.has(key) && std::string_view(key) != told) in.use(key, std::string("see ") + told);
}

}  // namespace

void read_megatron_kernels(Importer& in, const MegatronLayer& layer) {
  const bool experts = in.has("num_experts") || in.has("num_moe_experts");
  read_determinism(in, experts);
  read_attention(in, layer);
  read_fusions(in, layer);
  read_graphs(in, experts);
  constexpr const char* kGrouped = "moe_grouped_gemm";
  if (experts && !in.flag(kGrouped).value_or(false)) {
    if (in.has(kGrouped)) in.set("profile.grouped_experts", "false", kGrouped);
    else in.assume("profile.grouped_experts", "false", "moe_grouped_gemm is not given: one expert's products after the other's");
  }
  constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";
  if (const Bytes workspace = cublas_workspace_of(in.word(kWorkspace).value_or("")); workspace > Bytes{0}) in.set("profile.cublas_workspace", config::to_text(workspace), kWorkspace);
  else if (in.has(kWorkspace)) in.use(kWorkspace, "no sizes");
}

}  // namespace rehearse::importers
