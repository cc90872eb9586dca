// One function per Hugging Face model family: config.json fields in, model description out.
// Leaves out finding the right family and the report (huggingface.cpp). Internal to this room.
#pragma once

#include "sim/core/catalog.h"
#include "sim/model/model_fields.h"

namespace rehearse::model {

using FamilyReader = ModelDescription (*)(ModelFields&);

/// Every model_type that is understood.
extern const Catalog<FamilyReader> kHuggingFaceFamilies;

/// Why a field of any family's config.json does not matter to training cost; null pointer when it is not
/// known.
const char* reason_to_ignore(const std::string& key);

/// What a family's configuration class takes for absent fields. 0 = derived: kv_heads from heads, head_dim
/// from hidden / heads, ffn_hidden from 4 * hidden.
struct FamilyDefaults {
  std::int64_t ffn_hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  bool tied = false;
  Activation activation = Activation::silu;
};

/// The part that all families with Llama's field names share; leaves the layers without windows and experts.
ModelDescription read_llama_like(ModelFields& fields, const FamilyDefaults& defaults);
/// hidden / heads, or 0 when it is not whole (problems_of then names both).
std::int64_t derived_head_dim(const ModelDescription& model);
/// Rotated part of the head: `partial_rotary_factor` at the top or inside rope_parameters, or an older name.
std::int64_t read_rotary_dim(ModelFields& fields, const ModelDescription& model, double fallback);
void set_layer_count(ModelDescription& model, std::int64_t count);

/// Sets windows from `layer_types`, or from `is_local(layer)` where the file has no such list.
template <typename IsLocal>
void set_windows(ModelDescription& model, std::int64_t window, bool chunked, IsLocal is_local) {
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    if (window > 0 && is_local(static_cast<std::int64_t>(i))) {
      model.layers[i].window = window;
      model.layers[i].chunked = chunked;
    }
}
/// True when the file has `layer_types`; then the windows are set, and every mistake in the list is reported.
bool read_layer_types(ModelFields& fields, ModelDescription& model, std::int64_t window);
/// Layers without positions: listed in `no_rope_layers` (1 = has them), or every `no_rope_layer_interval`-th.
void read_layers_without_positions(ModelFields& fields, ModelDescription& model, std::int64_t interval);
void all_layers_moe(ModelDescription& model);
/// Qwen: which layers have experts.
void read_qwen_moe_layers(ModelFields& fields, ModelDescription& model);
/// Experts by DeepSeek's field names: groups, shared experts as a number of routed ones, dense layers first.
void read_deepseek_experts(ModelFields& fields, ModelDescription& model, const Experts& defaults, std::int64_t shared_experts, std::int64_t dense_layers);

// huggingface_llama.cpp: Llama's field names
ModelDescription read_llama(ModelFields& fields);
ModelDescription read_granite(ModelFields& fields);
ModelDescription read_helium(ModelFields& fields);
ModelDescription read_arcee(ModelFields& fields);
ModelDescription read_smollm3(ModelFields& fields);
ModelDescription read_seed_oss(ModelFields& fields);
ModelDescription read_ernie4_5(ModelFields& fields);
ModelDescription read_internlm2(ModelFields& fields);
ModelDescription read_glm(ModelFields& fields);
ModelDescription read_mistral(ModelFields& fields);
ModelDescription read_ministral3(ModelFields& fields);
ModelDescription read_cwm(ModelFields& fields);
ModelDescription read_qwen2(ModelFields& fields);
ModelDescription read_qwen3(ModelFields& fields);
ModelDescription read_qwen2_moe(ModelFields& fields);
ModelDescription read_qwen3_moe(ModelFields& fields);
ModelDescription read_phi3(ModelFields& fields);
ModelDescription read_gpt_oss(ModelFields& fields);
// huggingface_norms.cpp: norms that lie elsewhere or are of another kind than Llama's
ModelDescription read_olmo(ModelFields& fields);
ModelDescription read_olmo2(ModelFields& fields);
ModelDescription read_olmo3(ModelFields& fields);
ModelDescription read_exaone4(ModelFields& fields);
ModelDescription read_glm4(ModelFields& fields);
ModelDescription read_cohere(ModelFields& fields);
ModelDescription read_cohere2(ModelFields& fields);
ModelDescription read_stablelm(ModelFields& fields);
ModelDescription read_nemotron(ModelFields& fields);
ModelDescription read_starcoder2(ModelFields& fields);
// huggingface_experts.cpp: mixtures of experts with Llama's attention
ModelDescription read_mixtral(ModelFields& fields);
ModelDescription read_olmoe(ModelFields& fields);
ModelDescription read_granitemoe(ModelFields& fields);
ModelDescription read_phimoe(ModelFields& fields);
ModelDescription read_minimax_m2(ModelFields& fields);
ModelDescription read_ernie4_5_moe(ModelFields& fields);
ModelDescription read_dots1(ModelFields& fields);
ModelDescription read_glm4_moe(ModelFields& fields);
ModelDescription read_solar_open(ModelFields& fields);
// huggingface_hybrid.cpp: state-space and delta-rule mixers beside attention
ModelDescription read_nemotron_h(ModelFields& fields);
ModelDescription read_bamba(ModelFields& fields);
ModelDescription read_granitemoehybrid(ModelFields& fields);
ModelDescription read_qwen3_next(ModelFields& fields);
ModelDescription read_qwen3_5(ModelFields& fields);
ModelDescription read_qwen3_5_moe(ModelFields& fields);
// huggingface_gemma.cpp
ModelDescription read_gemma(ModelFields& fields);
ModelDescription read_gemma2(ModelFields& fields);
ModelDescription read_gemma3(ModelFields& fields);
// huggingface_deepseek.cpp: large mixtures of experts with rules of their own
ModelDescription read_deepseek_v2(ModelFields& fields);
ModelDescription read_deepseek_v3(ModelFields& fields);
ModelDescription read_glm4_moe_lite(ModelFields& fields);
ModelDescription read_youtu(ModelFields& fields);
ModelDescription read_llama4(ModelFields& fields);
// huggingface_gpt.cpp: LayerNorm and two-matrix MLPs, each with its own field names
ModelDescription read_gpt2(ModelFields& fields);
ModelDescription read_gpt_bigcode(ModelFields& fields);
ModelDescription read_gpt_neo(ModelFields& fields);
ModelDescription read_gptj(ModelFields& fields);
ModelDescription read_codegen(ModelFields& fields);
ModelDescription read_mpt(ModelFields& fields);
ModelDescription read_persimmon(ModelFields& fields);
ModelDescription read_gpt_neox(ModelFields& fields);
ModelDescription read_falcon(ModelFields& fields);
ModelDescription read_opt(ModelFields& fields);
ModelDescription read_bloom(ModelFields& fields);
ModelDescription read_phi(ModelFields& fields);

}  // namespace rehearse::model
